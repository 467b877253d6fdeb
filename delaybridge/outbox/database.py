"""The application's database as the pump uses it: one batch is one transaction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from sqlalchemy import Connection, Engine, bindparam, create_engine, event, make_url, text

from delaybridge.accept.accept import Accepted
from delaybridge.dedup.sql_connection import MYSQL, SQLITE
from delaybridge.ledger.sql import engines
from delaybridge.outbox import rows, table

_DELETE = text(table.DELETE).bindparams(bindparam("numbers", expanding=True))
_WITH_ROWS = text(table.WITH_ROWS).bindparams(bindparam("ids", expanding=True))


class OutboxCall(NamedTuple):
    """A row: a call that an application made. accepted: the message, of a `schedule`."""

    number: int
    verb: str
    id: str
    key: bytes | None
    policy: str
    stamp: bytes
    accepted: Accepted | None


class OutboxRow(NamedTuple):
    """A row for people. error: why it was refused; None while it waits for the pump."""

    number: int
    verb: str
    id: str
    due_ms: int | None
    created_ms: int
    error: str | None


class Counted(NamedTuple):
    """rows: all of them; refused: with an error; oldest_ms: when the oldest of the others was made.

    None: no row waits.
    """

    rows: int
    refused: int
    oldest_ms: int | None


class OutboxTable:
    """The table in the database behind a URL of SQLAlchemy, for one namespace.

    Nothing is connected yet. All methods raise SQLAlchemyError if the database fails.
    ModuleNotFoundError: the driver is not installed.
    """

    def __init__(self, url: str, namespace: str, *, timeout_s: float) -> None:
        self.dialect = make_url(str.__str__(url)).get_backend_name()
        self._named = {"namespace": namespace}
        if self.dialect == SQLITE:
            self._engine, self._looking = _sqlite(url, timeout_s), _sqlite(url, timeout_s)
            event.listen(self._engine, "begin", engines.begin_sqlite)
        else:
            self._engine = engines.make(url, timeout_s, 2)
            self._looking = self._engine.execution_options(isolation_level="AUTOCOMMIT")

    def create(self) -> None:
        """Make the table if there is none."""
        with self._engine.begin() as connection:
            rows.create_table(connection)

    def newest(self, after: int = 0) -> int | None:
        """The last committed row after this one that waits. Cheap, and locks nothing."""
        named = {**self._named, "after": after}
        with self._looking.connect() as connection:
            return connection.execute(text(table.NEWEST), named).scalar()

    @contextmanager
    def batch(self, newest: int) -> Iterator[OutboxBatch | None]:
        """Rows in a transaction that is committed at the end; rolled back by an error.

        None if another pump has a batch of this namespace under way. newest: what `newest` has
        answered. Later rows are left out: one that is committed between two pages may follow
        another of its id that was not yet there when its page was read.
        """
        with self._engine.connect() as connection:
            lock = table.LOCK.get(self.dialect)
            if lock is not None and not connection.execute(text(lock), self._named).scalar():
                yield None
                return
            try:
                yield OutboxBatch(connection, self.dialect, {**self._named, "newest": newest})
                connection.commit()
            finally:
                self._unlock(connection)

    def _unlock(self, connection: Connection) -> None:
        """Release a lock that does not end with the transaction; not before that has ended."""
        if self.dialect != MYSQL or connection.invalidated:
            return
        connection.rollback()  # nothing, if it was committed
        connection.execute(text(table.UNLOCK[MYSQL]), self._named)
        connection.commit()

    def counted(self) -> Counted:
        """How many rows there are, and since when the oldest waits."""
        with self._looking.connect() as connection:
            rows, refused, oldest = connection.execute(text(table.COUNT), self._named).one()
        return Counted(int(rows), int(refused), None if oldest is None else int(oldest))

    def listed(self, most: int) -> list[OutboxRow]:
        """The oldest rows, in order."""
        with self._looking.connect() as connection:
            found = connection.execute(text(table.LIST), {**self._named, "most": most}).all()
        return [OutboxRow(row[0], row[1], _text(row[2]), *row[3:]) for row in found]

    def close(self) -> None:
        """Close every connection to the database."""
        self._engine.dispose()
        self._looking.dispose()


class OutboxBatch:
    """The rows of a transaction under way."""

    def __init__(self, connection: Connection, dialect: str, named: dict[str, Any]) -> None:
        """named: the namespace, and the newest row."""
        self._connection, self._dialect, self._named = connection, dialect, named

    def page(self, after: int) -> list[OutboxCall]:
        """Take the first rows after a number."""
        named = {**self._named, "after": after}
        found = self._connection.execute(text(table.TAKE[self._dialect]), named)
        return [_call(row) for row in found]

    def with_rows(self, ids: Iterable[str], up_to: int) -> set[str]:
        """Which of these ids have a row up to a number."""
        fitted = [id.encode() for id in ids] if self._dialect == MYSQL else [*ids]
        named = {**self._named, "ids": fitted, "up_to": up_to}
        return {_text(id) for id in self._connection.execute(_WITH_ROWS, named).scalars()}

    def finish(self, done: Iterable[int], refused: Mapping[int, str]) -> None:
        """Delete rows, and write down why others were refused; both by their numbers."""
        if numbers := [*done]:
            self._connection.execute(_DELETE, {"numbers": numbers})
        if refused:
            rows = [
                {"number": number, "error": error[: table.ERROR_CHARS]}
                for number, error in refused.items()
            ]
            self._connection.execute(text(table.REFUSE), rows)


def _sqlite(url: str, timeout_s: float) -> Engine:
    """An engine that begins no transaction, and leaves the application's journal mode as it is."""
    how = {"timeout": timeout_s, "check_same_thread": False, "isolation_level": None}
    return create_engine(str.__str__(url), connect_args=how, hide_parameters=True)


def _call(row: Sequence[Any]) -> OutboxCall:
    number, verb, id, key, due_ms, rank, policy, payload, stamp = row
    id, key = _text(id), None if key is None else bytes(key)
    if verb == table.CANCEL:
        return OutboxCall(number, verb, id, key, "", bytes(stamp), None)
    accepted = Accepted(id, key or b"", str(due_ms), rank, bytes(payload))
    return OutboxCall(number, verb, id, key, policy, bytes(stamp), accepted)


def _text(id: str | bytes) -> str:
    return id.decode() if isinstance(id, bytes) else id
