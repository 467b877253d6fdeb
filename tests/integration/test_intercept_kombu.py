"""kombu's drop-in over RabbitMQ: byte for byte what kombu would have sent."""

from __future__ import annotations

import json
import socket
import time
import uuid
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import kombu
import pytest
import vine
from kombu.serialization import registry

from delaybridge import Client, ConfigError, MessageConflict, MessageError, StoreUnavailable
from delaybridge.intercept import client_of_settings
from delaybridge.intercept.kombu import Producer
from tests.rigs.rabbitmq_site import Site
from tests.rigs.waiting import until
from tests.servers.process import LOOPBACK, free_port

HEADERS = {
    "text": "é€𐍈",
    "bytes": b"\x00\xff",
    "yes": True,
    "int32": -(2**31),
    "int64": 2**63 - 1,
    "double": 1.9,
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
    with kombu.Connection(site.url) as connection:
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


def soon() -> datetime:
    return datetime.now(UTC) + timedelta(seconds=0.5)


@pytest.mark.parametrize(
    ("headers", "arguments"),
    [
        pytest.param(None, lambda: {"delay": timedelta(milliseconds=300)}, id="timedelta"),
        pytest.param(None, lambda: {"deliver_at": soon()}, id="datetime"),
        pytest.param(None, lambda: {"deliver_at": soon().isoformat()}, id="RFC 3339"),
        pytest.param({"x-delay": 300.0}, dict, id="x-delay"),
        pytest.param({"delaybridge-delay": "300ms", "a": 1}, dict, id="delaybridge-delay"),
    ],
)
def test_every_way_to_give_a_time_delays_the_message(
    site: Site, producer: Producer, headers: dict[str, Any] | None, arguments: Any
) -> None:
    queue = site.queue()
    now_ms = time.time() * 1000
    receipt = producer.publish("x", queue, headers=headers, **arguments())
    assert now_ms + 290 < receipt.due_ms < now_ms + 3000
    arrived = site.take(queue)
    assert arrived.at_ms >= receipt.due_ms
    seen = {n: v for n, v in arrived.headers.items() if not n.startswith("delaybridge-")}
    assert seen == {n: v for n, v in (headers or {}).items() if n != "delaybridge-delay"}


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
    ("arguments", "code", "field"),
    [
        ({"delay": -1}, "negative_delay", "delay"),
        ({"delay": "soon"}, "bad_time", "delay"),
        ({"deliver_at": datetime(2030, 1, 1)}, "zone_required", "deliver_at"),
        ({"delay": 1, "deliver_at": "2030-01-01T00:00:00Z"}, "time_ambiguous", "delay"),
        ({"delay": 1, "headers": {"x-delay": 5}}, "time_ambiguous", "delay"),
        ({"headers": {"delaybridge-delay": 1.9}}, "not_integer_ms", "delaybridge-delay"),
        ({"delay": 1, "headers": {"a": float("nan")}}, "non_finite", "a"),
        ({"delay": 1, "headers": {"a": [{"b": float("inf")}]}}, "non_finite", "a"),
        ({"delay": 1, "expiration": -1}, "bad_expiration", "expiration"),
        ({"delay": 1, "message_id": "a\nb"}, "bad_id", "id"),
    ],
    ids=str,
)
def test_a_refused_message_is_neither_published_nor_stored(
    site: Site, producer: Producer, arguments: Any, code: str, field: str
) -> None:
    queue = site.queue()
    with pytest.raises(MessageError) as caught:
        producer.publish("x", queue, retry=True, **arguments)
    assert (caught.value.code, caught.value.field) == (code, field)
    site.check_nothing_left(queue)


def test_a_body_that_is_too_large_and_an_id_that_is_pending_are_refused(
    site: Site, producer: Producer
) -> None:
    queue = site.queue()
    with pytest.raises(MessageError, match="body_too_large"):
        producer.publish("x" * 300_000, queue, delay=1)
    producer.publish("x", queue, message_id=queue, delay="1h")
    with pytest.raises(MessageConflict):
        producer.publish("y", queue, message_id=queue, delay="1h")
    assert site.client.cancel(queue) == "cancelled"
    site.check_nothing_left(queue)


def test_without_redis_a_delayed_publish_raises_and_publishes_nothing(
    site: Site, connection: kombu.Connection
) -> None:
    queue = site.queue()
    with Client(f"redis://{LOOPBACK}:{free_port()}", timeout_s=0.2) as away:
        with pytest.raises(StoreUnavailable):
            Producer(connection, client=away).publish("x", queue, retry=True, delay=1)
    site.check_nothing_left(queue)


def test_a_broker_that_is_not_configured_is_a_config_error(
    site: Site, connection: kombu.Connection
) -> None:
    queue = site.queue()
    with Client(site.redis_url, brokers={"kafka": "kafka://h:1"}) as client:
        with pytest.raises(ConfigError, match="DELAYBRIDGE_BROKERS__RABBITMQ"):
            Producer(connection, client=client).publish("x", queue, delay=1)
    site.check_nothing_left(queue)


def test_without_a_client_one_is_made_from_the_settings(
    site: Site, connection: kombu.Connection
) -> None:
    queue = site.queue()
    client_of_settings.cache_clear()
    with site.settings():
        receipt = Producer(connection).publish("x", queue, delay=0)
        client_of_settings().close()
        client_of_settings.cache_clear()
    assert site.take(queue).headers["delaybridge-id"] == receipt.id


def test_a_message_that_no_queue_takes_is_in_the_dead_set(site: Site, connection: Any) -> None:
    returned: list[Any] = []
    producer = Producer(
        connection, client=site.client, on_return=lambda *answer: returned.append(answer)
    )
    receipt = producer.publish("x", "no-such-queue", mandatory=True, delay=0)
    until(
        lambda: (m := site.client.get(receipt.id)) is not None and m.state == "dead",
        "the dead set",
    )
    assert returned == []
    site.client.discard(receipt.id)


def test_the_code_in_the_guide_runs_unchanged(site: Site) -> None:
    site.queue("orders")
    assert site.run_recipe("kombu") == "rescheduled cancelled\n"
    first, second = site.take("orders"), site.take("orders")
    assert first.body == b'{"order": 16}'
    assert zlib.decompress(second.body) == b'{"order": 17}'
