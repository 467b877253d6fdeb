"""All that may happen next: time, clients, requests executed once more, faults, and the workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from tests.protocol.bounds import Bounds, Order
from tests.protocol.bucket import EVERY, GATHERS, NEVER
from tests.protocol.calls import Call, ClientCall
from tests.protocol.consumers import consumers
from tests.protocol.ledger_side import others
from tests.protocol.owner import Owner
from tests.protocol.sender import removed
from tests.protocol.step import Step
from tests.protocol.world import State, World

_WORDS = {0: "x", 1: "y"}


def steps(state: State, world: World) -> Iterator[Step]:
    """world: of this state; it is only read."""
    bounds = world.bounds
    if state.clock < bounds.ends:
        yield Step("a tick", "tick", _tick, True)
    if state.calls < bounds.calls:
        for order in bounds.orders:
            # What is gathered later would be due after the last tick.
            if order.policy not in GATHERS or state.clock + EVERY <= bounds.ends:
                yield from _ordered(state, bounds, order)
    for call in dict.fromkeys(state.requests):
        yield Step(f"once more: {_shown(call)}", "again", _once_more(call))
    yield from consumers(state, bounds)
    yield from others(state, bounds)
    yield from _lease(state, world)
    yield from _replica(state)
    yield from _vanishing(state)
    yield from _losing(state)
    if state.wake < NEVER:
        yield Step("the wake-up arrives", "reads", _wake_arrives, True)
        if state.left.wake:
            yield Step("the wake-up is lost", "fault", _wake_is_lost)
    done = set()
    for i, worker in enumerate(state.workers):
        if worker not in done:  # workers that know the same do the same
            done.add(worker)
            yield from Owner(state, world, i).steps()


def _tick(world: World) -> None:
    world.clock += 1


def _ordered(state: State, bounds: Bounds, order: Order) -> Iterator[Step]:
    label = _shown_order(order)

    def called(world: World) -> None:
        world.execute(world.order(order))
        world.is_idle = not (world.bucket.effects or world.witness.violations)

    def twice(world: World) -> None:
        call = world.order(order)
        world.execute(call)
        kinds = {effect.kind for effect in world.bucket.effects}
        is_noted = call.has_row and order.verb == "schedule"  # also what was refused
        world.is_idle = not kinds - {"in_flight"} and not is_noted
        if not world.is_idle:
            world.spend("twice")
            world.requests += (call,)

    yield Step(label, order.verb, called)
    if state.left.twice and (not bounds.verbs or "client" in bounds.verbs):
        yield Step(f"{label}; it will be executed once more", "twice", twice)


def _once_more(call: Call) -> Callable[[World], None]:
    def executed(world: World) -> None:
        world.requests = removed(world.requests, call)
        before, lease = world.bucket.content, world.bucket.lease
        if isinstance(call, ClientCall):
            world.execute(call, again=world.node == 0)
            return
        answer = world.execute(call)
        if call.verb == "acquire" and answer:
            world.owners = max(world.owners, call.token[0])
        if call.verb in ("acquire", "release") or lease == call.token:
            return
        if world.bucket.content != before:
            world.witness.violations.append(f"6 a stale owner's {call.verb} changed the store")

    return executed


def _lease(state: State, world: World) -> Iterator[Step]:
    """The lease of a dead owner runs out always, that of a living one after a pause."""
    if state.content.lease is None:
        return
    if not any(world.owns(i) for i in range(len(state.workers))):
        yield Step("the lease of a dead owner runs out", "lease", World.lease_ends, True)
    elif state.left.pause:

        def paused(world: World) -> None:
            world.spend("pause")
            world.lease_ends()

        yield Step("the owner is paused, its lease runs out", "fault", paused)


def _replica(state: State) -> Iterator[Step]:
    if state.left.rollback and state.past is None:
        yield Step("the replica lags from here", "fault", World.replica_lags)
    if state.past is not None:
        yield Step("the replica takes over", "fault", World.replica_takes_over)


def _vanishing(state: State) -> Iterator[Step]:
    """What a key said is gone; what it says from then on is true again."""
    for key in ("due", "mirror", "parked", "dead") if state.left.vanish else ():
        if any(getattr(state.content, key)):
            yield Step(f"the key {key!r} vanishes", "fault", partial(World.vanishes, key=key))


def _losing(state: State) -> Iterator[Step]:
    """The store is wiped; or a message that no owner has is deleted by hand."""
    if state.left.wipe:
        yield Step("the store is wiped", "loss", World.wiped)
    content = state.content
    for id, record in enumerate(content.messages if state.left.erase else ()):
        if record is not None and content.mirror[id] is None and state.lost[id] is None:
            label = f"{_WORDS[id]} is deleted by hand"
            yield Step(label, "loss", partial(World.erases, id=id))


def _wake_arrives(world: World) -> None:
    for i, worker in enumerate(world.workers):
        if worker.token[1]:
            world.change(i, look=min(worker.look, world.wake))
    world.wake = NEVER


def _wake_is_lost(world: World) -> None:
    world.spend("wake")
    world.wake = NEVER


def _shown(call: Call) -> str:
    if isinstance(call, ClientCall):
        return f"{call.verb} {' '.join(_WORDS[target.id] for target in call.targets)}"
    return f"{call.verb} of turn {call.token[1]}"


def _shown_order(order: Order) -> str:
    timed = order.verb in ("schedule", "reschedule") and order.policy != "touch"
    each = [_WORDS[id] + (f", due {score / 2:g}" if timed else "") for id, score in order.targets]
    verb = order.policy if order.policy in ("replace", "touch") else order.verb
    return f"{verb} {' and '.join(each)}"
