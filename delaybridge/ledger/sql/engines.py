"""Engines of SQLAlchemy for the databases that a ledger may be in, with their time-outs."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import DBAPIError, DisconnectionError, IntegrityError

_MYSQL_DEADLOCK = 1213
_READ_ONLY = ("25006", 1290, 1836)


def make(url: str, timeout_s: float, connections: int) -> Engine:
    """An engine. Nothing is connected yet; ModuleNotFoundError: the driver is not installed."""
    parsed = make_url(str.__str__(url))
    arguments = {"sqlite": _sqlite, "postgresql": _postgresql, "mysql": _mysql}
    engine = create_engine(
        parsed,
        connect_args=arguments[parsed.get_backend_name()](parsed, timeout_s),
        pool_size=connections,
        max_overflow=0,
        pool_timeout=timeout_s,
        pool_use_lifo=True,
        pool_pre_ping=parsed.get_backend_name() != "sqlite",  # the server may have been restarted
        hide_parameters=True,
        # Of MySQL: by default a transaction would not see what another one has just committed.
        **({"isolation_level": "READ COMMITTED"} if parsed.get_backend_name() == "mysql" else {}),
    )
    if parsed.get_backend_name() == "sqlite":
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", begin_sqlite)
        if (file := _file(parsed)) is not None:
            _follow(engine, file)
    if engine.dialect.driver == "psycopg":
        from delaybridge.ledger.sql.patient import connect

        event.listen(
            engine, "do_connect", lambda _, __, args, named: connect(timeout_s, *args, **named)
        )
    event.listen(engine, "handle_error", _leave_if_read_only)
    return engine


def _leave_if_read_only(context: Any) -> None:
    """A standby answers: close every connection; a new one leads to the primary, now or soon."""
    error = context.original_exception
    code = getattr(error, "sqlstate", None) or next(iter(getattr(error, "args", ())), None)
    context.is_disconnect |= code in _READ_ONLY


def is_one_file(url: str, other: str) -> bool:
    """Whether two URLs name one file of SQLite, by whatever path. Nothing is opened."""
    file, its = _file(make_url(str.__str__(url))), _file(make_url(str.__str__(other)))
    if file is None or its is None:
        return False
    return file == its or (file.exists() and its.exists() and file.samefile(its))


def _file(url: URL) -> Path | None:
    if url.get_backend_name() != "sqlite":
        return None
    (name, *_), options = url.get_dialect()().create_connect_args(url)
    return Path(unquote(urlsplit(name).path) if options.get("uri") else name).resolve()


def _sqlite(url: URL, timeout_s: float) -> dict[str, Any]:
    return {"timeout": timeout_s, "check_same_thread": False, "isolation_level": None}


def _prepare_sqlite(connection: Any, _: Any) -> None:
    """WAL, so that readers do not wait for writers; FULL, so that a commit survives a power cut."""
    for pragma in ("journal_mode = WAL", "synchronous = FULL"):
        with suppress(Exception):  # a database that is read-only says so at the first write
            connection.execute(f"PRAGMA {pragma}")


def begin_sqlite(connection: Connection) -> None:
    """Begin as a writer: who begins by reading cannot always write later, and fails at once."""
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _follow(engine: Engine, file: Path) -> None:
    """Connect again if another file has the name now, such as a restored one.

    SQLite itself would go on with the file that has no name any more, and keep nothing.
    """

    def opened(_: Any, record: Any) -> None:
        record.info["file"] = _identity(file)

    def is_used(_: Any, record: Any, __: Any) -> None:
        if record.info["file"] != _identity(file):
            raise DisconnectionError("another file has the name of the ledger's")

    event.listen(engine, "connect", opened)
    event.listen(engine, "checkout", is_used)


def _identity(file: Path) -> tuple[int, int]:
    try:
        found = os.stat(file)
    except OSError:
        return 0, 0
    return found.st_dev, found.st_ino


def _postgresql(url: URL, timeout_s: float) -> dict[str, Any]:
    ms = int(timeout_s * 1000)
    return {
        "connect_timeout": max(2, round(timeout_s)),  # libpq takes no less
        "tcp_user_timeout": ms,
        # Compiling a count of millions, without which it is as fast, takes up to a second.
        "options": f"-c jit=off -c statement_timeout={ms} -c lock_timeout={ms} "
        f"-c idle_in_transaction_session_timeout={10 * ms}",
        "application_name": "delaybridge",
    }


def _mysql(url: URL, timeout_s: float) -> dict[str, Any]:
    seconds = max(1, round(timeout_s))
    return {"connect_timeout": seconds, "read_timeout": seconds, "write_timeout": seconds}


def is_deadlock(error: DBAPIError) -> bool:
    """Whether the database rolled a transaction back that may succeed if it is repeated."""
    state, args = getattr(error.orig, "sqlstate", None), getattr(error.orig, "args", ())
    return state in ("40P01", "40001") or bool(args and args[0] == _MYSQL_DEADLOCK)


def is_refusal(error: DBAPIError) -> bool:
    """Whether the database answered a commit by undoing the transaction.

    SQLite does if its disk is full. Of others it is not known: an error may come from the way.
    """
    return getattr(error.orig, "sqlite_errorname", "") == "SQLITE_FULL"


@contextmanager
def attempted(on: Connection) -> Iterator[None]:
    """What is done here is undone alone if a row of the same name is there: IntegrityError.

    By any other error the whole transaction ends: SQLite may have ended it already, if its disk is
    full, and a savepoint that is gone would be the reason given.
    """
    savepoint = on.begin_nested()
    try:
        yield
    except IntegrityError:
        savepoint.rollback()
        raise
    savepoint.commit()


def tell_waits(engine: Engine, begins: Callable[[Any], None]) -> None:
    """Call `begins` with each connection of the driver before anything is asked on it.

    SQLAlchemy asks by itself, while it connects: what a new one is, and whether an old one answers.
    """
    ping = engine.dialect.do_ping

    def ping_with_notice(connection: Any) -> bool:
        begins(connection)
        return ping(connection)

    engine.dialect.do_ping = ping_with_notice  # type: ignore[method-assign,assignment]
    event.listen(engine, "connect", lambda connection, _: begins(connection), insert=True)


def cut(connection: Any) -> None:
    """End a driver's wait for the server, from another thread: its socket is shut down."""
    with suppress(Exception):  # it may have ended by itself
        descriptor = os.dup(connection.fileno())
        with socket.socket(fileno=descriptor) as other:
            other.shutdown(socket.SHUT_RDWR)
