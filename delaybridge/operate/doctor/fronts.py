"""The fronts that run: whether they reach the broker, and whose frames wait."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from delaybridge.operate.doctor.finding import FAIL, OK, WARN, Finding
from delaybridge.times import roughly

if TYPE_CHECKING:
    from delaybridge import Stats
    from delaybridge.operate.notices.announcements import FrontInfo

_HELD_MS = 10_000  # a front gives up asking before that
_NAMED = 5  # refusals of a front


def front_faults(found: Stats) -> Iterator[Finding]:
    """Fronts that reach no node of the broker, and clients that have waited too long."""
    for front in found.fronts:
        if front.is_cut_off:
            what = f"{front_text(front)} reaches no node of the broker: {_unreached(front)}"
            remedy = "Start the broker, or correct the address: clients cannot connect"
            yield Finding(FAIL, "front", what, remedy)
        late = [each for each in front.held if (each.held_ms or 0) > _HELD_MS]
        if late:
            longest = max(late, key=lambda each: each.held_ms or 0)
            what = f"{front_text(front)}: the frames of {len(late)} clients wait"
            what += f", those of {longest.client} for {roughly(longest.held_ms or 0)}"
            what += f": {longest.held_for}"
            yield Finding(FAIL, "front", what, "See whether the broker answers: rabbitmqctl status")


def fronts(found: Stats) -> Iterator[Finding]:
    """The fronts that run, and what their operator should look at."""
    for front in found.fronts:
        if not front.is_cut_off:
            told = f"{front.open or 0:,} connections, {len(front.exchanges):,} delayed exchanges"
            yield Finding(OK, "front", f"{front_text(front)}: {told}")
            if unreached := _unreached(front):
                yield Finding(WARN, "front", f"{front_text(front)}: {unreached}", "Others answer")
        for caution in front.cautions:
            yield Finding(WARN, "front", f"{front_text(front)}: {caution}")
        for what, why in [*front.refused.items()][:_NAMED]:
            yield Finding(WARN, "front", f"{front_text(front)} refused {what}: {why}")


def front_text(front: FrontInfo) -> str:
    """Its name and address: `w1:4711 (127.0.0.1:5672)`."""
    return f"{front.name} ({front.listen})"


def _unreached(front: FrontInfo) -> str:
    return "; ".join(f"{node}: {why}" for node, why in front.nodes.items() if why)
