"""RESULTS.md, every cell and its last run as kept in results.json; and a table of docs/faults.md.

python -m tests.chaos.page
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.chaos import lost_keys
from tests.chaos.cells import CELLS
from tests.chaos.changes import MUTATIONS
from tests.chaos.checker import INVARIANTS
from tests.chaos.runner import Result
from tests.servers.folders import cache_folder, locked

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "faults.md"
RESULTS = Path(__file__).with_name("RESULTS.md")
KEPT = Path(__file__).with_name("results.json")
BEGIN, END = "<!-- lost: written by tests/chaos/page.py -->\n", "<!-- end of lost -->"
TEXT = """\
# Every fault that is tried, and its last run

Written by `python -m tests.chaos.page` from the cells and `results.json`. [What the faults
cost](../../docs/faults.md) is the page to read. A producer schedules, cancels and reschedules 150
messages a second meanwhile. Cells in bold are tests of `make test-all`. A cell that was not run is
never counted as passed.

## What must hold

As in Jepsen, a call without an answer has an unknown outcome. "Soon" in I9 means a lease, the
longest back-off and 5 s for two busy cores.

{invariants}

## What is done, and what is expected

{tried}

F75 does each row of the [lost keys](../../docs/faults.md#a-bucket-that-lost-a-key) to a bucket,
F75b each pair, F75c random halves; F75-ledger, F75b-ledger, F75c-ledger the same with a ledger,
F75d-ledger takes every other entry of each key.

## The last run of each cell

`+` holds, **x** does not, `o` cannot hold (the list above says why), empty: not looked at in this
cell. Counts are messages; "lost" is what was accepted and never came, where a cell says that this
may be; "twice" counts further deliveries.

{cells}

## Would the suite notice?

Each of these mistakes is made on purpose, in the processes of a cell. The cell must turn red.

{mutations}
"""


def read() -> dict[str, Any]:
    return json.loads(KEPT.read_text()) if KEPT.exists() else {"cells": {}, "mutations": {}}


def keep(kind: str, name: str, row: dict[str, Any]) -> None:
    """Keep the outcome of one cell or mutation, in place of its last one."""
    with locked(cache_folder() / "chaos.lock"):
        kept = read()
        kept[kind][name] = {"date": f"{datetime.now(UTC):%Y-%m-%d}", **row}
        kept[kind] = dict(sorted(kept[kind].items()))
        KEPT.write_text(json.dumps(kept, indent=1) + "\n")


def keep_result(result: Result) -> None:
    invariants = {name: len(what) for name, what in result.found.items()}
    keep("cells", result.cell.id, {"figures": result.figures, "broken": invariants})


def cells_table() -> str:
    """Cell x invariant: + holds, x does not, empty: not looked at in this cell."""
    names = list(INVARIANTS)
    kept = read()["cells"]
    lines = [f"| cell | {' | '.join(names)} | accepted | delivered | lost | twice | dead | run |"]
    lines.append("|" + "---|" * (len(names) + 7))
    for id, cell in CELLS.items():
        row = kept.get(id)
        if cell.not_run or row is None:
            lines.append(f"| {id} |{' |' * len(names)} | | | | | not run |")
            continue
        exempt = dict.fromkeys(cell.cannot_hold, None)
        broken = {name: 0 if name in exempt else row["broken"].get(name) for name in names}
        marks = [{None: " ", 0: "+"}.get(broken[name], "**x**") for name in names]
        marks = ["o" if name in exempt else mark for name, mark in zip(names, marks, strict=True)]
        figures = row["figures"]
        keys = ("accepted", "delivered", "lost", "duplicates", "dead")
        counts = (figures.get(key, row["broken"]["I1"]) for key in keys)
        shown = " | ".join([*marks, *(f"{count:g}" for count in counts), row["date"]])
        lines.append(f"| {id} | {shown} |")
    return "\n".join(lines)


def what_is_tried() -> str:
    lines = ["| cell | where | what is done | what holds |", "|---|---|---|---|"]
    for cell in CELLS.values():
        mark = "**" if cell.is_test else ""
        expects = f"not run: {cell.not_run}" if cell.not_run else cell.expects
        lines.append(f"| {mark}{cell.id}{mark} | {cell.component} | {cell.fault} | {expects} |")
    return "\n".join(lines)


def mutations_table() -> str:
    lines = ["| mistake in the product | noticed by | broken | run |", "|---|---|---|---|"]
    kept = read()["mutations"]
    for name, mutation in MUTATIONS.items():
        row = kept.get(name, {"cell": "", "broken": "", "date": "not run"})
        broken = row["broken"] or "**not noticed**" if row["cell"] else ""
        lines.append(f"| {mutation.what} | {row['cell']} | {broken} | {row['date']} |")
    return "\n".join(lines)


def invariants_table() -> str:
    return "\n".join(f"- **{name}** {what}" for name, what in INVARIANTS.items())


def written() -> dict[Path, str]:
    """The text that each of the two pages must have."""
    before, begin, rest = PAGE.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise LookupError(f"{PAGE} has no section for lost keys")
    results = TEXT.format(
        invariants=invariants_table(),
        tried=what_is_tried(),
        cells=cells_table(),
        mutations=mutations_table(),
    )
    return {PAGE: f"{before}{begin}{lost_keys.table()}\n{end}{after}", RESULTS: results}


def write() -> None:
    for path, text in written().items():
        path.write_text(text)


if __name__ == "__main__":
    write()
