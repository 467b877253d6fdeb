"""Tell the store how copies ended: settle, retry, bury, park; and unpark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf

from delaybridge import failpoints
from delaybridge.events import Settled
from delaybridge.scan.context import Context
from delaybridge.scan.leases.exits import ExitReport
from delaybridge.scan.leases.session import Session

_PAUSE_MS = 10  # under load the store is told at most this often
_LONG_PAUSE_MS = 30  # while a backlog lasts


class Telling:
    """Tells the store of all buckets' exits together. One call at a time.

    under_way: a call has no answer yet.
    """

    def __init__(self, context: Context, wake: Callable[[int, int], None]) -> None:
        """wake: called with a bucket and the time at which a message is due there again."""
        self._context, self._wake = context, wake
        self.under_way = False
        self._told_ms = -inf
        self.next_look_ms = inf

    @property
    def is_planned(self) -> bool:
        """Whether the store will be told soon, without another pass."""
        return self.under_way or self.next_look_ms < inf

    def start(self, now_ms: int) -> None:
        """Tell, if there is anything to tell. Settled copies wait up to 10 ms for others, or 30.

        Most are told sooner, along with a fire of their bucket.
        """
        if self.under_way:
            return
        self.next_look_ms = inf
        sessions = [s for s in self._context.sessions.values() if s.exits.any]
        pause_ms = _LONG_PAUSE_MS if self._context.waiting.ripe else _PAUSE_MS
        lately = 0 <= now_ms - self._told_ms < pause_ms
        if sessions and lately and all(s.exits.may_wait for s in sessions):
            self.next_look_ms = self._told_ms + pause_ms
        elif sessions:
            self.under_way, self._told_ms = True, now_ms
            self._context.start(self._tell(sessions))

    async def _tell(self, sessions: Sequence[Session]) -> None:
        unparks = {session: session.exits.take_unpark() for session in sessions}
        reports = {session: session.exits.take() for session in sessions}
        asked = {s: reports[s].commands + unparks[s] for s in sessions}
        answers = await self._context.asking.ask(asked)
        self.under_way = False
        self.answered(answers, reports)
        for session in answers:
            if unparks[session]:
                session.unparked(answers[session][-1])

    def answered(self, sessions: Iterable[Session], reports: Mapping[Session, ExitReport]) -> None:
        """The store has the reports of these sessions."""
        settled: Counter[str] = Counter()
        if failpoints.ARE_SET and any(reports[session].settled for session in sessions):
            failpoints.reach("settle.after")
        for session in sessions:
            report = reports[session]
            self._has(session, report)
            if report.settled:
                settled.update(report.settled)
        if settled:
            self._context.emit(Settled(messages=settled.total(), destinations=settled))

    def _has(self, session: Session, report: ExitReport) -> None:
        """The store has the report. Messages put back until later are claimed again in time."""
        session.told(report)
        if self._context.ledger is not None:
            self._context.ledger.told(session, report, self._context.clock.now_ms())
        if report.back_off_ms is not None:
            due_ms = self._context.clock.now_ms() + report.back_off_ms
            self._wake(session.bucket.number, due_ms)
        if report.deferred_to is not None:
            self._wake(session.bucket.number, int(report.deferred_to))
