"""What is asked of live rows reads those alone, however many others the namespace has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, event, text

from delaybridge.ledger.sql.arrays import array
from delaybridge.ledger.sql.cold import ColdRecords, ColdSlice, ColdSpan
from delaybridge.ledger.sql.records import Records
from tests.rigs.ledgers import made

RECORDS = Records("lookups")
COLD = ColdRecords(RECORDS)
ASKED: dict[str, Callable[[Connection], object]] = {
    "whether any is cold": COLD.is_empty,
    "how many are cold": lambda on: COLD.counted(on, [ColdSpan(3)]),
    "how many are cold in a time": lambda on: COLD.counted(on, [ColdSpan(3, 5, 6)]),
    "when the first is due": lambda on: COLD.counted(on, [ColdSpan(3, is_first=True)]),
    "the next to be promoted": lambda on: COLD.due(on, 3, 9, (-1, -1), 1),
    "a page of cold ones": lambda on: COLD.slice(on, ColdSlice(3, 1, 5.0), 1),
    "a page of those in Redis": lambda on: RECORDS.page(on, 3, (-1, -1), 1),
}


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_sqlite_finds_live_rows_by_their_index(
    asked: Callable[[Connection], object], tmp_path: Path
) -> None:
    plans: list[str] = []

    def explain(on: Connection, cursor: Any, statement: str, given: Any, *_: object) -> None:
        cursor.execute(f"EXPLAIN QUERY PLAN {statement}", given)
        found = [row[-1] for row in cursor.fetchall()]
        plans.extend(plan for plan in found if plan.startswith(("SEARCH m", "SCAN m")))

    engine = create_engine(made(f"sqlite:///{tmp_path / 'ledger.db'}"))
    event.listen(engine, "before_cursor_execute", explain)
    with engine.begin() as on:
        asked(on)
    engine.dispose()
    assert plans
    assert all("INDEX message_live (namespace=? AND tier=?" in plan for plan in plans), plans


def test_postgresql_reads_arrays_as_they_were(postgres_url: str) -> None:
    given: dict[str, list[Any]] = {
        "text": ["a", "", "NULL", 'a",b}', "\\", "ä", "{'"],
        "bytea": [b"\x00\\\"'", b"", bytes(range(256))],
        "bigint": [0, -(2**62), 2**62],
    }
    engine = create_engine(postgres_url)
    with engine.connect() as on:
        for kind, values in given.items():
            asked = text(f"SELECT unnest(CAST(:given AS {kind}[]))")
            found = on.scalars(asked, {"given": array(kind, values)}).all()
            assert [bytes(each) if kind == "bytea" else each for each in found] == values
    engine.dispose()
