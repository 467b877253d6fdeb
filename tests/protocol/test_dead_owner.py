"""A dead owner's bucket waits for one lease, also if the clock is set back; by which rules."""

from __future__ import annotations

import pytest

from tests.protocol.dead_owner import ClockRules, DeadOwner, explore_dead_owner


@pytest.mark.parametrize("sets", [0, 1])
def test_its_bucket_is_taken_when_its_lease_is_over_and_not_before(sets: int) -> None:
    states, broken = explore_dead_owner(DeadOwner(ClockRules(), sets=sets))
    assert broken == set()
    assert states > 100


def test_a_clock_that_is_set_back_twice_takes_no_living_owner_s_lease() -> None:
    _, broken = explore_dead_owner(DeadOwner(ClockRules(), sets=2))
    assert broken <= {3}, "it may only wait longer"


def test_a_rival_that_comes_later_waits_for_one_lease_at_most() -> None:
    states, broken = explore_dead_owner(DeadOwner(ClockRules(), sets=1, comes=True))
    assert broken == set()
    assert states > 1000


@pytest.mark.parametrize("rule", ClockRules._fields)
def test_without_a_rule_it_waits_longer(rule: str) -> None:
    rules = ClockRules(**{rule: False})
    _, broken = explore_dead_owner(DeadOwner(rules, sets=1, comes=rule == "looked"))
    assert broken == {3}
