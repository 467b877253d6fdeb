"""Marks of processed messages as rows, written in the consumer's own transaction."""

from __future__ import annotations

import re
import time
from typing import Any

from delaybridge import times
from delaybridge.dedup.ids import checked
from delaybridge.dedup.sql_connection import (
    MYSQL,
    POSTGRESQL,
    SQLITE,
    Params,
    commits_each_statement,
    commits_each_statement_async,
    dialect_of,
    execute,
    execute_async,
)
from delaybridge.errors import ConfigError, MessageError, quoted

TABLE, CONSUMER = "delaybridge_dedup", "default"
MOST_ROWS = 1000
_TABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,50}")  # with `_seen` 56; PostgreSQL takes 63
_INSERTED = "INTO {table} (consumer, id, seen_at_ms) VALUES (:consumer, :id, :seen_at_ms)"
_INSERT = {
    POSTGRESQL: f"INSERT {_INSERTED} ON CONFLICT DO NOTHING",
    SQLITE: f"INSERT {_INSERTED} ON CONFLICT DO NOTHING",
    MYSQL: f"INSERT IGNORE {_INSERTED}",
}
_OLDEST = "{table} WHERE seen_at_ms < :before_ms ORDER BY seen_at_ms LIMIT :most"
_OF_OLDEST = f"DELETE FROM {{table}} WHERE (consumer, id) IN (SELECT consumer, id FROM {_OLDEST}"
_FORGET = {
    POSTGRESQL: f"{_OF_OLDEST} FOR UPDATE SKIP LOCKED)",  # two at once do not wait for each other
    SQLITE: f"{_OF_OLDEST})",
    MYSQL: f"DELETE FROM {_OLDEST}",
}
_COLUMNS = """CREATE TABLE IF NOT EXISTS {table} (
    consumer TEXT NOT NULL, id TEXT NOT NULL, seen_at_ms bigint NOT NULL,
    PRIMARY KEY (consumer, id)"""
_INDEX = "CREATE INDEX IF NOT EXISTS {table}_seen ON {table} (seen_at_ms)"
_MAKE = {
    POSTGRESQL: [_COLUMNS.replace("TEXT", 'varchar(255) COLLATE "C"') + ")", _INDEX],
    SQLITE: [f"{_COLUMNS}) WITHOUT ROWID", _INDEX],
    MYSQL: [  # bytes: every collation of text takes some different ids for the same
        _COLUMNS.replace("TEXT", "varbinary(255)")
        + ", KEY {table}_seen (seen_at_ms)) ENGINE=InnoDB"
    ],
}


class SqlDedup:
    """Marks in a table of the consumer's own database; holds no connection, so share it freely.

    `once` inserts the id in the transaction of the given connection. Exact: if the transaction is
    committed, the effect and the mark are there; if it is rolled back, neither is, and the next
    delivery is processed. Of two transactions with one id, the second waits for the first; then it
    gets False if the first was committed, True if it was rolled back.

    table: its name, as an SQL identifier. consumer: two consumers with different names may both
    process a message. ConfigError if one of them is wrong.

    Every connection of `delaybridge.dedup.sql_connection` will do. All methods raise MessageError
    `bad_connection`; the errors of the database pass unchanged.
    """

    def __init__(self, table: str = TABLE, *, consumer: str = CONSUMER) -> None:
        if not _TABLE.fullmatch(table):
            raise ConfigError(f"table: got {quoted(table)}; give letters, digits and _, at most 51")
        try:
            self._consumer = checked(consumer, "consumer")
        except MessageError as exc:
            raise ConfigError(str(exc)) from None
        self._table = table

    def once(self, connection: Any, id: str) -> bool:
        """True: do it, then commit. False: an earlier transaction did it; acknowledge the message.

        MessageError `bad_id`; `no_transaction` if the connection commits each statement at once.
        """
        sql, params = self._insert(dialect_of(connection), id)
        if commits_each_statement(connection):
            raise _no_transaction()
        return execute(connection, sql, params) == 1

    async def once_async(self, connection: Any, id: str) -> bool:
        """`once` for an asynchronous connection."""
        sql, params = self._insert(dialect_of(connection), id)
        if await commits_each_statement_async(connection):
            raise _no_transaction()
        return await execute_async(connection, sql, params) == 1

    def create_table(self, connection: Any) -> None:
        """Make the table if there is none; MySQL commits the transaction by that."""
        for sql in self.statements(dialect_of(connection)):
            execute(connection, sql, {})

    async def create_table_async(self, connection: Any) -> None:
        """`create_table` for an asynchronous connection."""
        for sql in self.statements(dialect_of(connection)):
            await execute_async(connection, sql, {})

    def statements(self, dialect: str) -> list[str]:
        """The statements of `create_table`, for a migration of your own."""
        return [sql.format(table=self._table) for sql in _MAKE[dialect]]

    def forget_before(
        self, connection: Any, age: times.Delay, *, most: int = MOST_ROWS, now_ms: int | None = None
    ) -> int:
        """Delete the marks older than `age`, of all consumers, at most `most`; returns how many.

        Commit and call again while it deletes `most`. A message that is delivered again after its
        mark was deleted is processed again. MessageError `bad_time`, as of every delay.
        """
        sql, params = self._forget(dialect_of(connection), age, most, now_ms)
        return execute(connection, sql, params)

    async def forget_before_async(
        self, connection: Any, age: times.Delay, *, most: int = MOST_ROWS, now_ms: int | None = None
    ) -> int:
        """`forget_before` for an asynchronous connection."""
        sql, params = self._forget(dialect_of(connection), age, most, now_ms)
        return await execute_async(connection, sql, params)

    def _insert(self, dialect: str, id: str) -> tuple[str, Params]:
        mark: dict[str, Any] = {"consumer": self._consumer, "id": checked(id, "id")}
        if dialect == MYSQL:
            mark = {name: text.encode() for name, text in mark.items()}
        mark["seen_at_ms"] = _now_ms()
        return _INSERT[dialect].format(table=self._table), mark

    def _forget(
        self, dialect: str, age: times.Delay, most: int, now_ms: int | None
    ) -> tuple[str, Params]:
        now_ms = _now_ms() if now_ms is None else now_ms
        before_ms = now_ms - times.delay_ms(age, field="age")  # type: ignore[arg-type]
        return _FORGET[dialect].format(table=self._table), {"before_ms": before_ms, "most": most}


def sql_once(connection: Any, id: str, *, table: str = TABLE, consumer: str = CONSUMER) -> bool:
    """Make an `SqlDedup`, and call its `once`."""
    return SqlDedup(table, consumer=consumer).once(connection, id)


async def sql_once_async(
    connection: Any, id: str, *, table: str = TABLE, consumer: str = CONSUMER
) -> bool:
    """Make an `SqlDedup`, and call its `once_async`."""
    return await SqlDedup(table, consumer=consumer).once_async(connection, id)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _no_transaction() -> MessageError:
    what = "it commits each statement at once: the mark would stay even if the effect fails"
    return MessageError("no_transaction", "connection", f"{what}; begin a transaction first")
