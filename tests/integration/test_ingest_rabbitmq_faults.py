"""Faults of delay exchanges and their broker: nothing is lost, and reading resumes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pika
import pytest

from tests.rigs.broker_rabbitmq import TlsNode, breakable_node
from tests.rigs.fault_proxy import FaultProxy
from tests.rigs.ingest import Entrance, MakeEntrance
from tests.rigs.ingest_rabbitmq import (
    HOUR_MS,
    Exchanges,
    described,
    drained,
    handed_over,
    messages,
    reading,
    source,
)
from tests.servers.process import free_port
from tests.servers.rabbitmq import rabbitmq_url_of
from tests.servers.redis import RedisServer

HOUR, NOW = described(HOUR_MS), described(0)


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
        await entrance.until_stored(count)
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
    await entrance.until_stored(10)
    connection = entrance.ingest_of(task).connection
    channel = entrance.ingest_of(task).intakes[0].channel
    connection.ack(channel.number, 2**40, multiple=False)
    await entrance.until(channel.ended.done, "closed")
    await rabbit.send(delay, messages(10, 10))
    await entrance.until_stored(20)
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
    await entrance.until_stored(1)
    channel.basic_nack(method.delivery_tag, requeue=True)
    await entrance.until_stored(2)
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
    await entrance.until_stored(count)
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
        await entrance.until_stored(rounds * count)
        await drained(entrance, delay)
        await entrance.until_stored(rounds * count)


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
    await entrance.until_stored(300)


# messages in flight


async def test_a_retry_and_a_cancel_wait_for_the_delivery_in_flight_and_stop_nothing(
    make_entrance: MakeEntrance, rabbit: Exchanges, proxy: FaultProxy, namespace: str
) -> None:
    entrance, task, _, _ = await in_flight(make_entrance, rabbit, proxy, namespace)
    delay = f"{namespace}.delay"
    # when its consumer sends it again, then cancels it, and others continue
    cancel = pika.BasicProperties(headers={"delaybridge-cancel": True}, message_id="m0")
    (again, other) = messages(2)
    await rabbit.send(delay, [again, ("k", b"", cancel), other])
    intake = entrance.ingest_of(task).intakes[0]
    await entrance.until(lambda: len(intake.waiting) == 2, "both wait")
    await entrance.until(lambda: ids(entrance, {"m1"}), "the other is stored")
    # then both take effect, in order, once it is settled
    proxy.mode = "pass"
    await entrance.until(lambda: not intake.held, "both are settled")
    assert await ids(entrance, {"m1"})
    assert not await entrance.dead()


async def test_a_cancel_that_waits_cancels_the_message_before_it_whatever_becomes_of_that_in_flight(
    make_entrance: MakeEntrance,
    rabbit: Exchanges,
    proxy: FaultProxy,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entrance, task, workers, worker = await in_flight(make_entrance, rabbit, proxy, namespace)
    intake = entrance.ingest_of(task).intakes[0]
    store = intake._store.store
    parked: list[bool] = []

    async def with_a_break(entries: list[Any]) -> Any:
        """Between the answers of the message and of its cancel, the first delivery is parked."""
        if len(entries) != 2 or parked:
            return await store(entries)
        answers = await store(entries[:1])
        await entrance.client.destinations.pause(f"rabbitmq:{namespace}")
        await workers.kill(worker)
        make_entrance().scan()
        await entrance.until(lambda: is_parked(entrance), "the first delivery is parked")
        parked.append(True)
        return [*answers, *await store(entries[1:])]

    monkeypatch.setattr(intake._store, "store", with_a_break)
    again = described(HOUR_MS, message_id="m0")
    cancel = pika.BasicProperties(headers={"delaybridge-cancel": True}, message_id="m0")
    await rabbit.send(f"{namespace}.delay", [("k", b"again", again), ("k", b"", cancel)])
    await entrance.until(lambda: parked and not intake.held, "both are settled")
    assert await nothing_left(entrance)
    assert not await entrance.dead()


async def in_flight(
    make_entrance: MakeEntrance, rabbit: Exchanges, proxy: FaultProxy, namespace: str
) -> tuple[Entrance, asyncio.Task[None], Entrance, asyncio.Task[None]]:
    """An entrance and its ingest process; a worker and its entrance, with a message m0 that was
    delivered and whose confirm has not arrived."""
    delay = f"{namespace}.delay"
    await rabbit.target(namespace)
    entrance = make_entrance()
    task = entrance.ingest("rabbitmq")
    await reading(entrance, delay)
    workers = make_entrance(url=rabbitmq_url_of(proxy.port))
    worker = workers.scan()
    await rabbit.send(delay, [("k", b"warm", pika.BasicProperties(headers={"x-delay": 1}))])
    await rabbit.take(namespace, 1)
    await entrance.until(lambda: nothing_left(entrance), "its confirm has come")
    proxy.mode = "hold_down"
    soon = pika.BasicProperties(headers={"x-delay": 1}, message_id="m0")
    await rabbit.send(delay, [("k", b"first", soon)])
    await rabbit.take(namespace, 1)
    return entrance, task, workers, worker


async def is_parked(entrance: Entrance) -> bool:
    return (await entrance.client.stats()).parked == 1


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
    await entrance.until_stored(count)
    assert not await entrance.dead()


async def test_immediate_messages_for_a_blocked_broker_are_stored(
    make_entrance: MakeEntrance, rabbit: Exchanges, node: TlsNode, namespace: str
) -> None:
    """A memory alarm stops only publishers: messages without a delay wait in the store."""
    delay = f"{namespace}.delay"
    await rabbit.target(namespace)
    await stop_after_declaring(make_entrance(), delay)
    await rabbit.send(delay, [("k", b"%d" % i, NOW) for i in range(100)])

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
