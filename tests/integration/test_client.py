"""Client and AsyncClient on real Redis: the same words from both, also when Redis misbehaves."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import json
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import redis

from delaybridge import AsyncClient, Client, Message
from delaybridge.errors import (
    ConfigError,
    MessageConflict,
    MessageError,
    StoreError,
    StoreFull,
    StoreUnavailable,
    StoreWiped,
)
from delaybridge.message import Answer, Limits, OnConflict, State
from delaybridge.store import keys, registry
from delaybridge.store.calls import Calls
from delaybridge.store.command import RedisCommand
from delaybridge.store.scheduling import Receipt
from delaybridge.store.store import AsyncStore, Store
from delaybridge.store.stored import Stored
from delaybridge.store.views import Page
from tests.rigs.bucket import TTL_MS, World
from tests.rigs.flavours import FLAVOURS, TO, Maker
from tests.rigs.lossy_proxy import LossyProxy
from tests.rigs.stall import Stall
from tests.rigs.waiting import DEADLINE_S, until, until_async
from tests.servers.process import LOOPBACK, free_port
from tests.servers.redis import ON_EVERY_REDIS, RedisServer, redis62_binary, valkey_binary

BUCKETS = 16
ABOUT = json.dumps({"host": "here", "pid": 7, "version": "1", "started_ms": 5}).encode()


@pytest.fixture
def plain(redis_url: str, namespace: str) -> Iterator[redis.Redis]:
    """The shared Redis itself, rid of the namespace afterwards."""
    with redis.Redis.from_url(redis_url) as connection:
        yield connection
        for key in connection.scan_iter(f"{{{namespace}*", count=10_000):
            connection.delete(key)


@pytest.fixture
def client(make: Maker, redis_url: str, namespace: str, request: pytest.FixtureRequest) -> Any:
    if redis_url.startswith("redis://"):
        request.getfixturevalue("plain")  # a single one may be somebody's: it is rid of our keys
    return make(redis_url, namespace=namespace)


@pytest.fixture(scope="module")
def own_server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def own(own_server: RedisServer) -> Iterator[redis.Redis]:
    """A Redis that this test may flush, count and configure."""
    with redis.Redis(host=LOOPBACK, port=own_server.port) as connection:
        connection.flushall()
        connection.config_resetstat()
        yield connection
        connection.config_set("maxmemory", 0)


def redis_now_ms(connection: redis.Redis) -> int:
    seconds, micros = connection.time()
    return seconds * 1000 + micros // 1000


def birth_of(connection: redis.Redis, namespace: str) -> tuple[int, str]:
    record: bytes | None = connection.get(keys.birth(namespace))
    assert record is not None
    buckets, _, birth = record.decode().partition(":")
    return int(buckets), birth


def world_of(url: str, connection: redis.Redis, namespace: str, number: int) -> World:
    """One bucket of a client's namespace, seen from the owners' side."""
    _, birth = birth_of(connection, namespace)
    return World(url, namespace, redis_now_ms(connection), number=number, birth=birth)


@pytest.fixture
def bucket_of_x(redis_url: str, plain: redis.Redis, namespace: str) -> Callable[[], World]:
    """The bucket of id `x`, once the namespace exists."""
    number = keys.bucket_of(b"x", BUCKETS)
    return lambda: world_of(redis_url, plain, namespace, number)


# schedule, get, cancel, reschedule


async def test_a_client_works_before_any_worker_ever_ran(client: Any, plain: redis.Redis) -> None:
    before = redis_now_ms(plain)
    receipt = await client.schedule(TO, b"body", delay="15m", id="x")
    assert receipt == "created" == receipt.answer
    assert receipt.id == "x"
    assert receipt.bucket == keys.bucket_of(b"x", BUCKETS)
    assert before + 900_000 <= receipt.due_ms <= redis_now_ms(plain) + 900_001
    assert await client.cancel("x") == Answer.CANCELLED


async def test_get_shows_a_message_as_it_was_scheduled(client: Any) -> None:
    at = datetime(2035, 1, 31, 9, 0, 0, 250_000, tzinfo=UTC)
    await client.schedule(
        TO,
        b"\x00body",
        at=at,
        id="x",
        key="customer-7",
        headers={"tries": 3, "nested": {"a": [1.5, None, True]}},
        properties={"content_type": "text/plain", "priority": 9},
        priority=200,
        ttl="1h",
        at_most_once=True,
    )
    assert (
        await client.get("x", key="customer-7")
        == await client.get("x")
        == Stored(
            id="x",
            state=State.DELAYED,
            due_ms=int(at.timestamp() * 1000),
            priority=200,
            destination=TO,
            body=b"\x00body",
            headers=[("tries", 3), ("nested", {"a": [1.5, None, True]})],
            properties={"content_type": "text/plain", "priority": 9},
            key=b"customer-7",
            ttl_ms=3_600_000,
            at_most_once=True,
            bucket=keys.bucket_of(b"customer-7", BUCKETS),
        )
    )


async def test_a_kafka_message_keeps_its_null_body_and_duplicate_headers_in_order(
    client: Any,
) -> None:
    headers = [("a", b"1"), ("b", None), ("a", "zwei")]
    receipt = await client.schedule(
        "kafka:orders", None, delay=60, headers=headers, properties={"partition": 3}
    )
    stored = await client.get(receipt.id)
    assert stored.body is None
    assert stored.headers == [("a", b"1"), ("b", None), ("a", b"zwei")]
    assert stored.properties == {"partition": 3}


async def test_generated_ids_are_unique_and_sort_by_time(client: Any) -> None:
    receipts = await client.schedule_many([Message(TO, b"", delay=60)] * 50)
    ids = [receipt.id for receipt in receipts]
    assert len(set(ids)) == 50
    assert ids == sorted(ids)
    assert all(len(id) == 26 for id in ids)


async def test_the_same_content_under_an_id_is_a_duplicate_and_keeps_the_first_due_time(
    client: Any,
) -> None:
    first = await client.schedule(TO, b"body", delay=60, id="x")
    again = await client.schedule(TO, b"body", delay=99, id="x")
    assert (again, again.due_ms) == ("duplicate", first.due_ms)


async def test_other_content_under_an_id_is_a_conflict_whose_error_names_the_remedy(
    client: Any,
) -> None:
    first = await client.schedule(TO, b"body", delay=60, id="x")
    with pytest.raises(MessageConflict, match=f"{first.due_ms} ms.*on_conflict='replace'") as got:
        await client.schedule(TO, b"other", delay=60, id="x")
    assert (got.value.code, got.value.field) == ("conflict", "id")
    assert (await client.get("x")).body == b"body"


@pytest.mark.parametrize(
    ("on_conflict", "answer", "body"),
    [("keep", "duplicate", b"body"), ("replace", "replaced", b"other")],
)
async def test_the_policies_keep_and_replace_do_so(
    client: Any, on_conflict: str, answer: str, body: bytes
) -> None:
    await client.schedule(TO, b"body", delay=60, id="x")
    receipt = await client.schedule(TO, b"other", delay=90, id="x", on_conflict=on_conflict)
    assert receipt == answer
    stored = await client.get("x")
    assert (stored.body, stored.due_ms) == (body, receipt.due_ms)


async def test_the_error_for_an_unknown_policy_lists_the_known_ones(client: Any) -> None:
    with pytest.raises(ConfigError, match="fail, keep, replace"):
        await client.schedule(TO, b"", delay=60, on_conflict="merge")


@ON_EVERY_REDIS
async def test_each_of_many_messages_gets_its_own_answer_in_order(client: Any) -> None:
    await client.schedule(TO, b"taken", delay=60, id="m7")
    messages = [Message(TO, b"body", delay=60, id=f"m{n}") for n in range(40)]
    messages.append(Message(TO, b"second", delay=60, id="m3"))
    receipts = await client.schedule_many(messages)
    assert [r.id for r in receipts] == [m.id for m in messages]
    answers = ["created"] * 41
    answers[7] = answers[40] = "conflict"
    assert receipts == answers


async def test_nothing_is_stored_if_one_of_many_messages_is_wrong(client: Any) -> None:
    messages = [Message(TO, b"", delay=60, id="good"), Message(TO, b"", id="no time")]
    with pytest.raises(MessageError, match="time_required"):
        await client.schedule_many(messages)
    assert await client.get("good") is None


async def test_scheduling_no_messages_returns_no_receipts(client: Any) -> None:
    assert await client.schedule_many([]) == []


async def test_many_messages_are_split_over_several_script_calls(client: Any) -> None:
    messages = [Message(TO, b"", delay=60, id=f"m{n}", key="one bucket") for n in range(2100)]
    receipts = await client.schedule_many(messages)
    assert Counter(receipts) == {"created": 2100}
    assert (await client.stats()).delayed == 2100


@ON_EVERY_REDIS
async def test_reschedule_moves_and_cancel_removes(client: Any) -> None:
    await client.schedule(TO, b"body", delay=60, id="x")
    assert await client.reschedule("x", at="2035-01-01T00:00:00Z") == Answer.RESCHEDULED
    assert (await client.get("x")).due_ms == 2_051_222_400_000
    assert await client.cancel("x") == Answer.CANCELLED
    assert await client.get("x") is None
    assert await client.cancel("x") == Answer.UNKNOWN
    assert await client.reschedule("x", delay=5) == Answer.UNKNOWN


async def test_reschedule_takes_exactly_one_time(client: Any) -> None:
    with pytest.raises(MessageError, match="time_required"):
        await client.reschedule("x")
    with pytest.raises(MessageError, match="time_ambiguous"):
        await client.reschedule("x", delay=5, at="2035-01-01T00:00:00Z")


@pytest.mark.parametrize(
    "id",
    [
        *("{x}", "{other}:1:{x}", "*", "?[a-z]", "S|x", "a|b", "0", "-1", "+inf", "(1", "a b"),
        *("'); redis.call('FLUSHALL') --", '") return 1 --', "]] .. os.exit()"),
        *("../../etc/passwd", "%2e%2e%2f", "<script>alert(1)</script>", "' OR 1=1 --"),
        *("é日本語🙂", "€" * 85, "x" * 255),
    ],
    ids=lambda id: ascii(id)[:24],
)
async def test_an_accepted_id_is_plain_text_to_the_store_whatever_it_contains(
    client: Any, id: str
) -> None:
    receipt = await client.schedule(TO, b"body", at="2035-01-01T00:00:00Z", id=id)
    assert (receipt, receipt.id) == ("created", id)
    assert (await client.get(id)).id == id
    assert [item.id for item in (await client.pending()).items] == [id]
    assert await client.reschedule(id, at="2036-01-01T00:00:00Z") == Answer.RESCHEDULED
    page = await client.pending(limit=1, cursor=(0.0, id))
    assert [item.id for item in page.items] == [id]
    assert await client.cancel(id) == Answer.CANCELLED


async def test_an_id_is_free_again_once_its_message_is_delivered(
    client: Any, bucket_of_x: Callable[[], World]
) -> None:
    await client.schedule(TO, b"body", delay=0, id="x")
    with bucket_of_x() as world:
        owner = world.owner()
        owner.claim()
        owner.settle(*owner.fire(world.now_ms + 1000))
        assert await client.get("x") is None
        assert await client.schedule(TO, b"other", delay=0, id="x") == "created"


async def test_bodies_of_any_size_and_content_come_back_unchanged(client: Any) -> None:
    bodies = [b"", b"\0", bytes(range(256)), b"x" * Limits().body_bytes]
    await client.schedule_many(
        [Message(TO, body, delay=60, id=f"b{n}", key="x") for n, body in enumerate(bodies)]
    )
    assert [(await client.get(f"b{n}")).body for n in range(len(bodies))] == bodies


# one id under several keys


async def test_the_same_id_under_several_keys_names_several_messages(client: Any) -> None:
    for key in ("a", "b", "c"):
        await client.schedule(TO, key, delay=60, id="x", key=key)
    assert await client.cancel("x", key="b") == Answer.CANCELLED
    assert await client.get("x", key="b") is None
    assert (await client.get("x", key="c")).body == b"c"
    assert await client.reschedule("x", delay=120) == Answer.RESCHEDULED
    assert await client.cancel("x") == Answer.CANCELLED
    assert (await client.stats()).delayed == 0


async def test_without_a_key_the_answer_is_that_of_the_message_furthest_on_its_way(
    client: Any, redis_url: str, plain: redis.Redis, namespace: str
) -> None:
    for key in ("a", "b"):
        await client.schedule(TO, b"", delay=0, id="x", key=key)
    with world_of(redis_url, plain, namespace, keys.bucket_of(b"a", BUCKETS)) as world:
        owner = world.owner()
        owner.fire(owner.claim()[0].score)
        assert await client.cancel("x") == Answer.IN_FLIGHT
        assert await client.get("x", key="b") is None
        assert (await client.get("x", key="a")).fired


# the dead set


async def test_the_dead_set_is_listed_kicked_and_discarded(
    client: Any, bucket_of_x: Callable[[], World]
) -> None:
    await client.schedule(TO, b"body", delay=0, id="x")
    with bucket_of_x() as world:
        owner = world.owner()
        owner.claim()
        owner.bury(*owner.fire(world.now_ms + 1000), maybe=True)
        (dead,) = (await client.dead()).items
        assert (dead.id, dead.state, dead.attempts) == ("x", State.DEAD, 1)
        assert (dead.reason, dead.dead_ms) == ("refused: by a test", world.now_ms)
        assert dead.maybe_delivered
        assert await client.reschedule("x", delay=5) == Answer.DEAD
        assert await client.kick("x") == Answer.KICKED
        assert (await client.get("x")).state == State.DELAYED
        assert await client.kick("x") == Answer.UNKNOWN
        owner.bury(*owner.claim(ahead_ms=60_000), counted=False)
        assert await client.discard("x") == Answer.DISCARDED
        assert await client.get("x") is None
        assert await client.discard("x") == Answer.UNKNOWN


# pending: page by page, exactly


async def every_page(client: Any, **fields: Any) -> list[Page]:
    pages = [await client.pending(**fields)]
    while pages[-1].cursor is not None:
        pages.append(await client.pending(cursor=pages[-1].cursor, **fields))
    return pages


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
    for gone in (
        order[0],
        order[9],
        order[10],
        order[25],
    ):  # one of them is the message of the cursor
        await client.cancel(gone)
    rest = [
        item.id for page in await every_page_after(client, first, limit=10) for item in page.items
    ]
    assert rest == [id for id in order[11:] if id != order[25]]


async def every_page_after(client: Any, page: Page, **fields: Any) -> list[Page]:
    pages = []
    while page.cursor is not None:
        page = await client.pending(cursor=page.cursor, **fields)
        pages.append(page)
    return pages


async def test_messages_that_arrive_between_pages_appear_in_their_place(client: Any) -> None:
    await client.schedule_many(crowd(seed=6, size=20))
    first = await client.pending(limit=10)
    at = "2035-01-01T00:00:00.009Z"
    await client.schedule(TO, b"", at=at, id="late")
    await client.schedule(TO, b"", at="2034-01-01T00:00:00Z", id="early")
    rest = [i.id for page in await every_page_after(client, first, limit=10) for i in page.items]
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
    shown = [i.id for page in await every_page(client, limit=limit) for i in page.items]
    assert shown == ["v"] * 3 + ["x"] * 3 + ["z"] * 3


async def test_pages_can_be_limited_to_a_destination_and_a_span_of_due_times(client: Any) -> None:
    messages = [
        Message(f"kafka:t{n % 3}", b"", at=f"2035-01-01T00:00:0{n % 10}Z", id=f"m{n:02}")
        for n in range(30)
    ]
    await client.schedule_many(messages)
    start_ms = 2_051_222_400_000
    pages = await every_page(
        client, destination="kafka:t1", due_from_ms=start_ms + 2000, due_to_ms=start_ms + 5000,
        limit=2,
    )  # fmt: skip
    expected = [m.id for m in messages if m.destination == "kafka:t1"]
    expected = [id for id in expected if 2 <= int(str(id)[1:]) % 10 <= 5]
    assert sorted(i.id for page in pages for i in page.items) == expected


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
    client: Any, bucket_of_x: Callable[[], World], namespace: str, plain: redis.Redis
) -> None:
    await client.schedule(TO, b"", delay=0, id="x")
    await client.schedule(TO, b"", at="2035-01-01T00:00:00Z", id="y", key="x")
    with bucket_of_x() as world:
        owner = world.owner("worker-1")
        owner.claim()
        world.run(registry.announce(namespace, "worker-1", "0" * 16, TTL_MS, ABOUT))
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
            until(lambda: redis_now_ms(world.redis) > world.now_ms + 5)
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


# the namespace's birth


async def test_clients_that_create_a_namespace_at_once_agree_on_its_birth(
    make: Maker, redis_url: str, namespace: str, plain: redis.Redis
) -> None:
    clients = [make(redis_url, namespace=namespace) for _ in range(5)]
    await asyncio.gather(*(client.schedule(TO, b"", delay=60) for client in clients))
    assert birth_of(plain, namespace)[0] == BUCKETS
    assert (await clients[0].stats()).delayed == 5


async def test_the_bucket_count_is_fixed_when_the_namespace_is_created(
    make: Maker, redis_url: str, namespace: str, plain: redis.Redis
) -> None:
    await make(redis_url, namespace=namespace, buckets=4).schedule(TO, b"", delay=60, id="x")
    with pytest.raises(ConfigError, match="created with 4"):
        await make(redis_url, namespace=namespace, buckets=8).get("x")
    adopted = make(redis_url, namespace=namespace)
    assert (await adopted.get("x")).bucket == keys.bucket_of(b"x", 4)
    assert len((await adopted.stats()).buckets) == 4


async def test_messages_are_stored_through_a_unix_socket(make: Maker, tmp_path: Path) -> None:
    path = tmp_path / "redis.sock"
    with RedisServer(["--unixsocket", str(path)]):
        client = make(f"unix://{path}?db=1")
        assert await client.schedule("kafka:t", b"x", delay="1h", id="a") == "created"
        assert await client.cancel("a") == "cancelled"
        await client.close()


@pytest.mark.parametrize("buckets", [0, 3, 2**15])
def test_a_bucket_count_out_of_range_is_refused_before_any_io(buckets: int) -> None:
    with pytest.raises(ConfigError, match="power of two"):
        Client("redis://127.0.0.1:1/0", buckets=buckets)


async def test_a_bucket_with_another_birth_is_not_written(
    client: Any, bucket_of_x: Callable[[], World]
) -> None:
    await client.schedule(TO, b"", delay=60, id="x")
    with bucket_of_x() as world:
        world.redis.hset(world.key("marks"), "birth", "another")
        before = world.state()
        with pytest.raises(StoreWiped):
            await client.schedule(TO, b"", delay=60, id="x2", key="x")
        assert world.state() == before


async def test_after_flushall_a_client_creates_its_namespace_again(
    make: Maker, own_server: RedisServer, own: redis.Redis
) -> None:
    client, other = make(own_server.url), make(own_server.url)
    await client.schedule(TO, b"", delay=60, id="x")
    await other.schedule(TO, b"", delay=60, id="y")
    own.flushall()
    assert await client.get("x") is None
    assert await client.schedule(TO, b"", delay=60, id="x") == "created"
    assert await other.schedule(TO, b"", delay=60, id="x2", key="x") == "created"
    assert (await other.stats()).delayed == 2


async def test_a_script_flush_between_two_calls_goes_unnoticed(
    make: Maker, own_server: RedisServer, own: redis.Redis
) -> None:
    client = make(own_server.url)
    for n in range(3):
        assert await client.schedule(TO, b"", delay=60, id=f"x{n}") == "created"
        own.script_flush()
    assert [await client.cancel(f"x{n}") for n in range(3)] == [Answer.CANCELLED] * 3


async def test_a_client_continues_after_a_restart_of_redis(
    make: Maker, own_server: RedisServer, own: redis.Redis
) -> None:
    client = make(own_server.url)
    await client.schedule(TO, b"", delay=60, id="x")
    own_server.restart()
    assert await client.schedule(TO, b"", delay=60, id="x") == "created"


async def test_an_eviction_policy_that_drops_messages_is_refused(
    make: Maker, own_server: RedisServer, own: redis.Redis
) -> None:
    own.config_set("maxmemory-policy", "allkeys-lru")
    try:
        with pytest.raises(ConfigError, match="allkeys-lru.*noeviction"):
            await make(own_server.url).schedule(TO, b"", delay=60)
    finally:
        own.config_set("maxmemory-policy", "noeviction")
    assert await make(own_server.url).schedule(TO, b"", delay=60) == "created"


# Redis does not answer: StoreUnavailable, in time

TIMEOUT_S, LONG_S = 0.5, 2.0
CALLS: dict[str, Callable[[Any], Any]] = {
    "schedule": lambda client: client.schedule(TO, b"", delay=60),
    "schedule_many": lambda client: client.schedule_many([Message(TO, b"", delay=60)] * 3),
    "cancel": lambda client: client.cancel("x"),
    "reschedule": lambda client: client.reschedule("x", delay=5),
    "get": lambda client: client.get("x"),
    "pending": lambda client: client.pending(),
    "dead": lambda client: client.dead(),
    "kick": lambda client: client.kick("x"),
    "discard": lambda client: client.discard("x"),
    "stats": lambda client: client.stats(),
}


async def is_unavailable_in_time(call: Any, stall: Stall, timeout_s: float = TIMEOUT_S) -> None:
    """A further try would take another half of the time-out."""
    started_s = time.monotonic()
    with pytest.raises(StoreUnavailable):
        await call
    took_s = time.monotonic() - started_s
    assert took_s < timeout_s + 0.2 + 3 * stall.worst_s  # to connect, to send, to give up


async def connected(client: Any) -> None:
    """A stalled machine may take longer than a time-out to connect."""

    async def is_answered() -> bool:
        with contextlib.suppress(StoreUnavailable):
            return await client.get("x") is None
        return False

    await until_async(is_answered, "Redis answers")


@pytest.mark.parametrize("name", CALLS)
async def test_a_refused_connection_is_reported_within_the_timeout(
    make: Maker, name: str, stall: Stall
) -> None:
    client = make(f"redis://{LOOPBACK}:{free_port()}/0", timeout_s=TIMEOUT_S)
    await is_unavailable_in_time(CALLS[name](client), stall)


@pytest.mark.parametrize("name", CALLS)
async def test_missing_replies_are_reported_within_the_timeout(
    make: Maker, own_server: RedisServer, own: redis.Redis, name: str, stall: Stall
) -> None:
    with LossyProxy(own_server.port) as proxy:
        client = make(proxy.url, timeout_s=TIMEOUT_S)
        await connected(client)
        proxy.swallowing = True
        await is_unavailable_in_time(CALLS[name](client), stall)


async def test_after_missing_replies_the_next_call_is_answered(
    make: Maker, own_server: RedisServer, own: redis.Redis
) -> None:
    with LossyProxy(own_server.port) as proxy:
        client = make(proxy.url, timeout_s=LONG_S)
        await connected(client)
        proxy.swallowing = True
        with pytest.raises(StoreUnavailable):
            await client.cancel("x")
        proxy.swallowing = False
        assert await client.cancel("y") == Answer.UNKNOWN


async def test_a_hanging_redis_is_reported_within_the_timeout_and_used_again_afterwards(
    make: Maker, own_server: RedisServer, own: redis.Redis, stall: Stall
) -> None:
    client = make(own_server.url, timeout_s=LONG_S)
    await client.schedule(TO, b"", delay=60, id="x")
    own_server.pause()
    try:
        await is_unavailable_in_time(client.cancel("x"), stall, LONG_S)
    finally:
        own_server.resume()
    assert await client.get("y") is None


async def test_connections_that_keep_breaking_are_reported_within_the_timeout(
    make: Maker, own_server: RedisServer, own: redis.Redis, stall: Stall
) -> None:
    with LossyProxy(own_server.port) as proxy:
        client = make(proxy.url, timeout_s=TIMEOUT_S)
        await connected(client)
        proxy.drop_next_replies(10**6)
        await is_unavailable_in_time(client.cancel("x"), stall)
        assert proxy.dropped > 1


async def test_a_call_whose_reply_is_lost_still_returns_its_answer(
    make: Maker, own_server: RedisServer, own: redis.Redis
) -> None:
    with LossyProxy(own_server.port) as proxy:
        client = make(proxy.url)
        await client.get("x")
        proxy.drop_next_replies(1)
        assert await client.schedule(TO, b"", delay=60, id="x") == "created"
        proxy.drop_next_replies(1)
        assert await client.cancel("x") == Answer.CANCELLED
        assert proxy.dropped == 2


async def test_a_server_that_is_not_redis_is_an_error_and_not_a_hang(make: Maker) -> None:
    with socket.create_server((LOOPBACK, 0)) as listener:
        thread = threading.Thread(target=_answer_in_http, args=(listener,), daemon=True)
        thread.start()
        client = make(f"redis://{LOOPBACK}:{listener.getsockname()[1]}/0", timeout_s=TIMEOUT_S)
        with pytest.raises(StoreError):
            await client.get("x")
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def _answer_in_http(listener: socket.socket) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection:
            connection.recv(100)
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


async def test_the_error_for_a_wrong_password_does_not_contain_it(make: Maker) -> None:
    with RedisServer(["--requirepass", "right"]) as server:
        url = server.url.replace("redis://", "redis://:wr0ng-secret@")
        with pytest.raises(StoreError, match="access refused") as got:
            await make(url).get("x")
        assert "wr0ng" not in str(got.value)
        assert not isinstance(got.value, StoreUnavailable)
        allowed = make(server.url.replace("redis://", "redis://:right@"))
        assert await allowed.get("x") is None


@pytest.mark.parametrize("url", ["", "http://h:1", "redis://h:99999/0", "redis://h:p"])
def test_an_invalid_url_is_a_config_error(url: str) -> None:
    for flavour in FLAVOURS:
        with pytest.raises(ConfigError, match="redis"):
            flavour(url)


# Redis is full: StoreFull, no message is stored in part, and workers continue


@pytest.fixture(params=[None, redis62_binary, valkey_binary], ids=["redis", "6.2", "valkey"])
def full_server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    binary = request.param and request.param()
    if request.param and binary is None:
        pytest.skip("no such server here")
    with RedisServer(binary=binary) as server:
        yield server


def fill(server: RedisServer) -> None:
    """Leave no memory for any write that may need some."""
    with redis.Redis(host=LOOPBACK, port=server.port) as connection:
        connection.config_set("maxmemory", connection.info("memory")["used_memory"] // 2)


async def test_a_full_redis_stores_no_message_but_still_cancels_and_reschedules(
    make: Maker, full_server: RedisServer
) -> None:
    early = make(full_server.url)
    for id in ("x", "y", "z"):
        await early.schedule(TO, b"body", delay=0, id=id)
    fill(full_server)
    late = make(full_server.url)
    for client in (early, late):
        with pytest.raises(StoreFull):
            await client.schedule(TO, b"body", delay=60, id="more")
        with pytest.raises(StoreFull):
            await client.schedule(TO, b"other", delay=60, id="y", on_conflict=OnConflict.REPLACE)
    assert await late.get("more") is None
    assert (await late.get("y")).body == b"body"
    assert await late.reschedule("y", delay=60) == Answer.RESCHEDULED
    assert await early.cancel("y") == Answer.CANCELLED
    assert await late.cancel("z") == Answer.CANCELLED


async def test_a_new_worker_does_all_its_work_on_a_full_redis(
    make: Maker, full_server: RedisServer
) -> None:
    client = make(full_server.url, namespace="full")
    await client.schedule_many([Message(TO, b"", delay=0, id=f"m{n}", key="x") for n in range(8)])
    number = keys.bucket_of(b"x", BUCKETS)
    with redis.Redis(host=LOOPBACK, port=full_server.port) as connection:
        dead = world_of(full_server.url, connection, "full", number)
    with dead:
        dead.owner().claim()
        fill(full_server)
        _work_on_a_full_store(dead)
        stats = await client.stats()
    assert (stats.delayed, stats.in_flight, stats.parked, stats.dead) == (0, 0, 0, 1)


def _work_on_a_full_store(world: World) -> None:
    """A worker's whole life: it starts, takes over a bucket, and its copies end in every way."""
    store = Store(_url_of(world))
    store.complete(Calls("full", None, None, Limits()).open())
    store.run([registry.announce("full", "worker", "0" * 16, TTL_MS, ABOUT)])
    store.close()
    owner = world.successor()
    copies = owner.claim()
    owner.fire(copies[-1].score)
    owner.settle(*copies[:2])
    assert world.run(owner.settling_once(copies[2])) == {copies[2].id}
    owner.retry(copies[3], delay_ms=5)
    owner.retry(copies[4])
    owner.park(copies[5])
    world.run(owner.unparking())
    owner.bury(copies[6])
    world.run(owner.bucket.renew(owner.token, TTL_MS))
    assert world.kick(copies[6].id) == Answer.KICKED
    again = owner.claim()
    owner.bury(copies[7])
    owner.fire(again[-1].score)
    owner.settle(*again)
    world.run(owner.bucket.release(owner.token))


def _url_of(world: World) -> str:
    options = world.redis.connection_pool.connection_kwargs
    return f"redis://{options['host']}:{options['port']}/0"


# wake-ups


@pytest.fixture
def heard(plain: redis.Redis, namespace: str) -> Iterator[Callable[[], list[bytes]]]:
    """The messages on the namespace's channel since the last call."""
    subscription = plain.pubsub(ignore_subscribe_messages=True)
    subscription.subscribe(keys.wake(namespace))
    subscription.get_message(timeout=DEADLINE_S)

    def since_the_last_call() -> list[bytes]:
        # Everything published before this marker arrives before it.
        plain.publish(keys.wake(namespace), "marker")
        found = []
        while (message := subscription.get_message(timeout=DEADLINE_S)) is None or (
            message["data"] != b"marker"
        ):
            if message is not None:
                found.append(message["data"])
        return found

    yield since_the_last_call
    subscription.close()


async def test_a_message_wakes_the_owner_only_if_it_is_first_and_due_before_the_next_look(
    client: Any, bucket_of_x: Callable[[], World], heard: Callable[[], list[bytes]]
) -> None:
    first = await client.schedule(TO, b"", delay=3600, id="x")
    with bucket_of_x() as world:
        owner = world.owner()
        owner.claim(ahead_ms=2000, margin_ms=20)  # looks again in an hour minus two seconds
        assert heard() == []
        sooner = await client.schedule(TO, b"", delay=60, id="a", key="x")
        assert heard() == [f"{first.bucket} {sooner.due_ms}".encode()]
        await client.schedule(TO, b"", delay=61, id="b", key="x")  # no new head
        assert heard() == []
        await client.schedule_many(
            [Message(TO, b"", delay=30 + n, id=f"m{n}", key="x") for n in range(3)]
        )
        assert heard() == [f"{first.bucket} {(await client.get('m0')).due_ms}".encode()]
        owner.claim(ahead_ms=2000, margin_ms=20, pace_ms=40_000)
        await client.schedule(TO, b"", delay=50, id="c", key="x")  # the owner looks before that
        assert heard() == []


@pytest.mark.parametrize(
    ("delays", "wakes"),
    [
        ({"x": 60}, "x"),
        ({"x": 7200}, None),
        ({"a": 60, "x": 7200}, "a"),
        ({"x": 7200, "a": 60}, "a"),
        ({"a": 7200, "x": 60, "b": 120}, "x"),
        ({"a": 7200, "x": 120, "b": 60}, "b"),
    ],
)
async def test_replacing_wakes_the_owner_if_a_message_is_now_due_before_all_others(
    client: Any,
    bucket_of_x: Callable[[], World],
    heard: Callable[[], list[bytes]],
    delays: dict[str, int],
    wakes: str | None,
) -> None:
    await client.schedule(TO, b"", delay=3600, id="x", key="x")
    with bucket_of_x() as world:
        world.owner().claim(ahead_ms=2000, margin_ms=20)
        await client.schedule_many(
            [Message(TO, b"new", delay=delay, id=id, key="x") for id, delay in delays.items()],
            on_conflict="replace",
        )
        due_ms = wakes and (await client.get(wakes, key="x")).due_ms
        assert heard() == ([f"{world.number} {due_ms}".encode()] if wakes else [])


async def test_rescheduling_or_kicking_a_message_to_the_front_wakes_the_owner(
    client: Any, bucket_of_x: Callable[[], World], heard: Callable[[], list[bytes]]
) -> None:
    await client.schedule(TO, b"", delay=0, id="x")
    await client.schedule(TO, b"", delay=3600, id="y", key="x")
    with bucket_of_x() as world:
        owner = world.owner()
        owner.bury(*owner.claim(ahead_ms=2000, margin_ms=20))
        heard()
        await client.reschedule("y", delay=1800)
        (wake_up,) = heard()
        assert wake_up == f"{world.number} {(await client.get('y')).due_ms}".encode()
        await client.reschedule("y", delay=3600)
        assert heard() == []
        await client.kick("x")
        (wake_up,) = heard()
        assert wake_up == f"{world.number} {(await client.get('x')).due_ms}".encode()


async def test_a_bucket_without_an_owner_sends_no_wake_up(
    client: Any, heard: Callable[[], list[bytes]]
) -> None:
    await client.schedule(TO, b"", delay=0, id="x")
    assert heard() == []


# AsyncClient: calls made in one tick of the loop travel together


def script_calls(connection: redis.Redis) -> int:
    found = connection.info("commandstats").get("cmdstat_evalsha", {"calls": 0})
    return int(found["calls"])


@pytest.fixture
async def together(own_server: RedisServer, own: redis.Redis) -> AsyncIterator[AsyncClient]:
    """An AsyncClient that has met every bucket."""
    async with AsyncClient(own_server.url) as client:
        await client.schedule_many([Message(TO, b"", delay=60, id=f"f{n}") for n in range(200)])
        own.config_resetstat()
        yield client


async def test_a_hundred_schedules_of_one_tick_are_one_script_call_per_bucket(
    together: AsyncClient, own: redis.Redis
) -> None:
    receipts = await asyncio.gather(
        *(together.schedule(TO, b"", delay=60, id=f"m{n}") for n in range(100))
    )
    assert [receipt.id for receipt in receipts] == [f"m{n}" for n in range(100)]
    assert Counter(receipts) == {"created": 100}
    assert script_calls(own) == len({receipt.bucket for receipt in receipts}) <= BUCKETS


async def test_a_hundred_schedules_without_id_are_a_few_script_calls(
    together: AsyncClient, own: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delaybridge.store.ids._FRESH_S", 60.0)  # however slow this machine is
    receipts = await asyncio.gather(*(together.schedule(TO, b"", delay=60) for _ in range(100)))
    assert Counter(receipts) == {"created": 100}
    assert script_calls(own) == len({receipt.bucket for receipt in receipts}) <= 3


# While the second half opens its connection, the first may come back and be split as well.
@pytest.mark.parametrize(("own_ids", "most_flushes"), [(False, 40), (True, 11)])
async def test_many_callers_take_turns_in_two_halves_if_script_calls_stay_large(
    together: AsyncClient,
    monkeypatch: pytest.MonkeyPatch,
    own_ids: bool,
    most_flushes: int,
) -> None:
    monkeypatch.setattr("delaybridge.store.ids._FRESH_S", 60.0)
    each, under_way, most, flushes = AsyncStore.run_each, 0, 0, 0

    async def counted(store: AsyncStore, commands: Sequence[RedisCommand[Any]]) -> list[Any]:
        nonlocal under_way, most, flushes
        under_way, flushes = under_way + 1, flushes + 1
        most = max(most, under_way)
        try:
            return await each(store, commands)
        finally:
            under_way -= 1

    monkeypatch.setattr(AsyncStore, "run_each", counted)

    async def caller(number: int) -> list[Receipt]:
        ids = [f"{number}-{turn}" if own_ids else None for turn in range(10)]
        return [await together.schedule(TO, b"", delay=60, id=id) for id in ids]

    receipts = sum(await asyncio.gather(*map(caller, range(100))), [])
    assert Counter(receipts) == {"created": 1000}
    assert len({receipt.id for receipt in receipts}) == 1000
    assert (most == 1) == own_ids and flushes <= most_flushes


async def test_calls_for_one_bucket_are_never_split(
    together: AsyncClient, own: redis.Redis
) -> None:
    """Of two messages with the same key and delay, the one scheduled first is due first."""
    receipts = await asyncio.gather(
        *(together.schedule(TO, b"", delay=60, key=f"key {n % 3}") for n in range(200))
    )
    assert script_calls(own) == len({receipt.bucket for receipt in receipts})


async def test_a_bad_message_raises_in_its_own_caller_only(together: AsyncClient) -> None:
    wrong: Any = [together.accept(Message(TO, b"", delay=60))]  # without its stamp
    answers = await asyncio.gather(
        *(together.schedule(TO, b"", delay=60) for _ in range(60)),
        together.schedule_accepted(wrong),
        together.schedule_accepted([]),
        return_exceptions=True,
    )
    assert Counter(answers[:60]) == {"created": 60}
    assert isinstance(answers[60], TypeError) and answers[61] == []


async def test_cancelling_close_leaves_no_caller_waiting(
    own_server: RedisServer,
) -> None:
    client = AsyncClient(own_server.url)
    calls = [asyncio.create_task(client.schedule(TO, b"", delay=60)) for _ in range(3)]
    await asyncio.sleep(0)
    closing = asyncio.create_task(client.close())
    await asyncio.sleep(0)
    closing.cancel()
    async with asyncio.timeout(DEADLINE_S):
        assert Counter(await asyncio.gather(*calls)) == {"created": 3}
    await client.close()


async def test_schedules_of_different_ticks_are_sent_separately(
    together: AsyncClient, own: redis.Redis
) -> None:
    for n in range(3):
        await together.schedule(TO, b"", delay=60, id=f"m{n}", key="one bucket")
    assert script_calls(own) == 3


async def test_each_caller_of_one_tick_gets_its_own_answer_or_error(
    together: AsyncClient,
) -> None:
    await together.schedule(TO, b"first", delay=60, id="taken")
    answers = await asyncio.gather(
        together.schedule(TO, b"", delay=60, id="a"),
        together.schedule(TO, b"other", delay=60, id="taken"),
        together.schedule(TO, b"", delay=-1, id="b"),
        together.schedule(TO, b"other", delay=60, id="taken", on_conflict="keep"),
        together.schedule(TO, b"", delay=60, id="c"),
        return_exceptions=True,
    )
    assert [answers[n] for n in (0, 3, 4)] == ["created", "duplicate", "created"]
    assert isinstance(answers[1], MessageConflict)
    assert isinstance(answers[2], MessageError)


async def test_every_caller_of_one_tick_learns_that_redis_does_not_answer() -> None:
    async with AsyncClient(f"redis://{LOOPBACK}:{free_port()}/0", timeout_s=0.2) as client:
        answers = await asyncio.gather(
            *(client.schedule(TO, b"", delay=60) for _ in range(5)), return_exceptions=True
        )
    assert {type(answer) for answer in answers} == {StoreUnavailable}


async def test_a_cancelled_caller_does_not_disturb_the_others(together: AsyncClient) -> None:
    tasks = [
        asyncio.create_task(together.schedule(TO, b"", delay=60, id=f"m{n}")) for n in range(5)
    ]
    await asyncio.sleep(0)
    tasks[2].cancel()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(answers[2], asyncio.CancelledError)
    assert [answers[n] for n in (0, 1, 3, 4)] == ["created"] * 4


async def test_a_call_cancelled_halfway_leaves_no_reply_for_the_next(
    own_server: RedisServer, own: redis.Redis
) -> None:
    with LossyProxy(own_server.port) as proxy:
        async with AsyncClient(proxy.url) as client:
            await client.schedule(TO, b"", delay=60, id="x")
            for turns in range(30):
                given_up = asyncio.create_task(client.stats())
                for _ in range(turns):
                    await asyncio.sleep(0)
                given_up.cancel()
                assert (await client.get("x")).id == "x"  # type: ignore[union-attr]


async def test_closing_waits_for_schedules_under_way(
    own_server: RedisServer, own: redis.Redis
) -> None:
    client = AsyncClient(own_server.url)
    task = asyncio.create_task(client.schedule(TO, b"", delay=60, id="x"))
    await asyncio.sleep(0)
    await client.close()
    assert await task == "created"


def connections(connection: redis.Redis) -> int:
    """The number of connections other than this one."""
    return len(connection.client_list()) - 1


def test_an_abandoned_client_closes_its_connection(
    own_server: RedisServer, own: redis.Redis
) -> None:
    gc.disable()  # the connection must not have to wait for it
    try:
        client = Client(own_server.url)
        client.schedule(TO, b"", delay=60)
        assert connections(own) == 1
        del client
        until(lambda: connections(own) == 0, "its connection is closed")
    finally:
        gc.enable()


async def test_calls_by_id_of_one_tick_travel_in_one_pipeline(
    together: AsyncClient, own: redis.Redis
) -> None:
    before = connections(own)
    await together.schedule_many([Message(TO, f"{n}", delay=60, id=f"m{n}") for n in range(9)])
    answers = await asyncio.gather(
        together.cancel("m0"),
        together.get("m1"),
        together.reschedule("m2", delay=5),
        together.kick("m3"),
        together.discard("m4"),
        together.cancel("m" * 300),
        together.get("m5", key="elsewhere"),
        *(together.cancel(f"m{n}") for n in (6, 7, 6)),
        return_exceptions=True,
    )
    stored = answers.pop(1)
    assert isinstance(stored, Stored) and stored.body == b"1"
    assert isinstance(answers.pop(4), MessageError)
    assert answers.pop(4) is None
    cancelled = sorted([answers.pop(), answers.pop(4)])
    assert cancelled == [Answer.CANCELLED, Answer.UNKNOWN]
    unknown = [Answer.UNKNOWN] * 2
    assert answers == [Answer.CANCELLED, Answer.RESCHEDULED, *unknown, Answer.CANCELLED]
    assert connections(own) == before


async def test_thousands_of_calls_at_once_need_few_connections(
    own_server: RedisServer, own: redis.Redis
) -> None:
    ids = [f"m{n}" for n in range(3000)]
    async with AsyncClient(own_server.url, timeout_s=60.0) as client:
        await client.schedule_many([Message(TO, b"", delay=60, id=id, key=id) for id in ids])
        answers = await asyncio.gather(*(client.cancel(id, key=id) for id in ids))
        assert Counter(answers) == {Answer.CANCELLED: 3000}
        assert connections(own) <= 20
        pages = await asyncio.gather(*(client.pending(limit=1) for _ in range(200)))
        assert [page.items for page in pages] == [[]] * 200
        assert connections(own) <= 100


async def test_a_failing_bucket_fails_only_the_callers_whose_messages_are_in_it(
    together: AsyncClient, own: redis.Redis
) -> None:
    damaged = keys.bucket_of(b"m0", BUCKETS)
    own.delete(keys.bucket_key("delaybridge", damaged, "messages"))
    own.set(keys.bucket_key("delaybridge", damaged, "messages"), "not a hash")
    ids = [f"m{n}" for n in range(100)]
    answers = await asyncio.gather(
        *(together.schedule(TO, b"", delay=60, id=id) for id in ids), return_exceptions=True
    )
    there = await asyncio.gather(*(together.get(id, key=id) for id in ids), return_exceptions=True)
    for id, answer, found in zip(ids, answers, there, strict=True):
        if keys.bucket_of(id.encode(), BUCKETS) == damaged:
            assert isinstance(answer, StoreError) and isinstance(found, StoreError)
        else:
            assert answer == "created" and isinstance(found, Stored)


LARGE = [Message(TO, bytes(100_000), delay=60, id=f"m{n}") for n in range(64)]


def leave_room(connection: redis.Redis) -> None:
    """Leave memory for about half of the messages above."""
    connection.config_set("maxmemory", connection.info("memory")["used_memory"] + 3_000_000)


async def test_only_callers_whose_messages_redis_refused_get_store_full(
    together: AsyncClient, own: redis.Redis
) -> None:
    leave_room(own)
    answers = await asyncio.gather(
        *(together.schedule(TO, m.body, delay=60, id=m.id) for m in LARGE), return_exceptions=True
    )
    there = [await together.get(m.id or "") for m in LARGE]
    assert {type(answer) for answer in answers} == {Receipt, StoreFull}
    assert [found is not None for found in there] == [answer == "created" for answer in answers]


async def test_store_full_says_how_many_messages_of_a_call_were_not_stored(
    make: Maker, own_server: RedisServer, own: redis.Redis
) -> None:
    client = make(own_server.url)
    await client.schedule_many([Message(TO, b"", delay=60, id=f"f{n}") for n in range(200)])
    leave_room(own)
    with pytest.raises(StoreFull) as got:
        await client.schedule_many(LARGE)
    missing = [await client.get(m.id) for m in LARGE].count(None)
    assert f" {missing} of 64 messages" in str(got.value)
    refused = [m for m in LARGE if await client.get(m.id) is None]
    with pytest.raises(StoreFull, match="nothing was written"):
        await client.schedule_many(refused)


async def test_a_full_redis_after_a_lost_reply_leaves_the_outcome_unknown(
    make: Maker, own_server: RedisServer, own: redis.Redis
) -> None:
    with LossyProxy(own_server.port) as proxy:
        client = make(proxy.url)
        await client.schedule(TO, b"", delay=60, id="x", key="x")
        proxy.drop_next_replies(1)
        proxy.on_drop = lambda: fill(own_server)
        with pytest.raises(StoreUnavailable, match="may have been stored"):
            await client.schedule(TO, b"", delay=60, id="y", key="x")
        assert (await client.get("y")).id == "y"


async def test_closing_waits_for_cancels_under_way(
    own_server: RedisServer, own: redis.Redis
) -> None:
    client = AsyncClient(own_server.url)
    await client.schedule(TO, b"", delay=60, id="x")
    task = asyncio.create_task(client.cancel("x"))
    await asyncio.sleep(0)
    await client.close()
    assert await task == Answer.CANCELLED


async def test_many_calls_at_once_get_their_own_answers(together: AsyncClient) -> None:
    await together.schedule_many([Message(TO, f"{n}", delay=60, id=f"m{n}") for n in range(50)])
    shown = await asyncio.gather(*(together.get(f"m{n}") for n in range(50)))
    assert [item and item.body for item in shown] == [f"{n}".encode() for n in range(50)]


# Client: used by many threads


def test_a_client_may_be_used_from_many_threads(
    redis_url: str, namespace: str, plain: redis.Redis
) -> None:
    def work(client: Client, thread: int) -> list[str]:
        ids = [f"t{thread}-{n}" for n in range(30)]
        for id in ids:
            client.schedule(TO, id, delay=60, id=id)
        return [id for id in ids if (found := client.get(id)) and found.body == id.encode()]

    with Client(redis_url, namespace=namespace) as client, ThreadPoolExecutor(8) as pool:
        done = list(pool.map(lambda thread: work(client, thread), range(8)))
        assert sum(map(len, done)) == client.stats().delayed == 240


# settings


async def test_clients_are_made_from_the_settings(
    redis_url: str, namespace: str, plain: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DELAYBRIDGE_REDIS_URL", redis_url)
    monkeypatch.setenv("DELAYBRIDGE_NAMESPACE", namespace)
    monkeypatch.setenv("DELAYBRIDGE_BROKERS__EU", "amqp://guest:guest@127.0.0.1:1")
    with Client.from_settings() as client:
        assert client.schedule("eu:orders/close", b"", delay=60, id="x") == "created"
        with pytest.raises(MessageError, match="unknown_destination"):
            client.schedule(TO, b"", delay=60)
    async with AsyncClient.from_settings() as other:
        assert await other.cancel("x") == Answer.CANCELLED


def test_both_clients_have_the_same_calls_with_the_same_arguments() -> None:
    def calls(flavour: type) -> dict[str, inspect.Signature]:
        public = {n: v for n, v in inspect.getmembers(flavour) if not n.startswith("_")}
        names = [name for name, value in public.items() if not isinstance(value, property)]
        return {name: inspect.signature(getattr(flavour, name)) for name in names}

    sync, both = calls(Client), calls(AsyncClient)
    shown = {name: str(signature) for name, signature in both.items()}
    assert {n: str(s) for n, s in sync.items()} == {
        n: s.replace("AsyncIterator", "Iterator") for n, s in shown.items()
    }


def test_a_quota_refuses_further_messages_until_there_is_room(
    redis_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delaybridge.store.quota._EVERY_S", 0.0)
    limits = Limits(pending_messages=5, destination_messages=3)
    with Client(redis_url, namespace=namespace, limits=limits) as client:
        first = client.schedule("kafka:a", b"x", delay="1h", id="a0")
        client.schedule_many([Message("kafka:a", b"x", delay="1h") for _ in range(2)])
        with pytest.raises(StoreFull, match=r"kafka:a: limits\.destination_messages"):
            client.schedule("kafka:a", b"x", delay="1h")
        client.schedule_many([Message("kafka:b", b"x", delay="1h") for _ in range(2)])
        with pytest.raises(StoreFull, match=r"limits\.pending_messages: 5 are pending"):
            client.schedule("kafka:c", b"x", delay="1h")
        assert client.stats().delayed == 5
        client.cancel(first.id)
        assert client.schedule("kafka:a", b"x", delay="1h") == "created"


def test_one_client_never_exceeds_a_quota_however_fast_it_schedules(
    redis_url: str, namespace: str
) -> None:
    with Client(redis_url, namespace=namespace, limits=Limits(pending_messages=5)) as client:
        for _ in range(3):
            client.schedule("kafka:a", b"x", delay="1h")
        with pytest.raises(StoreFull, match=r"limits\.pending_messages: .* 2 of"):
            client.schedule_many([Message("kafka:a", b"x", delay="1h") for _ in range(4)])
        assert client.stats().delayed == 5
