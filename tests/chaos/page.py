"""docs/faults.md: the tables of the last runs, kept in results.json.

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
KEPT = Path(__file__).with_name("results.json")
SECTION = "<!-- {0}: written by tests/chaos/page.py -->\n{1}\n<!-- end of {0} -->"


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


def write() -> None:
    """Put the tables into the page, between their marks."""
    text = PAGE.read_text()
    sections = {
        "invariants": invariants_table(),
        "tried": what_is_tried(),
        "lost": lost_keys.table(),
        "cells": cells_table(),
        "mutations": mutations_table(),
    }
    for name, table in sections.items():
        begin, end = SECTION.format(name, "\0").split("\n\0\n")
        before, found, rest = text.partition(begin)
        _, closing, after = rest.partition(end)
        if not found or not closing:
            raise LookupError(f"docs/faults.md has no section {name}")
        text = f"{before}{SECTION.format(name, table)}{after}"
    PAGE.write_text(text)


if __name__ == "__main__":
    write()
