"""Every benchmark runs: each program of `bench` once, with tiny sizes, on the tests' own servers.

Only that it works is checked, and that it prints its figures: they mean nothing at these sizes.
"""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from unittest.mock import Mock

import pytest

from bench import results
from bench.__main__ import PROGRAMS, Program
from bench.peers.__main__ import PEERS, Sheet
from bench.peers.plugin import Plugin
from bench.shapes import SHAPES

BENCH = Path(__file__).parents[2] / "bench"

# Waits and repetitions that make a figure fair, and are not needed here.
TRIMMED = {
    "bench.baselines.DELAY_MS": 1000,
    "bench.idle.SETTLE_S": 0.1,
    "bench.lateness.AHEAD_S": 0.3,
    "bench.lateness.RATES": (100,),
    "bench.cluster.MASTERS": (2,),
    "bench.slow.AHEAD_S": 0.3,
    "bench.missing.AHEAD_S": 0.3,
    "bench.limit.AHEAD_S": 0.3,
    "bench.limit.WORKERS": (2,),
    "bench.peers.__main__.PEERS": PEERS[:1],  # the others would take minutes
    "bench.peers.__main__.RATE": 100,
    "bench.peers.delaybridge.AHEAD_S": 0.3,
    "bench.shapes.SHAPES": SHAPES[-1:],
    "bench.growth.AHEAD_S": 0.3,
    "bench.defaults.VARIED": {"SCAN__BATCH_MESSAGES": ("100",)},
    "bench.front.RATE": 100,
    "bench.front.DELAY_MS": 500,
    "bench.front.ALONE": 50,
    "bench.defaults.AHEAD": ("500",),
    "bench.wave.LASTS_S": 1,
    "bench.wave.LINE_S": 1,
    "bench.take_over.OLD_S": 11.0,
}
FIGURES = re.compile(r"^(?:  |\|).*\d", re.MULTILINE)


@pytest.fixture
def shared_servers(
    monkeypatch: pytest.MonkeyPatch, redis_url: str, rabbitmq_url: str, real_kafka_url: str
) -> None:
    """Programs use the servers of this run, where they need none of their own."""
    monkeypatch.setenv("DELAYBRIDGE_TEST_REDIS_URL", redis_url)
    monkeypatch.setenv("DELAYBRIDGE_TEST_RABBITMQ_URL", rabbitmq_url)
    monkeypatch.setenv("DELAYBRIDGE_TEST_KAFKA_URL", real_kafka_url)


def test_every_program_is_listed() -> None:
    programs = {path.stem for path in BENCH.glob("*.py") if "\ndef main(" in path.read_text()}
    plain_consumers = {"receive_kafka", "receive_rabbitmq"}  # processes of `lateness`
    others = {"__main__", "results"}  # they run programs
    assert programs - plain_consumers - others == {one.name for one in PROGRAMS} - {"peers"}


def test_pages_quote_the_results() -> None:
    found = results.RESULTS.read_text()
    for page, with_ in (
        (results.PEERS, results.with_figures),
        (results.README, results.with_speed),
    ):
        text = page.read_text()
        assert text == with_(text, found), "python -m bench.results writes them"


def test_a_peer_that_is_not_here_has_a_row_that_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DELAYBRIDGE_TEST_PLUGIN_ROOT", raising=False)
    sheet = Sheet(Plugin, due=1, pending=1, seconds=1)
    sheet.measure(Mock(), runs=1)
    assert sheet.row() == [Plugin.name, *"------"]
    assert "DELAYBRIDGE_TEST_PLUGIN_ROOT" in sheet.limits()[-1]


@pytest.mark.slow
@pytest.mark.usefixtures("shared_servers")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_program_prints_its_figures(
    program: Program, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in TRIMMED.items():
        monkeypatch.setattr(name, value)
    module = import_module(f"bench.{program.name}")
    if hasattr(module, "__path__"):
        module = import_module(f"bench.{program.name}.__main__")
    module.main(*program.tiny)
    printed = capsys.readouterr().out
    assert FIGURES.search(printed), printed
    assert "failed" not in printed
