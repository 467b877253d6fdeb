"""Plain RabbitMQ clients for tests of ingest that see, and send, the bytes of a content header."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel

from delaybridge.amqp.encoding import HEADERS_FLAG, encode_properties
from tests.rigs.ingest import Entrance, Rabbit, source
from tests.rigs.rabbitmq_site import Raw, receive_raw

HOUR_MS = 3_600_000


class AsBytes(pika.BasicProperties):  # type: ignore[misc]  # pika has no types
    """Properties with headers that pika could not encode, or would change."""

    def __init__(self, table: bytes, **properties: Any) -> None:
        super().__init__()
        flags, before, after = encode_properties(properties)
        start = struct.pack(">H", flags | HEADERS_FLAG) + before
        self._pieces = [start + struct.pack(">I", len(table)) + table + after]

    def encode(self) -> list[bytes]:
        return self._pieces


def described(delay_ms: int | None = None, **given: Any) -> pika.BasicProperties:
    """Properties of a message with this `x-delay`, or without one."""
    headers = given.pop("headers", {}) | ({} if delay_ms is None else {"x-delay": delay_ms})
    return pika.BasicProperties(headers=headers, **given)


class Exchanges(Rabbit):
    """A RabbitMQ, its delay exchanges and their consumers."""

    async def send(
        self, exchange: str, messages: list[tuple[str, bytes, pika.BasicProperties]]
    ) -> None:
        """Publish (key, body, properties) in this order over one channel, confirmed."""

        def work(channel: BlockingChannel) -> None:
            channel.confirm_delivery()
            for key, body, properties in messages:
                channel.basic_publish(exchange, key, body, properties, mandatory=True)

        await self.do(work)

    async def take_raw(self, queue: str, count: int) -> list[Raw]:
        """This number of messages of a queue, as bytes, in their order."""
        taken = await asyncio.to_thread(receive_raw, self.url, queue, count)
        assert len(taken) == count, f"only {len(taken)} of {count} came to {queue}"
        return taken

    async def is_durable_quorum(self, queue: str, **arguments: Any) -> bool:
        """Whether the queue is a durable quorum queue with exactly these arguments."""

        def look(channel: BlockingChannel) -> bool:
            given = {"x-queue-type": "quorum", **arguments}
            try:
                channel.queue_declare(queue, durable=True, arguments=given)
            except pika.exceptions.ChannelClosedByBroker:
                return False
            return True

        return bool(await self.do(look))


async def reading(entrance: Entrance, *exchanges: str) -> None:
    async def are_read() -> bool:
        found = [await source(entrance, name) for name in exchanges]
        return all(each is not None and each.state == "reading" for each in found)

    await entrance.until(are_read, f"reading {exchanges}")


def messages(count: int, first: int = 0, **properties: Any) -> list[Any]:
    """Messages with their own ids and bodies, due in an hour."""
    return [
        ("k", b"%d" % i, described(HOUR_MS, message_id=f"m{i}", **properties))
        for i in range(first, first + count)
    ]


async def drained(entrance: Entrance, exchange: str) -> None:
    """Wait until no message is in the queue or unacknowledged."""

    async def is_drained() -> bool:
        found = await source(entrance, exchange)
        return found is not None and found.state == "reading" and found.lag == 0

    await entrance.until(is_drained, "nothing left to read")


async def handed_over(rabbit: Exchanges, entrance: Entrance, queue: str) -> None:
    """Wait until a consumer has all messages of the queue."""

    async def are() -> bool:
        return await rabbit.waiting(queue) == 0

    await entrance.until(are, "handed over")
