"""Helpers of the tests are rigs, and tests/README.md says when to use each."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PAGE = (TESTS / "README.md").read_text()
RIGS = sorted(path.name for path in (TESTS / "rigs").glob("[!_]*.py"))
FILES = sorted(TESTS.glob("*/test_*.py"))


@pytest.mark.parametrize("rig", RIGS)
def test_the_page_says_when_to_use_a_rig(rig: str) -> None:
    assert re.search(rf"\b{re.escape(rig)}`", PAGE)


def test_the_page_names_no_other_rig() -> None:
    assert set(re.findall(r"(?<!servers/)\b(\w+\.py)`", PAGE)) == set(RIGS)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_test_file_imports_no_other(path: Path) -> None:
    assert not re.search(r"^\s*(from|import) tests\.\w+\.test_", path.read_text(), re.MULTILINE)
