"""Each drop-in producer has a schedule span, whose context goes into the stored message."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import aio_pika
import kombu
import pika
import pytest
from celery import Celery

from delaybridge import AsyncClient, Client
from delaybridge.intercept.aio_pika import connect
from delaybridge.intercept.aiokafka import AIOKafkaProducer
from delaybridge.intercept.celery import install
from delaybridge.intercept.confluent_kafka import Producer as ConfluentProducer
from delaybridge.intercept.kombu import Producer as KombuProducer
from delaybridge.intercept.pika import BlockingConnection
from tests.rigs.traces import Traces, configured_sdk, linked, traceparent
from tests.rigs.waiting import DEADLINE_S

FOREIGN = f"00-{'a' * 32}-{'b' * 16}-01"
LATER = "1h"


@pytest.fixture
def traces() -> Iterator[Traces]:
    with configured_sdk() as traces:
        yield traces


class Site:
    """The addresses, and the client's arguments."""

    def __init__(self, redis_url: str, rabbitmq_url: str, kafka_url: str, namespace: str) -> None:
        brokers = {"rabbitmq": rabbitmq_url, "kafka": kafka_url}
        self.rabbitmq_url, self.servers = rabbitmq_url, kafka_url.removeprefix("kafka://")
        self.arguments: dict[str, Any] = {
            "redis_url": redis_url, "namespace": namespace, "brokers": brokers,
        }  # fmt: skip

    def client(self) -> Client:
        return Client(**self.arguments)


Headers = dict[str, str]


def by_pika(site: Site, client: Client, headers: Headers) -> None:
    with BlockingConnection(pika.URLParameters(site.rabbitmq_url), client=client) as connection:
        properties = pika.BasicProperties(headers=headers)
        connection.channel().basic_publish("amq.topic", "k", b"x", properties, delay=LATER)


def by_kombu(site: Site, client: Client, headers: Headers) -> None:
    with kombu.Connection(site.rabbitmq_url, connect_timeout=DEADLINE_S) as connection:
        producer = KombuProducer(connection, client=client)
        producer.publish("x", "k", exchange="amq.topic", headers=headers, delay=LATER)


def by_celery(site: Site, client: Client, headers: Headers) -> None:
    app = Celery("app", broker=site.rabbitmq_url)
    install(app, client=client)
    app.send_task("work", countdown=3600, headers=headers)
    app.close()


def by_confluent(site: Site, client: Client, headers: Headers) -> None:
    producer = ConfluentProducer({"bootstrap.servers": site.servers}, client=client)
    producer.produce("t", b"x", headers=headers, delay=LATER)
    assert producer.flush(DEADLINE_S) == 0


async def by_aio_pika(site: Site, client: AsyncClient, headers: Headers) -> None:
    async with await connect(site.rabbitmq_url, client=client) as connection:
        exchange = await (await connection.channel()).get_exchange("amq.topic")
        message = aio_pika.Message(b"x", headers=dict(headers))
        await exchange.publish(message, "k", delay=LATER)


async def by_aiokafka(site: Site, client: AsyncClient, headers: Headers) -> None:
    pairs = [(name, value.encode()) for name, value in headers.items()]
    async with AIOKafkaProducer(client=client, bootstrap_servers=site.servers) as producer:
        await producer.send_and_wait("t", b"x", headers=pairs, delay=LATER)


async def by_async(
    send: Callable[..., Coroutine[Any, Any, None]], site: Site, headers: Headers
) -> None:
    async with AsyncClient(**site.arguments) as client:
        await send(site, client, headers)


SENDERS = [by_pika, by_kombu, by_celery, by_confluent, by_aio_pika, by_aiokafka]


@pytest.mark.parametrize("send", SENDERS, ids=lambda send: send.__name__)
@pytest.mark.parametrize("headers", [{}, {"a": "b"}, {"traceparent": FOREIGN}], ids=str)
def test_one_context_is_stored(
    traces: Traces,
    redis_url: str,
    rabbitmq_url: str,
    real_kafka_url: str,
    namespace: str,
    send: Callable[..., Any],
    headers: Headers,
) -> None:
    site = Site(redis_url, rabbitmq_url, real_kafka_url, namespace)
    with site.client() as client:
        with traces.tracer.start_as_current_span("caller") as caller:
            if asyncio.iscoroutinefunction(send):
                asyncio.run(by_async(send, site, headers))
            else:
                send(site, client, headers)
        (stored,) = client.pending().items
    span = traces.one("schedule")
    assert span.parent == caller.get_span_context()
    found = [value for name, value in stored.headers if name == "traceparent"]
    texts = [value.decode() if isinstance(value, bytes) else value for value in found]
    if "traceparent" in headers:
        assert (texts, linked(span), span.kind.name) == ([FOREIGN], [FOREIGN], "CLIENT")
    else:
        assert (texts, linked(span), span.kind.name) == ([traceparent(span)], [], "PRODUCER")
    assert ("a" in headers) == ("a" in dict(stored.headers))


def test_a_task_that_is_sent_again_is_stored_again(
    traces: Traces, redis_url: str, rabbitmq_url: str, real_kafka_url: str, namespace: str
) -> None:
    # As without tracing: Celery sends it twice, and its copies have different ids.
    site = Site(redis_url, rabbitmq_url, real_kafka_url, namespace)
    with site.client() as client:
        app = Celery("app", broker=rabbitmq_url)
        install(app, client=client)
        for _ in range(2):
            app.send_task("work", countdown=3600, task_id="one")
        app.close()
        assert {message.id for message in client.pending().items} == {"one", "one.1"}
