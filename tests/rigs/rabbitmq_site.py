"""A RabbitMQ, a worker and a consumer that sees the bytes: for tests of drop-in producers."""

from __future__ import annotations

import struct
import time
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pika
import pytest

from delaybridge.amqp import decoding as amqp_table
from delaybridge.amqp.decoding import decode_properties, decode_table, split_content_header
from delaybridge.message import ContentHeader
from tests.rigs.bridge import rabbitmq_channel
from tests.rigs.site import ProducerSite
from tests.rigs.waiting import DEADLINE_S


def _soon() -> datetime:
    return datetime.now(UTC) + timedelta(seconds=0.5)


# Headers and arguments that delay a message by 0.3 to 0.5 s.
WAYS = [
    pytest.param({}, lambda: {"delay": timedelta(milliseconds=300)}, id="timedelta"),
    pytest.param({}, lambda: {"delay": 0.3}, id="seconds"),
    pytest.param({}, lambda: {"deliver_at": _soon()}, id="datetime"),
    pytest.param({}, lambda: {"deliver_at": _soon().isoformat()}, id="RFC 3339"),
    pytest.param({"x-delay": 300}, dict, id="x-delay"),
    pytest.param({"delaybridge-delay": "300ms", "a": 1}, dict, id="delaybridge-delay"),
]
# Properties and arguments that are refused; the error's code and field.
REFUSED: list[tuple[Any, ...]] = [
    ({}, {"delay": -1}, "negative_delay", "delay"),
    ({}, {"delay": "soon"}, "bad_time", "delay"),
    ({}, {"deliver_at": datetime(2030, 1, 1)}, "zone_required", "deliver_at"),
    ({}, {"delay": 1, "deliver_at": "2030-01-01T00:00:00Z"}, "time_ambiguous", "delay"),
    ({"headers": {"x-delay": 5}}, {"delay": 1}, "time_ambiguous", "delay"),
    ({"headers": {"delaybridge-delay": 1.9}}, {}, "not_integer_ms", "delaybridge-delay"),
    ({"message_id": "a\nb"}, {"delay": 1}, "bad_id", "id"),
]
# The same, of libraries that can encode such numbers.
NUMBERS_REFUSED: list[tuple[Any, ...]] = [
    ({"headers": {"a": float("nan")}}, {"delay": 1}, "non_finite", "a"),
    ({"headers": {"a": [{"b": float("inf")}]}}, {"delay": 1}, "non_finite", "a"),
    ({"expiration": -1}, {"delay": 1}, "bad_expiration", "expiration"),
]


class Raw(NamedTuple):
    """A message in the bytes that a consumer received; at_ms: when."""

    exchange: str
    routing_key: str
    content: ContentHeader
    body: bytes
    at_ms: float

    @property
    def headers(self) -> dict[str, Any]:
        return dict(decode_table(self.content.table))

    @property
    def properties(self) -> dict[str, Any]:
        return decode_properties(self.content.flags, self.content.before, self.content.after)

    @property
    def bytes(self) -> tuple[Any, ...]:
        """Everything that a direct publish determines."""
        return (self.exchange, self.routing_key, self.content, self.body)


def entries(table: bytes) -> dict[str, bytes]:
    """The headers by name, type and value as bytes. A broker may change their order."""
    found, position = {}, 0
    while position < len(table):
        start = position + 1 + table[position]
        name = table[position + 1 : start].decode()
        _, position = amqp_table._decoded(table, start, name, 0)
        found[name] = table[start:position]
    return found


def receive_raw(url: str, queue: str, count: int) -> list[Raw]:
    """This number of messages of a queue in their order; fewer if no more came in time."""
    found: list[Raw] = []
    # pika's own decoder changes numbers.
    with pytest.MonkeyPatch.context() as patch, rabbitmq_channel(url) as channel:
        patch.setattr(pika.BasicProperties, "decode", _keep_encoded)
        channel.basic_qos(prefetch_count=min(count, 500))
        for method, properties, body in channel.consume(queue, inactivity_timeout=DEADLINE_S):
            if method is None:
                break
            header = struct.pack(">HHQ", 60, 0, len(body)) + properties.encoded
            content = split_content_header(header)
            at_ms = time.time_ns() / 1e6
            found.append(Raw(method.exchange, method.routing_key, content, body, at_ms))
            if len(found) == count or len(found) % 100 == 0:
                channel.basic_ack(method.delivery_tag, multiple=True)
            if len(found) == count:
                break
    return found


def _keep_encoded(properties: Any, encoded: bytes, offset: int = 0) -> Any:
    properties.encoded = encoded[offset:]
    return properties


class Site(ProducerSite):
    """One worker, one RabbitMQ, and queues for this test alone."""

    def __init__(self, folder: Path, redis_url: str, rabbitmq_url: str, **brokers: str) -> None:
        self.url = rabbitmq_url
        brokers = {"rabbitmq": rabbitmq_url} | brokers
        super().__init__(folder, redis_url, brokers, DELAYBRIDGE_RETRY__MAX_ATTEMPTS="1")

    def queue(self) -> str:
        """A new queue; its name."""
        name = f"q-{uuid.uuid4().hex}"
        with rabbitmq_channel(self.url) as channel:
            channel.queue_declare(name, durable=True)
        return name

    def exchange(self, name: str, queue: str) -> str:
        """A new topic exchange whose messages all go to a queue; its name."""
        with rabbitmq_channel(self.url) as channel:
            channel.exchange_declare(name, "topic", durable=True)
            channel.queue_bind(queue, name, "#")
        return name

    def take(self, queue: str) -> Raw:
        """The next message of a queue, once it is there."""
        taken = receive_raw(self.url, queue, 1)
        assert taken, f"no message in {queue}"
        return taken[0]

    def check_same(self, direct: Raw, delayed: Raw, id: str, due_ms: int) -> None:
        """The delayed message equals the direct one, plus delaybridge's own headers."""
        sent, arrived = entries(direct.content.table), entries(delayed.content.table)
        assert sent.items() <= arrived.items()
        ours = {"delaybridge-id": id, "delaybridge-due-ms": due_ms, "delaybridge-attempt": 1}
        assert {name: delayed.headers[name] for name in arrived.keys() - sent.keys()} == ours
        as_sent = delayed._replace(content=delayed.content._replace(table=direct.content.table))
        assert as_sent.bytes == direct.bytes
        assert delayed.at_ms >= due_ms

    def check_way(self, queue: str, headers: Any, receipt: Any, sent_ms: float) -> None:
        """The message of one of the WAYS is as late as asked, and has its other headers."""
        assert sent_ms + 290 < receipt.due_ms <= time.time() * 1000 + 501  # ms are rounded
        arrived = self.take(queue)
        assert arrived.at_ms >= receipt.due_ms
        assert arrived.headers["delaybridge-id"] == receipt.id
        seen = {n: v for n, v in arrived.headers.items() if not n.startswith("delaybridge-")}
        assert seen == {n: v for n, v in headers.items() if n != "delaybridge-delay"}

    def check_nothing_left(self, queue: str) -> None:
        """Nothing was published to the queue and nothing waits for it."""
        with rabbitmq_channel(self.url) as channel:
            channel.basic_publish("", queue, b"the last")
        assert self.take(queue).body == b"the last"
        assert [m for m in self.client.pending().items if queue in m.destination] == []
