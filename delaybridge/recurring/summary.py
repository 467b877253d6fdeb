"""How many recurring definitions there are, and which of them fail: for `stats` and `health`."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET

from delaybridge.errors import StoreError, StoreUnavailable
from delaybridge.recurring import stored
from delaybridge.recurring.definition import Definition, is_name
from delaybridge.recurring.definitions import (
    FAILING,
    UNMADE,
    Definitions,
    StoredDefinition,
    recurring_of,
)
from delaybridge.recurring.plan import LEAD_MS
from delaybridge.recurring.stored import Progress
from delaybridge.store.messages.scheduling import Scheduling
from delaybridge.store.protocol.together import together
from delaybridge.store.protocol.verbs import Steps

# Expressions that cannot be wrong: no list, no range but this, no day that a month may lack.
_PLAIN = re.compile(
    r"(\*|\*/[1-9]|[1-5]?\d) (\*|\*/[1-9]|1?\d|2[0-3]) (\*|[1-9]|1\d|2[0-8]) "
    r"(\*|[1-9]|1[0-2]) (\*|[0-7]|MON-FRI)"
)
_Times = tuple[str, str]  # what may be wrong with the times of a definition: cron and zone


class DefinitionCounts(NamedTuple):
    """failing: the errors of definitions that fail, by name. missed: the missed runs of all."""

    definitions: int = 0
    failing: dict[str, str] = {}
    missed: int = 0


class _Glance(Definition, frozen=True, kw_only=True, gc=False):
    """A definition, and what else its state depends on."""

    name: str = ""
    plan: Any = None
    was: Any = UNSET


_decode = msgspec.json.Decoder(_Glance).decode
_decode_progress = msgspec.json.Decoder(Progress).decode


def count_definitions(calls: Scheduling) -> Steps[DefinitionCounts | None]:
    """What `Definitions.list_all` would show, counted; None if it cannot be read.

    Most are told by a glance, without their due times: a tenth of the time.
    """
    (read,) = yield from together([Definitions(calls).read_all()])
    if isinstance(read, StoreError) and not isinstance(read, StoreUnavailable):
        return None
    if isinstance(read, Exception):
        raise read
    rows, now_ms = read
    failing, missed, sound = dict[str, str](), 0, set[_Times]()
    for row in rows:
        found = _at_a_glance(row, now_ms, sound)
        if found is None:
            one = recurring_of(stored.read_entry(*row[:3]), row.look_ms, now_ms)
            found = one.error if one.state == FAILING else "", one.missed
            if one.definition is not None and not found[0]:
                sound.add(_times_of(one.definition))
        missed += found[1]
        if found[0]:
            failing[row.name.decode(errors="backslashreplace")] = found[0]
    return DefinitionCounts(len(rows), failing, missed)


def _at_a_glance(row: StoredDefinition, now_ms: int, sound: set[_Times]) -> tuple[str, int] | None:
    """Its error, empty if it does not fail, and its missed runs; None: look more closely.

    sound: times that are known to make sense.
    """
    try:
        one, name = _decode(row.raw), row.name.decode()
        progress = _decode_progress(row.raw_progress or b"{}")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if progress.error or one.was is not UNSET or not is_name(name):
        return None
    birth = stored.birth_of({"plan": one.plan})
    if one.paused and not birth:
        return "", progress.missed
    if one.paused or not birth or row.look_ms is None or _times_of(one) not in sound:
        return None
    if _is_set_back(progress, one.plan.get("after_ms", 0), now_ms):
        return None
    return UNMADE if row.look_ms < now_ms - stored.LATE_LOOK_MS else "", progress.missed


def _times_of(one: Definition) -> _Times:
    if one.cron is None:
        return "", ""
    return "plain" if _PLAIN.fullmatch(one.cron) else one.cron, one.tz


def _is_set_back(progress: Progress, after_ms: int, now_ms: int) -> bool:
    """Whether Redis' clock may have been set back since the last plan.

    Not if each run before the planned one is due soon: then it is the next one that is ahead.
    """
    planned_ms, ahead_ms, soon_ms = progress.planned_ms, progress.ahead_ms, now_ms + LEAD_MS
    if planned_ms <= soon_ms or max(ahead_ms, default=0) <= now_ms:
        return False
    if not progress.made or progress.made[-1][1] != planned_ms:
        return True
    if max(after_ms, progress.made[-1][0], progress.last_ms or 0) > soon_ms:
        return True
    return ahead_ms != (planned_ms,) and any(soon_ms < at != planned_ms for at in ahead_ms)
