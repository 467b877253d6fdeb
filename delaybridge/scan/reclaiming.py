"""Reclaim: what dead sessions left in the mirror or parked, before a new session claims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from delaybridge.events import LeaseAcquired
from delaybridge.message import State
from delaybridge.scan.lanes.lanes import Lanes
from delaybridge.scan.leases.bucket_calls import BucketCalls, LedgerSide
from delaybridge.scan.leases.session import Session
from delaybridge.scan.mending import Mending, Retake
from delaybridge.store.messages.destinations_of_state import BoundSlice, bound
from delaybridge.store.namespace import orphans
from delaybridge.store.protocol.record import ORPHAN_SCORE
from delaybridge.store.protocol.replies import Reclaimed
from delaybridge.store.protocol.verbs import RedisCommand

_IN_CALL = 500  # parked messages that one call reads: about two milliseconds of Redis
_AT_ONCE = 2000  # parked messages that one pipeline reads; Redis does nothing else meanwhile


class EarlierSessions:
    """Goes through what they left, for a new session, which may claim once `is_done`.

    Messages in the mirror go back to `due`. Parked ones are read in order, a slice at a time. Those
    whose lane would park them again stay, and are known from then on as if this session had parked
    them; all others go back. moved, fired: messages that were in the mirror;
    destinations: the moved ones by lane. What was parked for an operator stays, unknown.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.moved = self.fired = 0
        self.destinations: Counter[str] = Counter()
        self.is_done = False
        self._after: tuple[float, bytes] | None = None
        self._back: list[bytes] = []

    def commands(self, limit: int) -> list[RedisCommand[Any]]:
        """The next step. limit: parked messages to read."""
        bucket, owner = self.session.bucket, self.session.owner
        back = [bucket.unpark(*owner, ids=self._back)] if self._back else []
        look = bound(bucket, State.PARKED, limit=limit, after=self._after, high=ORPHAN_SCORE - 1)
        return [bucket.reclaim(*owner), *back, look, orphans.count(bucket, owner)]

    def answered(self, answers: Sequence[Any], lanes: Lanes, now_ms: int) -> None:
        """Act on the answers to `commands`."""
        reclaimed: Reclaimed = answers[0]
        left: BoundSlice = answers[-2]
        self.session.counted(answers[-1])
        self.moved += reclaimed.moved
        self.fired += reclaimed.fired
        for text, messages in reclaimed.destinations.items():
            _, lane = lanes.routing.route(text, now_ms)
            self.destinations[lane.label] += messages
        if left.messages:
            self._after = left.messages[-1][:2]
        self._back = lanes.parking.inherit(self.session, left.messages, now_ms)
        self.is_done = not (reclaimed.left or left.more or self._back)


class Reclaiming:
    """Reclaims everything for a new session before it claims.

    begun: new sessions since the last pass.
    """

    def __init__(
        self, lanes: Lanes, mending: Mending, calls: BucketCalls, retake: Retake,
        ledger: LedgerSide | None,
    ) -> None:  # fmt: skip
        """retake: ends a session, for a new one."""
        self._lanes, self._mending, self._calls = lanes, mending, calls
        self._retake, self._ledger = retake, ledger
        self.begun: list[Session] = []

    def add(self, session: Session) -> None:
        """Reclaim for this new session at the next pass."""
        self.begun.append(session)

    def start(self) -> None:
        """Reclaim for all new sessions together, so that the first claim asks all of them."""
        begun, self.begun = self.begun, []
        self._calls.start(self._reclaim(begun))

    async def _reclaim(self, sessions: Sequence[Session]) -> None:
        left = [EarlierSessions(session) for session in sessions]
        while left:
            limit = max(1, min(_IN_CALL, _AT_ONCE // len(left)))
            asked = {each.session: each.commands(limit) for each in left}
            answers = await self._calls.ask(asked)
            left = [each for each in left if each.session in answers]
            self._answered(left, answers)
            left = [each for each in left if not (each.is_done or each.session.draining)]

    def _answered(
        self, asked: Sequence[EarlierSessions], answers: Mapping[Session, list[Any]]
    ) -> None:
        now_ms = self._calls.clock.now_ms()
        for each in asked:
            each.answered(answers[each.session], self._lanes, now_ms)
            if not each.is_done:
                continue
            if self._ledger is not None and each.session.counts.mirror:
                what = "claims in its mirror are above its counter"
                self._calls.set_aside(each.session, what)
            elif self._ledger is not None or each.session.counts.difference != orphans.SOUND:
                self._calls.start(self._verify(each))
            else:
                self._reclaimed(each)

    async def _verify(self, done: EarlierSessions) -> None:
        """Begin once the bucket's keys agree with one another, and with the ledger."""
        await self._mending.mend(done.session)
        if self._ledger is not None and done.session.stays:
            if not await self._ledger.verify(done.session):
                self._retake(done.session, "seal refused")
        if done.session.stays:
            self._reclaimed(done)

    def _reclaimed(self, done: EarlierSessions) -> None:
        done.session.reclaimed()
        bucket, to = done.session.bucket.number, done.destinations
        self._calls.emit(
            LeaseAcquired(bucket=bucket, reclaimed=done.moved, fired=done.fired, destinations=to)
        )
        self._calls.ring()
