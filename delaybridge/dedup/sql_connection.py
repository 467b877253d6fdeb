"""One SQL statement on a connection that the application already has, whatever its library.

    execute(connection, "DELETE FROM seen WHERE id = :id", {"id": "42"})  # -> 1

| library | `execute` | `execute_async` |
|---|---|---|
| SQLAlchemy | Connection, Session, scoped_session | AsyncConnection, AsyncSession |
| psycopg | Connection, Cursor | AsyncConnection, AsyncCursor |
| sqlite3, aiosqlite | Connection, Cursor | Connection |
| PyMySQL | Connection, Cursor | |
| Django | `django.db.connection`, a cursor of it | |

Nothing here opens a connection, commits or rolls back: the statement is part of the caller's own
transaction. The library is recognised by the connection's class and imported by the application
alone. Errors of the library and of the database pass unchanged. Any other connection
raises MessageError `bad_connection`, before anything is sent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import AbstractContextManager, closing
from functools import lru_cache
from typing import Any, NamedTuple

from delaybridge.errors import MessageError

POSTGRESQL, MYSQL, SQLITE = "postgresql", "mysql", "sqlite"
_DIALECTS = {name: name for name in (POSTGRESQL, MYSQL, SQLITE)} | {"mariadb": MYSQL}
_LIBRARIES = {  # and the dialect, of those that have only one
    "sqlalchemy": "",
    "django": "",
    "psycopg": POSTGRESQL,
    "pymysql": MYSQL,
    "sqlite3": SQLITE,
    "aiosqlite": SQLITE,
}
_NAME = re.compile(r"(?<![:\w]):([A-Za-z_]\w*)")  # not the second half of a cast, `::text`
_IDLE = 0  # PQTRANS_IDLE of libpq
_IN_TRANSACTION = 1  # SERVER_STATUS_IN_TRANS of the MySQL protocol
Params = Mapping[str, Any]


class _Library(NamedTuple):
    name: str
    is_async: bool


def dialect_of(connection: Any) -> str:
    """`postgresql`, `mysql` (MariaDB too) or `sqlite`; sends nothing.

    MessageError `bad_connection` if it is another database or no known connection.
    """
    library = _library_of(type(connection)).name
    if library == "sqlalchemy":
        bound = connection.get_bind() if hasattr(connection, "get_bind") else connection
        name = bound.dialect.name
    elif library == "django":
        name = _of_django(connection).vendor
    else:
        name = _LIBRARIES[library]
    if name not in _DIALECTS:
        raise _refused(f"{name} is not supported; take PostgreSQL, MySQL, MariaDB or SQLite")
    return _DIALECTS[name]


def execute(connection: Any, sql: str, params: Params) -> int:
    """Run a statement with `:name` parameters; returns the number of rows that it changed."""
    if _sync_library(connection) == "sqlalchemy":
        return int(_of_sqlalchemy(connection).execute(_text(sql), params).rowcount)
    with _new_cursor(connection) as cursor:
        cursor.execute(*_positional(connection, sql, params))
        return int(cursor.rowcount)


async def execute_async(connection: Any, sql: str, params: Params) -> int:
    """`execute` for an asynchronous connection."""
    if _async_library(connection) == "sqlalchemy":
        used = await connection.connection() if hasattr(connection, "get_bind") else connection
        return int((await used.execute(_text(sql), params)).rowcount)
    async with _own(connection).cursor() as cursor:
        await cursor.execute(*_positional(connection, sql, params))
        return int(cursor.rowcount)


def commits_each_statement(connection: Any) -> bool:
    """Whether a statement would be committed at once: autocommit, and no transaction is open.

    False also if the library cannot tell. Sends nothing, but may open a connection of a pool.
    """
    library = _sync_library(connection)
    if library == "sqlalchemy":
        return _autocommits(_of_sqlalchemy(connection).connection.driver_connection)
    if library == "django":
        owner = _of_django(connection)
        return bool(owner.get_autocommit()) and not owner.in_atomic_block
    return _autocommits(_own(connection))


async def commits_each_statement_async(connection: Any) -> bool:
    """`commits_each_statement` for an asynchronous connection."""
    if _async_library(connection) != "sqlalchemy":
        return _autocommits(_own(connection))
    used = await connection.connection() if hasattr(connection, "get_bind") else connection
    return _autocommits(used.sync_connection.connection.driver_connection)


def _autocommits(raw: Any) -> bool:
    """The same for a connection of the database's own library."""
    if hasattr(raw, "in_transaction") and hasattr(raw, "isolation_level"):  # sqlite3, aiosqlite
        by_mode = getattr(raw, "autocommit", -1)  # since Python 3.12; -1: by isolation_level
        at_once = raw.isolation_level is None if by_mode == -1 else bool(by_mode)
        return at_once and not raw.in_transaction
    if hasattr(raw, "server_status"):  # PyMySQL
        return bool(raw.get_autocommit()) and not raw.server_status & _IN_TRANSACTION
    if hasattr(raw, "info"):  # psycopg
        return bool(raw.autocommit) and raw.info.transaction_status == _IDLE
    return False


def _library_of(kind: type) -> _Library:
    """The library that a class, or a class that it derives from, belongs to."""
    for parent in kind.__mro__:
        root = parent.__module__.partition(".")[0]
        if root in _LIBRARIES:
            is_async = root == "aiosqlite" or parent.__name__.lower().startswith("async")
            return _Library(root, is_async)
    known = "SQLAlchemy, psycopg, sqlite3, aiosqlite, PyMySQL or Django"
    raise _refused(f"got {kind.__module__}.{kind.__name__}; give a connection of {known}")


def _sync_library(connection: Any) -> str:
    library = _library_of(type(connection))
    if library.is_async:
        raise _refused(f"{type(connection).__name__} is asynchronous; call the async function")
    return library.name


def _async_library(connection: Any) -> str:
    library = _library_of(type(connection))
    if not library.is_async:
        raise _refused(f"{type(connection).__name__} is synchronous; call the other function")
    return library.name


def _of_sqlalchemy(connection: Any) -> Any:
    """The Connection; of a session that of its transaction, which begins here if it has not."""
    return connection.connection() if hasattr(connection, "get_bind") else connection


def _of_django(connection: Any) -> Any:
    """The connection; of a cursor its connection."""
    return connection if hasattr(connection, "vendor") else connection.db


def _own(connection: Any) -> Any:
    """The connection; of a cursor its connection, so that the cursor's result is left alone."""
    return connection.connection if hasattr(connection, "fetchone") else connection


def _new_cursor(connection: Any) -> AbstractContextManager[Any]:
    is_django = _library_of(type(connection)).name == "django"
    owner = _of_django(connection) if is_django else _own(connection)
    return closing(owner.cursor())


def _text(sql: str) -> Any:
    from sqlalchemy import text

    return text(sql)


def _positional(connection: Any, sql: str, params: Params) -> tuple[str, tuple[Any, ...]]:
    """The statement with the library's placeholders, and the values in their order."""
    mark = "?" if _library_of(type(connection)).name in ("sqlite3", "aiosqlite") else "%s"
    statement, names = _translated(sql, mark)
    return statement, tuple(params[name] for name in names)


@lru_cache(maxsize=200)
def _translated(sql: str, mark: str) -> tuple[str, tuple[str, ...]]:
    literal = sql.replace("%", "%%") if mark == "%s" else sql
    return _NAME.sub(mark, literal), tuple(_NAME.findall(sql))


def _refused(detail: str) -> MessageError:
    return MessageError("bad_connection", "connection", detail)
