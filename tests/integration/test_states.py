"""The picture of a message's states: each arrow is what the script of that name does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from delaybridge.message import Record, State, encode_record
from delaybridge.store.messages import pulling
from delaybridge.store.protocol import keys
from tests.rigs.bucket import TTL_MS, Copy, Owner, World
from tools.states import ARROWS, GONE, NEW

ID, TOPIC = "x", "t"
PAYLOAD = encode_record(Record(f"pull:{TOPIC}", b"x", ()))
STATES = (NEW, *State)


class Scene(NamedTuple):
    """A message, the owner of its bucket, and the copy that this one has, or would have."""

    world: World
    owner: Owner
    copy: Copy

    @property
    def lease(self) -> tuple[str, int]:
        return self.owner.token, TTL_MS

    def offer(self) -> None:
        items = [(self.copy.item, f"pull:{TOPIC}")]
        self.world.run(pulling.offer(self.world.bucket, self.lease, items))

    def receive(self) -> None:
        receiving = pulling.receive(self.world.bucket, TOPIC, 9, 1000, 7, now_ms=self.world.now_ms)
        self.world.run(receiving)

    def trim(self) -> None:
        now_ms = self.world.now_ms
        self.world.run(self.world.bucket.trim(*self.lease, keep=0, age_ms=None, now_ms=now_ms))


VERBS: dict[str, Callable[[Scene], object]] = {
    "schedule": lambda s: s.world.schedule(ID, s.world.now_ms, payload=PAYLOAD),
    "quarantine": lambda s: s.world.run(s.world.quarantining(ID)),
    "cancel": lambda s: s.world.cancel(ID),
    "reschedule": lambda s: s.world.run(s.world.rescheduling(ID, s.world.now_ms + 5000)),
    "kick": lambda s: s.world.kick(ID),
    "discard": lambda s: s.world.discard(ID),
    "claim": lambda s: s.owner.claim(),
    "settle": lambda s: s.owner.settle(s.copy),
    "retry": lambda s: s.owner.retry(s.copy, delay_ms=9),
    "park": lambda s: s.owner.park(s.copy),
    "unpark": lambda s: s.world.run(s.owner.unparking()),
    "bury": lambda s: s.owner.bury(s.copy),
    "offer": Scene.offer,
    "receive": Scene.receive,
    "trim": Scene.trim,
    "reclaim": lambda s: s.world.successor(),
}


def scene(world: World, state: str) -> Scene:
    """A message in this state."""
    if state == NEW or state == State.DELAYED:
        owner = world.owner()
        if state == State.DELAYED:
            VERBS["schedule"](Scene(world, owner, Copy(ID, 0, 0.0)))
        return Scene(world, owner, Copy(ID, 0, 0.0))
    world.schedule(ID, world.now_ms, payload=PAYLOAD)
    owner = world.owner()
    (copy,) = owner.claim()
    made = Scene(world, owner, copy)
    if state == State.PARKED:
        made.offer()
    elif state == State.DEAD:
        owner.bury(copy)
    return made


def seen(world: World) -> tuple[str, float]:
    """Where the message is, and when it is due."""
    row = world.run(world.bucket.get(ID))
    return (GONE, 0.0) if row is None else (row.state.value, row.score)


def arrows_of(world: World, verb: str) -> set[tuple[str, str]]:
    """What the verb does to a message in each state; each is made in an empty bucket."""
    found = set()
    for state in STATES:
        world.redis.delete(*map(world.key, keys.BUCKET_KEYS))
        made = scene(world, state)
        before = seen(world)
        VERBS[verb](made)
        if (after := seen(world)) != before:
            found.add((str(state), after[0]))
    return found


@pytest.fixture
def world(redis_url: str, namespace: str, now_ms: int) -> Iterator[World]:
    with World(redis_url, namespace, now_ms) as world:
        yield world


def test_the_picture_has_every_state_and_no_other() -> None:
    assert {name for way in ARROWS for name in way} == {NEW, GONE, *(str(each) for each in State)}
    assert {verb for verbs in ARROWS.values() for verb in verbs} == VERBS.keys()


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_does_what_the_picture_shows(world: World, verb: str) -> None:
    assert arrows_of(world, verb) == {way for way, verbs in ARROWS.items() if verb in verbs}
