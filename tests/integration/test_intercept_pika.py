"""pika's drop-in: plain publishes, delayed messages, refusals."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel as PlainChannel
from pika.compat import long

from delaybridge import Client, MessageConflict, MessageError, StoreUnavailable
from delaybridge.intercept.pika import BlockingChannel, BlockingConnection, delaying
from tests.rigs.rabbitmq_site import REFUSED, WAYS, Site
from tests.rigs.waiting import until
from tests.servers.process import LOOPBACK, free_port
from tests.servers.redis import ON_EVERY_REDIS

PUBLISHED = [
    pytest.param("text", {}, id="nothing but a body"),
    pytest.param(b"\x00\xff", {"headers": {}}, id="empty headers"),
    pytest.param(
        b"",
        {
            "headers": {
                "text": "é€𐍈",
                "bytes": b"\x00\xff",
                "yes": True,
                "int32": -(2**31),
                "int64": 2**63 - 1,
                "long": long(5),
                "none": None,
                "naive": datetime(2030, 1, 2, 3, 4, 5),
                "decimal": Decimal("-1.50"),
                "large": Decimal("1E+3"),
                "list": [1, "a", [None, [[[long(2)]]]]],
                "dict": {"a": {"b": {"c": {"d": {"e": {"f": 1}}}}}},
            }
        },
        id="headers of every type",
    ),
    pytest.param(
        b"{}",
        {
            "content_type": "application/json",
            "content_encoding": "",
            "priority": 0,
            "correlation_id": b"\xff\x00 no text",
            "reply_to": "back",
            "expiration": "60000",
            "message_id": b"caf\xc3\xa9",
            "timestamp": 1_700_000_000,
            "type": "order",
            "user_id": "guest",
            "app_id": "shop",
            "cluster_id": "c",
        },
        id="every property",
    ),
]
NOT_DELAYED = [
    pytest.param(b"x", {"headers": {"x-delay": delay}}, id=f"x-delay: {delay}")
    for delay in (0, -5, None, False)
]


@pytest.fixture
def site(rabbitmq_site: Site) -> Site:
    return rabbitmq_site


@pytest.fixture
def channel(site: Site) -> Iterator[BlockingChannel]:
    with BlockingConnection(pika.URLParameters(site.url), client=site.client) as connection:
        yield connection.channel()


@pytest.fixture
def plain(site: Site) -> Iterator[PlainChannel]:
    with pika.BlockingConnection(pika.URLParameters(site.url)) as connection:
        yield connection.channel()


@pytest.mark.parametrize(("body", "properties"), [*PUBLISHED, *NOT_DELAYED])
def test_a_message_without_a_delay_is_published_by_pika_itself(
    site: Site, channel: BlockingChannel, plain: PlainChannel, body: Any, properties: Any
) -> None:
    queue = site.queue()
    for sender in (plain, channel):
        sent = sender.basic_publish("", queue, body, pika.BasicProperties(**properties))
        assert sent is None
    assert site.take(queue).bytes == site.take(queue).bytes


@pytest.mark.parametrize(("body", "properties"), PUBLISHED)
def test_a_delayed_message_arrives_as_pika_would_have_sent_it(
    site: Site, channel: BlockingChannel, plain: PlainChannel, body: Any, properties: Any
) -> None:
    queue = site.queue()
    made = pika.BasicProperties(delivery_mode=1, **properties)
    before = dict(vars(made))
    plain.basic_publish("", queue, body, made)
    receipt = channel.basic_publish("", queue, body, made, delay="300ms")
    assert receipt == "created"
    assert vars(made) == before
    site.check_same(site.take(queue), site.take(queue), receipt.id, receipt.due_ms)


def test_a_message_without_a_delivery_mode_is_persistent(
    site: Site, channel: BlockingChannel
) -> None:
    queue = site.queue()
    channel.basic_publish("", queue, b"x", delay=0)
    assert site.take(queue).properties == {"delivery_mode": 2}


@pytest.mark.parametrize("name", ["a/b%2F c", "é"])
def test_any_exchange_name_and_routing_key_are_kept(
    site: Site, channel: BlockingChannel, name: str
) -> None:
    queue = site.queue()
    exchange = site.exchange(f"{queue}/{name}", queue)
    channel.basic_publish(exchange, "a.b/c:d", b"x", delay=0.05)
    arrived = site.take(queue)
    assert (arrived.exchange, arrived.routing_key) == (exchange, "a.b/c:d")


@pytest.mark.parametrize(
    ("headers", "arguments"),
    [*WAYS, pytest.param({"x-delay": "300", "a": 1}, dict, id="x-delay as text")],
)
def test_every_way_to_give_a_time_delays_the_message(
    site: Site, channel: BlockingChannel, headers: dict[str, Any], arguments: Any
) -> None:
    queue, sent_ms = site.queue(), time.time() * 1000
    properties = pika.BasicProperties(headers=headers)
    receipt = channel.basic_publish("", queue, b"x", properties, **arguments())
    site.check_way(queue, headers, receipt, sent_ms)


@ON_EVERY_REDIS
def test_a_delayed_message_is_rescheduled_by_the_id_of_its_receipt(
    site: Site, channel: BlockingChannel
) -> None:
    queue = site.queue()
    receipt = channel.basic_publish("", queue, b"x", delay="1h")
    assert receipt is not None
    assert site.client.reschedule(receipt.id, delay=0) == "rescheduled"
    assert site.take(queue).headers["delaybridge-id"] == receipt.id


@pytest.mark.parametrize(
    ("properties", "arguments", "code", "field"),
    [
        *REFUSED,
        ({}, {"delay": timedelta(days=36500)}, "too_far", "delay"),
        ({}, {"deliver_at": 1_700_000_000}, "looks_like_seconds", "deliver_at"),
        ({"headers": {"x-delay": "abc"}}, {}, "bad_time", "x-delay"),
        ({"headers": {"delaybridge-delay": Decimal("1.9")}}, {},
         "not_integer_ms", "delaybridge-delay"),
        ({"headers": {"x-delay": 5, "delaybridge-delay": "5s"}}, {},
         "time_ambiguous", "delaybridge-delay"),
        ({"headers": {"x-delay": 5, "delaybridge-dealy": "5s"}}, {},
         "reserved_header", "delaybridge-dealy"),
        ({"headers": {"delaybridge-id": 5}}, {"delay": 1}, "bad_id", "delaybridge-id"),
        ({"headers": {"": 5}}, {"delay": 1}, "bad_header", "headers"),
        ({"message_id": b"\xff"}, {"delay": 1}, "bad_id", "message_id"),
        ({"expiration": "1s"}, {"delay": 1}, "bad_expiration", "expiration"),
        ({"delivery_mode": 3}, {"delay": 1}, "bad_property", "delivery_mode"),
        ({"timestamp": 2**63}, {"delay": 1}, "bad_property", "timestamp"),
        ({"reply_to": "amq.rabbitmq.reply-to"}, {"delay": 1}, "bad_property", "reply_to"),
    ],
    ids=str,
)  # fmt: skip
def test_a_refused_message_is_neither_published_nor_stored(
    site: Site, channel: BlockingChannel, properties: Any, arguments: Any, code: str, field: str
) -> None:
    queue = site.queue()
    with pytest.raises(MessageError) as caught:
        channel.basic_publish("", queue, b"x", pika.BasicProperties(**properties), **arguments)
    assert (caught.value.code, caught.value.field) == (code, field)
    site.check_nothing_left(queue)


def test_pika_s_own_error_is_raised_for_a_value_it_cannot_encode(
    site: Site, channel: BlockingChannel
) -> None:
    queue = site.queue()
    properties = pika.BasicProperties(headers={"a": 1.5})
    with pytest.raises(pika.exceptions.UnsupportedAMQPFieldException):
        channel.basic_publish("", queue, b"x", properties, delay=1)
    site.check_nothing_left(queue)


def test_an_id_that_is_pending_with_other_content_is_a_conflict(
    site: Site, channel: BlockingChannel
) -> None:
    queue = site.queue()
    properties = pika.BasicProperties(message_id=queue)
    assert channel.basic_publish("", queue, b"x", properties, delay="1h") == "created"
    at = site.client.get(queue)
    assert at is not None
    with pytest.raises(MessageConflict):
        channel.basic_publish("", queue, b"y", properties, delay="1h")
    assert site.client.cancel(queue) == "cancelled"
    site.check_nothing_left(queue)


def test_without_redis_a_delayed_publish_raises_and_publishes_nothing(site: Site) -> None:
    queue = site.queue()
    away = Client(f"redis://{LOOPBACK}:{free_port()}", timeout_s=0.2)
    with BlockingConnection(pika.URLParameters(site.url), client=away) as connection:
        with pytest.raises(StoreUnavailable):
            connection.channel().basic_publish("", queue, b"x", delay=1)
    away.close()
    site.check_nothing_left(queue)


def test_broker_chooses_one_of_several_brokers(site: Site, plain: PlainChannel) -> None:
    brokers = {"eu": "amqp://h", "us": "amqp://h"}
    with Client(site.redis_url, namespace=site.namespace, brokers=brokers) as client:
        receipt = delaying(plain, client=client, broker="us").basic_publish("", "q", b"", delay=60)
        stored = client.get(receipt.id)
        assert stored is not None and stored.destination == "us:/q"
        assert client.cancel(receipt.id) == "cancelled"


def test_a_message_that_no_queue_takes_is_in_the_dead_set(
    site: Site, channel: BlockingChannel
) -> None:
    returned: list[Any] = []
    channel.add_on_return_callback(lambda *answer: returned.append(answer))
    receipt = channel.basic_publish("", "no-such-queue", b"x", mandatory=True, delay=0)
    assert receipt is not None
    until(
        lambda: (m := site.client.get(receipt.id)) is not None and m.state == "dead", "the dead set"
    )
    channel.connection.process_data_events(0)
    assert returned == []
    stored = site.client.get(receipt.id)
    assert stored is not None and stored.reason is not None and "unroutable" in stored.reason
    site.client.dead.discard(receipt.id)


def test_without_a_client_one_is_made_from_the_settings(site: Site) -> None:
    queue = site.queue()
    with site.settings(), BlockingConnection(pika.URLParameters(site.url)) as connection:
        receipt = connection.channel().basic_publish("", queue, b"x", delay=0)
    assert receipt is not None
    assert site.take(queue).headers["delaybridge-id"] == receipt.id


def test_the_code_in_the_guide_runs_unchanged(site: Site) -> None:
    orders = site.queue()
    assert site.run_recipe("pika", orders) == "cancelled\n"
    assert [site.take(orders).body for _ in range(2)] == [b"now", b"in a moment"]


class TestDelaying:
    def test_delaying_returns_the_same_channel_object(
        self, site: Site, plain: PlainChannel
    ) -> None:
        channel = delaying(plain, client=site.client)
        assert channel is plain
        assert type(channel) is BlockingChannel

    def test_a_consumer_s_callback_may_delay(self, site: Site, channel: BlockingChannel) -> None:
        queue, answers = site.queue(), site.queue()

        def answer(channel: BlockingChannel, method: Any, properties: Any, body: bytes) -> None:
            channel.basic_publish("", answers, body, properties, delay="50ms")
            channel.stop_consuming()

        channel.basic_publish("", queue, b"ping", pika.BasicProperties(headers={"a": 1}))
        channel.basic_consume(queue, answer, auto_ack=True)
        channel.start_consuming()
        assert site.take(answers).body == b"ping"

    def test_a_channel_of_a_connection_with_callbacks_delays(self, site: Site) -> None:
        queue = site.queue()
        receipts: list[Any] = []

        def publish(channel: Any) -> None:
            channel = delaying(channel, client=site.client)
            assert isinstance(channel, pika.channel.Channel)
            receipts.append(channel.basic_publish("", queue, b"now"))
            receipts.append(channel.basic_publish("", queue, b"later", delay="50ms"))
            channel.connection.close()

        connection = pika.SelectConnection(
            pika.URLParameters(site.url),
            on_open_callback=lambda opened: opened.channel(on_open_callback=publish),
            on_close_callback=lambda closed, reason: closed.ioloop.stop(),
        )
        connection.ioloop.start()
        connection.ioloop.close()
        now, later = receipts
        assert (now, later) == (None, "created")
        assert [site.take(queue).body for _ in receipts] == [b"now", b"later"]
