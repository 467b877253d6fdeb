"""Admission: the obstacles in a ripe copy's way, its exit where one stands, and its permit.

Permits are asked of the store, for the lanes with a rate whose messages wait.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from math import inf
from typing import Any

from delaybridge.errors import StoreError
from delaybridge.scan.lanes.flow import STALLED_MS
from delaybridge.scan.lanes.lane import PATIENCE_MS, Copy, Lane, Window
from delaybridge.scan.lanes.limit import Limit
from delaybridge.scan.lanes.outcomes import Outcomes
from delaybridge.scan.lanes.parking import Parking
from delaybridge.scan.lanes.returning import Returning
from delaybridge.scan.lanes.routing import Routing
from delaybridge.scan.leases.bucket_calls import BucketCalls
from delaybridge.scan.leases.session import Session
from delaybridge.store.protocol.record import other_kind
from delaybridge.store.protocol.verbs import RedisCommand

_LANES = 200  # in one question; the others are in the next ones
_PATIENCE_MS = 200  # with an answer

Allow = Callable[[Sequence[tuple[int, Sequence[tuple[str, float]]]]], RedisCommand[Any]]
"""Makes the command that asks, for each lane, for a number of messages at its places."""


class Way(Enum):
    """The next step of a ripe copy."""

    GO = "go"  # it is admitted to its lane: fire it
    WAIT = "wait"  # its lane is full: it and all later copies stay ripe
    LEAVE = "leave"  # it took another exit: revoked, expired, used up, unroutable, parked


GO, WAIT, LEAVE = Way


class Admission:
    """Decides what ripe copies may do."""

    def __init__(
        self, window: Window, routing: Routing, parking: Parking, outcomes: Outcomes
    ) -> None:
        self._window, self._routing = window, routing
        self._parking, self._outcomes = parking, outcomes
        self._clear: set[tuple[Session, Lane]] = set()  # found without obstacle in this batch

    def begin_batch(self) -> None:
        """A batch of `admit` calls begins: sessions and lanes are checked again."""
        self._clear.clear()

    def admit(self, copy: Copy, now_ms: int, *, may_wait: bool) -> Way:
        """Decide what a ripe copy may do; admit it to its lane, or give it another exit.

        may_wait False: a fire covers the copy anyway, so it goes though its lane is full.
        """
        lane = copy.lane
        is_clear = copy.is_plain and (
            (copy.session, lane) in self._clear or self._is_clear(copy.session, lane, now_ms)
        )  # checked once per batch, not per message
        if not (is_clear and self._window.admit(lane, copy.size, may_wait=may_wait)):
            self._clear.clear()  # this copy's exit may stand in the way of the next one
            way = self._obstacle(copy, now_ms, may_wait=may_wait)
            if way is not GO:
                return way
            self._window.admit(lane, copy.size, may_wait=False)
            if lane.limit is not None:
                lane.limit.use_permit(now_ms)
        if lane.probes:
            lane.probes -= 1
        copy.refusals = lane.refusals
        return GO

    def _is_clear(self, session: Session, lane: Lane, now_ms: int) -> bool:
        """Whether a plain copy of theirs needs only room in the window."""
        is_held = session.alive and not session.claims.revoked
        is_clear = is_held and lane.is_clear(now_ms)
        if is_clear:
            self._clear.add((session, lane))
        return is_clear

    def _obstacle(self, copy: Copy, now_ms: int, *, may_wait: bool) -> Way:
        """Find the copy's first obstacle, and give it its exit. The one place that decides this."""
        session, lane, record = copy.session, copy.lane, copy.record
        is_full = self._window.is_full(lane)
        if not session.alive:
            pass  # the bucket's next owner reclaims the message
        elif session.claims.is_revoked(copy.id, copy.claim):
            session.ended(1)
        elif copy.is_expired(now_ms):
            reason = f"expired: {now_ms - copy.due_ms} ms late, its ttl is {record.ttl_ms} ms"
            self._outcomes.bury(copy, reason, counted=False)
        elif self._outcomes.is_used_up(copy):
            reason = self._outcomes.used_up(copy)
            self._outcomes.bury(copy, reason, counted=False)
        elif lane.publisher is None and lane.lacks is None:
            self._exit_misaddressed(copy, now_ms)
        elif lane.is_shut or lane.is_behind(session, copy.score):
            self._parking.park(copy)
        elif self._must_park(lane, is_full, now_ms, may_wait=may_wait):
            lane.is_slow = True
            self._parking.park(copy)
        elif not record.suits(lane.kind):
            self._park_misfit(copy, copy.destination.broker, now_ms)
        else:
            return WAIT if may_wait and (is_full or lane.lacks_permit) else GO
        return LEAVE

    def _must_park(self, lane: Lane, is_full: bool, now_ms: int, *, may_wait: bool) -> bool:
        """Whether the lane's copies would hold up others for too long, or exceed its rate."""
        limit = lane.limit
        if limit is not None and limit.permits <= 0 and (limit.is_short or not may_wait):
            return True
        return is_full and self._window.is_in_the_way(lane, now_ms)

    def _exit_misaddressed(self, copy: Copy, now_ms: int) -> None:
        """Its broker cannot parse the destination: it is of another kind, or damaged."""
        name = copy.record.destination.partition(":")[0]
        if name in self._routing.kinds and not copy.record.suits(self._routing.kinds[name]):
            self._park_misfit(copy, name, now_ms)
        else:
            reason = f"bad_destination: {self._routing.fault(copy.record.destination)}"
            self._outcomes.attempt_failed(copy, reason, now_ms)

    def _park_misfit(self, copy: Copy, name: str, now_ms: int) -> None:
        """Park it until the broker is again of the kind for which it was scheduled."""
        self._window.unripened([copy])
        copy.lane = self._routing.lane_lacking(name, other_kind(name), now_ms)
        self._window.ripened([copy])
        self._parking.park(copy)

    def next_looks_ms(self, now_ms: int, *, waiting: bool) -> Iterable[float]:
        """When a lane may go on though nothing else happens. waiting: ripe copies wait for room."""
        looks: list[float | None] = [lane.circuit.probe_at_ms for lane in self._parking.troubled]
        if (
            self._routing.rule_book.has_rates
            and (next_ms := self._parking.next_due_ms(now_ms)) < inf
        ):
            looks.append(next_ms)
        lanes = {**self._parking.troubled, **self._window.ripe}
        flows = [lane.flow for lane in lanes if lane.flow.in_flight]
        looks += [flow.moved_ms + STALLED_MS + 1 for flow in flows]
        if waiting:
            looks.append(now_ms + PATIENCE_MS)
        return [at_ms for at_ms in looks if at_ms is not None and at_ms > now_ms]


class Allowances:
    """Asks for all lanes together, once at a time. Lanes that nothing waits for ask for nothing.

    next_look_ms: when to ask again.
    """

    def __init__(
        self, window: Window, routing: Routing, parking: Parking, returning: Returning,
        calls: BucketCalls, allow: Allow,
    ) -> None:  # fmt: skip
        self._window, self._rule_book = window, routing.rule_book
        self._parking, self._returning = parking, returning
        self._calls, self._allow = calls, allow
        self._under_way, self._asked_ms = False, 0
        self._holding: set[Lane] = set()  # lanes that may have permits
        self.next_look_ms = inf

    def lapse(self, now_ms: int) -> None:
        """Drop the permits that idle lanes did not use. Call it before copies are admitted."""
        for lane in list(self._holding):
            if lane.limit is None or lane.limit.permits <= 0:
                self._holding.discard(lane)
            else:
                lane.limit.lapse(now_ms, is_busy=self._is_waiting(lane))

    def _is_waiting(self, lane: Lane) -> bool:
        """Whether messages of the lane are ripe, parked or on their way back."""
        return lane in self._window.ripe or bool(lane.parked)

    def _limited(self, now_ms: int) -> Iterator[tuple[Lane, Limit, int]]:
        """Lanes with a rate, and how many of their messages wait for a permit."""
        if not self._rule_book.has_rates:
            return
        for lane in {**self._window.ripe, **self._parking.troubled}:
            if lane.limit is not None:
                waiting = self._window.ripe[lane] + self._returning.can_return(lane, now_ms)
                yield lane, lane.limit, waiting

    def start(self, now_ms: int) -> None:
        """Ask, if a lane lacks permits. Call it after copies were admitted: some may lack one."""
        self.next_look_ms = inf
        if self._under_way:
            self._lose_patience(now_ms)
            return
        wanted: list[tuple[Lane, Limit, int]] = []
        for lane, limit, waiting in self._limited(now_ms):
            want = limit.want(waiting)
            if want > 0 and limit.ask_at_ms <= now_ms:
                wanted.append((lane, limit, want))
            elif want > 0:
                self.next_look_ms = min(self.next_look_ms, limit.ask_at_ms)
        if wanted:
            self._under_way, self._asked_ms = True, now_ms
            # In an order of their own each time: lanes that share a place get shares of it.
            asked = random.sample(wanted, min(_LANES, len(wanted)))
            self._calls.start(self._ask(asked))

    def _lose_patience(self, now_ms: int) -> None:
        """If the answer takes long, park what waits for it: all other messages would wait, too.

        The rates of a Cluster's fleet are on one node; it may be silent while the others answer.
        """
        self._asked_ms = min(self._asked_ms, now_ms)
        self.next_look_ms = self._asked_ms + _PATIENCE_MS
        if now_ms >= self.next_look_ms:
            self.next_look_ms = inf
            for _, limit, _ in self._limited(now_ms):
                if limit.permits <= 0 and not limit.is_short:
                    limit.is_short = True
                    self._calls.ring()

    async def _ask(self, asked: Sequence[tuple[Lane, Limit, int]]) -> None:
        command = self._allow([(want, limit.places) for _, limit, want in asked])
        answers = await self._calls.ask_one(command)
        now_ms = self._calls.clock.now_ms()
        self._under_way = False
        for n, (lane, limit, want) in enumerate(asked):
            if isinstance(answers, StoreError):
                limit.refused(str(answers), now_ms)
            else:
                granted, pause_ms = answers[n]
                limit.granted(want, granted, pause_ms, now_ms)
                self._holding.add(lane)
