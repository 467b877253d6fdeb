"""Fire: just before the due time, ask the store a last time which ripe copies may be published.

A fire raises the bucket's watermark in Redis, returns which copies were cancelled or rescheduled
since their claim, and fails if the lease is lost.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from math import ceil, inf
from typing import Any

from delaybridge import events, failpoints
from delaybridge.scan.context import Context
from delaybridge.scan.lanes.lanes import GO, WAIT
from delaybridge.scan.leases.copy import Copy
from delaybridge.scan.leases.exits import ExitReport
from delaybridge.scan.leases.session import Session
from delaybridge.scan.wheel.claiming import Claiming
from delaybridge.scan.wheel.publishing import Publishing, settle_once
from delaybridge.scan.wheel.settling import Telling
from delaybridge.scan.wheel.waiting import by_score
from delaybridge.store.protocol.command import RedisCommand
from delaybridge.store.protocol.replies import Fired

_GATHER_MS = 20  # how long a full lane gathers room before its next fire
_PART = 1000  # messages due at one instant; beyond it, other buckets wait for the next fire

Batch = dict[Session, list[Copy]]


class Firing:
    """Fires ripe copies of all buckets together. One fire at a time.

    under_way: a fire has no answer yet.
    """

    def __init__(
        self, context: Context, claiming: Claiming, telling: Telling, publishing: Publishing
    ) -> None:
        self._context, self._claiming = context, claiming
        self._telling, self._publishing = telling, publishing
        self.under_way = False
        self._fired_ms = -inf
        self._round_trip_ms = 1.0

    @property
    def lead_ms(self) -> int:
        """How long before the due time to fire: two round trips, at most `fire_lead_ms`."""
        return min(self._context.options.fire_lead_ms, ceil(2 * self._round_trip_ms) + 1)

    def is_ready(self, now_ms: int) -> bool:
        """Whether a fire can be made now, and is worth it.

        In a backlog of one lane it is nearly always full. It gathers room for an eighth of what it
        holds; its broker has the rest meanwhile.
        """
        ripe = self._context.waiting.ripe
        if not ripe or self.under_way:
            return False
        gathers = 0 <= now_ms - self._fired_ms < _GATHER_MS
        return not gathers or self._context.lanes.has_room(ripe[0].lane)

    def next_look_ms(self, now_ms: int) -> float:
        """When a fire is worth it though no room is gathered."""
        if self.under_way or not self._context.waiting.ripe:
            return inf
        ends_ms = self._fired_ms + _GATHER_MS
        return ends_ms if ends_ms > now_ms else inf

    def start(self, now_ms: int) -> None:
        """Fire, in all buckets at once, the ripe copies that there is room for, by score."""
        waiting = self._context.waiting
        waiting.ripen(now_ms, self.lead_ms, self._context.options.fire_lead_ms)
        if self.is_ready(now_ms):
            batch = self.select(now_ms)
            if batch:
                self.under_way, self._fired_ms = True, now_ms
                # Built here: a claim answered before the task runs must not be covered.
                reports = {session: session.exits.take() for session in batch}
                fires = [self._fire_of(session, copies) for session, copies in batch.items()]
                self._context.start(self._fire(batch, reports, fires))

    def select(self, now_ms: int) -> Batch:
        """The next copies by score while there is room, and all others that their fire covers.

        A bucket's fire covers every copy at or below its watermark. So a covered copy goes along
        though its lane is full, and one that cannot be published takes its exit before the fire.
        A burst is fired in parts, by buckets: the first ones are published while the others are
        fired.
        """
        ripe, admit = self._context.waiting.ripe, self._context.lanes.admit
        self._context.lanes.begin_batch()
        horizon = self._horizon(now_ms)
        batch: Batch = {}
        taken, score = 0, -1.0
        for copy in ripe:
            if taken >= _PART and copy.score == score and copy.session not in batch:
                break
            score = copy.score
            if score > horizon:
                break
            way = admit(copy, now_ms, may_wait=True)
            if way is GO:
                if (copies := batch.get(copy.session)) is None:
                    batch[copy.session] = [copy]
                else:
                    copies.append(copy)
            elif way is WAIT:
                break
            taken += 1
        self._cover(batch, taken, now_ms)
        return batch

    def _cover(self, batch: Batch, taken: int, now_ms: int) -> None:
        """Take the first `taken` ripe copies, and those after them that the fire covers."""
        ripe = self._context.waiting.ripe
        gone, kept = ripe[:taken], list[Copy]()
        watermarks = {s: max(s.watermark, copies[-1].score) for s, copies in batch.items()}
        covered = bisect_right(ripe, max(watermarks.values(), default=-1.0), lo=taken, key=by_score)
        for copy in ripe[taken:covered]:
            if copy.score > watermarks.get(copy.session, -1.0):
                kept.append(copy)
                continue
            if self._context.lanes.admit(copy, now_ms, may_wait=False) is GO:
                batch[copy.session].append(copy)
            gone.append(copy)
        self._context.waiting.taken(gone, kept, covered)

    def _horizon(self, now_ms: int) -> float:
        """Nothing above this score is fired: an earlier message may be unclaimed."""
        horizon = self._claiming.horizon(now_ms)
        # If the wheel is full nothing more can be claimed: firing makes room.
        no_room = not self._claiming.under_way and self._context.waiting.ripe[0].score > horizon
        return inf if no_room else horizon

    def _fire_of(self, session: Session, copies: list[Copy]) -> RedisCommand[Any]:
        session.watermark = max(session.watermark, *map(by_score, copies))
        known = session.last_claim, session.last_revocation
        return session.bucket.fire(*session.owner, session.watermark, *known)

    async def _fire(
        self, batch: Batch, reports: dict[Session, ExitReport], fires: list[RedisCommand[Any]]
    ) -> None:
        """Ask the store; publish the copies that are still ours and not revoked."""
        # Exits first: parked and buried messages must leave the mirror before a fire covers them.
        asked = {s: [*reports[s].commands, fire] for s, fire in zip(batch, fires, strict=True)}
        clock = self._context.clock
        sent_s = clock.monotonic()
        answers = await self._context.asking.ask(asked, reads_clock=True)
        if failpoints.ARE_SET:
            failpoints.reach("fire.after")
        self._round_trip_ms += ((clock.monotonic() - sent_s) * 1000 - self._round_trip_ms) / 8
        self._telling.answered(answers, reports)
        once: Batch = {}
        for session, copies in batch.items():
            if session not in answers:
                self._context.lanes.withdraw(copies)
                continue
            ours = self.covered(session, answers[session][-1], copies)
            if any(copy.record.at_most_once for copy in ours):
                once[session] = ours
            else:
                self._publishing.fired += ours
        if once:
            self._context.ring()
            await self._settle_once(once)
        self.under_way = False

    async def _settle_once(self, once: Batch) -> None:
        settled = await settle_once(self._context.asking, once)
        self._publishing.fired += settled.go
        self._context.lanes.withdraw(settled.stay)
        gone = {copy for copy in settled.go if copy.record.at_most_once}
        if self._context.ledger is not None:
            now_ms = self._context.clock.now_ms()
            for session, copies in once.items():
                own = [copy for copy in copies if copy in gone]
                self._context.ledger.left(session, own, now_ms)
        if gone:
            of = Counter([copy.lane.label for copy in gone])
            self._context.emit(events.Settled(messages=len(gone), destinations=of))

    def covered(self, session: Session, fired: Fired, copies: list[Copy]) -> list[Copy]:
        """The copies that one bucket's fire allows to be published.

        Every copy was received before the fire was sent, so the fire covers its claim number.
        """
        session.revoke(fired)
        if session.is_clear and not session.is_away:
            return copies
        ours = [copy for copy in copies if not session.is_revoked(copy.id, copy.claim)]
        if len(ours) < len(copies):
            revoked = [copy for copy in copies if session.is_revoked(copy.id, copy.claim)]
            self._context.lanes.withdraw(revoked)
            session.ended(len(revoked))
            self._context.emit(events.Revoked(messages=len(revoked)))
        session.forget_revoked()
        if session.is_away:  # by its own node's clock they may not be due yet
            self._publishing.put_back(ours)
            return []
        return ours
