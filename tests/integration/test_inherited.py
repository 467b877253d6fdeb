"""What a new owner of a bucket does with the messages that an earlier one parked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

import pytest

from delaybridge.message import State
from delaybridge.store.messages.destinations_of_state import bound
from delaybridge.store.namespace.rules import Rule, Rules
from delaybridge.store.protocol.keys import bucket_key
from tests.rigs.bucket import World
from tests.rigs.scanner import SOON_MS, Rig, RigFactory, message

PAUSED = Rule(paused=True)
CLOSE, OPEN = "rabbit:orders/close", "rabbit:orders/open"
MANY = 60


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delaybridge.scan.reclaiming._IN_CALL", 7)


@pytest.fixture
def rig_of(redis_url: str, namespace: str) -> RigFactory:
    return lambda **options: Rig(redis_url, namespace, buckets=1, **options)


async def send(rig: Rig, ids: list[str], due_ms: int, *destinations: str) -> None:
    """Schedule messages, due one millisecond after the other, to each destination in turn."""
    many = len(destinations)
    await rig.send(
        *(message(id, due_ms + n, destinations[n % many], key="k") for n, id in enumerate(ids))
    )


async def lose(rig: Rig) -> None:
    """The worker loses its bucket; what it has published is settled, else it would come again."""
    while rig.sessions[0].exits.any or rig.scanner.settling.is_planned:
        await rig.at(rig.now_ms + 1)
    await rig.expire(0)
    rig.lose(rig.sessions[0], "test")


async def renew(rig: Rig) -> None:
    """Another session of the same worker takes the bucket."""
    await lose(rig)
    await rig.take(0, f"w:{rig.now_ms}")
    await rig.quiet()


def names(letter: str, first: int = 0) -> list[str]:
    return [f"{letter}{n:03}" for n in range(first, first + MANY)]


async def test_paused_messages_stay_parked_and_all_others_go_out(rig: Rig) -> None:
    await rig.steer({"memory": PAUSED, "b": PAUSED})
    await send(rig, names("m"), SOON_MS, "memory:q", "b:q")
    await rig.live_until(SOON_MS + 100)
    await lose(rig)
    await rig.steer({"memory": PAUSED})
    rig.store.sent.clear()
    await rig.take(0, "w:2")
    await rig.live_until(rig.now_ms + 100)
    assert rig.other.ids == names("m")[1::2]
    assert not rig.memory.ids and "park" not in rig.store.sent, "it would be parked a second time"
    assert len(await rig.raw("parked")) == MANY // 2


async def test_later_messages_wait_behind_them_and_all_come_back_in_order(rig: Rig) -> None:
    await rig.steer({"memory": PAUSED})
    await send(rig, names("m"), SOON_MS, "memory:q")
    await rig.live_until(SOON_MS + 100)
    await renew(rig)
    await send(rig, names("m", MANY), rig.now_ms + 50, "memory:q")
    await rig.live_until(rig.now_ms + 200)
    assert not rig.memory.ids
    await rig.steer({})
    await rig.live_until(rig.now_ms + 10)
    assert rig.memory.ids == names("m") + names("m", MANY)
    assert {publish.attempt for publish in rig.memory.taken} == {1}


async def test_a_broker_that_is_away_keeps_its_messages_parked(rig: Rig) -> None:
    rig.memory.unavailable = "down"
    await send(rig, names("m"), SOON_MS, "memory:q")
    await rig.live_until(SOON_MS + 100)
    rig.store.sent.clear()
    await renew(rig)
    assert "unpark" not in rig.store.sent
    rig.memory.unavailable = None
    await rig.live_until(rig.now_ms + 10)
    assert rig.memory.ids == names("m")


async def test_messages_of_a_rate_come_back_as_it_permits(rig: Rig) -> None:
    await rig.steer({"memory": Rule(rate=100.0)})
    await send(rig, names("m"), SOON_MS, "memory:q")
    await rig.live_until(SOON_MS + 70)
    while await rig.raw("mirror"):  # what is published but not settled would come twice
        await rig.at(rig.now_ms + 1)
    passed = len(rig.memory.ids)
    rig.store.sent.clear()
    await renew(rig)
    assert passed < 20 and len(await rig.raw("parked")) >= MANY - passed - 20
    await rig.live_until(rig.now_ms + 2000)
    assert rig.memory.ids == names("m")
    spans = zip(rig.memory.taken, rig.memory.taken[30:], strict=False)
    assert all(later.at_ms - first.at_ms > 80 for first, later in spans), "no burst"


async def test_another_worker_keeps_to_the_rate_from_its_first_message(
    rig: Rig, rig_of: RigFactory
) -> None:
    limited = {"memory": Rule(rate=100.0)}
    await rig.steer(limited)
    await send(rig, names("m"), SOON_MS, "memory:q")
    await rig.live_until(SOON_MS + 70)
    await lose(rig)
    other = rig_of()
    other.now_ms = rig.now_ms
    other.lanes.rules_changed(Rules(limited))
    async with other:
        await other.quiet()
        assert other.store.sent.count("unpark") <= 2, "else one for each slice"
        await other.live_until(other.now_ms + 2000)
        assert rig.memory.ids + other.memory.ids == names("m")


async def test_a_limited_destination_flows_while_a_bucket_is_looked_through(
    redis_url: str, namespace: str
) -> None:
    async with Rig(redis_url, namespace, buckets=2) as rig:
        await rig.steer({"memory": Rule(rate=100.0)})
        due = [message(f"m{n:03}", SOON_MS + n) for n in range(200)]
        await rig.send(*due)
        await rig.live_until(SOON_MS + 300)
        await lose(rig)
        rig.store.hold("page")
        await rig.take(0, "w:2")
        await rig.quiet()
        rig.store.let_go("page")
        rig.store.hold("page")  # the second slice
        await rig.quiet()
        assert rig.store.stuck == 1
        before = len(rig.memory.ids)
        await rig.live_until(rig.now_ms + 300)
        assert len(rig.memory.ids) >= before + 20
        rig.store.let_go("page")
        await rig.live_until(rig.now_ms + 3000)
        assert len(rig.memory.ids) == len({*rig.memory.ids}) == 200


async def during_the_walk(rig: Rig, act: Callable[[], Awaitable[object]]) -> None:
    """Take the bucket, and do something while the answer to its first look is under way."""
    rig.store.hold("page")
    await rig.take(0, "w:2")
    await rig.quiet()
    assert rig.store.stuck == 1 and not rig.sessions[0].ready
    await act()
    rig.store.let_go("page")
    await rig.live_until(rig.now_ms + 500)
    assert rig.sessions[0].ready


@pytest.mark.parametrize("before", [{}, {"rabbit:orders": PAUSED}, {CLOSE: PAUSED}])
@pytest.mark.parametrize("after", [{}, {"rabbit:orders": PAUSED}, {CLOSE: PAUSED}])
async def test_rules_that_change_meanwhile_hold(
    rig: Rig, before: dict[str, Rule], after: dict[str, Rule]
) -> None:
    await rig.steer({"rabbit": PAUSED})
    await send(rig, names("m"), SOON_MS, CLOSE, OPEN)
    await rig.live_until(SOON_MS + 100)
    await lose(rig)
    await rig.steer(before)
    await during_the_walk(rig, lambda: rig.steer(after))
    closed, opened = names("m")[::2], names("m")[1::2]
    waits = {"rabbit:orders": {*closed, *opened}, CLOSE: {*closed}}
    expected = {*names("m")} - waits.get(next(iter(after), ""), set())
    assert {*rig.rabbit.ids} == expected
    await rig.steer({})
    await rig.live_until(rig.now_ms + 500)
    for own in (closed, opened):
        assert [id for id in rig.rabbit.ids if id in own] == own
    assert len(rig.rabbit.ids) == MANY


async def test_a_message_cancelled_or_moved_meanwhile_is_not_brought_back(rig: Rig) -> None:
    await rig.steer({"memory": PAUSED})
    await send(rig, names("m"), SOON_MS, "memory:q")
    await rig.live_until(SOON_MS + 100)
    await lose(rig)
    await during_the_walk(rig, lambda: rig.client.cancel("m003"))
    assert await rig.client.cancel("m050") == "cancelled"
    await rig.steer({})
    await rig.live_until(rig.now_ms + 100)
    assert rig.memory.ids == [id for id in names("m") if id not in ("m003", "m050")]


async def test_a_session_that_ends_meanwhile_leaves_all_to_the_next(rig: Rig) -> None:
    await rig.steer({"memory": PAUSED})
    await send(rig, names("m"), SOON_MS, "memory:q", "b:q")
    await rig.live_until(SOON_MS + 100)
    await lose(rig)
    rig.store.hold("page")
    await rig.take(0, "w:2")
    await rig.quiet()
    await lose(rig)
    rig.store.let_go("page")
    await rig.live_until(rig.now_ms + 100)
    assert not any(lane.parked for lane in rig.lanes.parking.troubled)
    await rig.take(0, "w:3")
    await rig.steer({})
    await rig.live_until(rig.now_ms + 100)
    assert rig.memory.ids == names("m")[::2] and rig.other.ids == names("m")[1::2]


async def test_what_cannot_be_read_is_buried_and_the_others_stay(rig: Rig) -> None:
    await rig.steer({"memory": PAUSED})
    await send(rig, names("m"), SOON_MS, "memory:q")
    await rig.live_until(SOON_MS + 100)
    await rig.store.redis.hset(bucket_key(rig.namespace, 0, "messages"), "m007", "rubbish")
    record = await rig.store.redis.hget(bucket_key(rig.namespace, 0, "messages"), "m008")
    await rig.store.redis.hset(bucket_key(rig.namespace, 0, "messages"), b"\xff", record)
    await rig.store.redis.zadd(
        bucket_key(rig.namespace, 0, "parked"), {b"\xff": SOON_MS, "none": SOON_MS}
    )
    await renew(rig)
    await rig.live_until(rig.now_ms + 100)
    assert await rig.state("m007") == "dead"
    assert {id for id, _ in await rig.raw("parked")} == {
        id.encode() for id in names("m") if id != "m007"
    }


# the cursor


@pytest.fixture
def world(redis_url: str, namespace: str, now_ms: int) -> Iterator[World]:
    with World(redis_url, namespace, now_ms) as world:
        yield world


@pytest.mark.parametrize("apart_ms", [0, 1])
@pytest.mark.parametrize("gone", [(), (3,), (4,), (5,), (0, 1, 2, 3, 4), tuple(range(5, 20))])
def test_every_message_that_stays_is_read_once_whatever_goes(
    world: World, now_ms: int, apart_ms: int, gone: tuple[int, ...]
) -> None:
    ids = [f"x{n:02}" for n in range(20)]
    for n, id in enumerate(ids):
        world.schedule(id, now_ms + n * apart_ms)
    owner = world.owner()
    owner.park(*owner.claim())
    first = world.run(bound(owner.bucket, State.PARKED, limit=5))
    assert first.more
    if gone:
        world.run(owner.unparking(ids=[ids[n] for n in gone]))
    after = first.messages[-1][:2]
    rest = world.run(bound(owner.bucket, State.PARKED, limit=50, after=after))
    assert not rest.more
    expected = [id for n, id in enumerate(ids) if n >= 5 and n not in gone]
    assert [id.decode() for _, id, _ in first.messages] == ids[:5]
    assert [id.decode() for _, id, _ in rest.messages] == expected


def test_large_records_end_a_slice_early_but_each_slice_has_one(world: World, now_ms: int) -> None:
    for n in range(6):
        world.schedule(f"x{n}", now_ms + n, payload=b"x" * 5000)
    owner = world.owner()
    owner.park(*owner.claim())
    after, sizes = None, []
    while True:
        found = world.run(bound(owner.bucket, State.PARKED, limit=4, after=after))
        sizes.append(len(found.messages))
        after = found.messages[-1][:2]
        if not found.more:
            break
    assert sizes == [1] * 6
