"""The ledger's database: connections, transactions, time-outs and errors, by SQLAlchemy."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as TimeIsUp
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from sqlalchemy.exc import DataError, DBAPIError, SQLAlchemyError

from delaybridge.errors import DelayBridgeError, LedgerRefused, LedgerUnavailable, printable
from delaybridge.ledger.sql import engines, schema
from delaybridge.settings.urls import redact_text
from delaybridge.store.protocol.recorder import IN_DOUBT
from delaybridge.store.protocol.verbs import Work

T = TypeVar("T")
_TRIES = 3
_GRACE_S = 1.0  # for the database to say itself that its time is up
_NOTHING = "nothing was written to it"
_UNFIT = (DataError, UnicodeError)  # no later attempt helps
_OF_DATABASE = (SQLAlchemyError, OSError, UnicodeError)


class Database:
    """A database behind a URL of SQLAlchemy. It is connected to, and checked, when first used.

    Each transaction runs in a thread, so that its caller waits no longer than the time-out, also
    for a database that takes what it is sent and answers nothing.
    """

    def __init__(self, url: str, *, timeout_s: float, connections: int) -> None:
        self.url, self._timeout_s, self._connections = str.__str__(url), timeout_s, connections
        self._is_checked = self._is_closed = False
        self._lock = threading.Lock()
        self._engine = engines.make(url, timeout_s, connections)
        self._here = threading.local()
        engines.tell_waits(self._engine, lambda connection: self._here.attempt.waits_on(connection))
        self._threads: ThreadPoolExecutor | None = None
        self._under_way = 0
        self._pid = os.getpid()

    def run(self, work: Work[T]) -> T:
        """Run it in a transaction, as `Ledger.run`."""
        attempt = self._start(work)
        try:
            return attempt.future.result(self._timeout_s + _GRACE_S)
        except TimeIsUp:
            raise attempt.abandoned() from None

    async def run_async(self, work: Work[T]) -> T:
        """Run it on a thread, as `Ledger.run_async`."""
        attempt = self._start(work)
        # A caller that is cancelled does not cancel the work: its outcome would be unknown.
        own = asyncio.wrap_future(attempt.future)
        own.add_done_callback(lambda done: done.cancelled() or done.exception())  # seen, if late
        try:
            async with asyncio.timeout(self._timeout_s + _GRACE_S):
                return await asyncio.shield(own)
        except TimeoutError:
            raise attempt.abandoned() from None
        except asyncio.CancelledError:  # nor is the end of the process to wait any longer
            attempt.abandon_after(self._timeout_s + _GRACE_S)
            raise

    def _start(self, work: Work[T]) -> _Attempt[T]:
        attempt = _Attempt(work)
        with self._lock:
            if self._pid != os.getpid():  # a fork must not share connections
                self._engine.dispose(close=False)
                self._threads, self._under_way, self._pid = None, 0, os.getpid()
            if self._threads is None:
                self._threads = ThreadPoolExecutor(self._connections, "ledger")
            try:
                attempt.future = self._threads.submit(self._transact, attempt)
            except RuntimeError as exc:  # the process ends, or may start no thread
                raise LedgerUnavailable(f"ledger: {exc}; {_NOTHING}") from None
            self._under_way += 1
        attempt.future.add_done_callback(self._ended)
        return attempt

    def _ended(self, _: object) -> None:
        with self._lock:
            self._under_way -= 1
            self._end_if_closed()

    def _end_if_closed(self) -> None:
        """Keep no thread and no connection, unless work is under way."""
        if self._is_closed and not self._under_way:
            if self._threads is not None:
                self._threads.shutdown(wait=False)
            self._threads = None
            self._engine.pool.dispose()

    def _transact(self, attempt: _Attempt[T]) -> T:
        self._here.attempt = attempt
        with _translated(attempt), self._engine.connect() as connection:
            attempt.on(connection.connection.dbapi_connection)
            if not self._is_checked:
                schema.check(connection)
                connection.rollback()
                self._is_checked = True
            for tries_left in reversed(range(_TRIES)):
                try:
                    with connection.begin() as transaction:
                        found = attempt.work.run(connection)
                        attempt.begin_commit()
                        transaction.commit()
                    break
                except DBAPIError as exc:  # another transaction won: this one was rolled back
                    if not (tries_left and engines.is_deadlock(exc)):
                        raise
            attempt.on(None)
            return found

    def close(self) -> None:
        """Close every connection, as `Ledger.close`."""
        with self._lock:
            self._is_closed = True
            self._end_if_closed()


def upgrade(url: str, timeout_s: float) -> tuple[str, str]:
    """Bring the tables to the version of this program: the version before, and after.

    LedgerUnavailable: no answer in time, or a refusal.
    """
    engine = engines.make(url, timeout_s, 1)
    try:
        with _translated(_Attempt(Work(lambda on: None))):
            return schema.upgrade(engine)
    finally:
        engine.dispose()


class _Attempt(Generic[T]):
    """One transaction under way."""

    future: Future[T]

    def __init__(self, work: Work[T]) -> None:
        self.work = work
        self.has_connected = self.may_be_written = False
        self._connection: Any = None  # the driver's
        self._is_given_up = False
        self._lock = threading.Lock()

    def waits_on(self, connection: Any) -> None:
        """It does not have this connection yet: it looks whether it answers."""
        with self._lock:
            self._connection = connection
            self._check()

    def on(self, connection: Any) -> None:
        """It has this connection; None: it has ended."""
        with self._lock:
            self.has_connected |= connection is not None
            self._connection = connection
            self._check()

    def begin_commit(self) -> None:
        """It is about to commit."""
        with self._lock:
            self._check()
            self.may_be_written = True

    def _check(self) -> None:
        if self._is_given_up:
            raise LedgerUnavailable(f"ledger: no answer in time; {_NOTHING}")

    def abandon_after(self, seconds: float) -> None:
        """No caller waits for it any more: let it end by then."""
        timer = threading.Timer(seconds, self.abandoned)
        timer.daemon = True
        timer.start()
        self.future.add_done_callback(lambda _: timer.cancel())

    def abandoned(self) -> LedgerUnavailable:
        """Its time is up: end its wait, and say what is known."""
        self.future.cancel()
        with self._lock:
            self._is_given_up = True
            if self._connection is not None:
                engines.cut(self._connection)
            what = IN_DOUBT if self.may_be_written else _NOTHING
            return LedgerUnavailable(f"ledger: no answer in time; {what}")


@contextmanager
def _translated(attempt: _Attempt[Any]) -> Iterator[None]:
    """SQLAlchemy's errors as ours, without parameters, which hold messages, and passwords."""
    try:
        yield
    except DelayBridgeError:
        raise
    except Exception as exc:
        # A driver raises anything while it connects: PyMySQL a bare RuntimeError.
        if attempt.has_connected and not isinstance(exc, _OF_DATABASE):
            raise
        if isinstance(exc, DBAPIError) and engines.is_refusal(exc):
            attempt.may_be_written = False
        own = exc.orig if isinstance(exc, DBAPIError) and exc.orig is not None else exc
        text = printable(redact_text(" ".join(str(own).split())))[:200]
        if isinstance(exc, _UNFIT):
            raise LedgerRefused(f"ledger: {text}; {_NOTHING}") from None
        what = IN_DOUBT if attempt.may_be_written else _NOTHING
        raise LedgerUnavailable(f"ledger: {text or type(own).__name__}; {what}") from None
