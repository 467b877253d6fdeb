"""Reclaim: what dead sessions left in the mirror or parked, before a new session claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from delaybridge.events import LeaseAcquired
from delaybridge.scan.context import Context
from delaybridge.scan.leases.earlier_sessions import Inherited
from delaybridge.scan.leases.mending import Mending, Retake
from delaybridge.scan.leases.session import Session
from delaybridge.store.namespace.orphans import SOUND

_IN_CALL = 500  # parked messages that one call reads: about two milliseconds of Redis
_AT_ONCE = 2000  # parked messages that one pipeline reads; Redis does nothing else meanwhile


class Reclaiming:
    """Reclaims everything for a new session before it claims."""

    def __init__(self, context: Context, mending: Mending, retake: Retake) -> None:
        """retake: ends a session, for a new one."""
        self._context, self._mending, self._retake = context, mending, retake
        self._begun: list[Session] = []

    def add(self, session: Session) -> None:
        """Reclaim for this new session at the next pass."""
        self._begun.append(session)

    def start(self) -> None:
        """Reclaim for all new sessions together, so that the first claim asks all of them."""
        if self._begun:
            begun, self._begun = self._begun, []
            self._context.start(self._reclaim(begun))

    async def _reclaim(self, sessions: Sequence[Session]) -> None:
        left = [Inherited(session) for session in sessions]
        while left:
            limit = max(1, min(_IN_CALL, _AT_ONCE // len(left)))
            asked = {each.session: each.commands(limit) for each in left}
            answers = await self._context.asking.ask(asked)
            left = [each for each in left if each.session in answers]
            self._answered(left, answers)
            left = [each for each in left if not (each.is_done or each.session.draining)]

    def _answered(self, asked: Sequence[Inherited], answers: Mapping[Session, list[Any]]) -> None:
        now_ms = self._context.clock.now_ms()
        for each in asked:
            each.answered(answers[each.session], self._context.lanes, now_ms)
            if not each.is_done:
                continue
            if self._context.ledger is not None and each.session.counts.mirror:
                what = "claims in its mirror are above its counter"
                self._context.asking.set_aside(each.session, what)
            elif self._context.ledger is not None or each.session.counts.difference != SOUND:
                self._context.start(self._verify(each))
            else:
                self._reclaimed(each)

    async def _verify(self, done: Inherited) -> None:
        """Begin once the bucket's keys agree with one another, and with the ledger."""
        await self._mending.mend(done.session)
        if self._context.ledger is not None and done.session.stays:
            if not await self._context.ledger.verify(done.session):
                self._retake(done.session, "seal refused")
        if done.session.stays:
            self._reclaimed(done)

    def _reclaimed(self, done: Inherited) -> None:
        done.session.ready = True
        bucket = done.session.bucket.number
        self._context.emit(
            LeaseAcquired(
                bucket=bucket,
                reclaimed=done.moved,
                fired=done.fired,
                destinations=done.destinations,
            )
        )
        self._context.ring()
