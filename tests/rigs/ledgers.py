"""The ledger's database as a test looks at it, beside the product."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from sqlalchemy import Connection, create_engine, text

from delaybridge.ledger.sql.cold import ColdRecords
from delaybridge.ledger.sql.database import upgrade
from delaybridge.ledger.sql.records import Records
from delaybridge.ledger.sql.rows import FINISHED, PUBLISHED, LedgerRow
from delaybridge.store.protocol.recorder import Ledger
from delaybridge.store.protocol.verbs import Work
from tests.rigs.waiting import DEADLINE_S

T = TypeVar("T")


def row(id: str, stamp: int = 1, **what: Any) -> LedgerRow:
    """A row of a message, live unless told otherwise."""
    usual = {"bucket": 1, "due_ms": 1000, "priority": 0, "destination": "kafka:a"}
    return LedgerRow(id=id, stamp=stamp, **{**usual, "payload": id.encode(), **what})


def ended(id: str, updated_ms: int = 0, **what: Any) -> LedgerRow:
    return row(id, state=PUBLISHED, tier=FINISHED, updated_ms=updated_ms, **what)


class LedgerProbe:
    """Reads and changes the tables of one database, with statements of its own."""

    def __init__(self, url: str) -> None:
        self.url = url
        patience = {"timeout": DEADLINE_S} if url.startswith("sqlite") else {}  # for its lock
        self._engine = create_engine(url, connect_args=patience, pool_pre_ping=True)

    def ask(self, statement: str, **values: object) -> Sequence[Any]:
        """The rows that a statement returns, if it returns any; it is committed."""
        with self._engine.begin() as connection:
            found = connection.execute(text(statement), values)
            return found.all() if found.returns_rows else ()

    def states(self) -> Counter[str]:
        found = self.ask("SELECT state, count(*) FROM message GROUP BY state")
        return Counter({str(state): int(count) for state, count in found})

    def state(self, id: str) -> str:
        """The state of the last call's row of an id; empty if there is none."""
        found = self.ask("SELECT state FROM message WHERE id = :id ORDER BY number", id=id)
        return str(found[-1][0]) if found else ""

    def due_ms(self, id: str) -> int:
        """The due time of the last call's row of an id."""
        found = self.ask("SELECT due_ms FROM message WHERE id = :id ORDER BY number", id=id)
        return int(found[-1][0])

    def close(self) -> None:
        self._engine.dispose()


class Rows:
    """A ledger, and the records of a namespace in it and of another one."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.own, self.other = Records("own"), Records("other")
        self.cold = ColdRecords(self.own)

    def run(self, what: Callable[[Connection], T]) -> T:
        return self.ledger.run(Work(what))

    def add(self, *rows: LedgerRow, of: Records | None = None) -> set[Any]:
        return self.run(lambda on: (of or self.own).add(on, rows))

    def ids(self, found: Callable[[Connection], Sequence[LedgerRow]]) -> list[str]:
        return [each.id for each in self.run(found)]


def made(url: str) -> str:
    """The URL of a database, in which the tables are made now."""
    upgrade(url, DEADLINE_S)
    return url
