"""A RabbitMQ, a worker and a consumer that sees the bytes: for tests of drop-in producers."""

from __future__ import annotations

import struct
import time
import uuid
from pathlib import Path
from typing import Any, NamedTuple

import pika
import pytest

from delaybridge.amqp import table as amqp_table
from delaybridge.amqp.header import (
    decode_properties,
    decode_table,
    split_content_header,
)
from delaybridge.message import ContentHeader
from tests.rigs.bridge import rabbitmq_channel
from tests.rigs.site import ProducerSite
from tests.rigs.waiting import until


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


class Site(ProducerSite):
    """One worker, one RabbitMQ, and queues for this test alone."""

    def __init__(self, folder: Path, redis_url: str, rabbitmq_url: str, **brokers: str) -> None:
        self.url = rabbitmq_url
        brokers = {"rabbitmq": rabbitmq_url} | brokers
        super().__init__(folder, redis_url, brokers, DELAYBRIDGE_RETRY__MAX_ATTEMPTS="1")

    def queue(self, name: str | None = None) -> str:
        """A new queue; its name."""
        name = name or f"q-{uuid.uuid4().hex}"
        with rabbitmq_channel(self.url) as channel:
            channel.queue_delete(name)
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
        encoded: list[bytes] = []

        def keep(properties: Any, data: bytes, offset: int = 0) -> Any:
            encoded.append(data[offset:])
            return properties

        # pika's own decoder changes numbers.
        with pytest.MonkeyPatch.context() as patch, rabbitmq_channel(self.url) as channel:
            patch.setattr(pika.BasicProperties, "decode", keep)
            method, _, body = until(
                lambda: (got := channel.basic_get(queue, auto_ack=True))[0] and got,
                f"a message in {queue}",
            )
            at_ms = time.time_ns() / 1e6
        payload = struct.pack(">HHQ", 60, 0, len(body)) + encoded[-1]
        content = split_content_header(payload)
        return Raw(method.exchange, method.routing_key, content, body, at_ms)

    def check_same(self, direct: Raw, delayed: Raw, id: str, due_ms: int) -> None:
        """The delayed message equals the direct one, plus delaybridge's own headers."""
        sent, arrived = entries(direct.content.table), entries(delayed.content.table)
        assert sent.items() <= arrived.items()
        ours = {"delaybridge-id": id, "delaybridge-due-ms": due_ms, "delaybridge-attempt": 1}
        assert {name: delayed.headers[name] for name in arrived.keys() - sent.keys()} == ours
        as_sent = delayed._replace(content=delayed.content._replace(table=direct.content.table))
        assert as_sent.bytes == direct.bytes
        assert delayed.at_ms >= due_ms

    def check_nothing_left(self, queue: str) -> None:
        """Nothing was published to the queue and nothing waits for it."""
        with rabbitmq_channel(self.url) as channel:
            channel.basic_publish("", queue, b"the last")
        assert self.take(queue).body == b"the last"
        assert [m for m in self.client.pending().items if queue in m.destination] == []
