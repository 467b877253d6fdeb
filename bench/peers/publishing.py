"""Publishes to RabbitMQ for the peers, and declares their queues.

Adds are pipelined with pika's asynchronous publish, with confirms and mandatory, and the same
window as bench.raw_rabbitmq.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple
from uuid import uuid4

import pika
from pika.adapters.asyncio_connection import AsyncioConnection
from pika.channel import Channel
from pika.frame import Method

from bench.lateness import Lateness, paced, receiving
from bench.peers.peer import PATIENCE_S, POLL_S
from bench.raw_rabbitmq import WINDOW
from bench.rig import BODY
from tests.rigs.bridge import rabbitmq_channel
from tests.servers.rabbitmq import RabbitMQNode

TURN = 250  # publishes in a row before the connection may read and write

# The first figure is the memory in use; the second is taken when the write-ahead log has been
# rolled over, so that all messages are in segment files. Garbage is collected before. The second
# figure is the lowest of three, since the node itself allocates all the time.
MEMORY = """
Held = fun() -> [garbage_collect(P) || P <- processes()], erlang:memory(total) end,
Now = Held(),
ok = ra_log_wal:force_roll_over(ra_log_wal),
timer:sleep(300),
ra_log_segment_writer:await(ra_log_segment_writer),
Later = lists:min([begin timer:sleep(400), Held() end || _ <- [1, 2, 3]]),
io_lib:format("~b ~b", [Now, Later]).
"""


class To(NamedTuple):
    """Exchange, routing key and properties of one publish."""

    exchange: str
    key: str
    properties: pika.BasicProperties


class _Window:
    """Counts the messages that were sent and those that the broker has confirmed."""

    def __init__(self) -> None:
        self.sent = self.confirmed = 0
        self.failure: str | None = None
        self.moved = asyncio.Event()

    def on_confirm(self, frame: Method) -> None:
        """Note an ack; a nack makes `wait_until` raise."""
        if isinstance(frame.method, pika.spec.Basic.Ack):
            self.confirmed = max(self.confirmed, frame.method.delivery_tag)
        else:
            self.failure = "nacked"
        self.moved.set()

    def fail(self, why: object) -> None:
        """Make `wait_until` raise: a message was returned, or the channel closed."""
        self.failure = str(why)
        self.moved.set()

    async def wait_until(self, most: int) -> None:
        """Wait until at most `most` messages are unconfirmed."""
        while self.sent - self.confirmed > most:
            self.moved.clear()
            await asyncio.wait_for(self.moved.wait(), 60)
            if self.failure:
                raise RuntimeError(self.failure)


def publish(url: str, messages: Iterable[To], *, mandatory: bool = True) -> float:
    """Publish all messages; returns the seconds until the last is confirmed."""

    async def run() -> float:
        channel, window = await _confirming(url)
        began_s = time.monotonic()
        for message in messages:
            channel.basic_publish(*message[:2], BODY, message.properties, mandatory)
            window.sent += 1
            if window.sent % TURN == 0:
                await asyncio.sleep(0)
                await window.wait_until(WINDOW - TURN)
        await window.wait_until(0)
        took_s = time.monotonic() - began_s
        channel.connection.close()
        await asyncio.sleep(0.1)
        return took_s

    return asyncio.run(run())


async def _confirming(url: str) -> tuple[Channel, _Window]:
    loop = asyncio.get_running_loop()
    opened: asyncio.Future[Channel] = loop.create_future()
    AsyncioConnection(
        pika.URLParameters(url),
        on_open_callback=lambda made: made.channel(on_open_callback=opened.set_result),
        on_open_error_callback=lambda _, why: opened.set_exception(why),
        custom_ioloop=loop,
    )
    channel, window, ready = await opened, _Window(), asyncio.Event()
    channel.add_on_return_callback(lambda *_: window.fail("returned"))
    channel.add_on_close_callback(lambda _, why: window.fail(why))
    channel.confirm_delivery(window.on_confirm, lambda _: ready.set())
    await ready.wait()
    return channel, window


def persistent(**more: Any) -> pika.BasicProperties:
    """Properties of a persistent message."""
    return pika.BasicProperties(delivery_mode=2, **more)


def queue_lateness(
    url: str,
    queue: str,
    rate: int,
    seconds: float,
    message: Callable[[float], tuple[To, float]],
    *,
    mandatory: bool = True,
) -> Lateness:
    """Publish messages evenly spaced; how late a consumer of `queue` receives them.

    message: given the epoch seconds now, returns the publish and the epoch seconds when it is due.
    """
    count = int(rate * seconds)
    with (
        receiving("receive_rabbitmq.py", url, queue, count) as receiver,
        rabbitmq_channel(url) as channel,
    ):

        def once() -> None:
            to, due_s = message(time.time())
            due = {"sent-us": int(due_s * 1_000_000)}
            to.properties.headers = {**(to.properties.headers or {}), **due}
            channel.basic_publish(*to[:2], BODY, to.properties, mandatory)

        paced(rate, seconds, once)
        return receiver.lateness(PATIENCE_S)


@contextmanager
def declare_quorum_queue(url: str, **arguments: object) -> Iterator[str]:
    """Declare a quorum queue; it is deleted when the block ends.

    arguments: with underscores, `x_message_ttl` for x-message-ttl.
    """
    name = f"bench-{uuid4().hex[:8]}"
    given = {name.replace("_", "-"): value for name, value in arguments.items()}
    with rabbitmq_channel(url) as channel:
        channel.queue_declare(name, durable=True, arguments={"x-queue-type": "quorum", **given})
    try:
        yield name
    finally:
        with rabbitmq_channel(url) as channel:
            channel.queue_delete(name)


def wait_until_full(url: str, queue: str, count: int, due_s: float) -> float:
    """Wait until the queue holds `count` messages; returns the seconds since the due time."""
    with rabbitmq_channel(url) as channel:
        while (found := ready(channel, queue)) < count:
            if time.time() > due_s + PATIENCE_S:
                raise RuntimeError(f"{found:,} of {count:,} after {PATIENCE_S:.0f} s")
            time.sleep(POLL_S)
    return time.time() - due_s


def ready(channel: Any, queue: str) -> int:
    """The number of messages in a queue that are not with a consumer."""
    return int(channel.queue_declare(queue, passive=True).method.message_count)


def broker_bytes(node: RabbitMQNode) -> Mapping[str, int]:
    """Bytes that the Erlang VM has allocated, including binaries and tables, without garbage."""
    now, later = node.ctl("eval", MEMORY).strip().strip('"').split()
    return {"new": int(now), "in segments": int(later)}


def resting_bytes(node: RabbitMQNode) -> Mapping[str, int]:
    """The same for a node without new messages: the log of earlier messages is not counted."""
    later = broker_bytes(node)["in segments"]
    return {"new": later, "in segments": later}
