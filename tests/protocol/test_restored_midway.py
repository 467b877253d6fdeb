"""Messages of a ledger while they move: whoever brings or cancels one, none comes twice."""

from __future__ import annotations

import pytest

from tests.protocol.restored_midway import MidwayRules, explore_midway


@pytest.mark.parametrize("place", ["cold", "source"])
@pytest.mark.parametrize("reads", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_it_comes_once_or_is_cancelled_whoever_does_it_and_when(place: str, reads: int) -> None:
    states, broken = explore_midway(MidwayRules(), place, reads, 1)
    assert broken is None
    assert states > 500


LONG = "told_first", "read_again", "fenced", "fenced_at_target"


@pytest.mark.parametrize(
    "rule",
    [pytest.param(e, marks=pytest.mark.slow) if e in LONG else e for e in MidwayRules._fields],
)
def test_without_a_rule_it_comes_twice_or_though_it_was_cancelled(rule: str) -> None:
    _, broken = explore_midway(MidwayRules(**{rule: False}), "source", 2, 1)
    assert broken is not None
