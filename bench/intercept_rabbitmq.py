"""The cost of the drop-ins for a publish that is not delayed, compared with the plain library.

    python -m bench.intercept_rabbitmq [MESSAGES] [ROUNDS]

Transient 100-byte messages with two headers go to RabbitMQ without confirms, to a queue that keeps
1000 of them. Three connections publish one round each, in random order, so that other load on the
machine disturbs all of them alike: plain, plain again, and the drop-in. Printed are microseconds of
this process' CPU per publish (median of the rounds), and the ratio to plain (median, and in
brackets the middle half of the rounds). The ratio of `plain again` shows how precise such a ratio
is. The last line is the cost of the check for a delay by itself, the same for every library.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, ExitStack
from typing import Any, NamedTuple

import aio_pika
import pika
from kombu.connection import Connection
from kombu.messaging import Producer as KombuProducer

from bench.rig import BODY, Table, open_rabbitmq
from delaybridge.intercept import aio_pika as delaying_aio_pika
from delaybridge.intercept import timing_of
from delaybridge.intercept.kombu import Producer
from delaybridge.intercept.pika import BlockingConnection

QUEUE = "bench-intercept"
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
HEADERS: dict[str, Any] = {"trace": TRACE, "n": 1}
CONTENDERS = ("plain", "plain again", "drop-in")
Publish = Callable[[int], Awaitable[None]]


class Size(NamedTuple):
    """How much is published: messages in a round, and rounds."""

    messages: int
    rounds: int


async def timed(publish: Publish, count: int) -> float:
    """Microseconds of CPU per publish."""
    began_s = time.process_time()
    await publish(count)
    return (time.process_time() - began_s) / count * 1e6


async def compare(out: Table, name: str, publishing: Iterable[Publish], size: Size) -> None:
    """Measure the three connections of one library, and print a line for each."""
    contenders = dict(zip(CONTENDERS, publishing, strict=True))
    for publish in contenders.values():  # warm up
        await publish(size.messages)
    figures: dict[str, list[float]] = {contender: [] for contender in contenders}
    for _ in range(size.rounds):
        for contender, publish in random.sample(list(contenders.items()), 3):
            figures[contender].append(await timed(publish, size.messages))
    for contender, each_us in figures.items():
        ratios = [us / of_us for us, of_us in zip(each_us, figures["plain"], strict=True)]
        low, middle, high = statistics.quantiles(ratios)
        took = f"{statistics.median(each_us):.2f} us"
        out.line(f"{name}, {contender}", took, f"ratio {middle:.3f}", f"({low:.3f} to {high:.3f})")


async def with_pika(out: Table, url: str, size: Size) -> None:
    """Compare `basic_publish` of pika's blocking channel."""

    def publishing(connection: pika.BlockingConnection) -> Publish:
        channel = connection.channel()
        properties = pika.BasicProperties(headers=HEADERS)

        async def publish(count: int) -> None:
            for _ in range(count):
                channel.basic_publish("", QUEUE, BODY, properties)

        return publish

    with ExitStack() as stack:
        kinds = (pika.BlockingConnection, pika.BlockingConnection, BlockingConnection)
        made = [stack.enter_context(kind(pika.URLParameters(url))) for kind in kinds]
        await compare(out, "pika", map(publishing, made), size)


async def with_kombu(out: Table, url: str, size: Size) -> None:
    """Compare `publish` of kombu's producer; the body is already encoded."""

    def publishing(producer: KombuProducer) -> Publish:
        async def publish(count: int) -> None:
            for _ in range(count):
                producer.publish(
                    BODY, QUEUE, delivery_mode=1, content_type="x/y", headers=dict(HEADERS)
                )

        return publish

    with ExitStack() as stack:
        kinds = (KombuProducer, KombuProducer, Producer)
        made = [kind(stack.enter_context(Connection(url))) for kind in kinds]
        await compare(out, "kombu", map(publishing, made), size)


async def with_aio_pika(out: Table, url: str, size: Size) -> None:
    """Compare `publish` of aio-pika's default exchange."""

    def publishing(exchange: aio_pika.abc.AbstractExchange) -> Publish:
        message = aio_pika.Message(BODY, headers=dict(HEADERS))

        async def publish(count: int) -> None:
            for _ in range(count):
                await exchange.publish(message, QUEUE, mandatory=False)

        return publish

    async with AsyncExitStack() as stack:
        exchanges = []
        for connect in (aio_pika.connect, aio_pika.connect, delaying_aio_pika.connect):
            connection = await stack.enter_async_context(await connect(url))
            channel = await connection.channel(publisher_confirms=False)
            exchanges.append(channel.default_exchange)
        await compare(out, "aio_pika", map(publishing, exchanges), size)


def check_us(count: int) -> float:
    """Microseconds that `timing_of` takes by itself, on HEADERS."""
    began_s = time.perf_counter()
    for _ in range(count):
        timing_of(HEADERS, None, None)
    return (time.perf_counter() - began_s) / count * 1e6


def main(messages: int = 500, rounds: int = 60) -> None:
    """Measure all libraries and print the table."""
    out = Table(f"publishes that are not delayed: {rounds} rounds of {messages:,}")
    with open_rabbitmq() as broker:
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        connection.channel().queue_declare(QUEUE, arguments={"x-max-length": 1000})
        connection.close()
        for run in (with_pika, with_kombu, with_aio_pika):
            asyncio.run(run(out, broker.url, Size(messages, rounds)))
    out.line("the check alone", f"{check_us(50_000):.2f} us")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
