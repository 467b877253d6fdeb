"""The cells that run in a short form; `make chaos` runs all of them. See RESULTS.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.cell import Cell
from tests.chaos.cells import CELLS
from tests.chaos.runner import run_cell
from tests.rigs.stall import Stall

SECONDS = 5.0  # of the load; `make chaos` has more
TESTS = [cell for cell in CELLS.values() if cell.is_test]


# What a cell does to a bridge, the tests of one room do to that; they notice each mutation, too.
@pytest.mark.slow
@pytest.mark.parametrize("cell", TESTS, ids=[cell.id for cell in TESTS])
def test_the_invariants_hold(
    cell: Cell, request: pytest.FixtureRequest, tmp_path: Path, stall: Stall
) -> None:
    """Which server is shared is known only once the cell asks for it."""
    names = {"redis": "redis_url", "rabbitmq": "rabbitmq_url", "kafka": "real_kafka_url"}
    result = run_cell(
        cell, lambda name: request.getfixturevalue(names[name]), stall,
        seconds=SECONDS, pages=tmp_path,
    )  # fmt: skip
    print(result)
    assert f"<h1>{cell.id}: " in (tmp_path / f"{cell.id}.html").read_text()
    assert not result.broken, str(result)
