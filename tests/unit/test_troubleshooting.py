"""The list of troubles: its page and alert rules are up to date, and nothing is missing in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from delaybridge.operate.terminal.failure import _ERRORS
from delaybridge.operate.troubles.listed import ListedTrouble, listed
from delaybridge.worker.eventlog import _WARNINGS, name_of
from tools import troubles

PACKAGE = Path(__file__).parents[2] / "delaybridge"
ROWS = listed()


SOURCE = "".join(path.read_text() for path in PACKAGE.rglob("*.py"))


def test_the_page_and_the_alert_rules_are_up_to_date() -> None:
    """If not: python -m tools.troubles."""
    assert troubles.PAGE.read_text() == troubles.page()
    assert troubles.RULES.read_text() == troubles.rules()


def test_each_row_is_found_somewhere_and_what_is_found_is_a_row() -> None:
    assert not {code for code in ROWS if not re.search(rf"\b{code}\b", SOURCE)}
    assert set(re.findall(r'\b(?:trouble|damaged)\(\s*"(\w+)"', SOURCE)) <= ROWS.keys()


@pytest.mark.parametrize("row", ROWS.values(), ids=list(ROWS))
def test_a_row_says_what_it_means(row: ListedTrouble) -> None:
    for text in (row.when, row.means or ".", row.cause or "."):
        assert text.endswith(".")
    assert row.says.strip()
    assert row.means or not row.alerts
    for remedy in row.remedy:
        words, command = remedy.split(": ", 1)
        assert words and re.match(r"[a-z-]+(\.sh)? \S|df|export [A-Z_]+=", command), remedy


def test_each_warning_of_the_log_and_each_error_is_explained() -> None:
    words = {word for row in ROWS.values() for word in (row.code, *row.words)}
    errors = {code for code, _ in _ERRORS.values()} - {"config", "not_drained", "failed"}
    assert {name_of(kind) for kind in _WARNINGS} | errors <= words
    names = [word for row in ROWS.values() for word in (row.code, *row.words)]
    assert len(names) == len(set(names))
