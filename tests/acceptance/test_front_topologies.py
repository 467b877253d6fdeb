"""Topologies of libraries that do not run here, by their frames; the plugin's own cases."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker

from tests.rigs.bridge import rabbitmq_channel
from tests.rigs.front import Front, Place, place_of
from tests.rigs.ingest_rabbitmq import AsBytes
from tests.rigs.stall import Stall
from tests.rigs.waiting import DEADLINE_S, until

DELAYED = "x-delayed-message"
DELAY_MS = 200
DELAYS = [500, 100, 300, 200, 100, 400]  # of the plugin's own cases
APART_MS = 50  # of two that are 100 ms apart, the later one is not the first to come


@pytest.fixture(scope="module", params=["front", "plugin"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """The front; and to compare with it, a broker with the plugin, where one is given."""
    with place_of(request, request.param) as place:
        yield place


class Publish(NamedTuple):
    """How a message reaches queue NAME; seen: the exchange that its consumer is told.

    at_front: the one it is told there of a delayed message, if that is another.
    """

    exchange: str
    key: str
    seen: str
    headers: dict[str, Any] = {}
    delay: bytes = b"I" + struct.pack(">i", DELAY_MS)
    at_front: str | None = None


def declare(channel: BlockingChannel, name: str, kind: str, **given: Any) -> str:
    """A delayed exchange of this type."""
    arguments = {"x-delayed-type": kind}
    channel.exchange_declare(name, DELAYED, arguments=arguments, **{"durable": True, **given})
    return name


def mass_transit(channel: BlockingChannel, name: str) -> Publish:
    """An endpoint's exchange and queue; its delayed exchange is bound to the exchange."""
    channel.exchange_declare(name, "fanout", durable=True)
    channel.queue_bind(name, name)
    delayed = declare(channel, f"{name}_delay", "fanout")
    channel.exchange_bind(name, delayed)
    return Publish(delayed, "", delayed)


def easy_net_q(channel: BlockingChannel, name: str) -> Publish:
    channel.exchange_declare(name, "topic", durable=True)
    channel.queue_bind(name, name, "#")
    delayed = declare(channel, f"{name}_delayed", "direct")
    channel.exchange_bind(name, delayed, "orders.paid")
    return Publish(delayed, "orders.paid", delayed)


def enqueue_topic(channel: BlockingChannel, name: str) -> Publish:
    """Declared and bound before each message."""
    channel.exchange_declare(name, "fanout")
    channel.queue_bind(name, name)
    delayed = f"enqueue.{name}.delayed"
    for _ in range(2):
        declare(channel, delayed, "fanout", durable=False)
        channel.exchange_bind(name, delayed, "key")
    return Publish(delayed, "key", delayed)


def enqueue_queue(channel: BlockingChannel, name: str) -> Publish:
    delayed = f"enqueue.queue.{name}.delayed"
    for _ in range(2):
        declare(channel, delayed, "direct")
        channel.queue_bind(name, delayed, name)
    return Publish(delayed, name, delayed)


def brighter(channel: BlockingChannel, name: str) -> Publish:
    """The exchange itself is delayed, by a number of type double."""
    declare(channel, name, "direct")
    channel.queue_bind(name, name, "greeting")
    return Publish(name, "greeting", name, delay=b"d" + struct.pack(">d", DELAY_MS))


def jms(channel: BlockingChannel, name: str) -> Publish:
    """One delayed exchange for all destinations: a header tells which."""
    channel.exchange_declare(name, "direct", durable=True)
    channel.queue_bind(name, name, "to")
    delayed = declare(channel, f"{name}-jms", "headers")
    which = {"delayed-exchange": name}
    channel.exchange_bind(name, delayed, "to", which)
    return Publish(delayed, "to", delayed, which)


def two_in_a_row(channel: BlockingChannel, name: str) -> Publish:
    """Delayed once, not by each. The plugin tells the first also of what was delayed."""
    first, second = (declare(channel, f"{name}-{i}", "direct", durable=False) for i in (1, 2))
    channel.exchange_bind(second, first)
    channel.queue_bind(name, second, "")
    return Publish(first, "", first, at_front=second)


def dead_lettered(channel: BlockingChannel, name: str) -> Publish:
    """A retry: what a consumer's queue gives up comes back to it later."""
    delayed = declare(channel, f"{name}-later", "topic")
    channel.queue_bind(name, delayed, "#")
    given_up = f"{name}-failed"
    arguments = {"x-message-ttl": 0, "x-dead-letter-exchange": delayed}
    channel.queue_declare(given_up, durable=True, arguments=arguments)
    return Publish("", given_up, delayed)


def declared_twice_at_once(channel: BlockingChannel, name: str) -> Publish:
    """Frames that follow a declare without waiting for its answer."""
    arguments = {"x-delayed-type": "direct"}
    frames = pika.spec.Exchange.Declare(
        0, name, DELAYED, durable=True, nowait=True, arguments=arguments
    )
    channel._impl._send_method(frames)
    channel._impl._send_method(frames)
    channel._impl._send_method(pika.spec.Queue.Bind(0, name, name, "k", nowait=True))
    return Publish(name, "k", name)


TOPOLOGIES: list[Callable[[BlockingChannel, str], Publish]] = [
    *(mass_transit, easy_net_q, enqueue_topic, enqueue_queue, brighter, jms),
    *(two_in_a_row, dead_lettered, declared_twice_at_once),
]


@pytest.mark.slow_with("plugin*")
def test_each_topology_delays_once_and_tells_the_exchange_of_the_publish(
    place: Place, namespace: str
) -> None:
    sent: dict[str, tuple[Publish, float]] = {}
    with rabbitmq_channel(place.url) as channel:
        channel.confirm_delivery()
        for topology in TOPOLOGIES:
            name = f"{namespace}-{topology.__name__}"
            channel.queue_declare(name, durable=True)
            how = topology(channel, name)
            own = table({"own": "kept", **how.headers})
            sent[name] = how, time.time() * 1000
            later = own + delayed_by(how.delay)
            for body, headers in ((b"later", later), (b"later", later), (b"now", own)):
                # all have one id, which tells their program what it likes
                properties = AsBytes(headers, message_id="id")
                channel.basic_publish(how.exchange, how.key, body, properties)
        found = consume(channel, list(sent), 3 * len(sent))
    for name, (how, sent_ms) in sent.items():
        assert sorted(body for *_, body, _ in found[name]) == [b"later", b"later", b"now"], name
        told = how.at_front if place.is_front and how.at_front else how.seen
        for seen, headers, body, at_ms in found[name]:
            is_late = body == b"later"
            assert (seen, headers["own"]) == (told if is_late else how.seen, "kept"), name
            assert at_ms >= sent_ms + is_late * DELAY_MS, name


def table(headers: dict[str, str]) -> bytes:
    """Headers as bytes, without the length before them."""
    encoded: list[bytes] = []
    pika.data.encode_table(encoded, headers)
    return b"".join(encoded)[4:]


def delayed_by(value: bytes) -> bytes:
    """The header x-delay with this value, which begins with its type."""
    return b"\x07x-delay" + value


Came = tuple[str, dict[str, Any], bytes, float]


def consume(channel: BlockingChannel, queues: list[str], count: int) -> dict[str, list[Came]]:
    """This many messages in all: (exchange, headers, body, when) by queue."""
    found: dict[str, list[Came]] = {name: [] for name in queues}

    def take(queue: str) -> Callable[..., None]:
        def one(_: Any, method: Any, properties: Any, body: bytes) -> None:
            at_ms = time.time() * 1000
            found[queue].append((method.exchange, properties.headers or {}, body, at_ms))

        return one

    for queue in queues:
        channel.basic_consume(queue, take(queue), auto_ack=True)
    deadline = time.monotonic() + DEADLINE_S
    while sum(map(len, found.values())) < count and time.monotonic() < deadline:
        channel.connection.process_data_events(0.1)
    return found


# the cases of the plugin itself


@pytest.mark.slow_with("plugin*")
def test_the_cases_of_its_own_suite(place: Place, namespace: str, stall: Stall) -> None:
    with rabbitmq_channel(place.url) as channel:
        orders = [f"{namespace}-order", f"{namespace}-text", f"{namespace}-row"]
        for name in orders:
            channel.queue_declare(name)
            declare(channel, f"{name}-x", "direct", durable=False)
            channel.queue_bind(name, f"{name}-x", "")
        # two exchanges in a row
        declare(channel, f"{namespace}-first", "direct", durable=False)
        channel.exchange_bind(f"{orders[2]}-x", f"{namespace}-first", "")
        exchanges = [f"{orders[0]}-x", f"{orders[1]}-x", f"{namespace}-first"]
        for exchange in exchanges:
            for delay in [0, *DELAYS] if exchange == exchanges[2] else DELAYS:
                value: Any = str(delay) if exchange == exchanges[1] else delay
                described = pika.BasicProperties(headers={"x-delay": value}, delivery_mode=2)
                channel.basic_publish(exchange, "", str(delay).encode(), described)
        routes(channel, namespace)
        found = consume(channel, orders, 3 * len(DELAYS) + 1)
    for name, messages in found.items():
        came = [int(body) for _, _, body, _ in messages]
        expected = sorted([0, *DELAYS] if name == orders[2] else DELAYS)
        assert sorted(came) == expected, name
        for one, next in zip(came, came[1:], strict=False):
            assert one <= next + APART_MS + stall.worst_ms, (name, came)


def routes(channel: BlockingChannel, namespace: str) -> None:
    """What is not delayed is routed at once, as the exchange's real type does."""
    for kind, bindings, keys, count in (
        ("topic", ["a.b.c", "a.*.c", "a.#"], ["a.b.c", "a.z.c", "a.j.k", "b.b.c"], 3),
        ("direct", ["mykey"], ["mykey", "noroute", "mykey"], 2),
        ("fanout", ["mykey", "", "otherkey"], ["mykey", "noroute", "mykey"], 3),
    ):
        queue = channel.queue_declare("", exclusive=True).method.queue
        exchange = declare(channel, f"{namespace}-{kind}", kind)
        for key in bindings:
            channel.queue_bind(queue, exchange, key)
        with rabbitmq_channel_of(channel) as confirmed:
            for key in keys:
                described = pika.BasicProperties(headers={"x-delay": 0})
                confirmed.basic_publish(exchange, key, b"", described)
        until(lambda: waiting(channel, queue) >= count, f"{kind} routes")  # noqa: B023
        assert waiting(channel, queue) == count, kind
        channel.exchange_delete(exchange)


def waiting(channel: BlockingChannel, queue: str) -> int:
    return int(channel.queue_declare(queue, passive=True).method.message_count)


def rabbitmq_channel_of(channel: BlockingChannel) -> BlockingChannel:
    """Another channel of its connection, with confirms; closed by `with`."""
    other = channel.connection.channel()
    other.confirm_delivery()
    return other


@pytest.mark.slow_with("plugin*")
def test_a_delayed_exchange_of_no_type_and_one_of_itself_are_refused(
    place: Place, namespace: str
) -> None:
    for kind in ("x-no-such", DELAYED, "", None):
        arguments = {} if kind is None else {"x-delayed-type": kind}
        connection = pika.BlockingConnection(pika.URLParameters(place.url))
        with pytest.raises((ChannelClosedByBroker, ConnectionClosedByBroker)) as refused:
            connection.channel().exchange_declare(namespace, DELAYED, arguments=arguments)
        assert refused.value.reply_code in (406, 503), arguments
        if connection.is_open:
            connection.close()


# values, some of which the plugin does not read

ZERO, NEGATIVE = struct.pack(">i", 0), struct.pack(">i", -5)
VALUES: dict[str, tuple[bytes, Any]] = {  # on the wire; what the consumer is shown
    "signed byte": (b"b" + struct.pack(">b", 100), -100),
    "unsigned byte": (b"B" + struct.pack(">B", 200), -200),
    "short": (b"s" + struct.pack(">h", 300), -300),
    "unsigned short": (b"u" + struct.pack(">H", 300), -300),
    "int": (b"I" + struct.pack(">i", 300), -300),
    "unsigned int": (b"i" + struct.pack(">I", 300), -300),
    "long": (b"l" + struct.pack(">q", 300), -300),
    "float": (b"f" + struct.pack(">f", 300), -300.0),
    "double": (b"d" + struct.pack(">d", 300), -300.0),
    "text": (b"S\0\0\0\x03300", "-300"),
    "zero": (b"I" + ZERO, 0),
    "negative": (b"I" + NEGATIVE, -5),
    "true": (b"t\1", True),
}


@pytest.mark.parametrize("place", ["front"], indirect=True)
def test_every_type_of_number_delays_and_is_shown_negated(place: Front, namespace: str) -> None:
    with rabbitmq_channel(place.url) as channel:
        declare(channel, namespace, "fanout")
        channel.queue_declare(namespace)
        channel.queue_bind(namespace, namespace)
        channel.confirm_delivery()
        sent_ms = time.time() * 1000

        def send(id: str, value: bytes) -> None:
            properties = AsBytes(delayed_by(value), message_id=id)
            channel.basic_publish(namespace, "", id.encode(), properties)

        for name, (value, _) in VALUES.items():
            send(f"{namespace} {name}", value)
        send(f"{namespace} months", b"l" + struct.pack(">q", 2**33))
        send(f"{namespace} word", b"S\0\0\0\x03abc")
        found = consume(channel, [namespace], len(VALUES))[namespace]
    came = {body.decode().removeprefix(f"{namespace} "): one for *one, body, _ in found}
    assert {name: headers["x-delay"] for name, (_, headers) in came.items()} == {
        name: shown for name, (_, shown) in VALUES.items()
    }
    for _, headers, _, at_ms in found:
        shown = headers["x-delay"]
        assert at_ms >= sent_ms + max(0, -int(shown)) * (shown not in (True, -5))
    client = place.bridge.client
    # other tests' messages without a route are there, too
    far = f"{namespace} months"
    (due_ms,) = until(lambda: [m.due_ms for m in client.pending().items if m.id == far], far)
    assert due_ms >= sent_ms + 2**33
    until(
        lambda: [each for each in client.dead().items if "ingress:bad_time" in str(each.reason)],
        "the one that is no number is quarantined",
    )


@pytest.mark.parametrize("place", ["front"], indirect=True)
def test_a_message_is_found_and_cancelled_by_its_message_id(place: Front, namespace: str) -> None:
    client = place.bridge.client

    def is_pending() -> bool:
        return namespace in {message.id for message in client.pending().items}

    with rabbitmq_channel(place.url) as channel:
        declare(channel, namespace, "fanout")
        for header in ({"x-delay": 3_600_000}, {"delaybridge-cancel": True}):
            properties = pika.BasicProperties(headers=header, message_id=namespace)
            channel.basic_publish(namespace, "", b"", properties)
            wanted = "x-delay" in header
            until(lambda wanted=wanted: is_pending() is wanted, f"{header} is done")
