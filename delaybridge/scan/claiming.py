"""Claim: messages due soon move to the mirror in Redis; their copies wait here."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from operator import attrgetter

from delaybridge.events import Claimed
from delaybridge.scan.context import Context
from delaybridge.scan.session import Session
from delaybridge.scan.unpacking import copies_of
from delaybridge.store.replies import Claim

MARGIN_MS = 20  # an owner that is woken up claims this long before the due time


class Claiming:
    """Claims from all buckets whose time has come, in one pipeline, one claim at a time.

    under_way: the sessions of the claim that has no answer yet.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self.under_way: Sequence[Session] = ()

    def start(self, now_ms: int) -> None:
        """Claim from every bucket whose time has come, earliest first, while there is room."""
        room, room_bytes = self._room
        if self.under_way or room <= 0 or room_bytes <= 0:
            return
        asked = sorted(self._wanting(now_ms), key=attrgetter("next_score"))[:room]
        if asked:
            self.under_way = asked
            options = self._context.options
            limit = min(options.batch_messages, room // len(asked))
            max_bytes = max(1, min(options.batch_bytes, room_bytes) // len(asked))
            self._context.start(self._claim(asked, limit, max_bytes, now_ms))

    def horizon(self, now_ms: int) -> float:
        """The lowest score that an unclaimed message may have: fire nothing above it."""
        unclaimed = [*self.under_way, *self._wanting(now_ms)]
        return min((session.next_score for session in unclaimed), default=inf)

    def next_looks_ms(self) -> list[float]:
        """When to claim next."""
        if self.under_way or min(self._room) <= 0:
            return []  # the alarm rings when the claim ends, or when a copy frees its room
        return [s.look_at_ms for s in self._context.sessions.values() if s.may_claim]

    @property
    def _room(self) -> tuple[int, int]:
        """Messages and bytes that may still be claimed."""
        options, waiting = self._context.options, self._context.waiting
        return options.wheel_messages - waiting.messages, options.wheel_bytes - waiting.bytes

    def _wanting(self, now_ms: int) -> list[Session]:
        sessions = self._context.sessions.values()
        return [s for s in sessions if s.look_at_ms <= now_ms and s.may_claim]

    async def _claim(
        self, asked: Sequence[Session], limit: int, max_bytes: int, now_ms: int
    ) -> None:
        options = self._context.options
        for session in asked:
            session.claimed_at_ms, session.look_at_ms = now_ms, inf
        claims = {
            s: [s.bucket.claim(
                *s.owner, s.last_claim, ahead_ms=options.claim_ahead_ms, limit=limit,
                max_bytes=max_bytes, pace_ms=options.pace_ms, margin_ms=MARGIN_MS,
            )]
            for s in asked
        }  # fmt: skip
        answers = await self._context.asking.ask(claims, reads_clock=True)
        for session, (claimed,) in answers.items():
            self._received(session, claimed, now_ms)
        self.under_way = ()

    def _received(self, session: Session, claimed: Claim, now_ms: int) -> None:
        """Put one bucket's copies on the wheel, and note when to look again."""
        options, next_score = self._context.options, claimed.next_score
        session.next_score = inf if next_score is None else next_score
        next_due_ms = inf if next_score is None else int(next_score)
        look_at_ms = max(next_due_ms - options.claim_ahead_ms, now_ms + options.pace_ms)
        session.look_at_ms = min(session.look_at_ms, now_ms if claimed.more else look_at_ms)
        session.copies += len(claimed.ids)
        lanes, emit = self._context.lanes, self._context.emit
        copies = copies_of(session, claimed, lanes, self._context.clock.now_ms(), emit)
        # Empty: a batch whose first answer was lost, and whose messages were cancelled since.
        session.received(claimed.number, len(copies))
        if session.draining:
            for copy in copies:
                session.exits.retry(copy.item, None)
            if copies:
                session.waits_no_more(claimed.number, len(copies))
        else:
            self._context.waiting.add(copies)
        if claimed.ids:
            emit(Claimed(messages=len(copies)))
