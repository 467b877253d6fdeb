"""A trace: one random way through the model, with every call, its answer and the state after it."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from tests.protocol import client_verbs
from tests.protocol.bounds import Bounds
from tests.protocol.explore import is_drained
from tests.protocol.step import Step
from tests.protocol.steps import steps
from tests.protocol.world import Event, State, World, start

# How often a step is taken; all others: 4. Else most walks would end in a fault, or before a fire.
WEIGHTS: dict[str, float] = {
    "fault": 1, "refused": 2, "twice": 2, "tick": 1, "release": 0.1, "renew": 1, "learns": 1,
    "lease": 2, "park": 2, "again": 6, "unpark": 6, "acquire": 8, "reclaim": 8, "reads": 8,
    "fire": 12, "count": 2, "mend": 8, "bury": 8, "settle_once": 8, "consumer": 8, "offer": 8,
    "loss": 0.4, "seal": 1, "drop": 1, "restore": 1, "look": 0.5, "reads the ledger": 2,
    "withdrawn": 1, "row": 1, "tally": 0.1,
}  # fmt: skip
CLIENTS, BESIDE_OWNERS = 12, 5  # all clients' calls together


def walk(bounds: Bounds, random: Random, length: int) -> list[Event]:
    """At most `length` steps, with real numbers of turns. Lost owners send their calls, too."""
    bounds = replace(bounds, stale=True)
    journal: list[Event] = []
    state: State = start(bounds)
    for _ in range(length):
        possible = list(steps(state, World(state, bounds, journal)))
        is_over = is_drained(state.content) and not state.requests
        if not possible or (is_over and state.calls >= bounds.calls):
            break
        step = _chosen(possible, bounds, random)
        world = World(state, bounds, journal)
        step.run(world)
        assert not world.witness.violations, (step.label, world.witness.violations)
        state = world.state
    return journal


def story(bounds: Bounds, *labels: str) -> list[Event]:
    """The way on which each step is the first one that has such a label."""
    journal: list[Event] = []
    state: State = start(bounds)
    for label in labels:
        possible = steps(state, World(state, bounds, journal))
        step = next(step for step in possible if label in step.label)
        world = World(state, bounds, journal)
        step.run(world)
        state = world.state
    return journal


def _chosen(possible: list[Step], bounds: Bounds, random: Random) -> Step:
    of_owners = bounds.ledger or len(bounds.windows) > 1
    of_client = (BESIDE_OWNERS if of_owners else CLIENTS) / len(bounds.orders)
    weights = [
        of_client if step.kind in client_verbs.VERBS else WEIGHTS.get(step.kind, 4)
        for step in possible
    ]
    return random.choices(possible, weights)[0]
