"""Calls of an application, written as rows in its own transaction."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from delaybridge.accept.accept import Accepted, check_id, check_key
from delaybridge.client.requests import Key, Requests, policy_of
from delaybridge.dedup.sql_connection import (
    MYSQL,
    POSTGRESQL,
    commits_each_statement,
    commits_each_statement_async,
    dialect_of,
    execute,
    execute_async,
)
from delaybridge.errors import MessageError
from delaybridge.gathering import FIRST_CHAR
from delaybridge.message import Limits, Message, OnConflict
from delaybridge.outbox import table
from delaybridge.store.calls import Calls
from delaybridge.store.protocol.verbs import new_stamp

NAMESPACE = "delaybridge"
_Row = dict[str, Any]


class SqlOutbox:
    """Schedules and cancels in the caller's transaction. Holds no connection: share it freely.

    Each call inserts one row. If the transaction commits, the pump (`delaybridge outbox run`)
    makes the call; if it is rolled back, nothing happens. Nothing here commits, rolls back or
    opens a connection. Calls for the same id take effect in the order in which they were made.

    namespace, brokers, limits: as for `Client`, with the same checks.

    Every connection of `delaybridge.dedup.sql_connection` will do. All methods raise MessageError
    `bad_connection`, and `no_transaction` if the connection commits each statement at once; errors
    of the database pass unchanged. ConfigError: an argument of the constructor is wrong.
    """

    def __init__(
        self,
        *,
        namespace: str = NAMESPACE,
        brokers: Mapping[str, str] | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._namespace, self._limits = namespace, limits or Limits()
        self._requests = Requests(Calls(namespace, brokers, None, self._limits))

    def schedule(
        self, connection: Any, message: Message, *, on_conflict: str = OnConflict.FAIL
    ) -> str:
        """Schedule a message when the transaction commits; returns its id.

        The message is checked now, and its delay counts from now, by this host's clock.
        `on_conflict` as for `Client.schedule`; a message that Redis refuses for good, because its
        id is pending with other content, stays in the table with the reason in `error`.

        MessageError: the message is wrong; ConfigError: `on_conflict` is. Nothing was written.
        """
        dialect = dialect_of(connection)
        id, row = self._schedule_row(message, on_conflict)
        _insert(connection, row, dialect)
        return id

    async def schedule_async(
        self, connection: Any, message: Message, *, on_conflict: str = OnConflict.FAIL
    ) -> str:
        """`schedule` for an asynchronous connection."""
        dialect = dialect_of(connection)
        id, row = self._schedule_row(message, on_conflict)
        await _insert_async(connection, row, dialect)
        return id

    def cancel(self, connection: Any, id: str, *, key: Key = None) -> None:
        """Cancel a message when the transaction commits.

        key: the message's, if it has one. A message that has been handed to the broker when the
        pump comes to it is delivered: the pump then logs `outbox_cancel_too_late`.

        MessageError: the id or key is wrong; nothing was written.
        """
        dialect, row = dialect_of(connection), self._cancel_row(id, key)
        _insert(connection, row, dialect)

    async def cancel_async(self, connection: Any, id: str, *, key: Key = None) -> None:
        """`cancel` for an asynchronous connection."""
        dialect, row = dialect_of(connection), self._cancel_row(id, key)
        await _insert_async(connection, row, dialect)

    def _schedule_row(self, message: Message, on_conflict: str) -> tuple[str, _Row]:
        policy, now_ms = policy_of(on_conflict), _now_ms()
        accepted = self._requests.accept(message)
        row = {
            "shard_key": accepted.shard_key,
            "due_ms": _due_ms(accepted, now_ms),
            "due_rank": accepted.rank,
            "policy": policy.value,
            "payload": accepted.payload,
        }
        return accepted.id, self._row(table.SCHEDULE, accepted.id, now_ms) | row

    def _cancel_row(self, id: str, key: Key) -> _Row:
        row = self._row(table.CANCEL, check_id(id, self._limits), _now_ms())
        return row | {"shard_key": check_key(key)}

    def _row(self, verb: str, id: str, now_ms: int) -> _Row:
        nothing = dict.fromkeys(("shard_key", "due_ms", "due_rank", "policy", "payload"))
        named = {"namespace": self._namespace, "verb": verb, "id": id}
        return nothing | named | {"stamp": new_stamp(), "created_ms": now_ms}


def schedule(
    connection: Any,
    message: Message,
    *,
    on_conflict: str = OnConflict.FAIL,
    namespace: str = NAMESPACE,
) -> str:
    """Make an `Outbox`, and call its `schedule`."""
    return _of(namespace).schedule(connection, message, on_conflict=on_conflict)


async def schedule_async(
    connection: Any,
    message: Message,
    *,
    on_conflict: str = OnConflict.FAIL,
    namespace: str = NAMESPACE,
) -> str:
    """Make an `Outbox`, and call its `schedule_async`."""
    return await _of(namespace).schedule_async(connection, message, on_conflict=on_conflict)


def cancel(connection: Any, id: str, *, key: Key = None, namespace: str = NAMESPACE) -> None:
    """Make an `Outbox`, and call its `cancel`."""
    _of(namespace).cancel(connection, id, key=key)


async def cancel_async(
    connection: Any, id: str, *, key: Key = None, namespace: str = NAMESPACE
) -> None:
    """Make an `Outbox`, and call its `cancel_async`."""
    await _of(namespace).cancel_async(connection, id, key=key)


def create_table(connection: Any) -> None:
    """Make the table if there is none; MySQL commits the transaction by that."""
    for sql in statements(dialect_of(connection)):
        execute(connection, sql, {})


async def create_table_async(connection: Any) -> None:
    """`create_table` for an asynchronous connection."""
    for sql in statements(dialect_of(connection)):
        await execute_async(connection, sql, {})


def statements(dialect: str) -> list[str]:
    """The statements of `create_table` for `postgresql`, `mysql` or `sqlite`: for a migration."""
    return [table.MAKE[dialect]]


_outboxes: dict[str, SqlOutbox] = {}


def _of(namespace: str) -> SqlOutbox:
    """The outbox that the functions share; a thread more than needed makes an equal one."""
    if (found := _outboxes.get(namespace)) is None:
        found = _outboxes[namespace] = SqlOutbox(namespace=namespace)
    return found


def _insert(connection: Any, row: _Row, dialect: str) -> None:
    if commits_each_statement(connection):
        raise _no_transaction()
    execute(connection, table.INSERT, _fitted(row, dialect))
    if dialect == POSTGRESQL:
        execute(connection, table.NOTIFY, {})


async def _insert_async(connection: Any, row: _Row, dialect: str) -> None:
    if await commits_each_statement_async(connection):
        raise _no_transaction()
    await execute_async(connection, table.INSERT, _fitted(row, dialect))
    if dialect == POSTGRESQL:
        await execute_async(connection, table.NOTIFY, {})


def _fitted(row: _Row, dialect: str) -> _Row:
    return row | {"id": row["id"].encode()} if dialect == MYSQL else row


def _due_ms(accepted: Accepted, now_ms: int) -> int:
    """A delay becomes a time: it counts from the call, not from when the pump reads the row."""
    when = accepted.when
    if when >= FIRST_CHAR:
        what = "an outbox has no debounce and no throttle: give a delay, or call the client"
        raise MessageError("bad_time", "delay", what)
    return now_ms + int(when[1:]) if when.startswith("+") else int(when)


def _now_ms() -> int:
    # The end of this millisecond, so that a delay is never cut short.
    return -(-time.time_ns() // 1_000_000)


def _no_transaction() -> MessageError:
    what = "it commits each statement at once: the message would go out even if the rest fails"
    return MessageError("no_transaction", "connection", f"{what}; begin a transaction first")
