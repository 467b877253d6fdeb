"""Many examples of a strategy at once: a server is asked once, not once for each."""

from __future__ import annotations

from typing import TypeVar

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

T = TypeVar("T")
_MOST = 2000


def drawn(strategy: st.SearchStrategy[T]) -> list[T]:
    """As many as the profile has examples, at most 2000."""
    found: list[T] = []

    @settings(
        max_examples=min(settings().max_examples, _MOST),
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=[*HealthCheck],
    )
    @given(strategy)
    def keep(one: T) -> None:
        found.append(one)

    keep()
    return found


def among(bad: list[T], good: list[T]) -> list[T]:
    """The good ones in their order, bad ones before, between and behind them."""
    step = -(-len(bad) // (len(good) + 1))
    mixed: list[T] = []
    for place, one in enumerate(good):
        mixed += [*bad[place * step : (place + 1) * step], one]
    return mixed + bad[len(good) * step :]
