"""The fronts that run: whether they reach the broker, and whose frames wait."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from delaybridge.operate.doctor.finding import FAIL, OK, WARN, Finding
from delaybridge.times import roughly

if TYPE_CHECKING:
    from delaybridge import Stats

_NAMED = 5  # refusals of a front
_ANSWERS = "See whether the broker answers: rabbitmqctl status"


def front_faults(found: Stats) -> Iterator[Finding]:
    """Fronts that reach no node of the broker, and clients that have waited too long."""
    for front in found.fronts:
        if front.is_cut_off:
            what = f"front {front.name} reaches no node of the broker: {front.unreached}"
            yield Finding(FAIL, "front", what, "Clients cannot connect: start the broker")
        for client in front.late[:1]:
            waits = f"{client['client']} for {roughly(client['held_ms'])}: {client['held_for']}"
            what = f"front {front.name}: {len(front.late)} clients wait, {waits}"
            yield Finding(FAIL, "front", what, _ANSWERS)


def fronts(found: Stats) -> Iterator[Finding]:
    """The fronts that run, and what their operator should look at."""
    if found.fronted and not found.fronts:
        what = f"none runs, and clients declared {len(found.fronted)} exchanges through one"
        yield Finding(WARN, "front", what, "Start one: delaybridge front")
    for front in found.fronts:
        what = f"{front.name} at {front.listen}: {front.open} connections"
        if not front.is_cut_off:
            level, unreached = (WARN, f"; {front.unreached}") if front.unreached else (OK, "")
            yield Finding(level, "front", what + unreached)
        for refused, why in [*front.refused.items()][:_NAMED]:
            yield Finding(WARN, "front", f"{front.name} refused {refused}: {why}")
