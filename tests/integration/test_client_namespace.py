"""What clients agree on: the namespace, its birth, its settings and quotas."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from delaybridge import AsyncClient, Client, Message
from delaybridge.errors import ConfigError, MessageError, StoreFull, StoreWiped
from delaybridge.message import Answer, Limits
from delaybridge.store.protocol import keys, verbs
from delaybridge.store.protocol.bucket import Bucket
from tests.rigs.bucket import World
from tests.rigs.flavours import BUCKETS, TO, Maker
from tests.servers.redis import RedisServer

# the namespace's birth


async def test_clients_that_create_a_namespace_at_once_agree_on_its_birth(
    make: Maker, redis_url: str, namespace: str, raw: redis.Redis
) -> None:
    clients = [make(redis_url, namespace=namespace) for _ in range(5)]
    await asyncio.gather(*(client.schedule(TO, b"", delay=60) for client in clients))
    assert raw.get(keys.birth(namespace)).startswith(b"%d:" % BUCKETS)
    assert (await clients[0].stats()).delayed == 5


async def test_the_bucket_count_is_fixed_when_the_namespace_is_created(
    make: Maker, redis_url: str, namespace: str
) -> None:
    await make(redis_url, namespace=namespace, buckets=4).schedule(TO, b"", delay=60, id="x")
    with pytest.raises(ConfigError, match="has 4: set buckets = 4"):
        await make(redis_url, namespace=namespace, buckets=8).get("x")
    adopted = make(redis_url, namespace=namespace)
    assert (await adopted.get("x")).bucket == verbs.bucket_of(b"x", 4)
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


async def test_a_bucket_that_a_worker_of_a_wiped_namespace_took_late_is_taken_over(
    client: Any, bucket_of_x: Callable[[], World]
) -> None:
    await client.schedule(TO, b"", delay=60, id="y", key="other")
    with bucket_of_x() as world:
        late = Bucket(world.namespace, world.number, "another")
        assert world.run(late.acquire("late:1", 60_000)).token
        assert not (await client.stats()).all_damage
        assert await client.schedule(TO, b"", delay=60, id="x") == "created"
        assert world.redis.hget(world.key("marks"), "birth") == world.bucket.birth.encode()


async def test_after_flushall_a_client_creates_its_namespace_again(
    make: Maker, own_url: str, own: redis.Redis
) -> None:
    client, other = make(own_url), make(own_url)
    await client.schedule(TO, b"", delay=60, id="x")
    await other.schedule(TO, b"", delay=60, id="y")
    own.flushall()
    assert await client.get("x") is None
    assert await client.schedule(TO, b"", delay=60, id="x") == "created"
    assert await other.schedule(TO, b"", delay=60, id="x2", key="x") == "created"
    assert (await other.stats()).delayed == 2


async def test_an_eviction_policy_that_drops_messages_is_refused(
    make: Maker, own_url: str, own: redis.Redis
) -> None:
    own.config_set("maxmemory-policy", "allkeys-lru")
    try:
        with pytest.raises(ConfigError, match="allkeys-lru.*noeviction"):
            await make(own_url).schedule(TO, b"", delay=60)
    finally:
        own.config_set("maxmemory-policy", "noeviction")
    assert await make(own_url).schedule(TO, b"", delay=60) == "created"


# settings


async def test_clients_are_made_from_the_settings(
    redis_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
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


def test_a_quota_refuses_further_messages_until_there_is_room(
    redis_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delaybridge.store.namespace.quota._EVERY_S", 0.0)
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
