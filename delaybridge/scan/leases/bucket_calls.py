"""Calls to the store: many buckets in one pipeline, sent again until there is an answer.

One of them settles: it tells how copies ended (settled, retried, buried, parked), and unparks.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from math import inf
from typing import Any, Protocol, TypeVar

from delaybridge import failpoints
from delaybridge.errors import StoreError
from delaybridge.events import Emit, Event, Settled
from delaybridge.scan.leases.clock import StoreClock
from delaybridge.scan.leases.exits import ExitReport, SentMessage
from delaybridge.scan.leases.session import Session
from delaybridge.store.namespace import registry
from delaybridge.store.protocol.verbs import RedisCommand
from delaybridge.store.redis.store import AsyncStore, insist

T = TypeVar("T")
LastHere = Callable[[dict[Session, Any]], Session | None]
_PAUSE_MS = 10  # under load the store is told at most this often
_LONG_PAUSE_MS = 30  # while a backlog lasts


def last_of(sessions: dict[Session, Any]) -> Session | None:
    """The last of them, if there is any."""
    return next(reversed(sessions), None)


class BucketCalls:
    """Sends the commands of sessions, each step as a task that rings when it ends.

    clock: the store's. emit, ring: for the steps. silent_at_ms: when the store last did not answer.
    failure: the first error of any step.
    """

    def __init__(
        self, store: AsyncStore, clock: StoreClock, emit: Emit, *, ring: Callable[[], None],
        lost: Callable[[Session, str], None], damaged: Callable[[Session, StoreError], None],
        clock_stepped: Callable[[int], None], last_here: LastHere, checks_server: bool,
    ) -> None:  # fmt: skip
        """ring: makes the scanner do a pass soon. lost: called when a session's lease is found to
        be lost. damaged: when its bucket is. clock_stepped: called with the number of ms by which
        the store's clock was set. last_here: the last of these sessions whose bucket is on the
        Redis node whose clock this is. checks_server: of each answer that carries the store's time,
        look which server gave it: one that was started again may have an older past, and nothing
        that it allows may be published.
        """
        self._store, self.clock, self.emit, self.ring = store, clock, emit, ring
        self._lost, self._damaged, self._clock_stepped = lost, damaged, clock_stepped
        self._last_here, self._checks_server = last_here, checks_server
        self._tasks: set[asyncio.Task[None]] = set()
        self._asked: dict[int, Mapping[Session, Any]] = {}  # the calls that have no answer yet
        self.silent_at_ms = 0
        self.failure: BaseException | None = None

    # steps

    def start(self, step: Coroutine[Any, Any, None]) -> None:
        """Run a step, which calls the store, as a task."""
        task = asyncio.get_running_loop().create_task(step)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)
        self.ring()

    def fail(self, error: BaseException) -> None:
        """A step failed: the scanner ends."""
        self.failure = self.failure or error
        self.ring()

    @property
    def are_under_way(self) -> bool:
        """Whether any step has not ended yet."""
        return bool(self._tasks)

    def is_asking(self, session: Session) -> bool:
        """Whether a call of that session has no answer yet."""
        return any(session in asked for asked in self._asked.values())

    def cancel(self) -> None:
        """End all steps, whatever they do."""
        for task in self._tasks:
            task.cancel()

    # their calls

    async def ask(
        self, asked: Mapping[Session, Sequence[RedisCommand[Any]]], *, reads_clock: bool = False
    ) -> dict[Session, list[Any]]:
        """Ask until the store answers; returns the answers of the sessions that still hold a lease.

        Sessions whose lease is lost or whose bucket is damaged are reported, and left out. Every
        answer also renewed a lease. reads_clock: the last answer of each session carries the
        store's time; the clock follows it before the caller acts on the answers.
        """
        sent_s = self.clock.monotonic()
        self._asked[id(asked)] = asked
        try:
            flat = [command for commands in asked.values() for command in commands]
            if reads_clock and self._checks_server:
                flat.append(registry.info("server", next(iter(asked)).bucket.key("lease")))
            answers = iter(await insist(self._store, self._silent, flat))
        finally:
            del self._asked[id(asked)]
            for session in asked:
                session.moved.set()
        ours: dict[Session, list[Any]] = {}
        for session, commands in asked.items():
            mine = [next(answers) for _ in commands]
            if self._is_held(session, commands, mine):
                ours[session] = mine
        if reads_clock:
            self._read_clock(ours, sent_s)
        if reads_clock and self._checks_server:
            self._check_server(ours, next(answers))
        for session in ours:
            session.renewed(sent_s)
        return ours

    def _check_server(self, answers: dict[Session, list[Any]], info: Any) -> None:
        """End the sessions whose lease another server gave."""
        run_id = "" if isinstance(info, StoreError) else info.get("run_id", "")
        for session in [each for each in answers if each.server != run_id]:
            self._lost(session, "another server answers")
            del answers[session]

    def _read_clock(self, answers: dict[Session, list[Any]], sent_s: float) -> None:
        session = self._last_here(answers)
        if session is not None:
            now_us = answers[session][-1].now_us
            if step_ms := self.clock.glance(now_us, sent_s, self.clock.monotonic()):
                self._clock_stepped(step_ms)

    async def ask_one(self, command: RedisCommand[T]) -> T | StoreError:
        """Ask something that concerns no session, until the store answers."""
        (answer,) = await insist(self._store, self._silent, [command])
        return answer  # type: ignore[no-any-return]

    def _is_held(
        self, session: Session, commands: Sequence[RedisCommand[Any]], answers: Sequence[Any]
    ) -> bool:
        """Whether the session still holds its lease; reports it if not."""
        error = next((answer for answer in answers if isinstance(answer, StoreError)), None)
        if error is not None:
            self._damaged(session, error)
        elif None in answers:
            self._lost(session, f"{commands[answers.index(None)].name} refused")
        return session.alive

    def set_aside(self, session: Session, what: str) -> None:
        """A session found its bucket damaged, though the store refused nothing."""
        self._damaged(session, StoreError(what))

    def _silent(self, event: Event) -> None:
        self.silent_at_ms = self.clock.now_ms()
        self.emit(event)

    def clock_stepped(self, step_ms: int) -> None:
        """The store's clock was set: shift the time measured by it."""
        self.silent_at_ms += step_ms


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
        self, sessions: Mapping[int, Session], calls: BucketCalls, wake: Callable[[int, int], None],
        ledger: LedgerSide | None,
    ) -> None:  # fmt: skip
        """wake: called with a bucket and the time at which a message is due there again."""
        self._sessions, self._calls = sessions, calls
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
        sessions = [s for s in self._sessions.values() if s.exits.touched and s.exits.any]
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
            self._calls.emit(Settled(messages=settled.total(), destinations=settled))

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
