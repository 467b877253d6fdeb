"""Reclaim: what dead sessions left in the mirror or parked, before a new session claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from delaybridge.events import LeaseAcquired
from delaybridge.scan.context import Context, LedgerSide
from delaybridge.scan.inherited import Inherited
from delaybridge.scan.session import Session

_IN_CALL = 500  # parked messages that one call reads: about two milliseconds of Redis
_AT_ONCE = 2000  # parked messages that one pipeline reads; Redis does nothing else meanwhile


class Reclaiming:
    """Reclaims everything for a new session before it claims."""

    def __init__(self, context: Context) -> None:
        self._context = context
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
            ledger = self._context.ledger
            if each.is_done and ledger is not None:
                self._context.start(self._verify(each, ledger))
            elif each.is_done:
                self._reclaimed(each)

    async def _verify(self, done: Inherited, ledger: LedgerSide) -> None:
        await ledger.verify(done.session)
        if done.session.alive:
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
