"""The fronts that run: whether they reach the broker, and whose frames wait."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from delaybridge.operate.doctor.finding import FAIL, OK, WARN, Finding
from delaybridge.times import roughly

if TYPE_CHECKING:
    from delaybridge import Stats
    from delaybridge.operate.notices.announcements import FrontInfo

_NAMED = 5  # refusals of a front


def front_faults(found: Stats) -> Iterator[Finding]:
    """Fronts that reach no node of the broker, and clients that have waited too long."""
    for front in found.fronts:
        if front.is_cut_off:
            what = f"{front_text(front)} reaches no node of the broker: {front.unreached}"
            remedy = "Start the broker, or correct the address: clients cannot connect"
            yield Finding(FAIL, "front", what, remedy)
        if late := front.late:
            longest = f"{late[0].client} for {roughly(late[0].held_ms or 0)}: {late[0].held_for}"
            what = (
                f"{front_text(front)}: the frames of {len(late)} clients wait, those of {longest}"
            )
            yield Finding(FAIL, "front", what, "See whether the broker answers: rabbitmqctl status")


def fronts(found: Stats) -> Iterator[Finding]:
    """The fronts that run, and what their operator should look at."""
    for front in found.fronts:
        if not front.is_cut_off:
            told = f"{front.open or 0:,} connections, {len(front.exchanges):,} delayed exchanges"
            yield Finding(OK, "front", f"{front_text(front)}: {told}")
            if front.unreached:
                what = f"{front_text(front)} reaches other nodes, but not {front.unreached}"
                yield Finding(WARN, "front", what)
        for caution in front.cautions:
            yield Finding(WARN, "front", f"{front_text(front)}: {caution}")
        for what, why in [*front.refused.items()][:_NAMED]:
            yield Finding(WARN, "front", f"{front_text(front)} refused {what}: {why}")


def front_text(front: FrontInfo) -> str:
    """Its name and address: `w1:4711 (127.0.0.1:5672)`."""
    return f"{front.name} ({front.listen})"
