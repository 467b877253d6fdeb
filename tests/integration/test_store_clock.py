"""Redis' own clock: due times to the microsecond, and expiries after it was set back."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from delaybridge import Client
from delaybridge.accept.accept import Accepted
from delaybridge.store.calls import Calls
from delaybridge.store.namespace import registry
from delaybridge.store.protocol import keys, record
from delaybridge.store.protocol.bucket import Item
from delaybridge.store.protocol.verbs import RedisCommand
from delaybridge.store.redis.store import Store
from tests.rigs.bucket import Owner, World

TTL_MS = 10_000
DELAY_MS = 5
BROKERS = {"memory": "memory://"}
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
STEP_MS = 3_600_000


@pytest.fixture
def world(redis_url: str, namespace: str, now_ms: int) -> Iterator[World]:
    with World(redis_url, namespace, now_ms) as world:
        yield world


def delaying(world: World, owner: Owner, verb: str, id: str) -> RedisCommand[Any]:
    """A call that makes the message wait for DELAY_MS by Redis' clock."""
    if verb == "schedule":
        accepted = Accepted(id, id.encode(), f"+{DELAY_MS}", 0, b"payload")
        return world.bucket.schedule([(world.stamp(), accepted)], first=True)
    world.schedule(id, world.now_ms)
    if verb == "reschedule":
        return world.bucket.reschedule(world.stamp(), id, f"+{DELAY_MS}")
    (copy,) = owner.claim()
    if verb == "retry":
        return world.bucket.retry(owner.token, TTL_MS, [(copy.item, DELAY_MS, False, "")])
    owner.bury(copy)
    return world.bucket.kick(world.stamp(), id, DELAY_MS)


@pytest.mark.parametrize("verb", ["schedule", "reschedule", "kick", "retry"])
def test_a_delay_is_not_cut_short_by_a_part_of_a_millisecond(world: World, verb: str) -> None:
    owner = world.owner()
    for n in range(20):
        call = delaying(world, owner, verb, f"x{n}")
        now_us, answer = world.store.run([registry.store_time(), call])
        score = world.score(f"x{n}")
        assert answer and score is not None
        assert int(score) * 1000 >= now_us + DELAY_MS * 1000
        world.cancel(f"x{n}")


def test_a_message_accepted_overdue_is_late_from_its_acceptance(world: World, now_ms: int) -> None:
    owner, long_ago = world.owner(), now_ms - 2500 * 86_400_000
    world.schedule("x", long_ago)
    world.schedule("y", now_ms + 5)
    assert world.schedule("x", long_ago) == "duplicate"
    world.now_ms += 10
    world.reschedule("y", long_ago + 1)
    world.schedule("z", now_ms + 10)
    copies = {copy.id: copy.score for copy in owner.claim()}
    assert list(copies) == ["x", "y", "z"], "in the order of their due times, as ever"
    rows = [world.run(world.bucket.get(id)) for id in "xyz"]
    assert [int(copies[row.id]) for row in rows if row] == [long_ago, long_ago + 1, now_ms + 10]
    late_from_ms = [record.since_ms(row.record) for row in rows if row]
    assert late_from_ms == [now_ms, now_ms + 10, now_ms + 10]
    assert {record.split_record(row.record)[1] for row in rows if row} == {b"payload"}


def test_stats_count_the_lateness_of_a_message_accepted_overdue_from_its_acceptance(
    redis_url: str, store: Store, namespace: str
) -> None:
    with Client(redis_url, namespace=namespace, brokers=BROKERS, buckets=1) as client:
        client.schedule("memory:q", b"x", at=LONG_AGO)
        assert client.stats().overdue_ms < 60_000
        (bucket,) = client.run(Calls.open)
        (taken,) = store.run([bucket.acquire("w:1", TTL_MS)])
        assert taken.token is not None
        claim = bucket.claim(taken.token, TTL_MS, taken.turn, ahead_ms=0, limit=9, max_bytes=9)
        (claimed,) = store.run([claim])
        assert claimed is not None and client.stats().in_flight == 1
        assert client.stats().overdue_ms < 60_000
        score, _ = record.split_record(claimed.records[0])
        item = Item(claimed.ids[0].decode(), claimed.number, score)
        store.run([bucket.park(taken.token, TTL_MS, [item])])
        assert client.stats().parked == 1
        assert client.stats().overdue_ms < 60_000


def announce(world: World, name: str, now_ms: int, ttl_ms: int = TTL_MS) -> dict[str, int]:
    """Announce a worker; returns when the announcement of each living worker ends."""
    instance = name.encode().hex()
    fleet = world.run(
        registry.announce(world.namespace, name, instance, ttl_ms, b"{}", now_ms=now_ms)
    )
    assert fleet.announced
    return fleet.expires_ms


def test_a_dead_workers_announcement_ends_within_its_ttl(world: World, now_ms: int) -> None:
    announce(world, "dead", now_ms)
    now_ms -= STEP_MS
    assert announce(world, "alive", now_ms)["dead"] == now_ms + TTL_MS
    assert "dead" not in announce(world, "alive", now_ms + TTL_MS)


def test_an_announcement_is_cut_to_its_own_ttl_not_to_the_callers(
    world: World, now_ms: int
) -> None:
    announce(world, "long", now_ms, 6 * TTL_MS)
    assert announce(world, "short", now_ms)["long"] == now_ms + 6 * TTL_MS
    now_ms -= STEP_MS
    assert announce(world, "short", now_ms)["long"] == now_ms + 6 * TTL_MS
    assert announce(world, "long", now_ms, 0)["short"] == now_ms + TTL_MS


def test_an_announcement_of_an_older_version_ends_within_the_longest_ttl(
    world: World, now_ms: int
) -> None:
    world.redis.hset(keys.worker_info(world.namespace), "old", '0123{"pid": 4}')
    world.redis.zadd(keys.workers(world.namespace), {"old": now_ms + STEP_MS})
    assert announce(world, "new", now_ms)["old"] == now_ms + 600_000


def test_a_lease_is_cut_to_its_own_ttl_not_to_the_callers(world: World) -> None:
    lease = world.key("lease")
    taken = world.run(world.bucket.acquire("long:1", 6 * TTL_MS))
    assert taken.token is not None
    assert world.run(world.bucket.acquire("short:1", TTL_MS)).left_ms > 5 * TTL_MS
    assert world.redis.pttl(lease) > 5 * TTL_MS
    world.redis.pexpire(lease, STEP_MS)
    assert world.run(world.bucket.acquire("short:1", TTL_MS)).left_ms <= 6 * TTL_MS
    assert 5 * TTL_MS < world.redis.pttl(lease) <= 6 * TTL_MS


def prolonged(world: World, left_ms: int) -> None:
    """A lease that has so much left, and whose clock was set back by STEP_MS since."""
    assert world.run(world.bucket.acquire("dead:1", TTL_MS)).token is not None
    world.redis.pexpire(world.key("lease"), left_ms + STEP_MS)


@pytest.mark.parametrize(
    ("left_ms", "back_ms", "longest_ms"),
    [
        (3000, STEP_MS, 3000),  # what is left of it
        (-3000, STEP_MS, 1),  # it is over
        (3000, 0, TTL_MS),  # nobody saw the step
        (3000, STEP_MS // 2, TTL_MS),  # nor this one
        (3000, 2 * STEP_MS, TTL_MS),  # another one, of before
    ],
)
def test_a_lease_that_a_step_back_prolonged_is_cut_to_what_is_left_of_it(
    world: World, left_ms: int, back_ms: int, longest_ms: int
) -> None:
    prolonged(world, left_ms)
    found = world.run(world.bucket.acquire("rival:1", TTL_MS, back_ms=back_ms))
    assert found.token is None
    assert min(longest_ms, 1000 * (longest_ms // 1000 - 1)) < found.left_ms + 1 <= longest_ms + 1
    assert world.redis.pttl(world.key("lease")) <= longest_ms


def test_a_lease_without_an_end_gets_its_own_ttl(world: World) -> None:
    prolonged(world, 0)
    world.redis.persist(world.key("lease"))
    found = world.run(world.bucket.acquire("rival:1", TTL_MS, back_ms=STEP_MS))
    assert found.left_ms == TTL_MS


@pytest.mark.parametrize(
    ("clock_ms", "ends_ms"),
    [(0, TTL_MS - 3000), (TTL_MS, 1), (-STEP_MS, TTL_MS), (STEP_MS, TTL_MS)],
)
def test_an_announcement_that_a_step_back_prolonged_ends_by_the_caller_s_clock(
    world: World, now_ms: int, clock_ms: int, ends_ms: int
) -> None:
    announce(world, "dead", now_ms)
    back_ms = now_ms - STEP_MS  # three seconds later
    fleet = world.run(
        registry.announce(
            world.namespace, "alive", "61", TTL_MS, b"{}",
            now_ms=back_ms, clock_ms=now_ms + 3000 + clock_ms,
        )
    )  # fmt: skip
    assert fleet.expires_ms["dead"] == back_ms + ends_ms
