"""What clients show of all messages: pages and counts."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from delaybridge import Message
from delaybridge.message import State
from delaybridge.operate.views.listing import Page
from delaybridge.store.namespace import registry
from tests.rigs.bucket import TTL_MS, World
from tests.rigs.flavours import BUCKETS, TO
from tests.rigs.waiting import until
from tests.servers.redis import ON_EVERY_REDIS

# pending: page by page, exactly


async def every_page(client: Any, **fields: Any) -> list[Page]:
    """Every page, or those after a cursor."""
    pages = [await client.pending(**fields)]
    while pages[-1].cursor is not None:
        pages.append(await client.pending(**fields | {"cursor": pages[-1].cursor}))
    return pages


async def every_id(client: Any, **fields: Any) -> list[str]:
    return [item.id for page in await every_page(client, **fields) for item in page.items]


def in_order(messages: list[Message]) -> list[str]:
    """Ids as `pending` gives them: by due time, priority, id."""
    return [m.id or "" for m in sorted(messages, key=lambda m: (m.at, -m.priority, m.id))]


def crowd(seed: int, size: int) -> list[Message]:
    """Messages, in random order, that share a few milliseconds and priorities."""
    draw = random.Random(seed)
    return [
        Message(
            TO,
            b"",
            at=f"2035-01-01T00:00:00.00{draw.randrange(3)}Z",
            priority=draw.choice([0, 0, 7, 255]),
            id=f"{draw.choice('aé~Z')}{n}",
        )
        for n in range(size)
    ]


@ON_EVERY_REDIS
@pytest.mark.parametrize("limit", [1, 7, 100])
async def test_pages_show_each_message_once_and_in_order_even_within_a_millisecond(
    client: Any, limit: int
) -> None:
    messages = crowd(seed=limit, size=60)
    await client.schedule_many(messages)
    pages = await every_page(client, limit=limit)
    assert [item.id for page in pages for item in page.items] == in_order(messages)
    assert {len(page.items) for page in pages[:-1]} <= {limit}


async def test_deletions_between_pages_hide_no_other_message(client: Any) -> None:
    messages = crowd(seed=5, size=40)
    await client.schedule_many(messages)
    order = in_order(messages)
    first = await client.pending(limit=10)
    for n in (0, 9, 10, 25):  # one of them is the message of the cursor
        await client.cancel(order[n])
    rest = await every_id(client, cursor=first.cursor, limit=10)
    assert rest == [id for id in order[11:] if id != order[25]]


async def test_messages_that_arrive_between_pages_appear_in_their_place(client: Any) -> None:
    await client.schedule_many(crowd(seed=6, size=20))
    first = await client.pending(limit=10)
    at = "2035-01-01T00:00:00.009Z"
    await client.schedule(TO, b"", at=at, id="late")
    await client.schedule(TO, b"", at="2034-01-01T00:00:00Z", id="early")
    rest = await every_id(client, cursor=first.cursor, limit=10)
    assert rest[-1] == "late"
    assert "early" not in rest


@pytest.mark.parametrize("limit", [1, 2, 3])
async def test_an_id_in_several_buckets_at_the_same_millisecond_is_shown_once_for_each(
    client: Any, limit: int
) -> None:
    at = "2035-01-01T00:00:00Z"
    for id in ("v", "x", "z"):
        for key in ("a", "b", "c"):
            await client.schedule(TO, key, at=at, id=id, key=key)
    assert await every_id(client, limit=limit) == ["v"] * 3 + ["x"] * 3 + ["z"] * 3


async def test_pages_can_be_limited_to_a_destination_and_a_span_of_due_times(client: Any) -> None:
    messages = [
        Message(f"kafka:t{n % 3}", b"", at=f"2035-01-01T00:00:0{n % 10}Z", id=f"m{n:02}")
        for n in range(30)
    ]
    await client.schedule_many(messages)
    start_ms = 2_051_222_400_000
    found = await every_id(
        client, destination="kafka:t1", due_from_ms=start_ms + 2000, due_to_ms=start_ms + 5000,
        limit=2,
    )  # fmt: skip
    expected = [m.id for m in messages if m.destination == "kafka:t1"]
    expected = [id for id in expected if 2 <= int(str(id)[1:]) % 10 <= 5]
    assert sorted(found) == expected


async def test_each_state_has_pages_of_its_own(
    client: Any, bucket_of_x: Callable[[], World]
) -> None:
    for n in range(4):
        await client.schedule(TO, b"", delay=0, id=f"m{n}", key="x", priority=9 - n)
    with bucket_of_x() as world:
        owner = world.owner()
        copies = owner.claim()
        owner.park(copies[0])
        owner.bury(copies[1], counted=False)
        owner.fire(copies[2].score)
        shown = {state: (await client.pending(state=state)).items for state in State}
    assert [item.id for item in shown[State.PARKED]] == ["m0"]
    assert [item.id for item in shown[State.DEAD]] == ["m1"]
    assert [(item.id, item.fired) for item in shown[State.IN_FLIGHT]] == [
        ("m2", True),
        ("m3", False),
    ]
    assert shown[State.DELAYED] == []


async def test_an_empty_namespace_has_one_empty_page(client: Any) -> None:
    assert await client.pending() == Page([], None)
    assert await client.dead() == Page([], None)


async def test_the_limit_of_a_page_is_at_least_1_and_at_most_1000(client: Any) -> None:
    await client.schedule_many([Message(TO, b"", delay=60) for _ in range(3)])
    assert len((await client.pending(limit=0)).items) == 1
    assert len((await client.pending(limit=10**9)).items) == 3


# stats


async def test_stats_count_by_state_and_bucket_and_name_owners_and_workers(
    client: Any, bucket_of_x: Callable[[], World], namespace: str
) -> None:
    await client.schedule(TO, b"", delay=0, id="x")
    await client.schedule(TO, b"", at="2035-01-01T00:00:00Z", id="y", key="x")
    with bucket_of_x() as world:
        owner = world.owner("worker-1")
        owner.claim()
        about = b'{"host": "here", "pid": 7, "version": "1", "started_ms": 5}'
        world.run(registry.announce(namespace, "worker-1", "0" * 16, TTL_MS, about))
        stats = await client.stats()
        assert (stats.delayed, stats.in_flight, stats.parked, stats.dead) == (1, 1, 0, 0)
        assert stats.next_due_ms == 2_051_222_400_000
        assert len(stats.buckets) == BUCKETS
        bucket = stats.buckets[world.number]
        assert (bucket.owner, bucket.delayed, bucket.in_flight) == ("worker-1", 1, 1)
        assert 0 < (bucket.lease_ms or 0) <= TTL_MS
        (worker,) = stats.workers
        assert (worker.name, worker.host, worker.pid, worker.buckets) == ("worker-1", "here", 7, 1)
        assert worker.expires_ms > stats.now_ms


async def test_a_message_past_its_due_time_is_overdue_in_every_state(
    client: Any, bucket_of_x: Callable[[], World]
) -> None:
    await client.schedule(TO, b"", delay=0, id="x")
    with bucket_of_x() as world:
        owner = world.owner()
        for move in (lambda: None, owner.claim, lambda: owner.park(*owner.wheel)):
            move()
            until(lambda: world.run(registry.store_time()) // 1000 > world.now_ms + 5)
            assert (await client.stats()).overdue_ms > 0


async def test_an_unreadable_record_hides_no_other_message(
    client: Any, bucket_of_x: Callable[[], World]
) -> None:
    await client.schedule(TO, b"body", delay=0, id="x")
    for n in range(3):
        await client.schedule(TO, b"", delay=0, id=f"m{n}", key="x")
    with bucket_of_x() as world:
        world.owner().claim()
        for id, garbage in (("x", b"\xff"), ("m0", b""), ("m1", b"\x01" + b"\xc1" * 40)):
            world.redis.hset(world.key("messages"), id, garbage)
        assert (await client.stats()).in_flight == 4
        flying = (await client.pending(state="in_flight")).items
        shown = {item.id: item.destination for item in flying}
        assert shown == {"x": "", "m0": "", "m1": "", "m2": TO}
        assert (await client.get("x")).body == b"\xff"
        assert (await client.get("m1")).destination == ""
