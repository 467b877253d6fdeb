"""Waiting: the buckets of one worker from which nothing is claimed before the ledger was asked."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any

from delaybridge.ledger.reconciling.attempts import Attempts
from delaybridge.ledger.reconciling.silence import Silence
from delaybridge.scan.leases.session import Session
from delaybridge.worker.eventlog import say


class WaitingBuckets:
    """ledger: whether it takes what is written to it, asked once for all who want to know."""

    def __init__(self, ask: Callable[[], Coroutine[Any, Any, None]], silence: Silence) -> None:
        self.ledger = Attempts(ask)
        self._silence, self._told = silence, 0
        self._sessions: set[Session] = set()

    def begins(self, session: Session) -> None:
        """It is counted before the ledger is asked, which may answer nothing for long."""
        self._sessions.add(session)

    def ends(self, session: Session) -> None:
        """It may claim, or is over."""
        self._sessions.discard(session)

    def __contains__(self, session: Session) -> bool:
        return session in self._sessions

    def __len__(self) -> int:
        return sum(each.alive for each in self._sessions)

    def tell(self) -> None:
        """Say how many wait for a silent ledger; again only if more do."""
        self._sessions = {each for each in self._sessions if each.alive}
        count = len(self._sessions) if self._silence.reason else 0
        if count > self._told:
            about = {"buckets": count, "reason": self._silence.reason}
            say(logging.WARNING, "buckets_wait", **about, hint="nothing of them goes out before")
        self._told = max(count, self._told) if count else 0
