"""Reclaim: messages that dead sessions left in the mirror or parked go back to `due`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from delaybridge.events import LeaseAcquired
from delaybridge.scan.context import Context
from delaybridge.scan.session import Session


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
        moved: Counter[Session] = Counter()
        fired: Counter[Session] = Counter()
        left = [session for session in sessions if session.alive]
        while left:
            answers = await self._context.asking.ask(
                {s: [s.bucket.reclaim(*s.owner), s.bucket.unpark(*s.owner)] for s in left}
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
        bucket = session.bucket.number
        self._context.emit(LeaseAcquired(bucket=bucket, reclaimed=moved, fired=fired))
        self._context.ring()
