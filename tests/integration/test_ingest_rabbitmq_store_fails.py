"""Delay exchanges while the store fails, or is slow: nothing is lost, and memory is bounded."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

import pika
import pytest
import redis

from delaybridge.ingest.rabbitmq.connection import IntakeConnection
from tests.rigs.broker_rabbitmq import TlsNode, breakable_node
from tests.rigs.fault_proxy import FaultProxy
from tests.rigs.ingest import MakeEntrance
from tests.rigs.ingest_rabbitmq import Exchanges, described, drained, handed_over, messages, reading
from tests.servers.process import free_port
from tests.servers.rabbitmq import rabbitmq_url_of
from tests.servers.redis import RedisServer


@pytest.fixture
def node() -> TlsNode:
    """A private RabbitMQ."""
    return breakable_node().start()


@pytest.fixture
def entrance_url(node: TlsNode) -> str:
    return node.url


@pytest.fixture
async def proxy(node: TlsNode) -> AsyncIterator[FaultProxy]:
    """Between ingest and RabbitMQ."""
    async with FaultProxy(free_port(), node.port) as proxy:
        yield proxy


async def test_nothing_is_lost_while_the_store_is_killed_and_restarted(
    make_entrance: MakeEntrance, rabbit: Exchanges, own_redis: RedisServer, namespace: str
) -> None:
    delay = f"{namespace}.delay"
    entrance = make_entrance(redis=own_redis.url)
    task = entrance.ingest("rabbitmq")
    await reading(entrance, delay)
    await rabbit.send(delay, messages(100))
    await asyncio.to_thread(own_redis.kill)
    await rabbit.send(delay, messages(100, 100))
    await handed_over(rabbit, entrance, delay)
    intake = entrance.ingest_of(task).intakes[0]
    await entrance.until(lambda: intake.held >= 100, "they arrive, and none is acknowledged")
    await asyncio.to_thread(own_redis.start)
    await entrance.until_stored(200)
    await drained(entrance, delay)


async def test_ingest_waits_for_a_full_store_and_gives_nothing_up(
    make_entrance: MakeEntrance, rabbit: Exchanges, own_redis: RedisServer, namespace: str
) -> None:
    delay = f"{namespace}.delay"
    entrance = make_entrance(redis=own_redis.url)
    entrance.ingest("rabbitmq")
    await reading(entrance, delay)
    bad = ("k", b"bad", pika.BasicProperties(headers={"x-delay": "soon"}))
    with redis.Redis.from_url(own_redis.url) as plain:
        plain.config_set("maxmemory", "1")
        await rabbit.send(delay, [*messages(100), bad])
        await handed_over(rabbit, entrance, delay)
        assert await entrance.delayed() == await entrance.dead() == []
        plain.config_set("maxmemory", "0")
    await entrance.until_stored(100)
    (dead,) = await entrance.until(entrance.dead, "quarantined")
    assert dead.body == b"bad"


async def test_memory_is_bounded_while_the_store_does_not_answer(
    make_entrance: MakeEntrance,
    rabbit: Exchanges,
    proxy: FaultProxy,
    own_redis: RedisServer,
    namespace: str,
) -> None:
    """Messages beyond the window stay with the broker, even if the connection is lost."""
    delay, window = f"{namespace}.delay", 2 * 2**20
    body = bytes(200 * 2**10)
    entrance = make_entrance(
        url=rabbitmq_url_of(proxy.port), redis=own_redis.url, window_bytes=window
    )
    task = entrance.ingest("rabbitmq")
    await reading(entrance, delay)
    connection, most = entrance.ingest_of(task).connection, [0]

    def is_full() -> bool:
        most.append(connection.held_bytes)
        return most[-1] > window

    own_redis.pause()
    many = [(key, body, properties) for key, _, properties in messages(100)]
    sending = asyncio.ensure_future(rabbit.send(delay, many))
    await entrance.until(is_full, "a full window")
    await sending
    assert is_full()
    assert max(most) <= window + len(body) + 2**17, "one more message, and what the socket gave"
    proxy.reset()
    own_redis.resume()
    await entrance.until_stored(100)
    await drained(entrance, delay)

    def is_free() -> bool:
        connection = entrance.ingest_of(task).connection
        return connection is not None and connection.held_bytes == 0

    await entrance.until(is_free, "nothing is held")


async def test_a_window_smaller_than_a_message_lets_messages_through_one_by_one(
    make_entrance: MakeEntrance, rabbit: Exchanges, namespace: str
) -> None:
    delay = f"{namespace}.delay"
    await rabbit.target(namespace)
    entrance = make_entrance(
        window_bytes=300_000, prefetch=10, limits={"body_bytes": 2**20, "delay": "1d"}
    )
    entrance.ingest("rabbitmq")
    await reading(entrance, delay)
    now = described(0)
    big = [(key, bytes(2**19), properties) for key, _, properties in messages(20)]
    await rabbit.send(delay, [*big, *[("k", bytes(2**19), now)] * 20])
    await entrance.until_stored(20)
    assert len(await rabbit.take(namespace, 20)) == 20


async def test_over_tls_a_full_window_stops_reading_until_there_is_room(
    make_entrance: MakeEntrance,
    node: TlsNode,
    rabbit: Exchanges,
    own_redis: RedisServer,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """TLS decrypts more than one read takes: nothing may be left in its buffer."""
    pauses, most = 0, 0
    hold, watch = IntakeConnection.hold, IntakeConnection.watch

    def held(connection: IntakeConnection, size: int) -> None:
        nonlocal most
        hold(connection, size)
        most = max(most, connection.held_bytes)

    def watched(connection: IntakeConnection, reading: bool) -> None:
        nonlocal pauses
        pauses += not reading
        watch(connection, reading)

    monkeypatch.setattr(IntakeConnection, "hold", held)
    monkeypatch.setattr(IntakeConnection, "watch", watched)
    delay = f"{namespace}.delay"
    await rabbit.target(namespace)
    entrance = make_entrance(url=node.tls.trusting, redis=own_redis.url, window_bytes=200_000)
    task = entrance.ingest("rabbitmq")
    await reading(entrance, delay)
    own_redis.pause()
    at_once = [("k", os.urandom(1 + 700 * i), described(0)) for i in range(100)]
    later = [(key, os.urandom(1 + 700 * i), p) for i, (key, _, p) in enumerate(messages(100))]
    await rabbit.send(
        delay, [message for both in zip(at_once, later, strict=True) for message in both]
    )
    await entrance.until(lambda: pauses, "a full window")
    await handed_over(rabbit, entrance, delay)
    own_redis.resume()
    await entrance.until_stored(100)
    assert [body for _, _, body in await rabbit.take(namespace, 100)] == [
        body for _, body, _ in at_once
    ]
    found = {item.id: item.body for item in await entrance.delayed()}
    assert found == {properties.message_id: body for _, body, properties in later}
    await drained(entrance, delay)
    await entrance.stop(task)
    assert pauses > 5 and most < 200_000 + 2**18, "what pika reads at a time"
