"""The counts of docs/how-we-know.md: `python -m tools.proof` writes them.

What is listed in tests/ is counted there; what only a long run can say is read from the file that
the run keeps: tests/protocol/explored.json, tests/chaos/results.json, tests/soak.json.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tests.mutants.table import MUTANTS
from tests.protocol import explorations
from tests.protocol.ledger_mutants import LEDGER_MUTANTS
from tests.protocol.lua_mutants import LUA_MUTANTS

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
PAGE = ROOT / "docs" / "how-we-know.md"
MARKS = "<!-- counts: written by tools/proof.py -->", "<!-- end of counts -->"


def table() -> str:
    """What is tried, how much of it there is today, and the command that does it again."""
    rows = [
        ("what is tried", "today", "again"),
        ("---", "---", "---"),
        ("tests on real servers", tests(), "`make test`, the slow ones `make test-all`"),
        ("every order of steps of the model", model(), "`make protocol`"),
        ("the model beside the Lua", replay(), "`make protocol`"),
        ("faults done to a running bridge", cells(), "`make chaos`"),
        ("mistakes that a fault must show", mutations(), "`make chaos-mutations`"),
        ("mistakes that a test must show", mutants(), "`make mutants`"),
        ("input at random", fuzz(), "`make fuzz`"),
        ("all tests, again and again", soak(), "`make soak-tests N=10`"),
    ]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def tests() -> str:
    """How many functions are tests, in hundreds, so that one test more changes no page."""
    count = sum(map(functions, TESTS.rglob("test_*.py")))
    return f"more than {count // 100 * 100:,} test functions"


def functions(path: Path) -> int:
    """How many functions of this file are tests."""
    return len(re.findall(r"^\s*(?:async )?def test_", path.read_text(), re.MULTILINE))


def model() -> str:
    """Explorations and their states, and rules that must be missed when they are taken out."""
    kept = json.loads((TESTS / "protocol" / "explored.json").read_text())
    bounds = [*explorations.WHOLE, *explorations.SMALL.values()]
    runs = [kept[one.name] for one in (*bounds, *explorations.MUTANTS) if one.name in kept]
    most = f"{max(one.ids for one in bounds)} messages, {max(one.calls for one in bounds)} calls"
    return (
        f"{len(bounds)} explorations of at most {most} and {max(one.workers for one in bounds)} "
        f"workers, and {len(explorations.MUTANTS)} versions without a rule, each of which breaks a "
        f"promise; {sum(states for states, _ in runs):,} states in {len(runs)} runs "
        f"({min(date for _, date in runs)})"
    )


def replay() -> str:
    """Traces that are replayed, and scripts without a rule that the replay must tell apart."""
    count = len(LUA_MUTANTS) + len(LEDGER_MUTANTS)
    return f"10,000 random traces on a real Redis; {count} wrong scripts are told apart"


def cells() -> str:
    """Cells of which a run is kept, and what became of the messages in them."""
    kept = results()["cells"].values()
    accepted = sum(int(cell["figures"].get("accepted", 0)) for cell in kept)
    dates = sorted(cell["date"] for cell in kept)
    return f"{len(kept)} faults, {accepted:,} messages accepted ({dates[0]} to {dates[-1]})"


def mutations() -> str:
    """Mistakes in the product that were made under a fault, and those that were noticed."""
    kept = results()["mutations"].values()
    return f"{sum(bool(one['broken']) for one in kept)} of {len(kept)} noticed"


def mutants() -> str:
    """Small mistakes, one at a time, each of which must turn a test red."""
    return f"more than {len(MUTANTS) // 50 * 50} mistakes of a line"


def fuzz() -> str:
    """Tests with input at random."""
    files = sorted((TESTS / "fuzz").glob("test_*.py"))
    return f"{sum(map(functions, files))} tests in {len(files)} files, 3,000 examples each"


def soak() -> str:
    """Runs of the fast tier that were kept, and their red tests."""
    kept = json.loads((TESTS / "soak.json").read_text())
    burning, reds = (sum(bool(run[what]) for run in kept) for what in ("burning", "reds"))
    passed = sum(run["tests"] for run in kept)
    return (
        f"{len(kept)} runs, {burning} beside a neighbour that burns both cores, {passed:,} tests; "
        f"{reds} runs had a red one"
    )


def results() -> dict[str, Any]:
    """The last runs of the fault cells."""
    kept: dict[str, Any] = json.loads((TESTS / "chaos" / "results.json").read_text())
    return kept


def page() -> str:
    """The page with today's counts."""
    before, _, rest = PAGE.read_text().partition(MARKS[0])
    after = rest.partition(MARKS[1])[2]
    return f"{before}{MARKS[0]}\n{table()}{MARKS[1]}{after}"


if __name__ == "__main__":
    PAGE.write_text(page())
