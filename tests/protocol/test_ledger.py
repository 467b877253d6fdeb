"""The ledger's rule holds in every order of steps; without any part of it a promise breaks."""

from __future__ import annotations

from typing import Any

import pytest

from tests.protocol.ledger import LedgerModel, explore_ledger
from tests.protocol.ledger_rules import LedgerRules

BOUNDS: dict[str, dict[str, Any]] = {
    "wiped": {"faults": 1, "restores": 0, "seals": 2},
    "restored by others": {"faults": 0, "restores": 1, "seals": 4},
    "wiped, restored by others": {"faults": 1, "restores": 1, "seals": 2},
    "wiped, another owner": {"faults": 1, "restores": 0, "seals": 2, "moves": 1},
    "wiped in a silence": {"faults": 1, "restores": 0, "seals": 1, "silences": 1, "moves": 1},
    "an older past": {"faults": 1, "restores": 0, "seals": 2, "goes_back": True},
    "an older past, another owner": {
        "faults": 1, "restores": 0, "seals": 1, "goes_back": True, "moves": 1,
    },
    "an older past in a silence": {
        "faults": 1, "restores": 0, "seals": 1, "goes_back": True, "silences": 1, "moves": 1,
    },
    "an older past, restored by others": {
        "faults": 1, "restores": 1, "seals": 1, "goes_back": True,
    },
    "restored by others, nobody cancels": {
        "faults": 0, "restores": 1, "seals": 4, "cancels": False,
    },
    "wiped, nobody cancels": {"faults": 1, "restores": 1, "seals": 1, "cancels": False},
    "a silence, nobody cancels": {
        "faults": 1, "restores": 0, "seals": 1, "silences": 1, "moves": 1, "cancels": False,
    },
    "an older past, nobody cancels": {
        "faults": 1, "restores": 0, "seals": 2, "goes_back": True, "cancels": False,
    },
}  # fmt: skip
# A rule -> where it is needed, and a promise that breaks without it.
MUTANTS = {
    "row_first": ("wiped", 1),
    "answer_last": ("wiped", 3),
    "gone": ("restored by others, nobody cancels", 5),
    "generations": ("restored by others, nobody cancels", 5),
    "kept_longer": ("restored by others, nobody cancels", 5),
    "verified": ("wiped", 1),
    "server_checked": ("an older past, nobody cancels", 5),
    "healed_named": ("wiped, nobody cancels", 5),
    "begun_named": ("wiped", 3),
    "each_named": ("wiped", 3),
    "confirmed": ("wiped", 3),
    "row_checked": ("restored by others", 6),
    "remembered": ("wiped, nobody cancels", 5),
    "remembered_first": ("wiped, nobody cancels", 5),
    "kept_until_told": ("wiped", 5),
    "standing_checked": ("an older past, nobody cancels", 5),
    "told_by_server": ("an older past, nobody cancels", 5),
    "others_tell": ("a silence, nobody cancels", 5),
    "others_awaited": ("a silence, nobody cancels", 5),
}


# The others take most of the time.
SMALL = {name for name in BOUNDS if "nobody cancels" in name} | {"wiped", "restored by others"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in SMALL else pytest.mark.slow) for name in BOUNDS]
)
def test_nothing_is_violated(name: str) -> None:
    states, violated = explore_ledger(LedgerModel(LedgerRules(), **BOUNDS[name]))
    assert violated == {}
    assert states > 1000


def test_every_rule_has_a_mutant() -> None:
    assert MUTANTS.keys() == set(LedgerRules._fields)


@pytest.mark.parametrize("rule", MUTANTS)
@pytest.mark.slow_with("row_checked")
def test_without_a_rule_a_promise_breaks(rule: str) -> None:
    name, promise = MUTANTS[rule]
    rules = LedgerRules(**{rule: False})
    _, violated = explore_ledger(LedgerModel(rules, **BOUNDS[name]), until=promise)
    assert promise in {int(what[0]) for what in violated}
