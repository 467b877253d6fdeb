"""What the consumers of a pull topic may do next. They are many: each receipt may be anybody's."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.protocol.bounds import Bounds
from tests.protocol.calls import ClientCall, Target
from tests.protocol.step import Step
from tests.protocol.world import Given, State, World

_MOST = 2  # receipts that are known; one that is forgotten is of a consumer that died
Draws = Callable[[World], ClientCall]


def consumers(state: State, bounds: Bounds) -> Iterator[Step]:
    if not bounds.pulls:
        return
    ttr = min(1, bounds.ends - state.clock)
    if any(score // 2 <= state.clock for score, _ in state.content.ready):
        if ttr:
            yield from _calls("a consumer receives", state, bounds, _receive(ttr))
        else:  # or it would be received again and again at the last tick
            yield Step("a consumer receives and finishes", "consumer", _receive_and_finish, True)
    for given in dict.fromkeys(state.given):
        what = f"{'xy'[given.id]} under receipt {given.receipt}"
        yield from _calls(f"a consumer finishes {what}", state, bounds, _of("finish", given, 0))
        if state.calls < bounds.calls:
            extend, release = _of("extend", given, ttr), _of("release", given, 0)
            yield from _calls(f"a consumer extends {what}", state, bounds, extend)
            yield from _calls(f"a consumer releases {what}", state, bounds, release)


def _receive_and_finish(world: World) -> None:
    call = _receive(0)(world)
    for received in world.execute(call):
        world.execute(_of("finish", Given(received.id, call.receipt), 0)(world))


def _receive(ttr: int) -> Draws:
    def receive(world: World) -> ClientCall:
        (receipt,) = world.stamps(1)
        return ClientCall("receive", (), receipt=receipt, ttr=ttr)

    return receive


def _of(verb: str, given: Given, delay: int) -> Draws:
    def drawn(world: World) -> ClientCall:
        world.calls += verb != "finish"
        (stamp,) = world.stamps(1)
        return ClientCall(verb, (Target(given.id, delay, stamp),), receipt=given.receipt)

    return drawn


def _calls(label: str, state: State, bounds: Bounds, draw: Draws) -> Iterator[Step]:
    def executed(world: World, call: ClientCall) -> None:
        before = world.bucket.content
        answer = world.execute(call)
        if call.verb == "receive":
            new = [Given(received.id, call.receipt) for received in answer]
            world.given = (*world.given, *new)[-_MOST:]
        elif world.bucket.effects and call.verb != "extend":
            world.given = tuple(one for one in world.given if one.receipt != call.receipt)
        world.is_idle = before == world.bucket.content and not world.witness.violations

    def answered(world: World) -> None:
        executed(world, draw(world))

    def lost(world: World) -> None:
        world.spend("lost")
        given = world.given
        executed(world, draw(world))
        world.given = given

    def twice(world: World) -> None:
        world.spend("twice")
        call = draw(world)._replace(ttr=0)  # it must end in time also if it is executed late
        executed(world, call)
        world.requests += (call,)

    may_fail = not bounds.verbs or "client" in bounds.verbs
    yield Step(label, "consumer", answered, "extends" not in label and "releases" not in label)
    if state.left.lost and may_fail:
        yield Step(f"{label}; the reply is lost", "fault", lost)
    if state.left.twice and may_fail:
        yield Step(f"{label}; it will be executed once more", "twice", twice)
