"""Terms: what settings, and rules from Redis, say about each lane."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from delaybridge.scan.lanes.retry import RetryPolicy
from delaybridge.store.namespace.rules import NO_RULES, Rules, places_of


class Terms(NamedTuple):
    """What holds for the messages of one lane.

    paused: the place that is paused, empty if none is. rates: each place with a rate, and it.
    dead_letter: where messages go that are given up; None: to the dead set.
    """

    policy: RetryPolicy
    paused: str = ""
    spread_ms: int = 0
    rates: tuple[tuple[str, float], ...] = ()
    dead_letter: str | None = None


class Steering:
    """Settings and rules together. rules: as last read; None of them if they never were."""

    def __init__(self, policy: RetryPolicy, dead_letters: Mapping[str, str]) -> None:
        """dead_letters: broker -> destination of messages that are given up."""
        self._policy, self._dead_letters = policy, dead_letters
        self.rules: Rules = NO_RULES

    def terms(self, broker: str, label: str, destination: str) -> Terms:
        """The terms of a lane. destination: the whole one, if it has a lane of its own."""
        policy, paused, spread_ms = self._policy, "", 0
        dead_letter = self._dead_letters.get(broker)
        levels = self.rules.levels(broker, label, destination)
        for place, rule in levels:
            if rule.paused:
                paused = paused or place
            if rule.spread_ms is not None:
                spread_ms = rule.spread_ms
            policy = policy.with_plan(rule.retry)
            if rule.dead_letter is not None:
                dead_letter = rule.dead_letter or None
        rates = tuple((place, rule.rate) for place, rule in levels if rule.rate is not None)
        return Terms(policy, paused, spread_ms, rates, dead_letter)

    def apart(self, kinds: Mapping[str, str]) -> dict[str, str]:
        """Whole destinations with a rule, which need lanes of their own -> their label.

        kinds: broker -> its kind.
        """
        ours = (place for place in self.rules.by_place if place.partition(":")[0] in kinds)
        covering = (places_of(place, kinds) for place in ours)
        return {places[2]: places[1] for places in covering if len(places) > 2}
