"""Messages of a ledger while they move: brought into Redis by whom, and when, none comes twice."""

from __future__ import annotations

import pytest

from tests.protocol.restored_midway import MidwayRules, explore_midway


@pytest.mark.parametrize("place", ["cold", "source"])
@pytest.mark.parametrize("reads", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_it_comes_once_whoever_brings_it_and_when(place: str, reads: int) -> None:
    states, broken = explore_midway(MidwayRules(), place, reads)
    assert broken is None
    assert states > 500


@pytest.mark.parametrize("rule", MidwayRules._fields)
def test_without_a_rule_it_comes_twice(rule: str) -> None:
    _, broken = explore_midway(MidwayRules(**{rule: False}), "source", 2)
    assert broken is not None
