"""A message's life as steps in order: by the ledger where there is one, else by its record."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from delaybridge.ledger.recording.life_of_id import RecordedLife
from delaybridge.serve.api.messages.shapes import StoredMessage
from delaybridge.serve.console.lists import drawn_ms

_ENDS = ("published", "cancelled", "dead", "expired")
_WIDTHS = 12


class LifeStep(NamedTuple):
    """Something that happened, or will. what: a word that the template knows.

    where: the worker and the bucket. is_ahead: it has not happened yet.
    """

    what: str
    at_ms: int
    note: str = ""
    where: str = ""
    is_bad: bool = False
    is_ahead: bool = False


class Gap(NamedTuple):
    """What lies between two steps. width: 1 to 12, by the logarithm of the time."""

    before: str
    after: str
    ms: int
    width: int
    is_bad: bool
    is_ahead: bool


def steps_of(item: StoredMessage, now_ms: int) -> list[LifeStep]:
    """All that is known, in order."""
    found = _recorded(item.life) if item.life is not None and item.life.calls else _guessed(item)
    if item.state in ("delayed", "in_flight", "parked"):
        found.append(LifeStep("due", item.due_ms, is_ahead=item.due_ms > now_ms))
    if item.state == "parked":
        found.append(LifeStep("parked", now_ms, item.reason or "", is_bad=True))
    if item.state == "in_flight":
        found.append(LifeStep("fired" if item.fired else "held", now_ms, f"bucket {item.bucket}"))
    return sorted(found, key=lambda step: step.at_ms)


def gaps_of(steps: list[LifeStep]) -> list[Gap]:
    """What lies between the steps, for a strip that is drawn by logarithm: from ms to months."""
    return [
        Gap(
            one.what, next.what, next.at_ms - one.at_ms,
            min(_WIDTHS, 1 + (next.at_ms - one.at_ms).bit_length() // 3),
            next.is_bad, next.is_ahead,
        )
        for one, next in pairwise(steps)
    ]  # fmt: skip


def _recorded(life: RecordedLife) -> list[LifeStep]:
    """By the ledger."""
    found = []
    told = {step.after for step in life.transitions}
    for call in life.calls:
        found.append(LifeStep("scheduled", call.created_ms, where=f"bucket {call.bucket}"))
        is_over = call.state in _ENDS
        if is_over:
            found.append(LifeStep("due", call.due_ms))
        if is_over and call.state not in told:
            found.append(LifeStep(call.state, call.updated_ms, call.error, is_bad=bool(call.error)))
    for step in life.transitions:
        is_failure = bool(step.error)
        what = "failed" if step.after == "delayed" and is_failure else step.after
        where = f"{step.worker}, bucket {step.bucket}" if step.worker else f"bucket {step.bucket}"
        found.append(LifeStep(what, step.at_ms, step.error, where, is_failure))
    return found


def _guessed(item: StoredMessage) -> list[LifeStep]:
    """By what the record says."""
    found = []
    if (made_ms := drawn_ms(item.id)) is not None:
        found.append(LifeStep("scheduled", made_ms))
    if item.first_due_ms is not None:
        found.append(LifeStep("first_due", item.first_due_ms))
    if item.failing_since_ms is not None:
        found.append(LifeStep("failed_first", item.failing_since_ms, item.last_error or "",
                              is_bad=True))  # fmt: skip
    if item.dead_ms is not None:
        found.append(LifeStep("dead", item.dead_ms, item.reason or "", is_bad=True))
    return found
