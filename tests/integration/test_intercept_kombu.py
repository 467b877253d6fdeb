"""kombu's drop-in over RabbitMQ: byte for byte what kombu would have sent."""

from __future__ import annotations

import json
import socket
import time
import uuid
import zlib
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from typing import Any

import kombu
import pytest
import vine
from kombu.serialization import registry

from delaybridge import Client, MessageError, StoreUnavailable
from delaybridge.intercept.kombu import Producer
from tests.rigs.rabbitmq_site import NUMBERS_REFUSED, REFUSED, WAYS, Site
from tests.rigs.waiting import DEADLINE_S
from tests.servers.process import LOOPBACK, free_port

HEADERS = {
    "text": "é€𐍈",
    "bytes": b"\x00\xff",
    "yes": True,
    "int32": -(2**31),
    "int64": 2**63 - 1,
    "double": 1.9,
    "tiny": 5e-324,
    "x-death": [{"count": 1, "queue": "q"}],
    "none": None,
    "naive": datetime(2030, 1, 2, 3, 4, 5),
    "decimal": Decimal("-1.50"),
    "list": [1, "a", [None, [[[2.5]]]]],
    "tuple": (1, 2),
    "dict": {"a": {"b": {"c": {"d": {"e": {"f": 1}}}}}},
}
PROPERTIES = {
    "priority": 7,
    "delivery_mode": "transient",
    "expiration": 60.5,
    "correlation_id": "c",
    "reply_to": "back",
    "message_id": "é-1",
    "timestamp": 1_700_000_000,
    "type": "order",
    "user_id": "guest",
    "app_id": "shop",
    "cluster_id": "x",
    "no_such_property": 1,
}
registry.register("utf-16", json.dumps, json.loads, "application/json", "utf-16")
LATIN = {"content_type": "text/plain", "content_encoding": "latin-1"}
PUBLISHED = [
    pytest.param({"a": [1, "é"]}, {}, id="json"),
    pytest.param({"a": b"\xff"}, {"serializer": "pickle"}, id="pickle"),
    pytest.param({"a": 1}, {"serializer": "yaml"}, id="yaml"),
    pytest.param({"a": 1}, {"serializer": "utf-16"}, id="a serializer of another encoding"),
    pytest.param("x" * 1000, {"compression": "zlib"}, id="compressed"),
    pytest.param("é", LATIN, id="a content type of one's own"),
    pytest.param(b"\x00\xff", {"content_type": "image/png"}, id="bytes"),
    pytest.param("", {"headers": HEADERS}, id="headers of every type"),
    pytest.param(None, PROPERTIES, id="every property"),
]


@pytest.fixture
def site(rabbitmq_site: Site) -> Site:
    return rabbitmq_site


@pytest.fixture
def connection(site: Site) -> Iterator[kombu.Connection]:
    with kombu.Connection(site.url, connect_timeout=DEADLINE_S) as connection:
        yield connection


@pytest.fixture
def producer(site: Site, connection: kombu.Connection) -> Producer:
    return Producer(connection, client=site.client)


@pytest.mark.parametrize(("body", "arguments"), PUBLISHED)
def test_a_message_without_a_delay_is_published_by_kombu_itself(
    site: Site, connection: kombu.Connection, producer: Producer, body: Any, arguments: Any
) -> None:
    queue = site.queue()
    for sender in (kombu.Producer(connection), producer):
        assert isinstance(sender.publish(body, queue, **arguments), vine.promise)
    assert site.take(queue).bytes == site.take(queue).bytes


@pytest.mark.parametrize(("body", "arguments"), PUBLISHED)
def test_a_delayed_message_arrives_as_kombu_would_have_sent_it(
    site: Site, connection: kombu.Connection, producer: Producer, body: Any, arguments: Any
) -> None:
    queue = site.queue()
    kombu.Producer(connection).publish(body, queue, **arguments)
    receipt = producer.publish(body, queue, **arguments, delay="300ms")
    assert receipt == "created"
    site.check_same(site.take(queue), site.take(queue), receipt.id, receipt.due_ms)


def test_the_producer_s_defaults_apply_to_delayed_messages(
    site: Site, connection: kombu.Connection
) -> None:
    queue = site.queue()
    exchange = kombu.Exchange(f"{queue}/x", "topic", delivery_mode=1)
    site.exchange(exchange.name, queue)
    arguments: dict[str, Any] = {
        "exchange": exchange,
        "routing_key": "a.b",
        "serializer": "yaml",
        "compression": "bzip2",
    }
    plain = kombu.Producer(connection, **arguments)
    delaying = Producer(connection, **arguments, client=site.client)
    plain.publish({"a": 1})
    receipt = delaying.publish({"a": 1}, delay=0.1)
    direct = site.take(queue)
    assert (direct.exchange, direct.routing_key) == (exchange.name, "a.b")
    site.check_same(direct, site.take(queue), receipt.id, receipt.due_ms)


def test_positional_arguments_have_kombu_s_order(site: Site, connection: kombu.Connection) -> None:
    queue = site.queue()
    arguments = (queue, 1, False, False, 3, None, None, "yaml", {"a": 1}, "zlib")
    kombu.Producer(connection).publish([1], *arguments)
    receipt = Producer(connection, None, None, client=site.client).publish(
        [1], *arguments, delay=0.1
    )
    site.check_same(site.take(queue), site.take(queue), receipt.id, receipt.due_ms)


def test_declarations_are_made_when_the_message_is_stored(site: Site, producer: Producer) -> None:
    name = f"q-{uuid.uuid4().hex}"
    exchange = kombu.Exchange(name, "direct")
    queue = kombu.Queue(name, exchange, "key")
    receipt = producer.publish(
        "x", "key", exchange=exchange, declare=[queue], retry=True, delay="1h"
    )
    kombu.Producer(producer.channel).publish("now", "key", exchange=name)
    assert site.take(name).body == b"now"
    assert site.client.cancel(receipt.id) == "cancelled"


def test_a_message_stays_delayed_when_kombu_tries_again(site: Site, producer: Producer) -> None:
    name = f"q-{uuid.uuid4().hex}"
    connection: Any = producer.connection
    producer.channel.connection.transport.sock.shutdown(socket.SHUT_RDWR)
    lost: list[Any] = []
    policy = {"max_retries": 5, "interval_start": 0, "errback": lambda exc, _: lost.append(exc)}
    receipt = producer.publish(
        "x",
        name,
        declare=[kombu.Queue(name, channel=connection)],
        retry=True,
        retry_policy=policy,
        delay="1h",
    )
    assert lost
    assert receipt == "created"
    assert site.client.cancel(receipt.id) == "cancelled"
    site.check_nothing_left(name)


@pytest.mark.parametrize(
    ("headers", "arguments"), [*WAYS, pytest.param({"x-delay": 300.0}, dict, id="a double")]
)
def test_every_way_to_give_a_time_delays_the_message(
    site: Site, producer: Producer, headers: dict[str, Any], arguments: Any
) -> None:
    queue, sent_ms = site.queue(), time.time() * 1000
    receipt = producer.publish("x", queue, headers=headers, **arguments())
    site.check_way(queue, headers, receipt, sent_ms)


@pytest.mark.parametrize("by", ["message_id", "receipt"])
def test_a_delayed_message_is_cancelled_and_rescheduled_by_its_id(
    site: Site, producer: Producer, by: str
) -> None:
    queue = site.queue()
    own = {"message_id": f"m-{queue}"} if by == "message_id" else {}
    receipt = producer.publish("x", queue, **own, delay="1h")
    assert receipt.id == own.get("message_id", receipt.id)
    assert site.client.reschedule(receipt.id, delay=0) == "rescheduled"
    assert site.take(queue).headers["delaybridge-id"] == receipt.id
    site.await_settled(receipt.id)
    again = producer.publish("x", queue, **own, delay="1h")
    assert site.client.cancel(again.id) == "cancelled"
    site.check_nothing_left(queue)


@pytest.mark.parametrize(
    ("properties", "arguments", "code", "field"), [*REFUSED, *NUMBERS_REFUSED], ids=str
)
def test_a_refused_message_is_neither_published_nor_stored(
    site: Site, producer: Producer, properties: Any, arguments: Any, code: str, field: str
) -> None:
    queue = site.queue()
    with pytest.raises(MessageError) as caught:
        producer.publish("x", queue, retry=True, **properties, **arguments)
    assert (caught.value.code, caught.value.field) == (code, field)
    site.check_nothing_left(queue)


def test_without_redis_a_delayed_publish_raises_and_publishes_nothing(
    site: Site, connection: kombu.Connection
) -> None:
    queue = site.queue()
    with Client(f"redis://{LOOPBACK}:{free_port()}", timeout_s=0.2) as away:
        with pytest.raises(StoreUnavailable):
            Producer(connection, client=away).publish("x", queue, retry=True, delay=1)
    site.check_nothing_left(queue)


def test_without_a_client_one_is_made_from_the_settings(
    site: Site, connection: kombu.Connection
) -> None:
    queue = site.queue()
    with site.settings():
        receipt = Producer(connection).publish("x", queue, delay=0)
    assert site.take(queue).headers["delaybridge-id"] == receipt.id


def test_the_code_in_the_guide_runs_unchanged(site: Site) -> None:
    orders = site.queue()
    assert site.run_recipe("kombu", orders) == "rescheduled cancelled\n"
    first, second = site.take(orders), site.take(orders)
    assert first.body == b'{"order": 16}'
    assert zlib.decompress(second.body) == b'{"order": 17}'
