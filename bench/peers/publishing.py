"""Publishing to RabbitMQ for peers, and the queues they need.

Adds are pipelined: pika's asynchronous publish, with confirms and mandatory, with as many on their
way as bench.raw_rabbitmq allows itself.
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

TURN = 250  # publishes before the connection may read and write

# The first figure is what is allocated now; the second, once the write-ahead log has been rolled
# over, so that the messages are in segment files. Garbage goes first, and the lowest of three
# counts, as the node allocates for itself all the time.
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
    """Where one message goes, and how."""

    exchange: str
    key: str
    properties: pika.BasicProperties


class _Window:
    """Counts what the broker confirmed."""

    def __init__(self) -> None:
        self.sent = self.confirmed = 0
        self.failure: str | None = None
        self.moved = asyncio.Event()

    def on_confirm(self, frame: Method) -> None:
        """An ack; anything else fails it all."""
        if isinstance(frame.method, pika.spec.Basic.Ack):
            self.confirmed = max(self.confirmed, frame.method.delivery_tag)
        else:
            self.failure = "nacked"
        self.moved.set()

    def fail(self, why: object) -> None:
        """Returned, or the channel is closed."""
        self.failure = str(why)
        self.moved.set()

    async def until(self, most: int) -> None:
        """Wait until at most so many are on their way."""
        while self.sent - self.confirmed > most:
            self.moved.clear()
            await asyncio.wait_for(self.moved.wait(), 60)
            if self.failure:
                raise RuntimeError(self.failure)


def publish(url: str, messages: Iterable[To]) -> float:
    """Publish them all; the seconds until the last is confirmed."""

    async def run() -> float:
        channel, window = await _confirming(url)
        began_s = time.monotonic()
        for message in messages:
            channel.basic_publish(*message[:2], BODY, message.properties, mandatory=True)
            window.sent += 1
            if window.sent % TURN == 0:
                await asyncio.sleep(0)
                await window.until(WINDOW - TURN)
        await window.until(0)
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
        on_open_callback=lambda it: it.channel(on_open_callback=opened.set_result),
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
    """Properties of a message that outlives the broker."""
    return pika.BasicProperties(delivery_mode=2, **more)


def late_through(
    url: str, queue: str, rate: int, seconds: float, message: Callable[[float], tuple[To, float]]
) -> Lateness:
    """How late messages are in the queue, each published at its moment.

    message: from the time now to what is published and when it is due.
    """
    count = int(rate * seconds)
    with (
        receiving("receive_rabbitmq.py", url, queue, count) as receiver,
        rabbitmq_channel(url) as channel,
    ):

        def once() -> None:
            to, due_s = message(time.time())
            to.properties.headers = {"sent-us": int(due_s * 1_000_000)}
            channel.basic_publish(*to[:2], BODY, to.properties, mandatory=True)

        paced(rate, seconds, once)
        return receiver.lateness(PATIENCE_S)


@contextmanager
def quorum(url: str, **arguments: object) -> Iterator[str]:
    """A quorum queue with these arguments (`x_message_ttl` for x-message-ttl); goes at the end."""
    name = f"bench-{uuid4().hex[:8]}"
    given = {name.replace("_", "-"): value for name, value in arguments.items()}
    with rabbitmq_channel(url) as channel:
        channel.queue_declare(name, durable=True, arguments={"x-queue-type": "quorum", **given})
    try:
        yield name
    finally:
        with rabbitmq_channel(url) as channel:
            channel.queue_delete(name)


def until_full(url: str, queue: str, count: int, due_s: float) -> float:
    """Wait until the queue holds so many; the seconds since the due time."""
    with rabbitmq_channel(url) as channel:
        while (found := ready(channel, queue)) < count:
            if time.time() > due_s + PATIENCE_S:
                raise RuntimeError(f"{found:,} of {count:,} after {PATIENCE_S:.0f} s")
            time.sleep(POLL_S)
    return time.time() - due_s


def ready(channel: Any, queue: str) -> int:
    """How many messages a queue has to give."""
    return int(channel.queue_declare(queue, passive=True).method.message_count)


def broker_bytes(node: RabbitMQNode) -> Mapping[str, int]:
    """What the Erlang VM has allocated, binaries and tables with it; less garbage."""
    now, later = node.ctl("eval", MEMORY, timeout_s=PATIENCE_S).strip().strip('"').split()
    return {"new": int(now), "in segments": int(later)}


def resting_bytes(node: RabbitMQNode) -> Mapping[str, int]:
    """The same where nothing is new: what earlier messages left in the log counts for nobody."""
    later = broker_bytes(node)["in segments"]
    return {"new": later, "in segments": later}
