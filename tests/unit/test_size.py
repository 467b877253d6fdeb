"""`delaybridge size`: its figures name their benches, and a larger load never needs less."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from bench.__main__ import PROGRAMS
from delaybridge.operate.sizing.sizing import SIDES, TABLES, Demand, needs
from delaybridge.operate.terminal.quantities import number_of, per_second
from delaybridge.settings.settings import Settings
from tests.rigs.command_line import Run

ROOT = Path(__file__).parents[2]
LOADS = [
    Demand(0, 0.001, 0),
    Demand(10_000_000, 2000, 500),
    Demand(10_000_000, 2000, 500, has_ledger=True, retention_s=0),
    Demand(10**11, 10**7, 2**29, 1000, 255, 10**11, is_cluster=True, has_ledger=True),
]
LARGER: dict[str, Any] = {
    "pending": 10**9,
    "rate": 10**5,
    "body": 10**4,
    "headers": 20,
    "id_bytes": 200,
    "burst": 10**6,
    "is_cluster": True,
}


def test_every_figure_is_within_its_range_and_names_the_bench_that_measures_it() -> None:
    programs = {program.name for program in PROGRAMS}
    for name, figure in TABLES["figures"].items():
        assert figure["low"] <= figure["about"] <= figure["high"], name
        assert figure["bench"] in programs and figure["means"] and figure["on"], name


def test_every_figure_is_counted_with() -> None:
    given = Demand(10**9, 10**5, 500, headers=1, id_bytes=40, has_ledger=True)
    settings = Settings()
    for name, figure in TABLES["figures"].items():
        before = needs(given, settings)
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(figure, "about", figure["about"] * 2 + 1)
            assert needs(given, settings) != before, name


@pytest.mark.parametrize("load", LOADS)
def test_what_is_needed_lies_between_least_and_most(load: Demand) -> None:
    for name, need in needs(load, Settings()).items():
        about, low, high = (need[side] for side in SIDES)
        assert 0 <= low <= about <= high, name


@pytest.mark.parametrize("field", LARGER)
def test_a_larger_load_never_needs_less_in_all(field: str) -> None:
    small = needs(LOADS[1], Settings())
    large = needs(LOADS[1]._replace(**{field: LARGER[field]}), Settings())
    assert large != small
    for name in ("redis_used_bytes", "redis_masters", "buckets", "worker_processes"):
        assert large[name]["about"] >= small[name]["about"], name


@pytest.mark.parametrize(
    ("rate", "pending", "masters", "processes", "buckets"),
    [(2000, 10**7, 1, 2, 16), (15_000, 10**5, 1, 2, 16), (20_000, 10**5, 3, 2, 32)],
)
def test_layouts_by_rate(
    rate: int, pending: int, masters: int, processes: int, buckets: int
) -> None:
    found = needs(Demand(pending, rate, 100), Settings())
    names = ("redis_masters", "worker_processes", "buckets")
    assert [found[name]["about"] for name in names] == [masters, processes, buckets]


def test_with_a_ledger_redis_has_only_what_is_due_soon() -> None:
    load, settings = LOADS[1]._replace(has_ledger=True), Settings()
    assert needs(load, settings)["redis_messages"]["about"] == 2000 * 3600
    few = load._replace(pending=100)
    assert needs(few, settings)["redis_messages"]["about"] == 100


@pytest.mark.parametrize(
    ("text", "number"),
    [("10M", 10**7), ("1.5k", 1500), ("64KiB", 65_536), ("2GB", 2 * 10**9), ("1e6", 10**6),
     ("7", 7), ("", None), ("1.2.3", None), ("10X", None), ("M", None), ("1 0", None)],
)  # fmt: skip
def test_an_amount(text: str, number: float | None) -> None:
    assert number_of(text) == number


def test_a_rate() -> None:
    assert [per_second(text) for text in ("500", "2k/s", "120k/m", "36/h")] == [
        *(500, 2000, 2000, 0.01)
    ]


def test_a_ledger_in_the_settings_counts(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    load = "size --pending 10M --rate 2k --body 1".split()
    assert "database" not in run(*load).out
    assert "kept 7 days" in run(*load, "--ledger").out
    monkeypatch.setenv("DELAYBRIDGE_DURABILITY", "ledger")
    monkeypatch.setenv("DELAYBRIDGE_LEDGER__URL", "sqlite:///ledger.db")
    assert "kept 1 days" in run(*load, "--retention", "1d").out


def test_the_largest_load_fits_into_80_columns(run: Run) -> None:
    most = "--pending 100G --rate 10M/s --body 100KiB --burst 100G --ledger --headers 1000"
    printed = run("size", *most.split(), "--cluster", "--id-bytes", "255").out
    assert max(map(len, printed.splitlines())) <= 80
    assert "use several" in printed


def test_a_page_shows_what_is_printed(run: Run) -> None:
    page = (ROOT / "docs/deploy.md").read_text()
    ((command, shown),) = re.findall(r"\$ delaybridge (size [^\n]*)\n(.*?)```", page, re.DOTALL)
    printed = run(*command.split()).out
    assert shown.split("\n") == [*printed.rstrip("\n").split("\n"), ""]
    assert max(map(len, printed.splitlines())) <= 80


def test_the_page_has_the_figures_of_large_loads(run: Run) -> None:
    page = (ROOT / "docs/deploy.md").read_text()
    _, _, table = page.partition("| `delaybridge size --body 100` and |")
    head, _, *rows = (line.split(" | ") for line in table.partition("\n\n")[0].splitlines())
    assert len(rows) == 4
    for load, *shown in rows:
        printed = run("size", "--body", "100", *load.strip("| `").split()).out
        for what, figure in zip(head, shown, strict=True):
            (about,) = re.findall(rf"^{what.strip(' |')}  +(.*?)(?:  |$)", printed, re.MULTILINE)
            assert figure.strip(" |") == about, (load, what)
