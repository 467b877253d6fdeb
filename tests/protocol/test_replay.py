"""The Lua does what the model says: traces of the model, call by call, on a real Redis.

DELAYBRIDGE_TEST_TRACES: how many; `make protocol` replays 10,000.
"""

from __future__ import annotations

import os
from functools import lru_cache
from itertools import chain
from random import Random

import pytest

from tests.protocol.bounds import Bounds
from tests.protocol.explorations import (
    BURIED_LATE,
    EVERYTHING,
    EVERYTHING_ONCE,
    EVERYTHING_PULLED,
    FIRED_LATE,
    GATHERED,
    GATHERED_PULLED,
    LATE_ENDS,
    LEDGER,
    LEDGER_BURIED,
    LEDGER_GATHERED,
    LEDGER_MET,
    LEDGER_ONCE,
    LEDGER_PULLED,
    PULLED,
    SMALL,
    VANISHING,
    WHOLE,
    WINDOWED,
    WINDOWED_ONCE,
    WINDOWED_PULLED,
    WINDOWS_RECEIVED,
    WINDOWS_SETTLED,
)
from tests.protocol.ledger_mutants import LEDGER_MUTANTS
from tests.protocol.lua_mutants import LUA_MUTANTS, LuaMutant
from tests.protocol.owner_verbs import Reach
from tests.protocol.replay import Replay
from tests.protocol.stories import REACH, STORIES
from tests.protocol.walk import walk
from tests.protocol.world import Event

TRACES = int(os.environ.get("DELAYBRIDGE_TEST_TRACES", "300"))
MUTATED = 7500  # traces, until one shows the mutant
STEPS = 100
BOUNDS: list[Bounds] = [*SMALL.values(), *WHOLE]
BESIDE = (
    LEDGER, WINDOWS_SETTLED, LEDGER_PULLED, LEDGER_BURIED, LEDGER_MET, LEDGER_ONCE,
    WINDOWS_RECEIVED, LEDGER_GATHERED,
)  # fmt: skip
WINDOWS = (WINDOWED, WINDOWED_ONCE, WINDOWED_PULLED)

# The scripts of verbs that have none of their own.
BORROWED = {"finish": "cancel", "extend": "reschedule", "release": "reschedule"}

Trace = tuple[list[Event], Reach]


def bounds_of(number: int) -> Bounds:
    """Every fifth has a ledger, or a window of delivered ids."""
    turn, place = divmod(number, 5)
    if place < 4:
        return _of_bucket(4 * turn + place)
    return (*BESIDE, WINDOWS[turn // 9 % len(WINDOWS)])[turn % 9]


def _of_bucket(number: int) -> Bounds:
    """Half of these have all verbs and faults."""
    if number % 2 == 0:
        often = {2: EVERYTHING_PULLED, 4: VANISHING, 6: EVERYTHING_ONCE}
        seldom = {8: GATHERED, 10: GATHERED_PULLED, 14: GATHERED}
        return seldom.get(number % 16) or often.get(number % 8, EVERYTHING)
    if number % 4 == 1:
        return {5: BURIED_LATE, 9: FIRED_LATE}.get(number % 16, LATE_ENDS)
    return PULLED if number % 8 == 3 else BOUNDS[number // 8 % len(BOUNDS)]


@lru_cache(1200)
def trace(number: int) -> Trace:
    bounds = bounds_of(number)
    return walk(bounds, Random(number), STEPS), bounds.reach


@pytest.mark.timeout(300 + TRACES // 20)
def test_every_call_of_a_trace_answers_and_does_as_the_model_says(
    redis_url: str, namespace: str
) -> None:
    with Replay(redis_url, namespace) as replay:
        for number in range(TRACES):
            difference = replay.difference(*trace(number))
            assert difference is None, f"trace {number}: {difference}"


def test_every_story_is_as_the_model_says(redis_url: str, namespace: str) -> None:
    with Replay(redis_url, namespace) as replay:
        for story in STORIES:
            assert replay.difference(story(), REACH) is None, story.__name__


def test_a_mutant_of_a_script_changes_text_that_is_there() -> None:
    assert all(mutant.mutated for mutant in [*LUA_MUTANTS, *LEDGER_MUTANTS])


@pytest.mark.slow  # also in `make protocol`
@pytest.mark.parametrize("mutant", [*LUA_MUTANTS, *LEDGER_MUTANTS], ids=lambda mutant: mutant.name)
def test_a_script_without_a_rule_differs_from_the_model(
    redis_url: str, namespace: str, mutant: LuaMutant
) -> None:
    stories = ((story(), REACH) for story in STORIES)
    beside = range(4, MUTATED, 5)
    traces = chain(stories, map(trace, beside if mutant in LEDGER_MUTANTS else range(MUTATED)))
    calling = (each for each in traces if any(_calls(event, mutant.script) for event in each[0]))
    with Replay(redis_url, namespace, mutant.mutated) as replay:
        assert any(replay.difference(*each) for each in calling)


def _calls(event: Event, script: str) -> bool:
    script = script.removesuffix("_one")  # sent before each `schedule` that it may stand for
    return script in event.verb or script == BORROWED.get(event.verb)
