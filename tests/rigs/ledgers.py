"""The ledger's database as a test looks at it, beside the product."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from sqlalchemy import create_engine, text

from delaybridge.ledger.database import upgrade
from tests.rigs.waiting import DEADLINE_S


class LedgerProbe:
    """Reads and changes the tables of one database, with statements of its own."""

    def __init__(self, url: str) -> None:
        self.url = url
        patience = {"timeout": DEADLINE_S} if url.startswith("sqlite") else {}  # for its lock
        self._engine = create_engine(url, connect_args=patience)

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


def made(url: str) -> str:
    """The URL of a database, in which the tables are made now."""
    upgrade(url, DEADLINE_S)
    return url
