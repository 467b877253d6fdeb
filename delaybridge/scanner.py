"""The scanner: moves due messages of the leased buckets to their brokers, and sees them settled.

`scan` is one pass, and says when to look again. It never waits: what talks to the store (claim,
fire, tell) runs beside it, one of each at a time, and rings the alarm when it is done, so that the
next pass takes the next step. Under load each of them carries what gathered while the one before
was under way.

    claim -> wheel -> fire -> publish -> settle | retry | bury | park

A message is in Redis' mirror all the while. Whatever is unexpected ends `run` with that error: the
worker gives the leases up and begins anew, and the next owner reclaims. Recovery is that one path.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf
from operator import attrgetter
from typing import Any

from delaybridge.alarm import Alarm
from delaybridge.clock import StoreClock
from delaybridge.commands import Claimed, Command, Fired, Item, parse_tried, split_record
from delaybridge.errors import DecodeError
from delaybridge.events import Buried, Emit, LeaseAcquired, Revoked, Stuck
from delaybridge.events import Claimed as ClaimedEvent
from delaybridge.lanes import Lanes
from delaybridge.message import Delivery, decode_record
from delaybridge.publish import Outcome
from delaybridge.session import Copy, Session
from delaybridge.store import AsyncStore, insist
from delaybridge.wheel import Wheel

_MARGIN_MS = 20  # a woken owner claims this long before the due time
_BACKWARDS_MS = 50  # a wheel never turns back; a clock that does so by this much gets a new one
_by_score = attrgetter("score")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanOptions:
    """Bounds of one worker; meaning and default of each stand in Settings."""

    claim_ahead_ms: int = 2000
    wheel_messages: int = 100_000
    wheel_bytes: int = 64 * 2**20
    batch_messages: int = 500
    batch_bytes: int = 4 * 2**20
    fire_lead_ms: int = 5

    @property
    def pace_ms(self) -> int:
        """Under load a bucket is claimed from no more often than this."""
        return self.claim_ahead_ms // 4


class Scanner:
    """Scans the buckets whose sessions `begin` gives it, until `lose` or `drain` takes them."""

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
    ) -> None:
        """lost: told of a session that a verb found to be over."""
        self._store, self._lanes, self._clock, self._alarm = store, lanes, clock, alarm
        self._emit, self._o, self._lost = emit, options, lost
        self._wheel_ms = clock.now_ms()
        self._wheel: Wheel[Copy, Copy] = Wheel(self._wheel_ms)
        self._ripe: list[Copy] = []  # off the wheel, by score, to be fired
        self._fired: list[Copy] = []  # fired, due in a moment
        self._sessions: dict[int, Session] = {}
        self._held = self._held_bytes = 0  # claimed, not fired
        self._claiming: Sequence[Session] = ()
        self._firing = self._telling = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None
        self._round_trip_ms = 1.0
        self._head: tuple[Copy | None, int] = None, 0  # the next to be fired, and since when

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
        self._claim(now_ms)
        self._ripen(now_ms)
        self._fire(now_ms)
        self._publish(now_ms)
        self._lanes.recover(now_ms)
        self._tell()
        return self._next_look_ms(now_ms)

    # what the leases say (lease.Holder)

    def begin(self, session: Session) -> None:
        """Work on a bucket from now on: reclaim first, to the end, then claim."""
        self._sessions[session.bucket.number] = session
        self._start(self._reclaim(session))

    def lose(self, session: Session) -> None:
        """The session is over; its copies are thrown away where they turn up."""
        if self._sessions.get(session.bucket.number) is session:
            del self._sessions[session.bucket.number]
        self._lanes.forget(session)
        session.moved.set()
        self._alarm.ring()

    async def drain(self, session: Session) -> None:
        """Claim no more, put back what is not fired, wait until all else is settled."""
        session.draining = True
        waiting = [copy for copy in self._ripe if copy.session is session]
        waiting += [copy for _, copy in self._wheel.items() if copy.session is session]
        self._ripe = [copy for copy in self._ripe if copy.session is not session]
        for copy in waiting:
            self._wheel.cancel(copy)
            self._let_go(copy)
            session.retry(copy.item, None)
        self._alarm.ring()
        while session.alive and (session.copies or session.calls):
            session.moved.clear()
            await session.moved.wait()

    def wake_all(self) -> None:
        """A wake-up may have been missed: look into every bucket."""
        for session in self._sessions.values():
            session.look_at_ms = -inf
        self._alarm.ring()

    def wake(self, bucket: int, due_ms: int) -> None:
        """Something due then came into a bucket: look in time, and not sooner than need be."""
        session = self._sessions.get(bucket)
        if session is None:
            return
        paced_ms = max(session.claimed_at_ms + self._o.pace_ms, due_ms - self._o.claim_ahead_ms)
        look_at_ms = min(due_ms - _MARGIN_MS, paced_ms)
        if look_at_ms < session.look_at_ms:
            session.look_at_ms = look_at_ms
            self._alarm.ring()

    def check_moving(self, limit_ms: int) -> None:
        """Fail if the same message has been overdue and next to be fired for so long."""
        now_ms = self._clock.now_ms()
        head = self._ripe[0] if self._ripe else None
        if head is None or head is not self._head[0]:
            self._head = head, now_ms
        elif now_ms - self._head[1] > limit_ms:
            self._emit(Stuck(overdue_ms=now_ms - int(head.score)))
            self._fail(RuntimeError(f"stuck: nothing was fired for {now_ms - self._head[1]} ms"))

    def is_idle(self) -> bool:
        """Whether nothing is due in the buckets held here, nor on its way."""
        now_ms = self._clock.now_ms()
        sessions = self._sessions.values()
        busy = self._tasks or self._ripe or self._fired or any(s.has_exits for s in sessions)
        flying = sum(s.copies for s in sessions) - self._held
        return not busy and not flying and all(s.ready and s.next_score > now_ms for s in sessions)

    # claim: due soon -> mirror and wheel

    def _claim(self, now_ms: int) -> None:
        """Ask every bucket whose time has come, the one with the earliest messages first."""
        room, room_bytes = self._room
        if self._claiming or room <= 0 or room_bytes <= 0:
            return
        asked = [s for s in self._sessions.values() if s.ready and s.look_at_ms <= now_ms]
        asked = [s for s in asked if not s.draining]
        if asked:
            asked.sort(key=attrgetter("next_score"))
            self._claiming = asked
            limit = max(1, min(self._o.batch_messages, room // len(asked)))
            max_bytes = max(1, min(self._o.batch_bytes, room_bytes) // len(asked))
            self._start(self._claim_from(asked, limit, max_bytes, now_ms))

    @property
    def _room(self) -> tuple[int, int]:
        """Messages and bytes that may still be claimed."""
        return self._o.wheel_messages - self._held, self._o.wheel_bytes - self._held_bytes

    async def _claim_from(
        self, asked: Sequence[Session], limit: int, max_bytes: int, now_ms: int
    ) -> None:
        for session in asked:
            session.claimed_at_ms, session.look_at_ms = now_ms, inf
        claims = {
            session: [
                session.bucket.claim(
                    *(session.token, session.ttl_ms, session.have),
                    ahead_ms=self._o.claim_ahead_ms,
                    limit=limit,
                    max_bytes=max_bytes,
                    pace_ms=self._o.pace_ms,
                    margin_ms=_MARGIN_MS,
                )
            ]
            for session in asked
        }
        for session, (claimed,) in (await self._ask(claims)).items():
            self._received(session, claimed, now_ms)
        self._claiming = ()

    def _received(self, session: Session, claimed: Claimed, now_ms: int) -> None:
        """A claim's answer: the batch goes on the wheel; note when to look again."""
        next_score = inf if claimed.next_score is None else claimed.next_score
        look_at_ms = max(next_score - self._o.claim_ahead_ms, now_ms + self._o.pace_ms)
        session.next_score = next_score
        session.look_at_ms = min(session.look_at_ms, now_ms if claimed.more else look_at_ms)
        if not claimed.ids:
            return
        session.copies += len(claimed.ids)
        copies = self._copies(session, claimed)
        session.received(claimed.number, max((copy.score for copy in copies), default=-1.0))
        for copy in copies:
            if session.draining:
                session.retry(copy.item, None)
                continue
            self._held += 1
            self._held_bytes += copy.size
            self._wheel.insert(int(copy.score), copy, copy)
        self._emit(ClaimedEvent(messages=len(copies)))

    def _copies(self, session: Session, claimed: Claimed) -> list[Copy]:
        """The copies of a batch; a record that nobody can read is buried and stops nothing."""
        copies = []
        route, now_ms = self._lanes.route, self._clock.now_ms()
        tried = claimed.tried or [b""] * len(claimed.ids)
        for raw_id, raw, failures in zip(claimed.ids, claimed.records, tried, strict=True):
            id = raw_id.decode()
            try:
                score, payload = split_record(raw)
                record = decode_record(payload)
            except DecodeError as exc:
                session.bury(Item(id, claimed.number, 0.0), exc.detail, counted=False)
                self._emit(Buried(destination="?", messages=1, reason="undecodable"))
                continue
            copies.append(
                Copy(
                    *(session, claimed.number, id, score, parse_tried(failures), record),
                    *route(record.destination, now_ms),
                )
            )
        return copies

    # fire: at the due instant, the store's last word

    def _ripen(self, now_ms: int) -> None:
        """Take off the wheel what may be fired now."""
        if now_ms < self._wheel_ms - _BACKWARDS_MS:  # the store's clock was set back
            wheel: Wheel[Copy, Copy] = Wheel(now_ms)
            for copy in self._wheel.clear():
                wheel.insert(int(copy.score), copy, copy)
            self._wheel = wheel
        self._wheel_ms = now_ms
        fresh = self._wheel.advance(now_ms + self._lead_ms)
        if fresh:
            self._ripe += fresh
            self._ripe.sort(key=_by_score)

    @property
    def _lead_ms(self) -> int:
        """How long before its due time a message is fired: the round trip, within its bound."""
        return min(self._o.fire_lead_ms, ceil(2 * self._round_trip_ms) + 1)

    def _fire(self, now_ms: int) -> None:
        """Fire the ripe copies that there is room for, in order, in all buckets at once."""
        if self._ripe and not self._firing:
            batch = self._select(now_ms)
            if batch:
                self._firing = True
                self._start(self._fire_batch(batch))

    def _select(self, now_ms: int) -> dict[Session, list[Copy]]:
        """The next copies by score as far as there is room, with all that the fire would cover.

        A bucket's fire covers everything at or below its watermark: what cannot wait for room
        because of that goes along, and what cannot be published leaves first, by another exit.
        """
        batch: dict[Session, list[Copy]] = {}
        horizon = min((s.next_score for s in self._claiming), default=inf)
        taken = 0
        for copy in self._ripe:
            # A bucket that is being claimed from may hold earlier ones: keep the order over all.
            if copy.score > horizon or not self._take(copy, batch, now_ms, may_wait=True):
                break
            taken += 1
        marks = {s: max(s.watermark, copies[-1].score) for s, copies in batch.items()}
        covered = bisect_right(
            self._ripe, max(marks.values(), default=-1.0), lo=taken, key=_by_score
        )
        kept = [
            copy
            for copy in self._ripe[taken:covered]
            if copy.score > marks.get(copy.session, -1.0)
            or not self._take(copy, batch, now_ms, may_wait=False)
        ]
        self._ripe[:covered] = kept
        return batch

    def _take(
        self, copy: Copy, batch: dict[Session, list[Copy]], now_ms: int, *, may_wait: bool
    ) -> bool:
        """Add a copy to the batch or see it to another exit; False if it must wait for room."""
        session = copy.session
        if not session.alive:
            pass
        elif session.is_revoked(copy.id, copy.claim):
            session.gone(1)
        elif not self._lanes.exit_unpublished(copy, now_ms):
            if not self._lanes.admit(copy, may_wait=may_wait):
                return False
            batch.setdefault(session, []).append(copy)
        self._let_go(copy)
        return True

    async def _fire_batch(self, batch: dict[Session, list[Copy]]) -> None:
        """Tell the store; hand over what is still ours and was not revoked."""
        asked: dict[Session, list[Command[Any]]] = {}
        ended: dict[Session, int] = {}
        for session, copies in batch.items():
            # Parked and buried ones leave the mirror before the fire that would cover them.
            asked[session], ended[session] = session.exits()
            session.watermark = max(session.watermark, *(copy.score for copy in copies))
            owner = (session.token, session.ttl_ms)
            fire = session.bucket.fire(*owner, session.watermark, session.have, session.seen)
            asked[session].append(fire)
        sent_s = self._clock.monotonic()
        answers = await self._ask(asked)
        self._round_trip_ms += ((self._clock.monotonic() - sent_s) * 1000 - self._round_trip_ms) / 8
        once: dict[Session, list[Copy]] = {}
        for session, copies in batch.items():
            if session not in answers:
                self._give_back(copies)
                continue
            session.gone(ended[session])
            if later := self._covered(session, answers[session][-1], copies):
                once[session] = later
        self._firing = False
        if once:
            await self._settle_once(once)

    def _covered(self, session: Session, fired: Fired, copies: list[Copy]) -> list[Copy]:
        """What one bucket's fire allows goes out; returns what must be settled before that.

        Every copy was received before the fire was sent, so its claim number is covered by it.
        """
        session.revoke(fired)
        once, dropped = [], []
        for copy in copies:
            if session.is_revoked(copy.id, copy.claim):
                dropped.append(copy)
            elif copy.record.at_most_once:
                once.append(copy)
            else:
                self._fired.append(copy)
        session.forget_revoked()
        if dropped:
            self._give_back(dropped)
            session.gone(len(dropped))
            self._emit(Revoked(messages=len(dropped)))
        return once

    async def _settle_once(self, batch: dict[Session, list[Copy]]) -> None:
        """Settle at-most-once copies; only what the store settled just now is published."""
        asked: dict[Session, list[Command[Any]]] = {}
        for session, copies in batch.items():
            groups: dict[int, list[str]] = {}
            for copy in copies:
                groups.setdefault(copy.claim, []).append(copy.id)
            asked[session] = [
                session.bucket.settle_once(session.token, session.ttl_ms, groups.items())
            ]
        answers = await self._ask(asked)
        for session, copies in batch.items():
            allowed = answers[session][0] if session in answers else set()
            self._fired += [copy for copy in copies if copy.id in allowed]
            refused = [copy for copy in copies if copy.id not in allowed]
            self._give_back(refused)
            session.gone(len(refused))

    # publish, and what comes of it

    def _publish(self, now_ms: int) -> None:
        """Hand over what is fired and due; never a moment early."""
        if self._fired:
            early = []
            for copy in self._fired:
                if int(copy.score) <= now_ms:
                    self._lanes.ready(copy)
                else:
                    early.append(copy)
            self._fired = early
        self._lanes.publish(now_ms)

    def report(self, deliveries: Sequence[Delivery], outcome: Outcome) -> None:
        """How publishes ended; called by the publishers, once for each delivery."""
        self._lanes.outcome(deliveries, outcome, self._clock.now_ms())
        self._alarm.ring()

    def _tell(self) -> None:
        """Tell the store what became of copies: settle, retry, bury, park; and unpark."""
        if self._telling:
            return
        sessions = [s for s in self._sessions.values() if s.has_exits]
        if sessions:
            self._telling = True
            self._start(self._tell_of(sessions))

    async def _tell_of(self, sessions: Sequence[Session]) -> None:
        asked: dict[Session, list[Command[Any]]] = {}
        ended: dict[Session, int] = {}
        unparked: list[Session] = []
        for session in sessions:
            told, ended[session] = session.exits()
            if unparking := session.unparking():
                unparked.append(session)
            asked[session] = told + unparking
        answers = await self._ask(asked)
        self._telling = False
        for session in answers:
            session.gone(ended[session])
        for session in unparked:
            if session in answers:
                session.unparked(answers[session][-1])

    async def _reclaim(self, session: Session) -> None:
        """Put back what dead sessions left, to the end, before anything is claimed."""
        moved = fired = 0
        left = 1
        while left:
            reclaim = session.bucket.reclaim(session.token, session.ttl_ms)
            answers = await self._ask({session: [reclaim]})
            if session not in answers:
                return
            (answer,) = answers[session]
            left, moved, fired = answer.left, moved + answer.moved, fired + answer.fired
        session.ready = True
        self._emit(LeaseAcquired(bucket=session.bucket.number, reclaimed=moved, fired=fired))

    # the store

    async def _ask(
        self, asked: Mapping[Session, Sequence[Command[Any]]]
    ) -> dict[Session, list[Any]]:
        """Ask in one pipeline until the store answers; the sessions that are still ours.

        A session whose lease is gone is reported lost and left out. Every answer renewed a lease.
        """
        sent_s = self._clock.monotonic()
        for session in asked:
            session.calls += 1
        try:
            flat = [command for commands in asked.values() for command in commands]
            answers = iter(await insist(self._store, self._emit, flat))
        finally:
            for session in asked:
                session.calls -= 1
                session.moved.set()
        ours: dict[Session, list[Any]] = {}
        for session, commands in asked.items():
            mine = [next(answers) for _ in commands]
            if None in mine:
                self._lost(session, f"{commands[mine.index(None)].name} refused")
            elif session.alive:
                session.touched_s = max(session.touched_s, sent_s)
                ours[session] = mine
        return ours

    # bookkeeping

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

    def _let_go(self, copy: Copy) -> None:
        """The copy waits here no more: there is room to claim another."""
        self._held -= 1
        self._held_bytes -= copy.size

    def _give_back(self, copies: Sequence[Copy]) -> None:
        for copy in copies:
            self._lanes.give_back(copy)

    def _next_look_ms(self, now_ms: int) -> int | None:
        """The nearest instant at which time alone makes something possible."""
        looks: list[float] = [min(copy.score for copy in self._fired)] if self._fired else []
        if (wheel_ms := self._wheel.next_due_ms()) is not None:
            looks.append(wheel_ms - self._lead_ms)
        if not self._claiming and min(self._room) > 0:
            looks += [s.look_at_ms for s in self._sessions.values() if s.ready and not s.draining]
        looks += self._lanes.next_looks_ms(now_ms, waiting=bool(self._ripe))
        nearest = min(looks, default=inf)
        return None if nearest == inf else int(max(nearest, now_ms))
