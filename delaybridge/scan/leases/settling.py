"""Settle: tell the store how copies ended: settled, retried, buried, parked; and unpark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from typing import Protocol

from delaybridge import failpoints
from delaybridge.events import Emit, Settled
from delaybridge.scan.leases.bucket_calls import BucketCalls
from delaybridge.scan.leases.exits import ExitReport, SentMessage
from delaybridge.scan.leases.session import Session

_PAUSE_MS = 10  # under load the store is told at most this often
_LONG_PAUSE_MS = 30  # while a backlog lasts


class LedgerSide(Protocol):
    """Keeps the ledger and the buckets of a worker in agreement."""

    async def verify(self, session: Session) -> bool:
        """Return when a new session's bucket agrees with the ledger, or the session is over.

        False: Redis refuses the session; its bucket may not agree.
        """

    def exits_stored(self, session: Session, report: ExitReport, now_ms: int) -> None:
        """The store has these exits. now_ms: by its clock."""

    def left(self, session: Session, copies: Sequence[SentMessage], now_ms: int) -> None:
        """The store has settled these, which are to be published at most once, now."""


class Settling:
    """Tells the store of all buckets' exits together. One call at a time.

    under_way: a call has no answer yet. next_look_ms: when to tell it of exits that wait.
    """

    def __init__(
        self,
        sessions: Mapping[int, Session],
        calls: BucketCalls,
        emit: Emit,
        wake: Callable[[int, int], None],
        ledger: LedgerSide | None,
    ) -> None:
        """wake: called with a bucket and the time at which a message is due there again."""
        self._sessions, self._calls, self._emit = sessions, calls, emit
        self._wake, self._ledger = wake, ledger
        self.under_way = False
        self._told_ms = -inf
        self.next_look_ms = inf

    @property
    def is_planned(self) -> bool:
        """Whether the store will be told soon, without another pass."""
        return self.under_way or self.next_look_ms < inf

    def start(self, now_ms: int, *, is_backlog: bool) -> None:
        """Tell, if there is anything to tell. Settled copies wait up to 10 ms for others, or 30.

        Most are told sooner, along with a fire of their bucket. is_backlog: copies wait for room.
        """
        if self.under_way:
            return
        self.next_look_ms = inf
        sessions = [s for s in self._sessions.values() if s.exits.any]
        pause_ms = _LONG_PAUSE_MS if is_backlog else _PAUSE_MS
        lately = 0 <= now_ms - self._told_ms < pause_ms
        if sessions and lately and all(s.exits.may_wait for s in sessions):
            self.next_look_ms = self._told_ms + pause_ms
        elif sessions:
            self.under_way, self._told_ms = True, now_ms
            self._calls.start(self._settle(sessions))

    async def _settle(self, sessions: Sequence[Session]) -> None:
        unparks = {session: session.exits.take_unpark() for session in sessions}
        reports = {session: session.exits.take_report() for session in sessions}
        asked = {s: reports[s].commands + unparks[s] for s in sessions}
        answers = await self._calls.ask(asked)
        self.under_way = False
        self.answered(answers, reports)
        for session in answers:
            if unparks[session]:
                session.unparked(answers[session][-1])

    def answered(self, sessions: Iterable[Session], reports: Mapping[Session, ExitReport]) -> None:
        """The store has the reports of these sessions."""
        settled: Counter[str] = Counter()
        for session in sessions:
            report = reports[session]
            self._stored(session, report)
            if report.settled:
                settled.update(report.settled)
        if settled:
            failpoints.reach("settle.after")
            self._emit(Settled(messages=settled.total(), destinations=settled))

    def _stored(self, session: Session, report: ExitReport) -> None:
        """The store has the report. Messages put back until later are claimed again in time."""
        session.answered(report)
        if self._ledger is not None:
            self._ledger.exits_stored(session, report, self._calls.clock.now_ms())
        if report.back_off_ms is not None:
            due_ms = self._calls.clock.now_ms() + report.back_off_ms
            self._wake(session.bucket.number, due_ms)
        if report.deferred_to is not None:
            self._wake(session.bucket.number, int(report.deferred_to))
