"""What a worker makes of a definition now: the runs due soon, and those that were missed."""

from __future__ import annotations

from itertools import islice, takewhile
from typing import NamedTuple

from delaybridge.recurring.definition import SKIP_TTL_MS, Definition

LEAD_MS = 3000
"""The next run is made this long before the one before it is due: one worker may die meanwhile."""
LATE_MS = 2000
"""A run that became due this recently is made, whatever the policy; before that, it was missed."""
MISSED_LIMIT = 1000
"""The most missed runs that are counted, or made by the policy `all`; later ones are skipped."""


class Planned(NamedTuple):
    """due_ms: runs to make, ascending. missed: runs that became due before they were made.

    since_ms: all runs after it are made, those before it by the policy. planned_ms: the last run
    that is decided; all up to it were made, or skipped by the policy. look_ms: when to plan again;
    None: there is no further run.
    """

    due_ms: list[int]
    missed: int
    since_ms: int
    planned_ms: int
    look_ms: int | None


def plan(definition: Definition, planned_ms: int, now_ms: int, *, is_first: bool) -> Planned:
    """The runs to make now: all due within LEAD_MS, at least one, and missed ones by the policy.

    planned_ms: the last run that is decided. is_first: none was made yet; so with the policy `one`
    the first missed run is made. Otherwise that one was made ahead of time, and is delivered late.
    """
    late_ms = now_ms - LATE_MS
    times = definition.times(planned_ms)
    missed = list(islice(takewhile(lambda due_ms: due_ms <= late_ms, times), MISSED_LIMIT))
    due_ms = {"skip": [], "one": missed[:1] if is_first else [], "all": missed}[definition.missed]
    since_ms = max(planned_ms, late_ms) if missed else planned_ms
    planned_ms = missed[-1] if missed else planned_ms
    for next_ms in definition.times(since_ms):
        if planned_ms > now_ms + LEAD_MS:
            break
        due_ms = [*due_ms, next_ms]
        planned_ms = next_ms
    else:
        return Planned(due_ms, len(missed), since_ms, planned_ms, None)
    return Planned(due_ms, len(missed), since_ms, planned_ms, planned_ms - LEAD_MS)


def ttl_ms(definition: Definition, due_ms: int) -> int | None:
    """How late a run may be: as defined; with the policy `skip` else a minute, or the next run."""
    if definition.ttl_ms is not None or definition.missed != "skip":
        return definition.ttl_ms
    next_ms = next(definition.times(due_ms), due_ms + SKIP_TTL_MS)
    return min(next_ms - due_ms, SKIP_TTL_MS)
