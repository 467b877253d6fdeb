"""B9: what the shape of messages costs: body sizes, destinations, buckets, headers.

    python -m bench.shapes [MESSAGES]

Drain of one worker on RabbitMQ as in B1, one thing varied at a time, and beside it the raw
publisher with messages of the same shape, as much unconfirmed as a worker may have: where both
fall, the broker is the limit. Large bodies are fewer. `of default`: beside 100 bytes, one
destination, 16 buckets, no headers, measured first and last.
"""

from __future__ import annotations

import asyncio
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pika

from bench.raw_rabbitmq import WINDOW, _Confirms
from bench.rig import Bench, Table
from delaybridge import Client, Message
from delaybridge.accept.destination import DestinationCache
from delaybridge.amqp.connection import Encoder, WireConnection, open_connection
from delaybridge.message import Delivery, decode_record
from delaybridge.settings.settings import Settings
from delaybridge.store.namespace import DEFAULT_BUCKETS
from tests.rigs.bridge import rabbitmq_channel
from tests.servers.rabbitmq import RabbitMQNode
from tests.servers.redis import RedisServer

KIB = 1024
MOST_BYTES = 96 * KIB * KIB  # bodies of one shape, all together
CALL_BYTES = 4 * KIB * KIB  # of one schedule_many
WRITE_BYTES = 32 * KIB  # that the raw publisher writes at once, as a few hundred small messages
WARM = 2000
WINDOW_BYTES = Settings().publish.window_bytes
FRAME_MAX = 131_072
COUNT = """
local left = 0
for number = 0, ARGV[2] - 1 do
  for i = 3, #ARGV do
    left = left + redis.call('ZCARD', '{' .. ARGV[1] .. ':' .. number .. '}:' .. ARGV[i])
  end
end
return left
"""
HEADERS: dict[str, Any] = {
    "tenant": "acme-europe",
    "trace-id": "4bf92f3577b34da6a3ce929d0e0e4736",
    "retry": 3,
    "urgent": False,
}
PROPERTIES: dict[str, Any] = {
    "content_type": "application/json",
    "content_encoding": "utf-8",
    "delivery_mode": 2,
    "priority": 5,
    "correlation_id": "0192f3c1-7d8e-7cc1-a7b5-0d2f4f6b8e01",
    "reply_to": "orders.replies",
    "expiration": "3600000",
    "message_id": "0192f3c1-7d8e-7cc1-a7b5-0d2f4f6b8e02",
    "timestamp": 1_800_000_000,
    "type": "order.closed",
    "user_id": "guest",
    "app_id": "shop",
}


@dataclass(frozen=True)
class Shape:
    """What is varied. dressed: of so many messages one has headers and properties, 0: none."""

    size: int = 100
    keys: int = 1
    exchanges: int = 1
    buckets: int = DEFAULT_BUCKETS
    dressed: int = 0

    def messages(self, place: str, count: int) -> Iterator[Message]:
        """So many for this place, due now, to one destination after the other."""
        body = b"x" * self.size
        to = [
            f"rabbitmq:{place}-{exchange}/key-{key}"
            for exchange in range(self.exchanges)
            for key in range(self.keys)
        ]
        for number, destination in enumerate(islice(cycle(to), count)):
            if self.dressed and number % self.dressed == 0:
                yield Message(destination, body, delay=0, headers=HEADERS, properties=PROPERTIES)
            else:
                yield Message(destination, body, delay=0)

    def count(self, most: int) -> int:
        """How many messages of it are measured."""
        return min(most, MOST_BYTES // self.size)


DEFAULT = Shape()
SIZES = (("10 B", 10), ("1 KiB", KIB), ("10 KiB", 10 * KIB), ("256 KiB", 256 * KIB))
SHAPES = (
    *((f"body: {name}", Shape(size=size)) for name, size in SIZES),
    *((f"routing keys: {count:,}", Shape(keys=count)) for count in (10, 1000)),
    *((f"exchanges: {count:,}", Shape(exchanges=count)) for count in (10, 1000)),
    *((f"buckets: {count}", Shape(buckets=count)) for count in (64, 256)),
    ("4 headers + properties: half", Shape(dressed=2)),
    ("4 headers + properties: all", Shape(dressed=1)),
)


class Sharded(Bench):
    """A namespace with any number of buckets, counted inside Redis: that costs the same for all."""

    def __init__(self, redis_url: str, url: str, folder: Path, buckets: int) -> None:
        super().__init__(redis_url, {"rabbitmq": url}, folder)
        self.buckets = buckets
        with Client(redis_url, namespace=self.namespace, buckets=buckets) as born:
            born.stats()
        self._count = self.redis.register_script(COUNT)

    def left(self, *names: str) -> int:
        """How many messages lie in these zsets of all buckets."""
        return int(self._count(args=[self.namespace, self.buckets, *names]))


@contextmanager
def sharded(redis_url: str, url: str, buckets: int) -> Iterator[Sharded]:
    """A namespace of its own."""
    with TemporaryDirectory() as folder:
        made = Sharded(redis_url, url, Path(folder), buckets)
        try:
            yield made
        finally:
            made.close()


@contextmanager
def place(url: str, shape: Shape) -> Iterator[str]:
    """One quorum queue, and direct exchanges PLACE-0, ... bound to it by key-0, ..."""
    name = f"bench-{uuid.uuid4().hex[:8]}"
    exchanges = [f"{name}-{number}" for number in range(shape.exchanges)]
    with rabbitmq_channel(url) as channel:
        channel.queue_declare(name, durable=True, arguments={"x-queue-type": "quorum"})
        for exchange in exchanges:
            channel.exchange_declare(exchange, "direct", durable=True)
            for key in range(shape.keys):
                channel.queue_bind(name, exchange, f"key-{key}")
    try:
        yield name
    finally:
        with rabbitmq_channel(url) as channel:
            channel.queue_delete(name)
            for exchange in exchanges:
                channel.exchange_delete(exchange)


def drain(redis_url: str, url: str, queue: str, shape: Shape, count: int) -> tuple[float, float]:
    """(Messages per second, microseconds of CPU a message) of one worker on a backlog."""
    with sharded(redis_url, url, shape.buckets) as mine:
        messages = shape.messages(queue, count)
        call = max(1, min(5000, CALL_BYTES // shape.size))
        while batch := list(islice(messages, call)):
            mine.client.schedule_many(batch)
        return mine.drained(count, [mine.worker(BUCKETS=str(shape.buckets))])


def frames(shape: Shape, queue: str, channel: int, count: int) -> list[tuple[bytes, int]]:
    """What the raw publisher writes, one piece after the other, and the messages in each.

    One channel for all exchanges: the encoder that remembers routing keys is for one alone.
    """
    encoders: dict[str, Encoder] = {}
    destinations = DestinationCache()
    with Client(brokers={"rabbitmq": "amqp://"}) as client:  # never connected
        pieces: list[tuple[bytes, int]] = []
        made: list[bytes] = []
        for one in map(client.accept, shape.messages(queue, count)):
            record = decode_record(one.payload)
            to, _ = destinations.parse(record.destination, client.kinds)
            encoder = encoders.setdefault(to.address, Encoder(channel, FRAME_MAX, b"guest"))
            made.append(encoder.frames(Delivery(one.id, record, to, 1_800_000_000_000, 1)))
            if len(made) * len(made[0]) >= WRITE_BYTES:
                pieces.append((b"".join(made), len(made)))
                made = []
        if made:
            pieces.append((b"".join(made), len(made)))
        return pieces


async def publish(connection: WireConnection, confirms: _Confirms, pieces: Any, room: int) -> None:
    """Write the pieces, no more than `room` messages unconfirmed."""
    sent = 0
    for piece, messages in pieces:
        while sent + messages - confirms.last > room:
            confirms.moved.clear()
            await confirms.moved.wait()
        connection.write([piece])
        sent += messages
    while confirms.last < sent:
        confirms.moved.clear()
        await confirms.moved.wait()


def raw(url: str, queue: str, shape: Shape, count: int) -> float:
    """Messages per second of a client that writes frames that were made before."""

    async def run() -> float:
        connection = await open_connection(pika.URLParameters(url), WireConnection)
        channel = await connection.open_channel(lambda *_: None)
        await connection.select_confirms(channel)
        confirms = _Confirms()
        connection.listen(channel.channel_number, confirms)
        pieces = frames(shape, queue, channel.channel_number, count)
        room = max(1, min(WINDOW, WINDOW_BYTES // shape.size))
        began_s = time.monotonic()
        await publish(connection, confirms, pieces, room)
        took_s = time.monotonic() - began_s
        connection.close()
        await asyncio.wait([connection.lost], timeout=1)
        return count / took_s

    return asyncio.run(run())


def both(redis_url: str, url: str, shape: Shape, count: int) -> tuple[float, float, float]:
    """Messages per second of the raw publisher and of a worker, and the worker's CPU a message."""
    with place(url, shape) as queue:
        limit = raw(url, queue, shape, count)
        with rabbitmq_channel(url) as channel:
            channel.queue_purge(queue)
        return limit, *drain(redis_url, url, queue, shape, count)


class Shapes:
    """The lines of B9."""

    def __init__(self, redis_url: str, url: str, most: int) -> None:
        self._servers, self._most = (redis_url, url), most
        self._out = Table(f"B9 shapes: drain of {most:,} messages, one worker, quorum queue")
        self._default = 0.0
        self._out.line("", "drain", "of default", "raw", "drain of raw", "worker's CPU")

    def line(self, name: str, shape: Shape) -> None:
        """Measure a shape."""
        count = shape.count(self._most)
        limit, rate, cpu_us = both(*self._servers, shape, count)
        self._default = self._default or rate
        self._out.line(
            name,
            f"{rate:,.0f}/s",
            f"{rate / self._default:.2f}",
            f"{limit:,.0f}/s",
            f"{rate / limit:.2f}",
            f"{cpu_us:.1f} us",
            *([f"{rate * shape.size / 1e6:.1f} MB/s"] if shape.size != DEFAULT.size else []),
        )


def main(most: int = 20_000) -> None:
    """Print the table."""
    with RedisServer() as redis, RabbitMQNode() as broker:
        both(redis.url, broker.url, DEFAULT, WARM)
        table = Shapes(redis.url, broker.url, most)
        table.line("default", DEFAULT)
        for name, shape in SHAPES:
            table.line(name, shape)
        table.line("default, again", DEFAULT)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
