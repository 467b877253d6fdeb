"""What the witness knows of debounce and throttle."""

from __future__ import annotations

from typing import Any

from tests.protocol.bucket import EVERY, GATHERS, LONGEST, QUIET, Effect, put
from tests.protocol.calls import ClientCall


def judge_sent_again(witness: Any, call: ClientCall, effect: Effect, *, again: bool) -> None:
    """Before it is noted: a gathered call that is sent again stores nothing once more."""
    old = witness.fates[effect.stamp]
    is_new = old is None or old.state == "erased" or not again or witness.went_back
    if call.policy in GATHERS and not is_new:
        witness.violations.append("16 a gathered call sent again was stored once more")


def judge_due(
    witness: Any, call: ClientCall, effect: Effect, effects: list[Effect], now: int
) -> None:
    """After it is noted: when a message may be due."""
    due = effect.score // 2
    if call.policy == "throttle":
        if due < witness.paced[effect.id] and not witness.went_back:
            witness.violations.append("15 a throttled message is due too soon")
        witness.change(effect.stamp, is_paced=True)
    elif call.policy == "debounce":
        undone = [each for each in effects if each.kind == "undone"]
        old = witness.fates[undone[0].stamp] if undone else None
        first = now if not undone else -1 if old is None else old.first
        is_right = due == max(now - 1, min(now + QUIET, first + LONGEST))
        if first >= 0 and not is_right and not witness.went_back:
            witness.violations.append("15 a debounced message is due at another time")
        witness.change(effect.stamp, first=first)


def note_delivered(witness: Any, id: int, fate: Any) -> None:
    """A message was settled: when the next throttled one of its id may be due."""
    if fate is not None and fate.is_paced:
        witness.paced = put(witness.paced, id, fate.score // 2 + EVERY)
