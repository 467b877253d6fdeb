"""The bounds of the dead set of one bucket on real Redis, and what goes with a dropped message."""

from __future__ import annotations

import struct

import pytest

from tests.rigs.bucket import TTL_MS, Owner, World

AGE_MS = 1000
CANCELLED = 6  # in `calls`


def trimmed(
    owner: Owner, *, keep: int | None = None, age_ms: int | None = None, limit: int = 100
) -> int:
    trim = owner.bucket.trim(
        *(owner.token, TTL_MS), keep=keep, age_ms=age_ms, limit=limit, now_ms=owner.world.now_ms
    )
    (dropped,) = owner.world.run(trim) or (-1,)
    return dropped


def with_dead(world: World, *ids: str) -> Owner:
    """Each is buried a millisecond after the one before."""
    owner, copies = world.fired(*ids)
    for copy in sorted(copies, key=lambda copy: ids.index(copy.id)):
        owner.bury(copy)
        world.now_ms += 1
    return owner


def dead(world: World) -> set[str]:
    return {id.decode() for id in world.state().get("dead", ())}


def test_the_oldest_go_by_whichever_bound_asks_for_more_and_never_beyond_the_limit(
    world: World, now: int
) -> None:
    owner = with_dead(world, *"abcdefgh")
    assert trimmed(owner, keep=7) == 1
    assert dead(world) == {*"bcdefgh"}
    world.now_ms = now + AGE_MS + 3  # d was buried just that long ago
    assert trimmed(owner, age_ms=AGE_MS) == 2
    assert dead(world) == {*"defgh"}
    assert trimmed(owner, keep=3, age_ms=AGE_MS) == 2
    assert dead(world) == {*"fgh"}
    world.now_ms = now + AGE_MS + 7
    assert trimmed(owner, keep=3, age_ms=AGE_MS) == 2
    assert trimmed(owner, keep=0, limit=0) == 0
    assert dead(world) == {*"h"}
    assert trimmed(owner) == 0


def test_nothing_is_left_of_a_dropped_message_and_its_call_is_known(world: World, now: int) -> None:
    world.schedule("x", now)
    owner = world.owner()
    owner.retry(*owner.claim(), delay_ms=0)
    (copy,) = owner.claim()
    owner.fire(copy.score)
    owner.bury(copy)
    call = world.scheduling("x", now)
    stamp = world.state()["messages"][b"x"][9:13]
    assert trimmed(owner, keep=0) == 1
    assert world.state().keys() == {"lease", "marks", "calls"}
    assert world.state()["calls"] == {stamp + b"x": now + CANCELLED / 256}
    assert world.run(call) is not None  # another call is another message


def test_of_dropped_messages_those_without_a_record_are_no_longer_counted_as_bare(
    world: World, now: int
) -> None:
    owner = with_dead(world, "x")
    for id in "yz":
        world.schedule(id, now)
        world.redis.hdel(world.key("messages"), id)
    owner.claim()
    assert world.state()["marks"][b"bare"] == b"2"
    assert trimmed(owner, keep=2) == 1
    assert world.state()["marks"][b"bare"] == b"2"
    assert trimmed(owner, keep=0) == 2
    assert world.state()["marks"][b"bare"] == b"0"


@pytest.mark.parametrize("place", ["due", "mirror", "parked"])
def test_what_is_in_another_set_too_is_not_dropped(world: World, now: int, place: str) -> None:
    owner = with_dead(world, "x", "y")
    world.redis.zadd(world.key(place), {"x": now})
    assert trimmed(owner, keep=0) == 1
    assert dead(world) == {"x"}


def test_entries_of_ready_are_forgotten_once_their_message_waits_elsewhere(
    world: World, now: int
) -> None:
    owner = world.owner()

    def entry(id: str, score: float) -> bytes:
        return b"pull:t\0" + struct.pack(">d", score) + id.encode()

    world.redis.zadd(world.key("parked"), {"a": now + 0.5, "b": now + 9})
    entries = {entry("a", now + 0.5): 1, entry("b", now + 0.5): 2, entry("c", now + 0.5): 3}
    world.redis.zadd(world.key("ready"), entries)
    trimmed(owner)
    assert world.state()["ready"].keys() == {entry("a", now + 0.5)}
