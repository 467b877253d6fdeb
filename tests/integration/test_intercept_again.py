"""The drop-ins: an id that is published again while its message is being delivered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any

import aio_pika
import kombu
import pika
import pytest
import redis
from celery import Celery
from confluent_kafka import KafkaError
from pika.adapters.blocking_connection import BlockingChannel as PlainChannel

from delaybridge import AsyncClient, Client, MessageInFlight
from delaybridge.intercept import aio_pika as delaying_aio_pika
from delaybridge.intercept import kafka_outbox
from delaybridge.intercept.aiokafka import AIOKafkaProducer
from delaybridge.intercept.celery import install
from delaybridge.intercept.confluent_kafka import Producer as KafkaProducer
from delaybridge.intercept.kombu import Producer as KombuProducer
from delaybridge.intercept.pika import delaying
from delaybridge.store.messages.scheduling import Patience
from tests.rigs.bucket import Owner
from tests.rigs.delivering import Delivering, script_calls
from tests.rigs.kafka_site import Reports
from tests.rigs.waiting import DEADLINE_S, quiet, until, until_async

OwnerOf = Callable[[str], Owner]
Publish = Callable[[Any], Awaitable[Any]]  # called with a delay
ID = {"delaybridge-id": "x"}


class Servers:
    """Where a drop-in's client, and its library, go."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._request = request
        self.redis: dict[str, Any] = {
            "redis_url": request.getfixturevalue("redis_url"),
            "namespace": request.getfixturevalue("namespace"),
        }

    def url(self, kind: str) -> str:
        found: str = self._request.getfixturevalue(f"{kind}_url")
        return found


@pytest.fixture
def servers(request: pytest.FixtureRequest) -> Servers:
    return Servers(request)


@asynccontextmanager
async def with_pika(servers: Servers) -> AsyncIterator[Publish]:
    properties = pika.BasicProperties(message_id="x")
    with Client(**servers.redis) as client:
        channel = delaying(PlainChannel.__new__(PlainChannel), client=client)
        publish = partial(channel.basic_publish, "", "q", b"x", properties)
        yield lambda delay: asyncio.to_thread(publish, delay=delay)


@asynccontextmanager
async def with_kombu(servers: Servers) -> AsyncIterator[Publish]:
    with Client(**servers.redis) as client, kombu.Connection(servers.url("rabbitmq")) as connection:
        producer = KombuProducer(connection, client=client)
        publish = partial(producer.publish, b"x", routing_key="q", message_id="x")
        yield lambda delay: asyncio.to_thread(publish, delay=delay)


@asynccontextmanager
async def with_aio_pika(servers: Servers) -> AsyncIterator[Publish]:
    message = partial(aio_pika.Message, b"x", message_id="x")
    async with AsyncClient(**servers.redis) as client:
        connection = await delaying_aio_pika.connect(servers.url("rabbitmq"), client=client)
        async with connection:
            exchange: Any = (await connection.channel()).default_exchange
            yield lambda delay: exchange.publish(message(), "q", delay=delay)


@asynccontextmanager
async def with_aiokafka(servers: Servers) -> AsyncIterator[Publish]:
    at = servers.url("kafka").removeprefix("kafka://")
    headers = [(name, value.encode()) for name, value in ID.items()]
    async with (
        AsyncClient(**servers.redis) as client,
        AIOKafkaProducer(bootstrap_servers=at, client=client) as producer,
    ):
        yield lambda delay: producer.send_and_wait("t", b"x", headers=headers, delay=delay)


WAYS = [with_pika, with_kombu, with_aio_pika, with_aiokafka]


@pytest.mark.parametrize("way", WAYS)
async def test_a_publish_waits_for_the_old_delivery_and_after_the_time_out_it_raises(
    servers: Servers, owner_of: OwnerOf, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch,
    way: Callable[[Servers], AbstractAsyncContextManager[Publish]],
) -> None:  # fmt: skip
    async with way(servers) as publish:
        assert await publish(0) == "created"
        old = Delivering(owner_of("x"))
        assert await old.settle_once_asked(raw, publish(0)) == "created"
        Delivering(old.owner)
        monkeypatch.setattr(Patience, "pause_s", lambda patience: 0.0)
        with pytest.raises(MessageInFlight) as refused:
            await publish(0)
        assert (refused.value.code, refused.value.field) == ("in_flight", "id")


def test_a_task_whose_copy_is_being_delivered_is_sent_twice_at_once(
    servers: Servers, owner_of: OwnerOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Patience, "pause_s", lambda patience: pytest.fail("it waits"))
    with Client(**servers.redis) as client:
        app = Celery(broker=servers.url("rabbitmq"))
        install(app, client=client)
        app.send_task("t", countdown=1, task_id="x", queue="q")
        Delivering(owner_of("x"))
        app.send_task("t", countdown=3600, task_id="x", queue="q")
        assert client.get("x.1", key="x") is not None
        app.close()


@pytest.fixture
def kafka(redis_url: str, namespace: str) -> Any:
    """A producer of confluent_kafka whose broker does not matter."""
    client = Client(redis_url, namespace=namespace, buckets=1)
    with KafkaProducer({"bootstrap.servers": "127.0.0.1:1", "log_level": 0}, client=client) as made:
        yield made
    client.close()


async def test_on_delivery_waits_and_the_others_of_its_batch_are_stored_meanwhile(
    kafka: KafkaProducer, owner_of: OwnerOf, raw: redis.Redis
) -> None:
    reports, late = Reports(), Reports()
    produce = partial(kafka.produce, "t", b"x", headers=ID)
    produce(on_delivery=reports, delay=0)
    kafka.flush()
    old = Delivering(owner_of("x"))
    produce(on_delivery=late, delay="1h")
    for count in range(2, 5):  # one after the other: each goes with another call
        kafka.produce("t", b"x", on_delivery=reports, delay="1h")
        stored = partial(_are, kafka, reports, count)
        await until_async(stored, "it is stored")
    assert late.all == []
    await old.settle_once_asked(raw, asyncio.to_thread(kafka.flush))
    assert (late.codes, reports.codes) == ([None], [None] * 4)


def _are(kafka: KafkaProducer, reports: Reports, count: int) -> bool:
    kafka.poll(0)
    return len(reports.all) == count


async def test_many_that_wait_leave_room_for_others_and_their_ids_stay_in_order(
    kafka: KafkaProducer, owner_of: OwnerOf, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_outbox, "BATCH_MESSAGES", 4)
    reports, late = Reports(), Reports()
    ids = [{"delaybridge-id": f"x{n}"} for n in range(9)]
    for id in ids:
        kafka.produce("t", b"old", headers=id, delay=0)
    kafka.flush()
    old = Delivering(owner_of("x0"))
    for body in (b"new", b"later"):
        for id in ids:
            kafka.produce("t", body, headers=id, on_delivery=late, delay="1h")
    kafka.produce("t", b"x", on_delivery=reports, delay="1h")
    await until_async(partial(_are, kafka, reports, 1), "it is stored")
    assert (late.all, len(kafka)) == ([], 18)
    await old.settle_once_asked(raw, asyncio.to_thread(kafka.flush))
    assert late.codes.count(None) == 9
    stored = [message.value() for error, message in late.all if error is None]
    assert stored == [b"new"] * 9
    assert len(kafka) == 0


def test_new_ones_that_wait_do_not_put_off_an_older_one(
    kafka: KafkaProducer, owner_of: OwnerOf, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Patience, "pause_s", lambda patience: kafka_outbox.PAUSE_S)
    late, ids = Reports(), [{"delaybridge-id": f"x{n}"} for n in range(300)]
    for id in ids:
        kafka.produce("t", b"old", headers=id, delay=0)
    kafka.flush()
    old, others, before = Delivering(owner_of("x0")), iter(ids[1:]), script_calls(raw)
    kafka.produce("t", b"new", headers=ids[0], on_delivery=late, delay="1h")
    until(lambda: script_calls(raw) > before, "it was tried")
    old.owner.settle(*(copy for copy in old._copies if copy.id == "x0"))

    def is_stored() -> bool:
        kafka.produce("t", b"new", headers=next(others), delay="1h")
        kafka.poll(0)
        return bool(late.all)

    until(is_stored, interval_s=0.01)
    assert late.codes == [None]
    old.owner.settle(*(copy for copy in old._copies if copy.id != "x0"))


def test_after_a_purge_of_what_waits_the_next_is_stored(
    kafka: KafkaProducer, owner_of: OwnerOf, raw: redis.Redis
) -> None:
    reports, late = Reports(), Reports()
    kafka.produce("t", b"x", headers=ID, on_delivery=reports, delay=0)
    kafka.flush()
    Delivering(owner_of("x"))
    before = script_calls(raw)
    kafka.produce("t", b"x", headers=ID, on_delivery=late, delay=0)
    until(lambda: script_calls(raw) >= before + 3, "it waits")

    def is_purged() -> bool:  # it may be in flight now and then
        kafka.purge(in_flight=False)
        kafka.poll(0)
        return bool(late.all)

    until(is_purged)
    assert late.codes == [KafkaError._PURGE_QUEUE]
    quiet(0.2)  # longer than any pause
    kafka.produce("t", b"x", on_delivery=reports, delay="1h")
    assert kafka.flush(DEADLINE_S) == 0
    assert reports.codes == [None, None]


def test_on_delivery_gets_an_error_after_the_time_out(
    kafka: KafkaProducer, owner_of: OwnerOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = Reports()
    produce = partial(kafka.produce, "t", b"x", headers=ID, on_delivery=reports)
    produce(delay=0)
    kafka.flush()
    old = Delivering(owner_of("x"))
    monkeypatch.setattr(Patience, "pause_s", lambda patience: 0.0)
    produce(delay=0)
    kafka.flush()
    assert reports.codes == [None, KafkaError._IN_PROGRESS]
    assert reports.all[1][0].retriable()
    old.settle()
    produce(delay=0)
    kafka.flush()
    assert reports.codes[2:] == [None]
