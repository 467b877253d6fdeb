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
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf
from operator import attrgetter
from typing import Any, cast

from delaybridge.errors import DecodeError, StoreError
from delaybridge.events import (
    Buried,
    ClockStepped,
    DeadDropped,
    Emit,
    Event,
    LeaseAcquired,
    Revoked,
    Stuck,
)
from delaybridge.events import Claimed as ClaimedEvent
from delaybridge.message import Delivery, decode_record
from delaybridge.publish import Outcome
from delaybridge.scan.alarm import Alarm
from delaybridge.scan.clock import StoreClock
from delaybridge.scan.lanes import Lane, Lanes
from delaybridge.scan.session import Copy, Exits, Session
from delaybridge.scan.wheel import Wheel
from delaybridge.store.store import AsyncStore, insist_each
from delaybridge.store.verbs import (
    BACKDATED,
    Claimed,
    Command,
    Fired,
    Item,
    parse_tried,
    since_ms,
    split_record,
)

_MARGIN_MS = 20  # a woken owner claims this long before the due time
_TELL_MS = 10  # under load the store is told of outcomes no more often than this
_PART = 1000  # messages of one instant: with so many, other buckets wait for the next fire
_BACKWARDS_MS = 50  # a wheel never turns back; a clock that does so by this much gets a new one
_by_score = attrgetter("score")
_by_claim = attrgetter("session", "claim")


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
        damaged: Callable[[Session, StoreError], None],
    ) -> None:
        """lost: told of a session that a verb found to be over; damaged: of one it failed for."""
        self._store, self._lanes, self._clock, self._alarm = store, lanes, clock, alarm
        self._emit, self._o, self._lost, self._damaged = emit, options, lost, damaged
        self._now_ms = self._wheel_ms = clock.now_ms()  # of the last pass; how far the wheel turned
        self._wheel: Wheel[Copy, Copy] = Wheel(self._wheel_ms)
        self._late: list[Copy] = []  # claimed when the wheel had passed their time
        self._ripe: list[Copy] = []  # off the wheel, by score, to be fired
        self._fired: list[Copy] = []  # fired, due in a moment
        self._clear: set[tuple[Session, Lane]] = set()  # see _look
        self._sessions: dict[int, Session] = {}
        self._begun: list[Session] = []
        self._swept = True  # nothing that a lost session left waits here
        self._held = self._held_bytes = 0  # claimed, not fired
        self._claiming: Sequence[Session] = ()
        self._firing = self._telling = False
        self._told_ms, self._tell_at_ms = -inf, inf
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
        self._sweep()
        self._publish(now_ms)  # first: what is due waits for nothing
        self._reclaim()
        self._recover(now_ms)
        self._claim(now_ms)
        self._ripen(now_ms)
        self._fire(now_ms)
        self._tell(now_ms)
        return self._next_look_ms(now_ms)

    # what the leases say (lease.Holder)

    def begin(self, session: Session) -> None:
        """Work on a bucket from now on: reclaim first, to the end, then claim."""
        self._sessions[session.bucket.number] = session
        self._begun.append(session)
        self._alarm.ring()

    def lose(self, session: Session) -> None:
        """The session is over, and with it every copy it holds."""
        if self._sessions.get(session.bucket.number) is session:
            del self._sessions[session.bucket.number]
        self._swept = False
        self._lanes.forget(session)
        session.moved.set()
        self._alarm.ring()

    async def drain(self, session: Session) -> None:
        """Claim no more, put back what is not fired, wait until all else is settled."""
        session.draining = True
        for copy in self._remove(lambda copy: copy.session is session):
            session.retry(copy.item, None)
        self._alarm.ring()
        while session.alive and (session.copies or session.calls):
            session.moved.clear()
            await session.moved.wait()

    def clock_stepped(self, step_ms: int) -> None:
        """The store's clock was set: say so, and look into every bucket by the new time."""
        self._emit(ClockStepped(step_ms=step_ms))
        self._lanes.clock_stepped(step_ms)
        head, since_ms = self._head
        self._head = head, since_ms + step_ms
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
        paced_ms = max(session.claimed_at_ms + self._o.pace_ms, due_ms - self._o.claim_ahead_ms)
        look_at_ms = min(due_ms - _MARGIN_MS, paced_ms)
        if look_at_ms < session.look_at_ms:
            session.look_at_ms = look_at_ms
            self._alarm.ring()

    def check_moving(self, limit_ms: int) -> None:
        """Fail if the same message has been overdue and next to be fired for `limit_ms`.

        A message that waits for room in its lane, or for a silent store, is not stuck.
        """
        now_ms = self._clock.now_ms()
        head, since_ms = self._ripe[0] if self._ripe else None, self._head[1]
        if head is None or head is not self._head[0]:
            self._head = head, now_ms
        elif now_ms - since_ms > limit_ms:
            if self._lanes.waits_for_room(head, since_ms):
                self._head = head, now_ms
                return
            self._emit(Stuck(overdue_ms=now_ms - int(head.score)))
            self._fail(RuntimeError(f"stuck: nothing was fired for {now_ms - since_ms} ms"))

    def is_idle(self) -> bool:
        """Whether nothing is due in the buckets held here, nor on its way."""
        now_ms = self._clock.now_ms()
        sessions = self._sessions.values()
        busy = (
            self._tasks
            or self._late
            or self._ripe
            or self._fired
            or self._lanes.is_returning
            or any(s.has_exits for s in sessions)
        )
        flying = sum(s.copies for s in sessions) - self._held
        wheel_ms = self._wheel.next_due_ms()
        due = [s.next_score for s in sessions] + ([] if wheel_ms is None else [wheel_ms])
        return not busy and not flying and all(due_ms > now_ms for due_ms in due)

    # claim: due soon -> mirror and wheel

    def _claim(self, now_ms: int) -> None:
        """Ask every bucket whose time has come, the one with the earliest messages first."""
        room, room_bytes = self._room
        if self._claiming or room <= 0 or room_bytes <= 0:
            return
        asked = sorted(self._wanting(now_ms), key=attrgetter("next_score"))[:room]
        if asked:
            self._claiming = asked
            limit = min(self._o.batch_messages, room // len(asked))
            max_bytes = max(1, min(self._o.batch_bytes, room_bytes) // len(asked))
            self._start(self._claim_from(asked, limit, max_bytes, now_ms))

    def _wanting(self, now_ms: int) -> list[Session]:
        """The buckets whose time to be claimed from has come."""
        return [s for s in self._sessions.values() if s.look_at_ms <= now_ms and s.may_claim]

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
        sent_s = self._clock.monotonic()
        answers = await self._ask(claims)
        self._glance(answers, sent_s)
        for session, (claimed,) in answers.items():
            self._received(session, claimed, now_ms)
        self._claiming = ()

    def _received(self, session: Session, claimed: Claimed, now_ms: int) -> None:
        """A claim's answer: the batch goes on the wheel; note when to look again."""
        next_due_ms = inf if claimed.next_score is None else int(claimed.next_score)
        look_at_ms = max(next_due_ms - self._o.claim_ahead_ms, now_ms + self._o.pace_ms)
        session.next_score = inf if claimed.next_score is None else claimed.next_score
        session.look_at_ms = min(session.look_at_ms, now_ms if claimed.more else look_at_ms)
        if not claimed.ids:
            session.received(claimed.number, 0)  # of a batch that was lost all may be cancelled
            return
        session.copies += len(claimed.ids)
        copies = self._copies(session, claimed)
        session.received(claimed.number, len(copies))
        self._held += len(copies)
        self._held_bytes += sum([copy.size for copy in copies])
        if session.draining:
            self._let_go(copies)
            for copy in copies:
                session.retry(copy.item, None)
        else:
            late, wheel_ms, insert = list[Copy](), self._wheel_ms, self._wheel.insert
            for copy in copies:
                if copy.score <= wheel_ms:
                    late.append(copy)
                else:
                    insert(int(copy.score), copy, copy)
            self._late += late
            self._lanes.ripened(late)
        self._emit(ClaimedEvent(messages=len(copies)))

    def _copies(self, session: Session, claimed: Claimed) -> list[Copy]:
        """The copies of a batch; a record that nobody can read is buried and stops nothing."""
        copies = []
        route, now_ms = self._lanes.route, self._clock.now_ms()
        tried = claimed.tried or [b""] * len(claimed.ids)
        for raw_id, raw, failures in zip(claimed.ids, claimed.records, tried, strict=True):
            try:
                id = raw_id.decode()
                score, payload = split_record(raw)
                record = decode_record(payload)
            except UnicodeDecodeError:
                item = Item(cast(str, raw_id), claimed.number, 0.0)
                session.bury(item, "undecodable: id", counted=False)
                self._emit(Buried(destination="?", messages=1, reason="undecodable"))
                continue
            except DecodeError as exc:
                session.bury(
                    Item(id, claimed.number, 0.0), f"{exc.code}: {exc.detail}", counted=False
                )
                self._emit(Buried(destination="?", messages=1, reason="undecodable"))
                continue
            copies.append(
                Copy(
                    *(session, claimed.number, id, score, parse_tried(failures), record),
                    *route(record.destination, now_ms),
                )
            )
            if raw[0] == BACKDATED:
                copies[-1].late_from_ms = max(copies[-1].due_ms, since_ms(raw))
        return copies

    # fire: at the due instant, the store's last word

    def _ripen(self, now_ms: int) -> None:
        """Take off the wheel what may be fired now."""
        to_ms = now_ms + self._lead_ms
        next_ms = self._wheel.next_due_ms()
        if next_ms is not None and next_ms <= to_ms:  # since a fire is due, what soon follows, too
            to_ms = now_ms + self._o.fire_lead_ms
        if to_ms < self._wheel_ms - _BACKWARDS_MS:  # the store's clock was set back
            wheel: Wheel[Copy, Copy] = Wheel(now_ms)
            off = self._ripe + self._late
            self._lanes.unripened(off)
            for copy in self._wheel.clear() + off:
                wheel.insert(int(copy.score), copy, copy)
            self._ripe, self._late = [], []
            self._wheel, self._wheel_ms = wheel, now_ms
        # The lead may have shrunk; what comes late goes to where the wheel stands already.
        self._wheel_ms = max(self._wheel_ms, to_ms)
        ripe = self._wheel.advance(self._wheel_ms)
        if ripe or self._late:
            self._lanes.ripened(ripe)
            self._ripe += self._late + ripe
            self._late = []
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
                # Now and not in the task: a claim that arrives before it runs is not covered.
                exits = {session: session.exits() for session in batch}
                fires = [self._fire_of(session, copies) for session, copies in batch.items()]
                self._start(self._fire_batch(batch, exits, fires))

    def _select(self, now_ms: int) -> dict[Session, list[Copy]]:
        """The next copies by score as far as there is room, with all that the fire would cover.

        A bucket's fire covers everything at or below its watermark: what cannot wait for room
        because of that goes along, and what cannot be published leaves first, by another exit.
        A burst goes in parts, by buckets: its first messages leave while the others are fired.
        """
        batch: dict[Session, list[Copy]] = {}
        horizon = self._horizon(now_ms)
        self._clear = set()
        taken, score = 0, -1.0
        for copy in self._ripe:
            if taken >= _PART and copy.score == score and copy.session not in batch:
                break
            score = copy.score
            if score > horizon or not self._take(copy, batch, now_ms, may_wait=True):
                break
            taken += 1
        gone = self._ripe[:taken]
        marks = {s: max(s.watermark, copies[-1].score) for s, copies in batch.items()}
        covered = bisect_right(
            self._ripe, max(marks.values(), default=-1.0), lo=taken, key=_by_score
        )
        kept = []
        for copy in self._ripe[taken:covered]:
            is_covered = copy.score <= marks.get(copy.session, -1.0)
            if is_covered and self._take(copy, batch, now_ms, may_wait=False):
                gone.append(copy)
            else:
                kept.append(copy)
        self._ripe[:covered] = kept
        self._lanes.unripened(gone)
        self._let_go(gone)
        return batch

    def _horizon(self, now_ms: int) -> float:
        """Beyond this score a bucket that is yet to be claimed from may hold an earlier message."""
        yet = [*self._claiming, *self._wanting(now_ms)]
        horizon = min((session.next_score for session in yet), default=inf)
        # Without room to claim, room comes first.
        stuck = not self._claiming and self._ripe[0].score > horizon
        return inf if stuck else horizon

    def _take(
        self, copy: Copy, batch: dict[Session, list[Copy]], now_ms: int, *, may_wait: bool
    ) -> bool:
        """Add a copy to the batch or see it to another exit; False if it must wait for room."""
        session, lane = copy.session, copy.owner
        is_clear = copy.is_plain and (
            (session, lane) in self._clear or self._look(session, lane, now_ms)
        )
        if not (is_clear and self._lanes.admit(copy, may_wait=may_wait)):
            self._clear.clear()  # what is done here may change what the next one meets
            if not session.alive:
                return True
            if session.is_revoked(copy.id, copy.claim):
                session.gone(1)
                return True
            if self._lanes.exit_unpublished(copy, now_ms):
                return True
            if not self._lanes.admit(copy, may_wait=may_wait):
                return False
        if (copies := batch.get(session)) is None:
            batch[session] = [copy]
        else:
            copies.append(copy)
        return True

    def _look(self, session: Session, lane: Lane, now_ms: int) -> bool:
        """Whether nothing stands between plain copies and their fire but the window."""
        is_clear = session.is_clear and lane.is_clear(now_ms)
        if is_clear:
            self._clear.add((session, lane))
        return is_clear

    def _fire_of(self, session: Session, copies: list[Copy]) -> Command[Any]:
        session.watermark = max(session.watermark, *map(_by_score, copies))
        owner = (session.token, session.ttl_ms)
        return session.bucket.fire(*owner, session.watermark, session.have, session.seen)

    async def _fire_batch(
        self,
        batch: dict[Session, list[Copy]],
        exits: dict[Session, Exits],
        fires: list[Command[Any]],
    ) -> None:
        """Tell the store; hand over what is still ours and was not revoked."""
        # Parked and buried ones leave the mirror before the fire that would cover them.
        asked = {s: [*exits[s].told, fire] for s, fire in zip(batch, fires, strict=True)}
        sent_s = self._clock.monotonic()
        answers = await self._ask(asked)
        self._round_trip_ms += ((self._clock.monotonic() - sent_s) * 1000 - self._round_trip_ms) / 8
        self._glance(answers, sent_s)
        once: dict[Session, list[Copy]] = {}
        for session, copies in batch.items():
            if session not in answers:
                self._give_back(copies)
                continue
            self._told(session, exits[session])
            ours = self._covered(session, answers[session][-1], copies)
            if any(copy.record.at_most_once for copy in ours):
                once[session] = ours
            else:
                self._fired += ours
        if once:
            self._alarm.ring()
            await self._settle_once(once)
        self._firing = False

    def _covered(self, session: Session, fired: Fired, copies: list[Copy]) -> list[Copy]:
        """What one bucket's fire allows to go out.

        Every copy was received before the fire was sent, so its claim number is covered by it.
        """
        session.revoke(fired)
        if session.is_clear:
            return copies
        ours = [copy for copy in copies if not session.is_revoked(copy.id, copy.claim)]
        if len(ours) < len(copies):
            dropped = [copy for copy in copies if session.is_revoked(copy.id, copy.claim)]
            self._give_back(dropped)
            session.gone(len(dropped))
            self._emit(Revoked(messages=len(dropped)))
        session.forget_revoked()
        return ours

    async def _settle_once(self, batch: dict[Session, list[Copy]]) -> None:
        """Settle at-most-once copies; only what the store settled just now is published.

        The others of their buckets wait for it, so that the order stays.
        """
        asked: dict[Session, list[Command[Any]]] = {}
        for session, copies in batch.items():
            groups: dict[int, list[str]] = {}
            for copy in copies:
                if copy.record.at_most_once:
                    groups.setdefault(copy.claim, []).append(copy.id)
            owner = (session.token, session.ttl_ms)
            asked[session] = [session.bucket.settle_once(*owner, groups.items())]
        answers = await self._ask(asked)
        for session, copies in batch.items():
            if session not in answers:
                self._give_back(copies)
                continue
            (settled,) = answers[session]
            ours = [c for c in copies if not c.record.at_most_once or c.id in settled]
            refused = [c for c in copies if c.record.at_most_once and c.id not in settled]
            self._fired += ours
            self._give_back(refused)
            session.gone(len(refused))

    async def trim(self, most: int | None, age_ms: int | None, *, buckets: int) -> None:
        """Drop dead messages beyond these bounds, of each bucket the oldest few.

        most: of all these buckets together; each may keep one at least.
        """
        asked = {}
        for s in self._sessions.values():
            if s.ready and not s.draining:
                keep = None if most is None else _share(most, s.bucket.number, buckets)
                asked[s] = [s.bucket.trim(s.token, s.ttl_ms, keep=keep, age_ms=age_ms)]
        if dropped := sum(trimmed.dropped for (trimmed,) in (await self._ask(asked)).values()):
            self._emit(DeadDropped(messages=dropped))

    # publish, and what comes of it

    def _publish(self, now_ms: int) -> None:
        """Hand over what is fired and due, in order over all buckets; never a moment early."""
        if now_ms < self._now_ms:  # the store's clock was set back
            self._fired += self._lanes.recall()
        self._now_ms = now_ms
        if self._fired:
            self._fired.sort(key=_by_score)
            due = bisect_left(self._fired, now_ms + 1, key=_by_score)  # by whole milliseconds
            self._lanes.ready(self._fired[:due])
            del self._fired[:due]
            early_ms = now_ms + self._o.fire_lead_ms + _BACKWARDS_MS
            if self._fired and self._fired[-1].score > early_ms:
                self._put_back(early_ms)
        self._lanes.publish(now_ms)

    def _put_back(self, early_ms: int) -> None:
        """The store's clock was set back after these were fired: they wait in the store again.

        What is settled already, at most once, can only wait here.
        """
        early = [c for c in self._fired if c.score > early_ms and not c.record.at_most_once]
        self._fired = [c for c in self._fired if c.score <= early_ms or c.record.at_most_once]
        self._give_back(early)
        for copy in early:
            copy.session.retry(copy.item, None)

    def report(self, deliveries: Sequence[Delivery], outcome: Outcome) -> None:
        """How publishes ended; called by the publishers, once for each delivery."""
        self._lanes.outcome(deliveries, outcome, self._clock.now_ms())
        will_tell = self._telling or self._tell_at_ms < inf
        if not (will_tell and self._lanes.is_calm) or self._ripe:
            self._alarm.ring()

    def _tell(self, now_ms: int) -> None:
        """Tell the store what became of copies: settle, retry, bury, park; and unpark.

        What is settled waits a moment for others, and much of it goes along with a fire.
        """
        if self._telling:
            return
        self._tell_at_ms = inf
        sessions = [s for s in self._sessions.values() if s.has_exits]
        lately = 0 <= now_ms - self._told_ms < _TELL_MS
        if sessions and lately and all(s.may_wait for s in sessions):
            self._tell_at_ms = self._told_ms + _TELL_MS
        elif sessions:
            self._telling, self._told_ms = True, now_ms
            self._start(self._tell_of(sessions))

    async def _tell_of(self, sessions: Sequence[Session]) -> None:
        unparking = {session: session.unparking() for session in sessions}
        exits = {session: session.exits() for session in sessions}
        answers = await self._ask({s: exits[s].told + unparking[s] for s in sessions})
        self._telling = False
        for session in answers:
            self._told(session, exits[session])
            if unparking[session]:
                session.unparked(answers[session][-1])

    def _told(self, session: Session, exits: Exits) -> None:
        """The store knows what became of these copies; what backs off is looked for in time."""
        session.told(exits)
        if exits.back_ms is not None:
            self.wake(session.bucket.number, self._clock.now_ms() + exits.back_ms)

    def _recover(self, now_ms: int) -> None:
        """Bring parked messages back where their broker takes messages again.

        Not while a claim is under way: its copies could not be taken off the wheel yet.
        """
        if not self._claiming:
            self._lanes.recover(now_ms, self._remove)

    # reclaim: what dead sessions left -> due

    def _reclaim(self) -> None:
        """Reclaim for all that have begun, together: the first claim then asks them all."""
        if self._begun:
            begun, self._begun = self._begun, []
            self._start(self._reclaim_for(begun))

    async def _reclaim_for(self, sessions: Sequence[Session]) -> None:
        """Put back what dead sessions left, parked or not, to the end, before any claim."""
        moved: Counter[Session] = Counter()
        fired: Counter[Session] = Counter()
        left = [session for session in sessions if session.alive]
        while left:
            answers = await self._ask(
                {
                    s: [s.bucket.reclaim(s.token, s.ttl_ms), s.bucket.unpark(s.token, s.ttl_ms)]
                    for s in left
                }
            )
            left = []
            for session, (answer, parked) in answers.items():
                moved[session] += answer.moved
                fired[session] += answer.fired
                if answer.left or parked:
                    left.append(session)
                else:
                    self._reclaimed(session, moved[session], fired[session])

    def _reclaimed(self, session: Session, moved: int, fired: int) -> None:
        session.ready = True
        self._emit(LeaseAcquired(bucket=session.bucket.number, reclaimed=moved, fired=fired))
        self._alarm.ring()

    # the store

    def _glance(self, answers: dict[Session, list[Any]], sent_s: float) -> None:
        """Read the clock that came along with the last claim or fire: it judges what follows."""
        if answers:
            *_, last = answers[next(reversed(answers))]
            step_ms = self._clock.glance(last.now_us, sent_s, self._clock.monotonic())
            if step_ms:
                self.clock_stepped(step_ms)

    async def _ask(
        self, asked: Mapping[Session, Sequence[Command[Any]]]
    ) -> dict[Session, list[Any]]:
        """Ask in one pipeline until the store answers; the sessions that are still ours.

        A session whose lease is gone is reported lost and left out, and one whose bucket is damaged
        likewise. Every answer renewed a lease.
        """
        sent_s = self._clock.monotonic()
        for session in asked:
            session.calls += 1
        try:
            flat = [command for commands in asked.values() for command in commands]
            answers = iter(await insist_each(self._store, self._store_event, flat))
        finally:
            for session in asked:
                session.calls -= 1
                session.moved.set()
        ours: dict[Session, list[Any]] = {}
        for session, commands in asked.items():
            mine = [next(answers) for _ in commands]
            error = next((answer for answer in mine if isinstance(answer, StoreError)), None)
            if error is not None:
                self._damaged(session, error)
            elif None in mine:
                self._lost(session, f"{commands[mine.index(None)].name} refused")
            elif session.alive:
                session.touched_s = max(session.touched_s, sent_s)
                ours[session] = mine
        return ours

    def _store_event(self, event: Event) -> None:
        self._head = None, self._clock.now_ms()  # the store is silent, the scanner is not stuck
        self._emit(event)

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

    def _let_go(self, copies: Sequence[Copy]) -> None:
        """The copies wait here no more: there is room to claim others."""
        self._held -= len(copies)
        self._held_bytes -= sum([copy.size for copy in copies])
        for (session, claim), count in Counter(map(_by_claim, copies)).items():
            session.left(claim, count)

    def _remove(self, which: Callable[[Copy], bool]) -> list[Copy]:
        """Take such copies off the wheel and out of what is ripe."""
        removed = [copy for copy in self._ripe + self._late if which(copy)]
        if removed:
            self._lanes.unripened(removed)
            self._ripe = [copy for copy in self._ripe if not which(copy)]
            self._late = [copy for copy in self._late if not which(copy)]
        waiting = [copy for _, copy in self._wheel.items() if which(copy)]
        for copy in waiting:
            self._wheel.cancel(copy)
        self._let_go(removed + waiting)
        return removed + waiting

    def _sweep(self) -> None:
        """Throw away what lost sessions left: it would take the room of those that follow."""
        if not self._swept:
            self._swept = True
            self._remove(lambda copy: not copy.session.alive)

    def _give_back(self, copies: Sequence[Copy]) -> None:
        for copy in copies:
            self._lanes.give_back(copy)

    def _next_look_ms(self, now_ms: int) -> int | None:
        """The nearest instant at which time alone makes something possible."""
        looks: list[float] = [self._tell_at_ms, *(copy.score for copy in self._fired[:1])]
        if (wheel_ms := self._wheel.next_due_ms()) is not None:
            looks.append(wheel_ms - self._lead_ms)
        if not self._claiming and min(self._room) > 0:
            looks += [s.look_at_ms for s in self._sessions.values() if s.may_claim]
        looks += self._lanes.next_looks_ms(now_ms, waiting=bool(self._ripe))
        nearest = min(looks, default=inf)
        return None if nearest == inf else int(max(nearest, now_ms))


def _share(most: int, number: int, buckets: int) -> int:
    """How many a bucket may keep so that all together keep at most so many; one at least."""
    return max(1, (most + buckets - 1 - number) // buckets)
