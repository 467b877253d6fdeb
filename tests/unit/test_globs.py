"""Patterns of operators: what fits them, and what that costs."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from delaybridge.ingest.globs import fits
from tests.rigs.cost import is_linear

TEXTS = st.text(st.sampled_from("ab[?]!."), max_size=8)


@given(TEXTS, st.text(st.sampled_from("ab[?]!.*"), max_size=8))
@example("ab", "ab*b")  # no character is part of two: neither of the first and the last
@example("ab", "a*a*b")  # nor of the first and one between
@example("ab", "*b*b")  # nor of one between and the last
@example("ab", "*a*a*")  # nor of two between
@example("ab", "*c*")
@example("abab", "a*b*a*b")
def test_a_star_is_any_text_and_the_rest_is_itself(text: str, pattern: str) -> None:
    expected = re.fullmatch(re.escape(pattern).replace(r"\*", "(?s:.*)"), text)
    assert fits(text, pattern) is (expected is not None)


@pytest.mark.parametrize("pattern", ["*a" * 30 + "*b", "*" * 60 + "b", "a*" * 30 + "b*"])
def test_a_name_twice_as_long_costs_less_than_three_times_as_much(pattern: str) -> None:
    assert is_linear(lambda text: fits(text, pattern), lambda size: "a" * size)
