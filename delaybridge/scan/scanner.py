"""The scanner: publishes the due messages of the leased buckets and settles them in the store.

`scan` is one pass; it returns when to look again. It never waits. The calls to the store (claim,
fire, tell) run as tasks, one of each at a time. Each rings the alarm when it ends, so that the next
pass takes the next step. Under load each call carries what gathered during the one before.

    claim -> wheel -> fire -> publish -> settle | retry | bury | park

During all of this the message stays in Redis' mirror. Any unexpected error ends `run`: the worker
gives its leases up and starts again, and the next owner reclaims. There is no other recovery path.
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
from delaybridge.scan.context import Context, LedgerSide, ScanOptions
from delaybridge.scan.hang_detector import Watch
from delaybridge.scan.lanes.allowances import Allow, Allowances
from delaybridge.scan.lanes.lanes import Lanes
from delaybridge.scan.lanes.paging import Paging
from delaybridge.scan.leases import dead_set
from delaybridge.scan.leases.bucket_calls import Asking, LastHere, last_of
from delaybridge.scan.leases.clock import StoreClock
from delaybridge.scan.leases.mending import Mending, Retake
from delaybridge.scan.leases.reclaiming import Reclaiming
from delaybridge.scan.leases.session import Session
from delaybridge.scan.wheel.alarm import Alarm
from delaybridge.scan.wheel.claiming import MARGIN_MS, Claiming
from delaybridge.scan.wheel.firing import Firing
from delaybridge.scan.wheel.publishing import Publishing
from delaybridge.scan.wheel.settling import Telling
from delaybridge.scan.wheel.waiting import WaitingCopies
from delaybridge.store.redis.store import AsyncStore


class Scanner:
    """Scans the buckets whose sessions `begin` gives it, until `session_over` or `drain`.

    waiting, claiming, firing, publishing, telling: its steps, which a benchmark also runs alone.
    failure: the first error of any of them.
    """

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
        retake: Retake,
        allow: Allow,
        last_here: LastHere = last_of,
        ledger: LedgerSide | None = None,
    ) -> None:
        """lost: called when a session's lease is found to be lost. damaged: when its bucket is.

        retake: called when a session is to end, and a new one to begin. allow: makes the command
        that asks for messages of destinations with a rate. last_here: the last of these sessions
        whose bucket is on the Redis node whose clock this is. ledger: if there is one, no bucket is
        claimed before it agrees with it.
        """
        self._clock, self._alarm, self._lanes, self._emit = clock, alarm, lanes, emit
        self._options = options
        self._sessions: dict[int, Session] = {}
        self.waiting = WaitingCopies(clock.now_ms(), lanes)
        self._asking = Asking(store, clock, emit, lost, damaged, self.clock_stepped, last_here)
        self._asking.checks_server = ledger is not None
        context = Context(
            self._sessions, self.waiting, lanes, self._asking, clock, emit, options,
            start=self.start_step, ring=alarm.ring, ledger=ledger,
        )  # fmt: skip
        self.mending = Mending(context, retake)
        self._reclaiming = Reclaiming(context, self.mending, retake)
        self.claiming = Claiming(context)
        self.telling = Telling(context, self.wake)
        self._paging = Paging(context, self.telling)
        self.publishing = Publishing(lanes, clock.now_ms(), options.fire_lead_ms)
        self.firing = Firing(context, self.claiming, self.telling, self.publishing)
        self._allowances = Allowances(context, allow)
        self._tasks: set[asyncio.Task[None]] = set()
        self.failure: BaseException | None = None
        self._watch = Watch(self.waiting, lanes, self._asking, emit)
        self._is_swept = True  # no copy here belongs to a session that is over

    async def run(self) -> None:
        """Scan until cancelled; raises the first error of any step."""
        try:
            while self.failure is None:
                at_ms = self.scan(self._clock.now_ms())
                self._alarm.set(None if at_ms is None else self._clock.monotonic_at(at_ms))
                await self._alarm.wait()
            raise self.failure
        finally:
            for task in self._tasks:
                task.cancel()

    def scan(self, now_ms: int) -> int | None:
        """One pass; returns when to look again in ms, None: only when the alarm rings."""
        self._sweep()
        self.publishing.publish(now_ms)  # first: a due message waits for nothing
        self._reclaiming.start()
        self._recover(now_ms)
        self._paging.start()
        self._allowances.lapse(now_ms)
        self.claiming.start(now_ms)
        self.firing.start(now_ms)
        self._allowances.start(now_ms)
        self.telling.start(now_ms)
        return self._next_look_ms(now_ms)

    def _sweep(self) -> None:
        """Drop copies of sessions that are over; they would only take room."""
        if not self._is_swept:
            self._is_swept = True
            self.waiting.remove(lambda copy: not copy.session.alive)

    def _recover(self, now_ms: int) -> None:
        """Bring parked messages back where their broker takes messages again.

        Not while a claim is under way: its copies are not on the wheel yet, so they could not be
        taken off it.
        """
        if not self.claiming.under_way:
            self._lanes.recover(now_ms, self.waiting.remove)

    def _next_look_ms(self, now_ms: int) -> int | None:
        """The next time in ms at which a step can be taken though nothing else happens."""
        looks: list[float] = [self.telling.next_look_ms, self.firing.next_look_ms(now_ms)]
        looks.append(self._allowances.next_look_ms)
        looks += [copy.score for copy in self.publishing.fired[:1]]
        if (wheel_ms := self.waiting.next_due_ms()) is not None:
            looks.append(wheel_ms - self.firing.lead_ms)
        looks += self.claiming.next_looks_ms(now_ms)
        looks += self._lanes.next_looks_ms(now_ms, waiting=bool(self.waiting.ripe))
        nearest = min(looks)
        return None if nearest == inf else int(max(nearest, now_ms))

    # called by the leases (lease.Holder)

    def begin(self, session: Session) -> None:
        """Work on a bucket from now on: reclaim all of it first, then claim."""
        self._sessions[session.bucket.number] = session
        session.scanner = self
        self._reclaiming.add(session)
        self._alarm.ring()

    def session_over(self, session: Session) -> None:
        """The lease is lost or given up: the session's copies may not be published any more."""
        if self._sessions.get(session.bucket.number) is session:
            del self._sessions[session.bucket.number]
        self._is_swept = False
        self._lanes.session_over(session)
        session.moved.set()
        self._alarm.ring()

    async def drain(self, session: Session) -> None:
        """Claim no more, put back copies that are not fired, wait until the others have ended."""
        session.exits.draining = True
        for copy in self.waiting.remove(lambda copy: copy.session is session):
            session.exits.retry(copy.item, None)
        self._alarm.ring()
        while session.alive and (session.copies or session.calls):
            session.moved.clear()
            await session.moved.wait()

    def clock_stepped(self, step_ms: int) -> None:
        """The store's clock was set: log it, and look into every bucket at once."""
        self._emit(ClockStepped(step_ms=step_ms))
        self._lanes.clock_stepped(step_ms)
        self._watch.clock_stepped(step_ms)
        for session in self._sessions.values():
            session.claimed_at_ms += step_ms
        self.wake_all()

    def wake_all(self) -> None:
        """Look into every bucket now: a wake-up may have been missed, or the clock was set."""
        for session in self._sessions.values():
            session.look_at_ms = -inf
        self._alarm.ring()

    def wake(self, bucket: int, due_ms: int) -> None:
        """A message due then came into a bucket: claim it in time, but no earlier than needed."""
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

    # called by the publishers

    def report(self, deliveries: Sequence[Delivery], outcome: Outcome) -> None:
        """How publishes ended. Every delivery is reported once."""
        now_ms = self._clock.now_ms()
        self._lanes.outcome(deliveries, outcome, now_ms)
        is_planned = self.telling.is_planned and self._lanes.is_calm
        if not is_planned or self.firing.is_ready(now_ms):
            self._alarm.ring()

    # called by the worker

    def is_idle(self) -> bool:
        """Whether nothing is due in the buckets held here, and nothing is on its way."""
        now_ms = self._clock.now_ms()
        sessions = self._sessions.values()
        is_busy = self._tasks or self.publishing.fired or self._lanes.is_returning
        has_exits = any(session.exits.any for session in sessions)
        published = sum(session.copies for session in sessions) - self.waiting.messages
        is_due = self.waiting.is_due(now_ms) or any(s.next_score <= now_ms for s in sessions)
        return not (is_busy or has_exits or published or is_due)

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

    # steps that run as tasks

    def start_step(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a step's call to the store as a task."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)
        self._alarm.ring()

    def _fail(self, error: BaseException) -> None:
        self.failure = self.failure or error
        self._alarm.ring()
