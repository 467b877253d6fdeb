"""A dead worker's leases are released soon, a living one's not; by which rules."""

from __future__ import annotations

from typing import Any

import pytest

from tests.protocol.taken_over import TakeOver, TakeOverRules, explore_take_over

TWO: dict[str, Any] = {"mortal": True, "fellows": 2}
WITHOUT: dict[str, tuple[dict[str, Any], int]] = {
    "twice": ({"cuts": 1}, 1),
    "unrenewed": ({"cuts": 1}, 1),
    "same_run": ({"moves": 1}, 1),
    "answered": ({"moves": 1}, 1),
    "once": ({"cuts": 2}, 2),
    "by_token": (TWO, 4),
}


@pytest.mark.parametrize(
    "bounds",
    [
        pytest.param(TWO, id="it dies"),
        pytest.param({**TWO, "cuts": 1}, id="its line is cut, it dies"),
        pytest.param({"cuts": 3}, id="its line is cut three times"),
        pytest.param({"cuts": 1, "moves": 1}, id="all lines are cut, or the server is another one"),
    ],
)
def test_the_dead_are_fenced_soon_and_the_living_once_at_most(bounds: dict[str, Any]) -> None:
    states, broken = explore_take_over(TakeOver(TakeOverRules(), **bounds))
    assert broken == set()
    assert states > 1000


@pytest.mark.parametrize("rule", TakeOverRules._fields)
def test_without_a_rule_a_promise_breaks(rule: str) -> None:
    bounds, promise = WITHOUT[rule]
    _, broken = explore_take_over(TakeOver(TakeOverRules(**{rule: False}), **bounds))
    assert broken == {promise}
