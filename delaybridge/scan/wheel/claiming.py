"""Claim: messages due soon move to the mirror in Redis; their copies wait here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import inf
from operator import attrgetter

from delaybridge import failpoints
from delaybridge.events import Claimed
from delaybridge.scan.context import Context
from delaybridge.scan.leases.session import Session
from delaybridge.scan.wheel.unpacking import copies_of
from delaybridge.store.protocol.replies import Claim

MARGIN_MS = 20  # an owner that is woken up claims this long before the due time
_AT_ONCE = 2000  # messages of a backlog in one claim; while they are unpacked, confirms wait
_MOST = 8000  # messages of any claim: Redis does nothing else meanwhile
_PAUSE_MS = 20  # between claims while there is room for less than a batch


class Claiming:
    """Claims from all buckets whose time has come, in one pipeline, one claim at a time.

    under_way: the sessions of the claim that has no answer yet.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self.under_way: Sequence[Session] = ()
        self._claimed_ms = -inf

    def start(self, now_ms: int) -> None:
        """Claim from every bucket whose time has come, earliest first, while there is room."""
        if self.under_way:
            return
        room, room_bytes = self._room
        if room <= 0 or room_bytes <= 0:
            return
        ripe = self._context.waiting.ripe
        if now_ms < self._pause_ends_ms(now_ms) and ripe and ripe[0].score <= self.horizon(now_ms):
            return  # nothing waits for this claim
        options = self._context.options
        asked = self._first(self._wanting(now_ms), room, now_ms)
        if asked:
            self.under_way, self._claimed_ms = asked, now_ms
            limit = max(1, min(options.batch_messages, min(room, _MOST) // len(asked)))
            max_bytes = max(1, min(options.batch_bytes, room_bytes) // len(asked))
            self._context.start(self._claim(asked, limit, max_bytes, now_ms))

    def horizon(self, now_ms: int) -> float:
        """The lowest score that an unclaimed message may have: fire nothing above it."""
        unclaimed = [*self.under_way, *self._wanting(now_ms)]
        return min((session.next_score for session in unclaimed), default=inf)

    def next_looks_ms(self, now_ms: int) -> list[float]:
        """When to claim next."""
        if self.under_way or min(self._room) <= 0:
            return []  # the alarm rings when the claim ends, or when a copy frees its room
        ends_ms = self._pause_ends_ms(now_ms)
        sessions = self._context.sessions.values()
        return [max(s.look_at_ms, ends_ms) for s in sessions if s.may_claim]

    def _first(self, wanting: Sequence[Session], room: int, now_ms: int) -> Sequence[Session]:
        """The buckets to claim from now, earliest first: of those with a backlog only some.

        They give whole batches. A full wheel would else be refilled with a few messages from each
        bucket, again and again. Buckets without a backlog cost little, and may have live messages;
        so may one whose next message is not due yet: an earlier one that came since woke nobody.
        """
        ordered = sorted(wanting, key=attrgetter("next_score"))
        behind = [s for s in ordered if s.has_more and s.next_score <= now_ms]
        later = set(behind[max(1, min(_AT_ONCE, room) // self._batch) :])
        return [session for session in ordered if session not in later][:room]

    def _pause_ends_ms(self, now_ms: int) -> float:
        """When to claim next, though there is room for less than a batch."""
        is_tight = self._room[0] < self._batch
        lately = 0 <= now_ms - self._claimed_ms < _PAUSE_MS
        return self._claimed_ms + _PAUSE_MS if is_tight and lately else -inf

    @property
    def _batch(self) -> int:
        """Messages of a backlog to claim from one bucket; the wheel has room for two from each."""
        options, buckets = self._context.options, max(1, len(self._context.sessions))
        return max(1, min(options.batch_messages, options.wheel_messages // (2 * buckets)))

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
        clock = self._context.clock
        sent_s = clock.monotonic()
        if failpoints.ARE_SET:
            failpoints.reach("claim.before")
        answers = await self._context.asking.ask(claims, reads_clock=True)
        if failpoints.ARE_SET and any(claimed.ids for (claimed,) in answers.values()):
            failpoints.reach("claim.after")
        took_ms = (clock.monotonic() - sent_s) * 1000
        received: Counter[str] = Counter()
        for session, (claimed,) in answers.items():
            self.received(session, claimed, now_ms, received)
        self.under_way = ()
        if messages := received.total():
            self._context.emit(Claimed(messages=messages, took_ms=took_ms, destinations=received))

    def received(
        self, session: Session, claimed: Claim, now_ms: int, destinations: Counter[str]
    ) -> None:
        """Put one bucket's copies on the wheel, and note when to look again.

        destinations: how many of each; these are added.
        """
        options, next_score = self._context.options, claimed.next_score
        session.next_score = inf if next_score is None else next_score
        next_due_ms = inf if next_score is None else int(next_score)
        look_at_ms = max(next_due_ms - options.claim_ahead_ms, now_ms + options.pace_ms)
        session.look_at_ms = min(session.look_at_ms, now_ms if claimed.more else look_at_ms)
        session.has_more = claimed.more
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
            kept = lanes.without_surplus(copies, self._context.clock.now_ms())
            if len(kept) < len(copies):
                session.waits_no_more(claimed.number, len(copies) - len(kept))
            self._context.waiting.add(kept)
        destinations.update([copy.lane.label for copy in copies])
