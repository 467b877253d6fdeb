"""B9: how body size, destinations, buckets and headers change the speed of a drain.

    python -m bench.shapes [MESSAGES]

One worker drains a backlog on RabbitMQ as in B1, and one property is varied at a time. The raw
publisher sends messages of the same shape, with a worker's window of unconfirmed messages: where
both get slower, the broker is the limit. There are fewer messages with large bodies. `of default`
is the ratio to 100 bytes, one destination, 16 buckets and no headers, which is measured first and
last.
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

from bench.raw_rabbitmq import WINDOW, Confirms
from bench.rig import Bench, Table, open_rabbitmq, open_redis
from delaybridge import Client, Message
from delaybridge.accept.accept import DestinationCache
from delaybridge.amqp.connection import WireConnection, open_connection
from delaybridge.amqp.frames import Encoder
from delaybridge.message import Delivery, decode_record
from delaybridge.settings.settings import Settings
from delaybridge.store.namespace.namespace import DEFAULT_BUCKETS
from tests.rigs.bridge import rabbitmq_channel

KIB = 1024
MOST_BYTES = 96 * KIB * KIB  # of all bodies of one shape together
CALL_BYTES = 4 * KIB * KIB  # of the bodies in one call of schedule_many
WRITE_BYTES = 32 * KIB  # of one write of the raw publisher: a few hundred small messages
WARM_UP = 2000  # messages
WINDOW_BYTES = Settings().publish.window_bytes
FRAME_MAX = 131_072
COUNT = """
local count = 0
for number = 0, ARGV[2] - 1 do
  for i = 3, #ARGV do
    count = count + redis.call('ZCARD', '{' .. ARGV[1] .. ':' .. number .. '}:' .. ARGV[i])
  end
end
return count
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
    """The shape of all messages in a drain.

    size: bytes of a body; keys: routing keys of each exchange. with_headers: one message of this
    many has headers and properties; 0: no message has.
    """

    size: int = 100
    keys: int = 1
    exchanges: int = 1
    buckets: int = DEFAULT_BUCKETS
    with_headers: int = 0

    def messages(self, queue: str, count: int) -> Iterator[Message]:
        """`count` messages for this queue, due now; they go to its destinations in turn."""
        body = b"x" * self.size
        to = [
            f"rabbitmq:{queue}-{exchange}/key-{key}"
            for exchange in range(self.exchanges)
            for key in range(self.keys)
        ]
        for number, destination in enumerate(islice(cycle(to), count)):
            if self.with_headers and number % self.with_headers == 0:
                yield Message(destination, body, delay=0, headers=HEADERS, properties=PROPERTIES)
            else:
                yield Message(destination, body, delay=0)

    def count(self, most: int) -> int:
        """How many messages of this shape are measured: at most `most`."""
        return min(most, MOST_BYTES // self.size)


DEFAULT = Shape()
SIZES = (("10 B", 10), ("1 KiB", KIB), ("10 KiB", 10 * KIB), ("256 KiB", 256 * KIB))
SHAPES = (
    *((f"body: {name}", Shape(size=size)) for name, size in SIZES),
    *((f"routing keys: {count:,}", Shape(keys=count)) for count in (10, 1000)),
    *((f"exchanges: {count:,}", Shape(exchanges=count)) for count in (10, 1000)),
    *((f"buckets: {count}", Shape(buckets=count)) for count in (64, 256)),
    ("4 headers + properties: half", Shape(with_headers=2)),
    ("4 headers + properties: all", Shape(with_headers=1)),
)


class Sharded(Bench):
    """A namespace with any number of buckets.

    Counting runs inside Redis, so that it costs about the same for any number.
    """

    def __init__(self, redis_url: str, url: str, folder: Path, buckets: int) -> None:
        super().__init__(redis_url, {"rabbitmq": url}, folder)
        self.buckets = buckets
        with Client(redis_url, namespace=self.namespace, buckets=buckets) as client:
            client.stats()  # creates the namespace
        self._count = self.redis.register_script(COUNT)

    def count_in(self, *names: str) -> int:
        """Count the messages in these zsets of all buckets."""
        return int(self._count(args=[self.namespace, self.buckets, *names]))


@contextmanager
def sharded(redis_url: str, url: str, buckets: int) -> Iterator[Sharded]:
    """Create a namespace with this number of buckets; it is closed when the block ends."""
    with TemporaryDirectory() as folder:
        bench = Sharded(redis_url, url, Path(folder), buckets)
        try:
            yield bench
        finally:
            bench.close()


@contextmanager
def queue_of(url: str, shape: Shape) -> Iterator[str]:
    """Declare a quorum queue, and direct exchanges QUEUE-0, ... bound to it with keys key-0, ..."""
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
    """Messages per second and microseconds of CPU per message of one worker on a backlog."""
    with sharded(redis_url, url, shape.buckets) as bench:
        messages = shape.messages(queue, count)
        call = max(1, min(5000, CALL_BYTES // shape.size))
        while batch := list(islice(messages, call)):
            bench.client.schedule_many(batch)
        return bench.measure_drain(count, [bench.start_worker(BUCKETS=str(shape.buckets))])


def frames(shape: Shape, queue: str, channel: int, count: int) -> list[tuple[bytes, int]]:
    """The raw publisher's writes: the bytes of each, and the number of messages in it.

    There is one encoder per exchange, since an encoder remembers routing keys of one exchange only.
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


async def publish(connection: WireConnection, confirms: Confirms, pieces: Any, room: int) -> None:
    """Write the pieces, with at most `room` messages unconfirmed, until all are confirmed."""
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


def publish_raw(url: str, queue: str, shape: Shape, count: int) -> float:
    """Messages per second of a program that writes frames encoded before the clock starts."""

    async def run() -> float:
        connection = await open_connection(pika.URLParameters(url), WireConnection)
        channel = await connection.open_channel(lambda *_: None)
        await connection.select_confirms(channel)
        confirms = Confirms()
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


def raw_and_drain(redis_url: str, url: str, shape: Shape, count: int) -> tuple[float, float, float]:
    """Messages per second of the raw publisher, the same of a worker, and the worker's CPU.

    The CPU is in microseconds per message.
    """
    with queue_of(url, shape) as queue:
        limit = publish_raw(url, queue, shape, count)
        with rabbitmq_channel(url) as channel:
            channel.queue_purge(queue)
        return limit, *drain(redis_url, url, queue, shape, count)


class Shapes:
    """The table of B9."""

    def __init__(self, redis_url: str, url: str, most: int) -> None:
        self._servers, self._most = (redis_url, url), most
        self._out = Table(f"B9 shapes: drain of {most:,} messages, one worker, quorum queue")
        self._default = 0.0
        self._out.line("", "drain", "of default", "raw", "drain of raw", "worker's CPU")

    def line(self, name: str, shape: Shape) -> None:
        """Measure one shape and print its line."""
        count = shape.count(self._most)
        limit, rate, cpu_us = raw_and_drain(*self._servers, shape, count)
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
    with open_redis() as redis, open_rabbitmq() as broker:
        raw_and_drain(redis.url, broker.url, DEFAULT, min(WARM_UP, most))
        table = Shapes(redis.url, broker.url, most)
        table.line("default", DEFAULT)
        for name, shape in SHAPES:
            if max(shape.keys, shape.exchanges) <= most:  # else not every destination is used
                table.line(name, shape)
        table.line("default, again", DEFAULT)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
