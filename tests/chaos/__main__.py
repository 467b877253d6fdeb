"""Run cells: `python -m tests.chaos [CELL ...]`; all of them without a name.

mutations [NAME ...]: make each mistake in turn, and see that a cell turns red.
--seconds S: how long the load lasts. The outcomes are kept, RESULTS.md is written again, and
each cell's history is a page in tests/chaos/history.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from functools import cache
from pathlib import Path

from tests.chaos import page
from tests.chaos.cells import CELLS
from tests.chaos.changes import MUTATIONS
from tests.chaos.runner import run_cell
from tests.chaos.site import Shared
from tests.rigs.stall import Stall
from tests.servers.kafka import KafkaNode
from tests.servers.rabbitmq import RabbitMQNode
from tests.servers.redis import RedisServer

PAGES = Path(__file__).with_name("history")
SERVERS = {"redis": RedisServer, "rabbitmq": RabbitMQNode, "kafka": KafkaNode}


def run_cells(names: list[str], shared: Shared, seconds: float) -> int:
    """Run these cells; the number of red ones."""
    red = 0
    PAGES.mkdir(exist_ok=True)
    for name in names:
        try:
            with Stall() as stall:
                result = run_cell(CELLS[name], shared, stall, seconds=seconds, pages=PAGES)
        except Exception as error:
            print(f"{name} FAILED: {error!r}", flush=True)
            red += 1
        else:
            print(result, flush=True)
            red += bool(result.broken)
            page.keep_result(result)
    return red


def run_mutations(names: list[str], shared: Shared, seconds: float) -> int:
    """Make these mistakes; the number of those that no cell noticed."""
    unnoticed = 0
    for name in names:
        noticed = False
        for id in MUTATIONS[name].cells:
            environment = {"CHAOS_CHANGE": name}
            try:
                with Stall() as stall:
                    result = run_cell(
                        CELLS[id], shared, stall, seconds=seconds, environment=environment
                    )
                broken = {which: len(what) for which, what in result.broken.items()}
            except Exception as error:
                print(f"{name} {id} FAILED: {error!r}"[:2000], flush=True)
                broken = {}
            noticed = bool(broken)
            shown = ", ".join(f"{which} ({count})" for which, count in broken.items())
            print(f"{name}: {id}: {shown or 'NOT NOTICED'}", flush=True)
            page.keep("mutations", name, {"cell": id, "broken": shown})
            if noticed:
                break
        unnoticed += not noticed
    return unnoticed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=[], metavar="CELL")
    parser.add_argument("--seconds", type=float, default=8.0)
    options = parser.parse_args()
    names = options.names
    with ExitStack() as stack:

        @cache
        def shared(name: str) -> str:
            url: str = stack.enter_context(SERVERS[name]()).url  # type: ignore[attr-defined]
            return url

        if names[:1] == ["mutations"]:
            failed = run_mutations(names[1:] or list(MUTATIONS), shared, options.seconds)
        else:
            asked = names or [cell.id for cell in CELLS.values() if not cell.not_run]
            failed = run_cells(asked, shared, options.seconds)
    page.write()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
