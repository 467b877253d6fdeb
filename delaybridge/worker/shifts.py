"""The shifts of a worker: one for each Redis node that has buckets of the namespace.

A bucket whose node changes is drained by its old shift, whose commands reach the new node, and
then taken by the new one. If a master fails over, its shift goes on under the new master's name.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from itertools import islice
from typing import Any, cast

from delaybridge.message import Delivery
from delaybridge.publish import Outcome
from delaybridge.scan.lanes.lane import Copy, Lane
from delaybridge.scan.lanes.lanes import Lanes
from delaybridge.scan.leases.session import Holder, Session
from delaybridge.scan.scanner import Scanner
from delaybridge.store.calls import Calls
from delaybridge.store.namespace.rules import Rules
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.redis.store import AsyncStore
from delaybridge.worker.service import Background
from delaybridge.worker.shift import Shift

_OUSTED = "it was taken for dead once while it lived"
_ANNOUNCED = 20  # destinations whose messages are parked, or that refuse them

Make = Callable[[str, int], Shift]
"""Makes the shift of a node; how many nodes there are."""


class BucketNodes:
    """On which node each bucket of an opened namespace is, or was when that was known last."""

    def __init__(self, store: AsyncStore, calls: Calls) -> None:
        self._store, self._calls = store, calls
        self._known: dict[int, str] = {}

    def now(self) -> dict[str, dict[int, Bucket]]:
        """The buckets of each node, by their numbers."""
        by_node: dict[str, dict[int, Bucket]] = {}
        for bucket in self._calls.following.held():
            node = self._store.node_of(bucket.key("lease")) or self._known.get(bucket.number, "")
            self._known[bucket.number] = node
            by_node.setdefault(node, {})[bucket.number] = bucket
        return by_node


class Shifts:
    """Begins and ends shifts, tells each which buckets to hold, and passes on what they say."""

    def __init__(self, nodes: BucketNodes, make: Make) -> None:
        self._nodes, self._make = nodes, make
        self._by_node: dict[str, Shift] = {}
        self._share: set[int] = set()
        self._background = Background()
        self._is_alone = True  # there was never a second shift

    def start(self) -> None:
        """Begin the shifts; they hold nothing yet."""
        self.assign(set(), may_take=False)

    async def failed(self) -> None:
        """Wait for the first error that ends a shift, and raise it."""
        await self._background.failed()

    async def end(self) -> None:
        """End all shifts, whatever they do."""
        await asyncio.gather(*(shift.end() for shift in self.running))

    @property
    def running(self) -> list[Shift]:
        """The shifts that have begun and not ended."""
        return [*self._by_node.values()]

    # which buckets (fleet.Holders)

    def lacks(self, share: set[int]) -> bool:
        """Whether a bucket of this share is to be taken."""
        return bool(share - self._held() - self._damaged())

    def assign(self, share: set[int], *, may_take: bool) -> None:
        """Hold these buckets, and give all others back; see `fleet.Holders`."""
        self._share = share
        by_node = self._nodes.now()
        _rename(self._by_node, by_node)
        begun = {
            node: self._make(node, len(by_node)) for node in by_node if node not in self._by_node
        }
        self._by_node |= begun
        self._is_alone = self._is_alone and len(self._by_node) == 1
        held = self._held()
        for node, shift in [*self._by_node.items()]:
            here = by_node.get(node, {})
            elsewhere = held - shift.leases.sessions.keys()  # still being drained there
            shift.assign(here, share - elsewhere, may_take=may_take)
            if node in begun:
                shift.start(self._background)
            elif shift.is_over:
                del self._by_node[node]
                self._background.start(shift.end())

    def moved(self) -> None:
        """Buckets may be on other nodes now."""
        self.assign(self._share, may_take=False)

    def _held(self) -> set[int]:
        return {number for shift in self.running for number in shift.leases.sessions}

    def _damaged(self) -> set[int]:
        return {n for shift in self.running for n in shift.leases.damaged_buckets.numbers}

    async def drained(self) -> None:
        """Return when all is released that is not to be held."""
        await asyncio.gather(*(shift.leases.drained() for shift in self.running))

    async def release_all(self) -> None:
        """Release every lease, drained or not, and take none any more. Raises the first error."""
        calls = (shift.leases.release_all() for shift in self.running)
        for result in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    # what they are told

    def report(self, deliveries: Sequence[Delivery], outcome: Outcome) -> None:
        """How publishes ended. Every delivery is reported once."""
        copies = cast(Sequence[Copy], deliveries)
        if self._is_alone:
            copies[0].session.holder.report(copies, outcome)
            return
        by_holder: dict[Holder, list[Copy]] = {}
        for copy in copies:
            by_holder.setdefault(copy.session.holder, []).append(copy)
        for holder, ours in by_holder.items():
            holder.report(ours, outcome)

    def ring(self) -> None:
        """Wake the scanners of all shifts."""
        for shift in self.running:
            shift.alarm.ring()

    def wake(self, bucket: int, due_ms: int) -> None:
        """A message due at that time may have come into a bucket."""
        for scanner in self._scanners():
            scanner.wake(bucket, due_ms)

    def wake_all(self) -> None:
        """Wake-ups may have been missed: look into every bucket."""
        for scanner in self._scanners():
            scanner.wake_all()

    def rules_changed(self, rules: Rules) -> None:
        """Obey them from now on."""
        for lanes in self._lanes():
            lanes.rules_changed(rules)

    def brokers_changed(self, names: Set[str]) -> list[Lane]:
        """These brokers were added, replaced or removed; returns their old lanes."""
        return [lane for lanes in self._lanes() for lane in lanes.brokers_changed(names)]

    def _scanners(self) -> Iterator[Scanner]:
        return (shift.scanner for shift in self.running if shift.scanner is not None)

    def _lanes(self) -> Iterator[Lanes]:
        return (shift.lanes for shift in self.running if shift.lanes is not None)

    # what they say

    @property
    def beat_s(self) -> float:
        """When one of them last looked after its leases, on the monotonic clock."""
        return max((shift.leases.beat_s for shift in self.running), default=0.0)

    def is_done(self, share: set[int]) -> bool:
        """Whether they hold exactly this share, except for damaged buckets, and nothing of it is
        due or on its way.
        """
        if any(shift.leases.draining for shift in self.running):
            return False
        is_settled = share - self._damaged() == self._held()
        return is_settled and all(scanner.is_idle() for scanner in self._scanners())

    def sessions(self) -> Iterator[Session]:
        """The leases that all shifts hold."""
        return (s for shift in self.running for s in shift.leases.sessions.values())

    def lost(self, session: Session, reason: str) -> None:
        """End a session: publish nothing more of it, and take its bucket again."""
        for shift in self.running:
            if shift.leases.sessions.get(session.bucket.number) is session:
                shift.leases.lost(session, reason)

    def answering(self, within_s: float) -> list[Bucket]:
        """The buckets held here whose node answered lately."""
        since_s = time.monotonic() - within_s
        return [s.bucket for s in self.sessions() if s.touched_s > since_s]


def _rename(shifts: dict[str, Shift], by_node: Mapping[str, Mapping[int, Bucket]]) -> None:
    """A shift whose node lost its buckets to a node without a shift goes on there."""
    for node in [*shifts.keys() - by_node.keys()]:
        mine = shifts[node].here.keys()
        new = [n for n in by_node if n not in shifts and by_node[n].keys() & mine]
        if new:
            to = max(new, key=lambda n: len(by_node[n].keys() & mine))
            shift = shifts[to] = shifts.pop(node)
            shift.renamed(to)


def announcement_of(shifts: Sequence[Shift]) -> dict[str, Any]:
    """The troubles of running shifts: destinations that park or refuse, and damaged buckets."""
    begun = [(each, each.lanes) for each in shifts if each.lanes is not None]
    parked = (each for _, lanes in begun for each in lanes.parking.blocked())
    refused = (
        each for shift, lanes in begun for each in lanes.routing.refused(shift.clock.now_ms())
    )
    damaged: dict[str, str] = {}
    for shift in shifts:
        damaged |= shift.leases.damaged_buckets.announced()
    return {
        "parked": dict(islice(parked, _ANNOUNCED)),
        "refused": dict(islice(refused, _ANNOUNCED)),
        "damaged": damaged,
    }


def lines_of(shifts: Iterable[Shift], was_ousted: bool) -> dict[str, Any]:
    """By what others see that this worker has ended: run id of each server, and the line to it.

    Or why its buckets wait for their leases then.
    """
    if was_ousted:
        return {"lines": {}, "unwatched": _OUSTED, "was_ousted": True}
    own = [shift.take_over for shift in shifts]
    refusals = (each.refusal for each in own if each.refusal)
    lines = {each.line.run_id: each.line.id for each in own if each.line is not None}
    return {"lines": lines, "unwatched": next(refusals, "")}


def report_of(shifts: Iterable[Shift]) -> dict[str, Any]:
    """The load of running shifts: what is unanswered, what is held, and what is late."""
    unconfirmed: Counter[str] = Counter()
    held: Counter[tuple[str, str]] = Counter()
    firsts: list[float] = []
    for lanes in (shift.lanes for shift in shifts if shift.lanes is not None):
        unconfirmed.update(lanes.routing.unconfirmed())
        waiting, first = lanes.parking.held()
        held.update(waiting)
        firsts += [] if first is None else [first]
    return {"unconfirmed": unconfirmed, "held": held, "parked_ms": min(firsts, default=None)}
