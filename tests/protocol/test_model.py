"""The protocol holds in every interleaving of small bounds, and with any one rule out it breaks.

`make protocol` explores larger bounds.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.protocol.bounds import Bounds
from tests.protocol.explorations import MUTANTS, SMALL, Mutant
from tests.protocol.explore import explore
from tests.protocol.rules import Rules


def named(value: Bounds | Mutant) -> str:
    return value.name


LARGE = {"an owner's call twice, pause", "pull, an idle owner"}  # a third of the time


@pytest.mark.parametrize(
    "bounds",
    [
        pytest.param(each, id=name, marks=pytest.mark.slow if name in LARGE else ())
        for name, each in SMALL.items()
    ],
)
@pytest.mark.slow_with(
    "pause twice",
    "an idle owner*",
    "pull, a call twice",
    "a key vanishes, two ids",
    "a key vanishes, buried",
    "throttled*",
)
def test_the_protocol_keeps_every_promise(bounds: Bounds) -> None:
    explored = explore(replace(bounds, calls=min(2, bounds.calls)))
    assert explored.violated == {}
    assert explored.whole


@pytest.mark.parametrize("mutant", MUTANTS, ids=named)
@pytest.mark.slow  # also in `make protocol`
def test_without_a_rule_a_promise_breaks(mutant: Mutant) -> None:
    explored = explore(mutant.mutated, stop=frozenset({mutant.violates}))
    assert mutant.violates in explored.promises


def test_every_rule_has_a_mutant() -> None:
    assert {rule for mutant in MUTANTS for rule in mutant.without} == {*vars(Rules())}
