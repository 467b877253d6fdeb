"""The scanner: publishes the due messages of the leased buckets and settles them in the store.

`scan` is one pass; it returns when to look again. It never waits. The calls to the store (claim,
fire, settle) run as tasks, one of each at a time. Each rings the alarm when it ends, so that the
next pass takes the next step. Under load each call carries what gathered during the one before.

    claim -> wheel -> fire -> publish -> settle | retry | bury | park

During all of this the message stays in Redis' mirror. Any unexpected error ends `run`: the worker
gives its leases up and starts again, and the next owner reclaims. There is no other recovery path.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from delaybridge.errors import StoreError
from delaybridge.events import ClockStepped, Emit
from delaybridge.message import Delivery
from delaybridge.publish import Outcome
from delaybridge.scan.hang_detector import HangDetector
from delaybridge.scan.lanes.admission import Allow, Allowances
from delaybridge.scan.lanes.lanes import Lanes
from delaybridge.scan.lanes.returning import Paging
from delaybridge.scan.leases import dead_set
from delaybridge.scan.leases.bucket_calls import (
    BucketCalls,
    LastHere,
    LedgerSide,
    Settling,
    last_of,
)
from delaybridge.scan.leases.clock import Alarm, StoreClock
from delaybridge.scan.leases.session import Session
from delaybridge.scan.mending import Mending, Retake
from delaybridge.scan.reclaiming import Reclaiming
from delaybridge.scan.wheel.claiming import MARGIN_MS, Claiming, ScanOptions
from delaybridge.scan.wheel.firing import Firing, Publishing
from delaybridge.scan.wheel.wheel import WaitingCopies
from delaybridge.store.redis.store import AsyncStore


class Scanner:
    """Scans the buckets whose sessions `begin` gives it, until `session_over` or `drain`.

    waiting, claiming, firing, publishing, settling: its steps, which a benchmark also runs alone.
    calls: theirs to the store.
    """

    def __init__(
        self, store: AsyncStore, lanes: Lanes, clock: StoreClock, alarm: Alarm, emit: Emit,
        options: ScanOptions, *, lost: Callable[[Session, str], None],
        damaged: Callable[[Session, StoreError], None], retake: Retake, allow: Allow,
        last_here: LastHere = last_of, ledger: LedgerSide | None = None,
    ) -> None:  # fmt: skip
        """lost: called when a session's lease is found to be lost. damaged: when its bucket is.

        retake: called when a session is to end, and a new one to begin. allow: makes the command
        that asks for messages of destinations with a rate. last_here: the last of these sessions
        whose bucket is on the Redis node whose clock this is. ledger: if there is one, no bucket is
        claimed before it agrees with it.
        """
        self._clock, self._alarm, self._options = clock, alarm, options
        self._lanes, self._sessions = lanes, dict[int, Session]()
        has_ledger, held = ledger is not None, self._sessions
        self.calls = calls = BucketCalls(
            store, clock, emit, ring=alarm.ring, lost=lost, damaged=damaged,
            clock_stepped=self.clock_stepped, last_here=last_here, checks_server=has_ledger,
        )  # fmt: skip
        self.waiting = waiting = WaitingCopies(clock.now_ms(), lanes.window)
        self.mending = Mending(held, lanes, calls, retake=retake, has_ledger=has_ledger)
        self._reclaiming = Reclaiming(lanes, self.mending, calls, retake, ledger)
        self.claiming = Claiming(held, waiting, lanes, calls, options)
        self.settling = Settling(held, calls, self.wake, ledger)
        self._paging = Paging(lanes.returning, calls, self.settling)
        self.publishing = Publishing(lanes, calls, options.fire_lead_ms, ledger)
        self.firing = Firing(
            waiting, lanes, self.claiming, self.settling, self.publishing, calls, options
        )
        self._allowances = Allowances(
            lanes.window, lanes.routing, lanes.parking, lanes.returning, calls, allow
        )
        self._hang_detector = HangDetector(waiting, lanes.window, calls)
        self._is_swept = True  # no copy here belongs to a session that is over

    async def run(self) -> None:
        """Scan until cancelled; raises the first error of any step."""
        try:
            while self.calls.failure is None:
                at_ms = self.scan(self._clock.now_ms())
                self._alarm.set(None if at_ms is None else self._clock.monotonic_at(at_ms))
                await self._alarm.wait()
            raise self.calls.failure
        finally:
            self.calls.cancel()

    def scan(self, now_ms: int) -> int | None:
        """One pass; returns when to look again in ms, None: only when the alarm rings.

        Each step goes on with what the passes before it have brought so far.
        """
        has_rates = self._lanes.routing.rule_book.has_rates
        self._sweep()
        self.publishing.publish(now_ms)  # first: what is fired and due waits for nothing
        if self._reclaiming.begun:
            self._reclaiming.start()  # back to `due`: what earlier sessions left
        # And what is parked while its way is free, but not while a claim is under way: its copies
        # are not on the wheel yet, so they could not be taken off it.
        parking, returning = self._lanes.parking, self._lanes.returning
        if (parking.troubled or returning.changed) and not self.claiming.under_way:
            returning.recover(now_ms, self.waiting.remove)
        if returning.lacking:
            self._paging.start()
        if has_rates:
            self._allowances.lapse(now_ms)
        self.claiming.start(now_ms)  # claim: what is due soon comes onto the wheel
        self.waiting.ripen(now_ms, self.firing.lead_ms, self._options.fire_lead_ms)
        self.firing.start(now_ms)  # fire: what is ripe may be published when it is due
        if has_rates:
            self._allowances.start(now_ms)
        self.settling.start(now_ms, is_backlog=bool(self.waiting.ripe))  # settle | retry | bury
        return self._next_look_ms(now_ms)

    def _sweep(self) -> None:
        """Drop copies of sessions that are over; they would only take room."""
        if not self._is_swept:
            self._is_swept = True
            self.waiting.remove(lambda copy: not copy.session.alive)

    def _next_look_ms(self, now_ms: int) -> int | None:
        """The next time in ms at which a step can be taken though nothing else happens."""
        looks: list[float] = [self.settling.next_look_ms, self.firing.next_look_ms]
        if self._lanes.routing.rule_book.has_rates:
            looks.append(self._allowances.next_look_ms)
        looks += [copy.score for copy in self.publishing.fired[:1]]
        if (wheel_ms := self.waiting.next_due_ms()) is not None:
            looks.append(wheel_ms - self.firing.lead_ms)
        looks += self.claiming.next_looks_ms(now_ms)
        looks += self._lanes.admission.next_looks_ms(now_ms, waiting=bool(self.waiting.ripe))
        nearest = min(looks)
        return None if nearest == inf else int(max(nearest, now_ms))

    # called by the leases (lease.Holder)

    def begin(self, session: Session) -> None:
        """Work on a bucket from now on: reclaim all of it first, then claim."""
        self._sessions[session.bucket.number] = session
        session.begin(self)
        self._reclaiming.add(session)
        self._alarm.ring()

    def session_over(self, session: Session) -> None:
        """The lease is lost or given up: the session's copies may not be published any more."""
        if self._sessions.get(session.bucket.number) is session:
            del self._sessions[session.bucket.number]
        self._is_swept = False
        self._lanes.returning.session_over(session)
        self._alarm.ring()

    async def drain(self, session: Session) -> None:
        """Claim no more, put back copies that are not fired, wait until the others have ended."""
        session.exits.drain()
        for copy in self.waiting.remove(lambda copy: copy.session is session):
            session.exits.retry(copy.item, None)
        self._alarm.ring()
        while session.alive and (session.copies or self.calls.is_asking(session)):
            session.moved.clear()
            await session.moved.wait()

    def clock_stepped(self, step_ms: int) -> None:
        """The store's clock was set: log it, and look into every bucket at once."""
        self.calls.emit(ClockStepped(step_ms=step_ms))
        self._lanes.routing.clock_stepped(step_ms)
        self._hang_detector.clock_stepped(step_ms)
        self.calls.clock_stepped(step_ms)
        self.wake_all(step_ms)

    def wake_all(self, step_ms: int = 0) -> None:
        """Look into every bucket now: a wake-up may have been missed, or the clock was set."""
        for session in self._sessions.values():
            session.look_at_once(step_ms)
        self._alarm.ring()

    def wake(self, bucket: int, due_ms: int) -> None:
        """A message due then came into a bucket: claim it in time, but no earlier than needed."""
        session = self._sessions.get(bucket)
        if session is None:
            return
        ahead_ms, pace_ms = self._options.claim_ahead_ms, self._options.pace_ms
        if session.wake(due_ms, MARGIN_MS, ahead_ms, pace_ms):
            self._alarm.ring()

    async def is_sound(self, session: Session) -> bool:
        """Whether the bucket's keys agree with one another, so that the session goes on."""
        return await self.mending.is_sound(session)

    # called by the publishers

    def report(self, deliveries: Sequence[Delivery], outcome: Outcome) -> None:
        """How publishes ended. Every delivery is reported once."""
        now_ms = self._clock.now_ms()
        lanes = self._lanes
        lanes.outcomes.report(deliveries, outcome, now_ms)
        is_planned = self.settling.is_planned
        is_calm = is_planned and lanes.parking.is_calm and not lanes.dispatch.may_go_on
        if not is_calm or self.firing.is_ready(now_ms):
            self._alarm.ring()

    # called by the worker

    def is_idle(self) -> bool:
        """Whether nothing is due in the buckets held here, and nothing is on its way."""
        now_ms = self._clock.now_ms()
        sessions = self._sessions.values()
        is_busy = self.calls.are_under_way or self.publishing.fired
        is_returning = self._lanes.parking.is_returning
        has_exits = any(session.exits.any for session in sessions)
        published = sum(session.copies for session in sessions) - self.waiting.messages
        is_due = self.waiting.is_due(now_ms) or any(s.next_score <= now_ms for s in sessions)
        return not (is_busy or is_returning or has_exits or published or is_due)

    def check_moving(self, limit_ms: int) -> None:
        """Fail if the same message has been overdue and next to be fired for `limit_ms`."""
        if error := self._hang_detector.check(self._clock.now_ms(), limit_ms):
            self.calls.fail(error)

    async def trim(self, most: int | None, age_ms: int | None, *, buckets: int) -> None:
        """Drop dead messages beyond these bounds; see `dead_set.trim`."""
        sessions = self._sessions.values()
        await dead_set.trim(self.calls, sessions, most=most, age_ms=age_ms, buckets=buckets)
