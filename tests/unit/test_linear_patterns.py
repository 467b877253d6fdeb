"""No regular expression costs more than in proportion to the text that it reads."""

from __future__ import annotations

import re

import pytest

from tests.rigs.cost import is_linear
from tests.rigs.patterns import Use, hard_texts, uses


def first_hard(use: Use) -> str | None:
    """The first text whose cost grows faster than its size."""
    texts = hard_texts(use.pattern)
    return next((name for name, make in texts if not is_linear(use.run, make)), None)


USES = list({(each.pattern, each.method): each for each in uses()}.values())


@pytest.mark.parametrize("use", USES, ids=lambda use: f"{use.place} {use.method}")
def test_a_text_twice_as_long_costs_less_than_three_times_as_much(use: Use) -> None:
    assert first_hard(use) is None


@pytest.mark.parametrize(
    ("pattern", "method"), [(r"[a-z][a-z+]*://", "sub"), (r" - at `(.*?)`$", "search")]
)
def test_expressions_that_cost_the_square_are_noticed(pattern: str, method: str) -> None:
    assert first_hard(Use("", re.compile(pattern), method)) is not None


def test_all_files_are_looked_at() -> None:
    assert len(USES) > 70
    files = {use.place.partition(":")[0] for use in USES}
    assert files > {"settings/urls.py", "serve/http/reading.py"}
