"""Explore every interleaving within some bounds, breadth first: what is violated, and how."""

from __future__ import annotations

import gc
from array import array
from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.protocol.bounds import Bounds
from tests.protocol.bucket import NEVER, Content, is_orphan
from tests.protocol.numbering import canonical
from tests.protocol.steps import steps
from tests.protocol.world import State, World, start

STUCK = "9 the bucket cannot be drained without a further fault"


class Explored(NamedTuple):
    """violated: what -> the shortest way to it. whole: no bound on the states was met."""

    states: int
    violated: dict[str, list[str]]
    whole: bool

    @property
    def promises(self) -> set[int]:
        """The numbers of the promises that do not hold."""
        return {int(what.split()[0]) for what in self.violated}


class Exploration:
    """The states found so far. stop: at the first violation of one of these promises."""

    def __init__(self, bounds: Bounds, *, stop: frozenset[int] = frozenset(), most: int) -> None:
        self.bounds, self.stop, self.most = bounds, stop, most
        first = canonical(start(bounds), bounds)
        self.states = [first]
        self.numbers = {first: 0}
        self.parents = array("i", [-1])
        self.sources, self.targets = array("i"), array("i")  # of prompt steps
        self.found: dict[str, tuple[int, str]] = {}
        self.interned: dict[Any, Any] = {}

    def run(self) -> Explored:
        was_enabled = gc.isenabled()
        gc.disable()  # millions of tuples, no cycles
        try:
            whole = self._expand_all()
            if whole and (stuck := self._stuck()) is not None:
                self.found.setdefault(STUCK, (stuck, ""))
            violated = {what: self.way(what, *where) for what, where in self.found.items()}
        finally:
            if was_enabled:
                gc.enable()
        return Explored(len(self.states), violated, whole)

    def _expand_all(self) -> bool:
        at = 0
        while at < len(self.states):
            self._expand(at)
            at += 1
            if self.stop & {int(what.split()[0]) for what in self.found}:
                return False
            if len(self.states) > self.most:
                return False
        return True

    def _expand(self, at: int) -> None:
        state = self.states[at]
        for step in steps(state, World(state, self.bounds)):
            world = World(state, self.bounds)
            step.run(world)
            if world.is_idle:
                continue
            found, plain = list(world.witness.violations), world.state
            after = canonical(plain, self.bounds)
            number = self.numbers.get(after)
            if number is None:
                number = self._add(after, at)
                found += check(plain, self.bounds)
            for what in found:
                self.found.setdefault(what, (at, step.label))
            if step.is_prompt:
                self.sources.append(at)
                self.targets.append(number)

    def _add(self, state: State, parent: int) -> int:
        """Equal parts of all states are one object: that keeps millions of them small."""
        state = State(*[self.interned.setdefault(part, part) for part in state])
        number = self.numbers[state] = len(self.states)
        self.states.append(state)
        self.parents.append(parent)
        return number

    def _stuck(self) -> int | None:
        """A state from which no prompt steps lead to an empty bucket."""
        before: list[list[int]] = [[] for _ in self.states]
        for source, target in zip(self.sources, self.targets, strict=True):
            before[target].append(source)
        drains = [is_drained(state.content) for state in self.states]
        todo = [n for n, drained in enumerate(drains) if drained]
        while todo:
            for source in before[todo.pop()]:
                if not drains[source]:
                    drains[source] = True
                    todo.append(source)
        return drains.index(False) if False in drains else None

    def way(self, what: str, at: int, last: str) -> list[str]:
        """The steps to a violation, each worker under one name as far as that can be."""
        path = []
        while at > 0:
            path.append(self.states[at])
            at = self.parents[at]
        state, labels = start(self.bounds), []
        before = canonical(state, self.bounds)
        for target in reversed(path):
            # Under its own numbers a state may lead elsewhere once the store may go back.
            found = next(self._leading(state, target), None) or next(self._leading(before, target))
            (label, state), before = found, target
            labels.append(label)
        for step in steps(state, World(state, self.bounds)) if last else ():
            world = World(state, self.bounds)
            step.run(world)
            if what in world.witness.violations:
                return [*labels, step.label]
        return labels + [last][: bool(last)]

    def _leading(self, state: State, target: State) -> Iterator[tuple[str, State]]:
        for step in steps(state, World(state, self.bounds)):
            world = World(state, self.bounds)
            step.run(world)
            if canonical(world.state, self.bounds) == target:
                yield step.label, world.state


def explore(
    bounds: Bounds, *, stop: frozenset[int] = frozenset(), most: int = 4_000_000
) -> Explored:
    return Exploration(bounds, stop=stop, most=most).run()


def is_drained(content: Content) -> bool:
    """Whether every message that is left is dead."""
    waiting = any(each is not None for each in (*content.due, *content.mirror, *content.parked))
    return not (waiting or any(is_orphan(content, id) for id in range(len(content.messages))))


def check(state: State, bounds: Bounds) -> list[str]:
    """What a single state violates."""
    found = []
    content = state.content
    for id, record in enumerate(content.messages):
        places = (content.due, content.mirror, content.parked)
        count = sum(place[id] is not None for place in places) + content.dead[id]
        if count != (record is not None and state.lost[id] is None):
            found.append("1 a message is in no place, in two, or without its payload")
    for stamp, fate in enumerate(state.fates):
        stored = any(record is not None and record.stamp == stamp for record in content.messages)
        if fate is not None and (fate.state == "accepted") != stored:
            found.append("1 an accepted message is gone, or one that is gone is stored")
    if bounds.sleeps and _sleeps_too_long(state, bounds):
        found.append("11 a message is due before its owner looks, and did not wake it")
    return found


def _sleeps_too_long(state: State, bounds: Bounds) -> bool:
    """What such a fault delays is mended by the next renewal, which 9 needs."""
    content, left, had = state.content, state.left, bounds.faults
    if (left.wake, left.lost, left.twice) != (had.wake, had.lost, had.twice):
        return False
    scores = [score // 2 for score in content.due if score is not None]
    for worker in state.workers:
        is_busy = worker.claimed or worker.out or worker.confirmed or worker.failed or worker.aside
        if worker.token != content.lease or not worker.ready or is_busy or state.wake < NEVER:
            continue
        if worker.look > state.clock and any(score < worker.look for score in scores):
            return True
    return False
