"""The scanner: moves due messages of the leased buckets to their brokers, and sees them settled.

`scan` is one pass, and says when to look again. It never waits: what talks to the store (claim,
fire, tell) runs beside it, one of each at a time, and rings the alarm when it is done, so that the
next pass takes the next step. Under load each of them carries what gathered meanwhile.

    claim -> wheel -> fire -> publish -> settle | retry | bury | park

A message is in Redis' mirror all the while. Any unexpected error ends `run`: the worker gives its
leases up and begins again, and the next owner reclaims. Recovery is that one path.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from math import inf
from typing import Any

from delaybridge.errors import StoreError
from delaybridge.events import ClockStepped, Emit
from delaybridge.message import Delivery
from delaybridge.publish import Outcome
from delaybridge.scan import dead_set
from delaybridge.scan.alarm import Alarm
from delaybridge.scan.asking import Asking
from delaybridge.scan.claiming import MARGIN_MS, Claiming
from delaybridge.scan.clock import StoreClock
from delaybridge.scan.context import Context, ScanOptions
from delaybridge.scan.firing import Firing
from delaybridge.scan.lanes import Lanes
from delaybridge.scan.publishing import Publishing
from delaybridge.scan.reclaiming import Reclaiming
from delaybridge.scan.session import Session
from delaybridge.scan.telling import Telling
from delaybridge.scan.waiting import WaitingCopies
from delaybridge.scan.watch import Watch
from delaybridge.store.store import AsyncStore


class Scanner:
    """Scans the buckets whose sessions `begin` gives it, until `session_over` or `drain`."""

    def __init__(
        self,
        store: AsyncStore,
        lanes: Lanes,
        clock: StoreClock,
        alarm: Alarm,
        emit: Emit,
        options: ScanOptions,
        *,
        lost: Callable[[Session, str], None],
        damaged: Callable[[Session, StoreError], None],
    ) -> None:
        """lost: told of a session that a verb found to be over; damaged: of one it failed for."""
        self._clock, self._alarm, self._lanes, self._emit = clock, alarm, lanes, emit
        self._options = options
        self._sessions: dict[int, Session] = {}
        self._waiting = WaitingCopies(clock.now_ms(), lanes)
        self._asking = Asking(
            *(store, clock, emit), lost=lost, damaged=damaged, clock_stepped=self.clock_stepped
        )
        context = Context(
            *(self._sessions, self._waiting, lanes, self._asking, clock, emit, options),
            start=self._start,
            ring=alarm.ring,
        )
        self._reclaiming = Reclaiming(context)
        self._claiming = Claiming(context)
        self._telling = Telling(context, self.wake)
        self._publishing = Publishing(lanes, clock.now_ms(), options.fire_lead_ms)
        self._firing = Firing(context, self._claiming, self._telling, self._publishing)
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None
        self._watch = Watch(self._waiting, lanes, self._asking, emit)
        self._is_swept = True  # no copy of a session that is over waits here

    async def run(self) -> None:
        """Scan until cancelled; raises whatever went wrong."""
        try:
            while self._failure is None:
                look_at_ms = self.scan(self._clock.now_ms())
                self._alarm.set(
                    None if look_at_ms is None else self._clock.monotonic_at(look_at_ms)
                )
                await self._alarm.wait()
            raise self._failure
        finally:
            for task in self._tasks:
                task.cancel()

    def scan(self, now_ms: int) -> int | None:
        """One pass at this time; when to look again (None: only when something happens)."""
        self._sweep()
        self._publishing.publish(now_ms)  # first: what is due waits for nothing
        self._reclaiming.start()
        self._recover(now_ms)
        self._claiming.start(now_ms)
        self._firing.start(now_ms)
        self._telling.start(now_ms)
        return self._next_look_ms(now_ms)

    def _sweep(self) -> None:
        """Throw away copies of sessions that are over: they would take room."""
        if not self._is_swept:
            self._is_swept = True
            self._waiting.remove(lambda copy: not copy.session.alive)

    def _recover(self, now_ms: int) -> None:
        """Bring parked messages back where their broker takes messages again.

        Not while a claim is under way: its copies could not be taken off the wheel yet.
        """
        if not self._claiming.under_way:
            self._lanes.recover(now_ms, self._waiting.remove)

    def _next_look_ms(self, now_ms: int) -> int | None:
        """The nearest instant at which time alone makes something possible."""
        looks: list[float] = [self._telling.next_look_ms]
        looks += [copy.score for copy in self._publishing.fired[:1]]
        if (wheel_ms := self._waiting.next_due_ms()) is not None:
            looks.append(wheel_ms - self._firing.lead_ms)
        looks += self._claiming.next_looks_ms()
        looks += self._lanes.next_looks_ms(now_ms, waiting=bool(self._waiting.ripe))
        nearest = min(looks)
        return None if nearest == inf else int(max(nearest, now_ms))

    # what the leases say (lease.Holder)

    def begin(self, session: Session) -> None:
        """Work on a bucket from now on: reclaim first, to the end, then claim."""
        self._sessions[session.bucket.number] = session
        self._reclaiming.add(session)
        self._alarm.ring()

    def session_over(self, session: Session) -> None:
        """The lease is lost or given up, and every copy of the session is void."""
        if self._sessions.get(session.bucket.number) is session:
            del self._sessions[session.bucket.number]
        self._is_swept = False
        self._lanes.session_over(session)
        session.moved.set()
        self._alarm.ring()

    async def drain(self, session: Session) -> None:
        """Claim no more, put back what is not fired, wait until all else is settled."""
        session.exits.draining = True
        for copy in self._waiting.remove(lambda copy: copy.session is session):
            session.exits.retry(copy.item, None)
        self._alarm.ring()
        while session.alive and (session.copies or session.calls):
            session.moved.clear()
            await session.moved.wait()

    def clock_stepped(self, step_ms: int) -> None:
        """The store's clock was set: say so, and look into every bucket by the new time."""
        self._emit(ClockStepped(step_ms=step_ms))
        self._lanes.clock_stepped(step_ms)
        self._watch.clock_stepped(step_ms)
        for session in self._sessions.values():
            session.claimed_at_ms += step_ms
        self.wake_all()

    def wake_all(self) -> None:
        """A wake-up may have been missed, or the clock was set: look into every bucket."""
        for session in self._sessions.values():
            session.look_at_ms = -inf
        self._alarm.ring()

    def wake(self, bucket: int, due_ms: int) -> None:
        """Something due then came into a bucket: look in time, and not sooner than need be."""
        session = self._sessions.get(bucket)
        if session is None:
            return
        session.next_score = min(session.next_score, due_ms)
        ahead_ms, pace_ms = self._options.claim_ahead_ms, self._options.pace_ms
        paced_ms = max(session.claimed_at_ms + pace_ms, due_ms - ahead_ms)
        look_at_ms = min(due_ms - MARGIN_MS, paced_ms)
        if look_at_ms < session.look_at_ms:
            session.look_at_ms = look_at_ms
            self._alarm.ring()

    # what the publishers say

    def report(self, deliveries: Sequence[Delivery], outcome: Outcome) -> None:
        """How publishes ended; called by the publishers, once for each delivery."""
        self._lanes.outcome(deliveries, outcome, self._clock.now_ms())
        if not (self._telling.is_planned and self._lanes.is_calm) or self._waiting.ripe:
            self._alarm.ring()

    # what the worker asks

    def is_idle(self) -> bool:
        """Whether nothing is due in the buckets held here, nor on its way."""
        now_ms = self._clock.now_ms()
        sessions = self._sessions.values()
        is_busy = (
            self._tasks
            or self._waiting.is_due(now_ms)
            or self._publishing.fired
            or self._lanes.is_returning
            or any(session.exits.any for session in sessions)
        )
        published = sum(session.copies for session in sessions) - self._waiting.messages
        due = any(session.next_score <= now_ms for session in sessions)
        return not (is_busy or published or due)

    def check_moving(self, limit_ms: int) -> None:
        """Fail if the same message has been overdue and next to be fired for `limit_ms`."""
        if error := self._watch.look(self._clock.now_ms(), limit_ms):
            self._fail(error)

    async def trim(self, most: int | None, age_ms: int | None, *, buckets: int) -> None:
        """Drop dead messages beyond these bounds; see `dead_set.trim`."""
        sessions = self._sessions.values()
        await dead_set.trim(
            self._asking, sessions, self._emit, most=most, age_ms=age_ms, buckets=buckets
        )

    # steps beside the scanner

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)
        self._alarm.ring()

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._alarm.ring()
