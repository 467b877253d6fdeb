"""Hot and cold calls for one id agree in every order of steps; without a rule a promise breaks."""

from __future__ import annotations

import pytest

from tests.protocol.tiers import TierModel, TierRules, explore_tiers

CALLS = {"both cold": (True, True), "cold, hot": (True, False), "both hot": (False, False)}
# A rule -> where it is needed, and a promise that breaks without it.
MUTANTS = {
    "row_first": ("both cold", 2),
    "others_brought": ("cold, hot", 2),
    "cold_until_there": ("cold, hot", 2),
    "gone_checked": ("both cold", 3),
    "refused_kept": ("both cold", 3),
    "refused_asked": ("both cold", 1),
    "first_only": ("both cold", 2),
    "only_arrived": ("both cold", 1),
    "ended_by_stamp": ("both cold", 4),
    "ledger_looked": ("both cold", 3),
    "refused_left": ("both cold", 6),
    "first_ended": ("both cold", 5),
    "undone_ended": ("both cold", 4),
}
# Needed where two cancel what was accepted before.
OF_ACCEPTED = ("refused_left", "first_ended", "undone_ended")


@pytest.mark.parametrize("fired", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_nothing_is_broken(name: str, fired: bool) -> None:
    model = TierModel(TierRules(), cold=CALLS[name], promotions=2, fired=fired)
    states, broken = explore_tiers(model)
    assert broken == {}
    assert states > 500


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("name", ["both cold", "cold, hot"])
def test_nothing_is_broken_while_two_cancel_and_one_schedules(name: str, lost: bool) -> None:
    model = TierModel(TierRules(), cold=CALLS[name], promotions=1, accepted=True, lost=lost)
    states, broken = explore_tiers(model)
    assert broken == {}
    assert states > 3000


def test_every_rule_has_a_mutant() -> None:
    assert MUTANTS.keys() == set(TierRules._fields)


@pytest.mark.parametrize("rule", MUTANTS)
def test_without_a_rule_a_promise_breaks(rule: str) -> None:
    name, promise = MUTANTS[rule]
    rules = TierRules(**{rule: False})
    model = TierModel(
        rules,
        cold=CALLS[name],
        promotions=2,
        fired=rule == "refused_asked",
        accepted=rule in OF_ACCEPTED,
        lost=rule == "undone_ended",
    )
    _, broken = explore_tiers(model, until=promise)
    assert promise in {int(what[0]) for what in broken}
