"""Faults of delay exchanges, their broker and the store: nothing is lost, and reading resumes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pika
import pytest
import redis

from delaybridge.ingest.rabbitmq.connection import IntakeConnection
from tests.rigs.broker_rabbitmq import TlsNode, breakable_node
from tests.rigs.fault_proxy import FaultProxy
from tests.rigs.ingest import Entrance
from tests.rigs.ingest_rabbitmq import HOUR_MS, Exchanges, reading, source
from tests.servers.process import free_port
from tests.servers.rabbitmq import rabbitmq_url_of
from tests.servers.redis import RedisServer

MakeEntrance = Callable[..., Entrance]
HOUR = pika.BasicProperties(headers={"x-delay": HOUR_MS})


@pytest.fixture
def node() -> TlsNode:
    """A private RabbitMQ."""
    return breakable_node().start()


@pytest.fixture
def rabbit(node: TlsNode) -> Exchanges:
    return Exchanges(node.url)


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    with RedisServer(["--appendonly", "yes"]) as server:
        yield server


@pytest.fixture
async def proxy(node: TlsNode) -> AsyncIterator[FaultProxy]:
    """Between ingest and RabbitMQ."""
    async with FaultProxy(free_port(), node.port) as proxy:
        yield proxy


@pytest.fixture
async def make_entrance(
    redis_url: str, node: TlsNode, namespace: str
) -> AsyncIterator[MakeEntrance]:
    """Entrances that read NAMESPACE.delay."""
    async with AsyncExitStack() as stack:

        def make(*, url: str = node.url, redis: str = redis_url, **ingest: Any) -> Entrance:
            given = {"exchanges": [f"{namespace}.delay"], **ingest}
            entrance = Entrance(redis, namespace, {"rabbitmq": url}, **given)
            stack.push_async_exit(entrance)
            return entrance

        yield make


def messages(count: int, first: int = 0, **properties: Any) -> list[Any]:
    """Messages with their own ids and bodies, due in an hour."""
    return [
        (
            "k",
            b"%d" % i,
            pika.BasicProperties(headers={"x-delay": HOUR_MS}, message_id=f"m{i}", **properties),
        )
        for i in range(first, first + count)
    ]


async def stored(entrance: Entrance, count: int) -> None:
    """Wait until the store holds this many messages; it must never hold more."""

    async def are() -> bool:
        found = (await entrance.client.stats()).delayed
        assert found <= count, "stored twice"
        return found == count

    await entrance.until(are, f"{count} stored")


async def drained(entrance: Entrance, exchange: str) -> None:
    """No message is in the queue or unacknowledged."""

    async def is_drained() -> bool:
        found = await source(entrance, exchange)
        return found is not None and found.state == "reading" and found.lag == 0

    await entrance.until(is_drained, "nothing left to read")


async def handed_over(rabbit: Exchanges, entrance: Entrance, queue: str) -> None:
    """Whether a consumer has all messages of the queue."""

    async def are() -> bool:
        return await rabbit.waiting(queue) == 0

    await entrance.until(are, "handed over")


# the consumer


async def test_a_deleted_queue_is_declared_again(
    make_entrance: MakeEntrance, rabbit: Exchanges, namespace: str
) -> None:
    delay = f"{namespace}.delay"
    entrance = make_entrance()
    task = entrance.ingest("rabbitmq")
    await reading(entrance, delay)
    connection = entrance.ingest_of(task).connection
    for count in (1, 2):
        await rabbit.do(lambda channel: channel.queue_delete(delay))
        await entrance.until(lambda: rabbit.is_read(delay), "declared again")
        await rabbit.send(delay, messages(1, count))
        await stored(entrance, count)
    # over the same connection, and no channel is left open
    assert entrance.ingest_of(task).connection is connection

    def one_channel() -> bool:
        return len(connection._channels) == 1

    await entrance.until(one_channel, "one channel, its consumer's")


async def test_a_channel_closed_by_the_broker_is_opened_again(
    make_entrance: MakeEntrance, rabbit: Exchanges, namespace: str
) -> None:
    """As after an acknowledgement of a message that was never delivered."""
    delay = f"{namespace}.delay"
    entrance = make_entrance()
    task = entrance.ingest("rabbitmq")
    await reading(entrance, delay)
    await rabbit.send(delay, messages(10))
    await stored(entrance, 10)
    connection = entrance.ingest_of(task).connection
    channel = entrance.ingest_of(task).intakes[0].channel
    connection.ack(channel.number, 2**40, multiple=False)
    await entrance.until(channel.ended.done, "closed")
    await rabbit.send(delay, messages(10, 10))
    await stored(entrance, 20)
    await drained(entrance, delay)
    assert entrance.ingest_of(task).connection is connection


async def test_a_message_returned_by_another_consumer_is_stored_too(
    make_entrance: MakeEntrance, rabbit: Exchanges, namespace: str
) -> None:
    """Two equal messages without an id; another consumer returns one of them."""
    delay = f"{namespace}.delay"
    await stop_after_declaring(make_entrance(), delay)
    await rabbit.send(delay, [("k", b"tick", HOUR)] * 2)
    connection = pika.BlockingConnection(pika.URLParameters(rabbit.url))
    channel = connection.channel()
    method, _, _ = channel.basic_get(delay)
    entrance = make_entrance()
    entrance.ingest("rabbitmq")
    await stored(entrance, 1)
    channel.basic_nack(method.delivery_tag, requeue=True)
    await stored(entrance, 2)
    connection.close()


async def stop_after_declaring(entrance: Entrance, delay: str) -> None:
    task = entrance.ingest("rabbitmq")
    await reading(entrance, delay)
    await entrance.stop(task)


# the connection


async def test_nothing_is_lost_or_doubled_while_connections_are_cut(
    make_entrance: MakeEntrance, rabbit: Exchanges, proxy: FaultProxy, namespace: str
) -> None:
    delay, count = f"{namespace}.delay", 1500
    entrance = make_entrance(url=rabbitmq_url_of(proxy.port), prefetch=200)
    entrance.ingest("rabbitmq")
    entrance.ingest("rabbitmq")
    await entrance.until(lambda: rabbit.is_read(delay), "declared")
    sending = asyncio.ensure_future(rabbit.send(delay, messages(count)))
    for part in range(1, 6):
        await entrance.until(lambda part=part: at_least(entrance, part * 150), "some")
        proxy.reset()
    await sending
    await stored(entrance, count)
    assert not await entrance.dead(), "none was taken for another"
    assert {m.id for m in await entrance.delayed()} <= {f"m{i}" for i in range(count)}


async def test_a_process_leaves_no_connection_although_the_broker_says_no_goodbye(
    make_entrance: MakeEntrance, proxy: FaultProxy, namespace: str
) -> None:
    entrance = make_entrance(url=rabbitmq_url_of(proxy.port))
    task = entrance.ingest("rabbitmq")
    await reading(entrance, f"{namespace}.delay")
    connection = entrance.ingest_of(task).connection
    proxy.mode = "blackhole"
    await entrance.kill(task)
    assert str(await connection.lost) == "closed", "not by the broker, which misses heartbeats"


async def at_least(entrance: Entrance, count: int) -> bool:
    return (await entrance.client.stats()).delayed >= count


async def test_messages_without_an_id_are_recognized_after_a_cut(
    make_entrance: MakeEntrance,
    rabbit: Exchanges,
    proxy: FaultProxy,
    own_redis: RedisServer,
    namespace: str,
) -> None:
    """Many equal messages: each is stored once, although the store did not answer meanwhile."""
    delay, count = f"{namespace}.delay", 50
    entrance = make_entrance(url=rabbitmq_url_of(proxy.port), redis=own_redis.url)
    entrance.ingest("rabbitmq")
    await reading(entrance, delay)
    for rounds in (1, 2):
        own_redis.pause()
        await rabbit.send(delay, [("k", b"tick", HOUR)] * count)
        await handed_over(rabbit, entrance, delay)
        proxy.reset()
        await rabbit.do(lambda channel: None)  # the broker answers, so it has noticed the cut
        own_redis.resume()
        await stored(entrance, rounds * count)
        await drained(entrance, delay)
        await stored(entrance, rounds * count)


async def test_reading_resumes_after_the_broker_closed_all_connections_and_stopped(
    make_entrance: MakeEntrance, rabbit: Exchanges, node: TlsNode, namespace: str
) -> None:
    delay = f"{namespace}.delay"
    entrance = make_entrance()
    entrance.ingest("rabbitmq")
    await reading(entrance, delay)
    await rabbit.send(delay, messages(100, delivery_mode=2))
    await asyncio.to_thread(node.ctl, "close_all_connections", "test")
    await reading(entrance, delay)
    await rabbit.send(delay, messages(100, 100, delivery_mode=2))
    await asyncio.to_thread(node.ctl, "stop_app")

    async def shows() -> bool:
        found = await source(entrance, delay)
        return found is not None and found.state not in ("reading", "starting")

    await entrance.until(shows, "the lost broker is shown")
    await asyncio.to_thread(node.ctl, "start_app")
    await reading(entrance, delay)
    await rabbit.send(delay, messages(100, 200, delivery_mode=2))
    await stored(entrance, 300)


# the store


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
    assert entrance.ingest_of(task).intakes[0].held >= 100, "none was acknowledged"
    await asyncio.to_thread(own_redis.start)
    await stored(entrance, 200)
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
    await stored(entrance, 100)
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
    await stored(entrance, 100)
    await drained(entrance, delay)
    assert entrance.ingest_of(task).connection.held_bytes == 0


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
    now = pika.BasicProperties()
    big = [(key, bytes(2**19), properties) for key, _, properties in messages(20)]
    await rabbit.send(delay, [*big, *[("k", bytes(2**19), now)] * 20])
    await stored(entrance, 20)
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
    at_once = [("k", os.urandom(1 + 700 * i), pika.BasicProperties()) for i in range(100)]
    later = [(key, os.urandom(1 + 700 * i), p) for i, (key, _, p) in enumerate(messages(100))]
    await rabbit.send(
        delay, [message for both in zip(at_once, later, strict=True) for message in both]
    )
    await entrance.until(lambda: pauses, "a full window")
    await handed_over(rabbit, entrance, delay)
    own_redis.resume()
    await stored(entrance, 100)
    assert [body for _, _, body in await rabbit.take(namespace, 100)] == [
        body for _, body, _ in at_once
    ]
    found = {item.id: item.body for item in await entrance.delayed()}
    assert found == {properties.message_id: body for _, body, properties in later}
    await drained(entrance, delay)
    await entrance.stop(task)
    assert pauses > 5 and most < 200_000 + 2**18, "what pika reads at a time"


# messages in flight


async def test_a_retry_and_a_cancel_wait_for_the_delivery_in_flight_and_stop_nothing(
    make_entrance: MakeEntrance, rabbit: Exchanges, proxy: FaultProxy, namespace: str
) -> None:
    delay = f"{namespace}.delay"
    await rabbit.target(namespace)
    entrance = make_entrance()
    task = entrance.ingest("rabbitmq")
    await reading(entrance, delay)
    # given a message that was delivered, whose confirm has not arrived
    workers = make_entrance(url=rabbitmq_url_of(proxy.port))
    workers.scan()
    await rabbit.send(delay, [("k", b"warm", pika.BasicProperties(headers={"x-delay": 1}))])
    await rabbit.take(namespace, 1)
    await entrance.until(lambda: nothing_left(entrance), "its confirm has come")
    proxy.mode = "hold_down"
    soon = pika.BasicProperties(headers={"x-delay": 1}, message_id="m0")
    await rabbit.send(delay, [("k", b"first", soon)])
    await rabbit.take(namespace, 1)
    # when its consumer sends it again, then cancels it, and others continue
    cancel = pika.BasicProperties(headers={"delaybridge-cancel": True}, message_id="m0")
    (again, other) = messages(2)
    await rabbit.send(delay, [again, ("k", b"", cancel), other])
    intake = entrance.ingest_of(task).intakes[0]
    await entrance.until(lambda: len(intake.waiting) == 2, "both wait")
    await entrance.until(lambda: ids(entrance, {"m1"}), "the other is stored")
    # then both take effect, in order, once it is settled
    proxy.mode = "pass"
    await drained(entrance, delay)
    assert await ids(entrance, {"m1"})
    assert not await entrance.dead()


async def nothing_left(entrance: Entrance) -> bool:
    stats = await entrance.client.stats()
    return not stats.delayed + stats.in_flight + stats.parked


async def ids(entrance: Entrance, expected: set[str]) -> bool:
    return {message.id for message in await entrance.delayed()} == expected


# two processes


async def test_nothing_is_lost_or_doubled_if_one_of_two_processes_is_killed(
    make_entrance: MakeEntrance, rabbit: Exchanges, own_redis: RedisServer, namespace: str
) -> None:
    delay, count = f"{namespace}.delay", 1000
    entrance = make_entrance(redis=own_redis.url, prefetch=400)
    first = entrance.ingest("rabbitmq")
    second = entrance.ingest("rabbitmq")

    async def both() -> bool:
        ingests = (await entrance.client.stats()).ingests
        states = [source.state for ingest in ingests for source in ingest.sources]
        return states == ["reading", "reading"]

    await entrance.until(both, "both read")
    own_redis.pause()
    await rabbit.send(delay, messages(count))
    await entrance.until(lambda: entrance.ingest_of(first).intakes[0].held, "in hand")
    await entrance.until(lambda: entrance.ingest_of(second).intakes[0].held, "in hand")
    await entrance.kill(first)
    own_redis.resume()
    await stored(entrance, count)
    assert not await entrance.dead()


async def test_immediate_messages_for_a_blocked_broker_are_stored(
    make_entrance: MakeEntrance, rabbit: Exchanges, node: TlsNode, namespace: str
) -> None:
    """A memory alarm stops only publishers: messages without a delay wait in the store."""
    delay = f"{namespace}.delay"
    await rabbit.target(namespace)
    await stop_after_declaring(make_entrance(), delay)
    await rabbit.send(delay, [("k", b"%d" % i, pika.BasicProperties()) for i in range(100)])

    entrance = make_entrance()
    await asyncio.to_thread(node.ctl, "set_vm_memory_high_watermark", "0.00000001")
    try:
        entrance.ingest("rabbitmq")
        await entrance.until(lambda: at_least(entrance, 1), "some in the store")
    finally:
        await asyncio.to_thread(node.ctl, "set_vm_memory_high_watermark", "0.6")
    entrance.scan()
    taken = await rabbit.take(namespace, 100)
    assert {body for _, _, body in taken} == {b"%d" % i for i in range(100)}
