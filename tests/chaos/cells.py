"""All cells, in the order of their ids."""

from __future__ import annotations

from tests.chaos import (
    cells_brokers,
    cells_clock,
    cells_database,
    cells_front,
    cells_keys,
    cells_ledger,
    cells_ledger_sites,
    cells_not_run,
    cells_quiet,
    cells_random,
    cells_redis,
    cells_resize,
    cells_sites,
    cells_take_over,
    cells_worker,
)
from tests.chaos.cell import Cell

_FILES = (
    cells_worker,
    cells_redis,
    cells_brokers,
    cells_clock,
    cells_database,
    cells_front,
    cells_keys,
    cells_ledger,
    cells_ledger_sites,
    cells_sites,
    cells_take_over,
    cells_quiet,
    cells_resize,
    cells_random,
    cells_front,
    cells_not_run,
)
CELLS: dict[str, Cell] = {
    cell.id: cell
    for cell in sorted((cell for file in _FILES for cell in file.CELLS), key=lambda cell: cell.id)
}
