"""A worker sends a call to the store: what may become of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tests.protocol.calls import OwnerCall
from tests.protocol.step import Step
from tests.protocol.world import State, Worker, World

Arrives = Callable[[World, Any], None]


def removed(values: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    at = values.index(value)
    return values[:at] + values[at + 1 :]


def added(values: tuple[Any, ...], *more: Any) -> tuple[Any, ...]:
    return tuple(sorted([*values, *more]))


class Sender:
    """One worker in one state, and the calls that it may send."""

    def __init__(self, state: State, world: World, i: int) -> None:
        self.state, self.world, self.i = state, world, i
        self.bounds, self.rules = world.bounds, world.bounds.rules
        self.me: Worker = state.workers[i]
        self.owns = world.owns(i)

    @property
    def name(self) -> str:
        turn = self.me.token[1]
        return f"worker {self.i + 1}" + (f" (turn {turn})" if turn else "")

    def call(self, verb: str, **fields: Any) -> OwnerCall:
        return OwnerCall(verb, self.me.token, **fields)

    def sends(
        self, what: str, call: OwnerCall, arrives: Arrives, lost: Arrives | None = None
    ) -> Iterator[Step]:
        """A call is answered; its reply is lost, which the worker knows; it is executed twice."""
        label, left = f"{self.name} {what}", self.state.left
        losable = not self.bounds.verbs or call.verb in self.bounds.verbs

        def answered(world: World) -> None:
            answer = world.execute(call)
            if answer is None:
                world.drop(self.i)
            elif self.rules.retakes and self.me.node != world.node and self.me.token[1]:
                self.retakes(world)
            else:
                arrives(world, answer)

        def unanswered(world: World) -> None:
            world.execute(call)
            world.spend("lost")
            if lost is not None:
                lost(world, None)

        def twice(world: World) -> None:
            answered(world)
            world.spend("twice")
            world.requests += (call,)

        yield Step(label, call.verb, answered, True)
        if left.lost and losable:
            yield Step(f"{label}; the reply is lost", "fault", unanswered)
        if left.twice and losable:
            yield Step(f"{label}; it will be executed once more", "twice", twice)

    def retakes(self, world: World) -> None:
        """The session ends in good order: its lease is free at once."""
        world.execute(self.call("release"))
        world.drop(self.i)
