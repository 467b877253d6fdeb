"""The fronts that run: whether they reach the broker, and whose frames wait."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from delaybridge.operate.troubles.finding import Finding, ok
from delaybridge.operate.troubles.listed import trouble
from delaybridge.times import roughly

if TYPE_CHECKING:
    from delaybridge import Stats

_NAMED = 5  # refusals of a front


def front_faults(found: Stats) -> Iterator[Finding]:
    """Fronts that reach no node of the broker, and clients that have waited too long."""
    for front in found.fronts:
        if front.is_cut_off:
            yield trouble("front_cut_off", front=front.name, why=front.unreached)
        for client in front.late[:1]:
            yield trouble(
                "front_clients_wait", front=front.name, count=len(front.late),
                client=client["client"], time=roughly(client["held_ms"]), why=client["held_for"],
            )  # fmt: skip


def fronts(found: Stats) -> Iterator[Finding]:
    """The fronts that run, and what their operator should look at."""
    if found.fronted and not found.fronts:
        yield trouble("front_missing", count=len(found.fronted))
    for front in found.fronts:
        what = f"{front.name} at {front.listen}: {front.open} connections"
        if not front.is_cut_off:
            if front.unreached:
                yield trouble("front_node_down", front=front.name, why=front.unreached)
            else:
                yield ok("front", what)
        for refused, why in [*front.refused.items()][:_NAMED]:
            yield trouble("front_refuses", front=front.name, refused=refused, why=why)
