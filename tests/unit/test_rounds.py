"""Rounds: how often each bucket is compared with the ledger, whatever comes and goes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import pytest

from delaybridge.ledger.reconciling.rounds import Rounds

EVERY_S = 60.0


def looks(
    held_at: Callable[[float], Sequence[str]], *, took_s: float, until_s: float = 600.0
) -> dict[str, list[float]]:
    """When each was looked at, if a look takes so long and nobody waits in vain."""
    rounds, now_s, found = Rounds[str](EVERY_S), 0.0, defaultdict[str, list[float]](list)
    while now_s < until_s:
        one, wait_s = rounds.next(held_at(now_s), now_s)
        if one is None:
            now_s += min(wait_s, 1.0)
            continue
        found[one].append(now_s)
        rounds.looked(one, now_s, now_s + took_s)
        now_s += took_s
    return found


def pauses_s(times_s: Sequence[float]) -> list[float]:
    return [after - before for before, after in zip([0.0, *times_s], times_s, strict=False)]


NAMES = [f"b{number}" for number in range(16)]


@pytest.mark.parametrize("took_s", [0.0, 1.0, 1.8])
def test_each_is_looked_at_within_the_time_also_if_looks_take_half_of_it(took_s: float) -> None:
    found = looks(lambda now_s: NAMES, took_s=took_s)
    assert found.keys() == set(NAMES)
    assert max(pause for times in found.values() for pause in pauses_s(times)) <= EVERY_S + took_s
    assert min(len(times) for times in found.values()) >= 9, "none is looked at more seldom"
    assert max(len(times) for times in found.values()) <= 10, "or more often"


def test_long_looks_take_half_of_the_time_and_each_has_its_turn() -> None:
    found = looks(lambda now_s: NAMES, took_s=10.0, until_s=1600.0)
    assert {len(times) for times in found.values()} == {5}
    assert sum(map(len, found.values())) * 10.0 == 1600.0 / 2


def test_the_first_looks_are_spread() -> None:
    firsts_s = sorted(times[0] for times in looks(lambda now_s: NAMES, took_s=0.0).values())
    assert firsts_s == pytest.approx([EVERY_S * n / 16 for n in range(1, 17)])


def test_who_comes_puts_nobody_off_and_is_looked_at_within_the_time() -> None:
    """As when a worker starts: it has one bucket first, and the others some seconds later."""

    def held_at(now_s: float) -> Sequence[str]:
        return NAMES[: 1 + int(now_s // 5)]

    found = looks(held_at, took_s=0.1)
    for number, name in enumerate(NAMES):
        first_s, *others_s = pauses_s(found[name])
        assert first_s - 5 * number <= EVERY_S + 2.0
        assert max(others_s) <= EVERY_S + 2.0


def test_who_goes_holds_up_nobody() -> None:
    found = looks(lambda now_s: NAMES if now_s < 30 else NAMES[-1:], took_s=0.1)
    assert max(pauses_s(found[NAMES[-1]])) <= EVERY_S + 1.0


def test_nobody_has_a_turn_where_there_is_nobody() -> None:
    assert Rounds[str](EVERY_S).next([], 0.0)[0] is None
