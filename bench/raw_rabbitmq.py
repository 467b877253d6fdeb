"""The limits for RabbitMQ: programs that only publish, one writing frames itself, one using pika.

Both publish the messages that a worker publishes: 100 bytes, persistent, with delaybridge's three
headers, mandatory, with confirms, to a quorum queue, and with a worker's window of unconfirmed
messages.
"""

from __future__ import annotations

import asyncio
import time

import pika
from pika.adapters.asyncio_connection import AsyncioConnection
from pika.channel import Channel

from bench.rig import BODY
from delaybridge.amqp.connection import WireConnection, open_connection
from delaybridge.amqp.frames import Encoder
from delaybridge.message import Delivery, Destination, Record

WINDOW = 10_000  # the default of publish.window_messages
_BATCH = 250
_FRAME_MAX = 131_072


class Confirms:
    """Counts the messages that the broker has confirmed."""

    def __init__(self) -> None:
        self.last = 0
        self.moved = asyncio.Event()

    def on_confirm(self, tag: int, multiple: bool, is_ack: bool) -> None:
        """Note the highest confirmed tag; it tells well enough how many are unconfirmed."""
        if not is_ack:
            raise RuntimeError("nacked")
        self.last = max(self.last, tag)
        self.moved.set()

    def on_return(self, id: str, reason: str) -> None:
        """Raise: every message here is routable."""
        raise RuntimeError(reason)


def publish_raw(url: str, exchange: str, count: int) -> tuple[float, float]:
    """Write frames that were encoded before the clock starts.

    Returns messages per second and microseconds of CPU per message.
    """

    async def run() -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        connection = await open_connection(pika.URLParameters(url), WireConnection)
        channel = await connection.open_channel(lambda *_: None)
        await connection.select_confirms(channel)
        confirms = Confirms()
        number = channel.channel_number
        connection.listen(number, confirms)
        to = Destination("rabbitmq", "rabbitmq", exchange, "key")
        one = Delivery("0" * 26, Record(str(to), BODY, b""), to, 1_800_000_000_000, 1)
        batch = Encoder(number, _FRAME_MAX, b"guest").frames(one) * _BATCH
        sent, began_s, began_cpu_s = 0, loop.time(), time.process_time()
        while confirms.last < count:
            while sent < count and sent - confirms.last <= WINDOW - _BATCH:
                connection.write([batch])
                sent += _BATCH
            confirms.moved.clear()
            await confirms.moved.wait()
        took_s, cpu_s = loop.time() - began_s, time.process_time() - began_cpu_s
        connection.close()
        await asyncio.wait([connection.lost], timeout=1)
        return count / took_s, cpu_s / count * 1e6

    return asyncio.run(run())


def publish_with_pika(url: str, exchange: str, count: int) -> tuple[float, float]:
    """Publish with pika's asynchronous connection, pipelined; returns as `publish_raw` does."""

    async def run() -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[Channel] = loop.create_future()
        connection = AsyncioConnection(
            pika.URLParameters(url),
            on_open_callback=lambda made: made.channel(on_open_callback=opened.set_result),
            custom_ioloop=loop,
        )
        channel = await opened
        confirms, ready = Confirms(), asyncio.Event()
        channel.confirm_delivery(
            lambda frame: confirms.on_confirm(frame.method.delivery_tag, True, True),
            lambda _: ready.set(),
        )
        await ready.wait()
        headers = {
            "delaybridge-id": "0" * 26,
            "delaybridge-due-ms": 1_800_000_000_000,
            "delaybridge-attempt": 1,
        }
        properties = pika.BasicProperties(headers=headers, delivery_mode=2)
        sent, began_s, began_cpu_s = 0, loop.time(), time.process_time()
        while confirms.last < count:
            while sent < count and sent - confirms.last < WINDOW:
                channel.basic_publish(exchange, "key", BODY, properties, mandatory=True)
                sent += 1
                if sent % _BATCH == 0:
                    await asyncio.sleep(0)
            confirms.moved.clear()
            if confirms.last < count and sent - confirms.last >= WINDOW or sent == count:
                await confirms.moved.wait()
        took_s, cpu_s = loop.time() - began_s, time.process_time() - began_cpu_s
        connection.close()
        await asyncio.sleep(0.1)
        return count / took_s, cpu_s / count * 1e6

    return asyncio.run(run())
