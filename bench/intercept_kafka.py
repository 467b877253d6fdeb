"""The cost of the Kafka drop-ins for a record without a delay, and their rate of delayed ones.

    python -m bench.intercept_kafka [MESSAGES] [ROUNDS]

100-byte messages with a key and two headers. First table: microseconds of this process' CPU per
message that is not delayed, from the call to its acknowledgement, for plain, plain again and the
drop-in (bench.intercept_rabbitmq explains these columns). For confluent_kafka also the time of
`produce` by itself, in the thread that calls it, since all of the drop-in's work is done there.
Second table: delayed messages stored per second, and the ratio to `Client.schedule_many` with as
many messages in a call.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import time
import uuid
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import aiokafka
import confluent_kafka
import redis

from bench.intercept_rabbitmq import TRACE, Publish, Size, compare
from delaybridge import AsyncClient, Client, Message
from delaybridge.intercept.aiokafka import AIOKafkaProducer
from delaybridge.intercept.confluent_kafka import Producer
from delaybridge.intercept.kafka_outbox import BATCH_MESSAGES
from tests.servers.kafka import KafkaNode
from tests.servers.redis import RedisServer

TOPIC = "bench-intercept"
BODY, KEY = b"x" * 100, b"17"
HEADERS: list[tuple[str, Any]] = [("trace", TRACE.encode()), ("n", b"1")]
BROKERS = {"kafka": "kafka://127.0.0.1"}
STORED = 20_000


async def with_confluent_kafka(servers: str, size: Size) -> None:
    """Compare confluent_kafka's `produce` and `poll(0)` per message, and one flush."""

    def publishing(producer: confluent_kafka.Producer) -> Publish:
        async def publish(count: int) -> None:
            for _ in range(count):
                producer.produce(TOPIC, BODY, KEY, headers=HEADERS)
                producer.poll(0)
            producer.flush()

        return publish

    kinds = (confluent_kafka.Producer, confluent_kafka.Producer, Producer)
    made = [kind({"bootstrap.servers": servers}) for kind in kinds]
    await compare("confluent", map(publishing, made), size)
    for headers in (None, HEADERS):
        calls_us = [[_call_us(one, headers, size.messages) for one in made] for _ in range(30)]
        plain, again, drop_in = map(statistics.median, zip(*calls_us, strict=True))
        sys.stdout.write(
            f"produce alone, {len(headers or ())} headers: plain {plain:.2f} us  "
            f"again {again:.2f} us  drop-in {drop_in:.2f} us\n"
        )


def _call_us(producer: confluent_kafka.Producer, headers: Any, count: int) -> float:
    began_s = time.thread_time()
    for _ in range(count):
        producer.produce(TOPIC, BODY, KEY, headers=headers)
    took_s = time.thread_time() - began_s
    producer.flush()
    return took_s / count * 1e6


async def with_aiokafka(servers: str, size: Size) -> None:
    """Compare aiokafka's `send` per message, and one flush."""

    def publishing(producer: aiokafka.AIOKafkaProducer) -> Publish:
        async def publish(count: int) -> None:
            for _ in range(count):
                await producer.send(TOPIC, BODY, KEY, headers=HEADERS)
            await producer.flush()

        return publish

    async with AsyncExitStack() as stack:
        kinds = (aiokafka.AIOKafkaProducer, aiokafka.AIOKafkaProducer, AIOKafkaProducer)
        made = [await stack.enter_async_context(kind(bootstrap_servers=servers)) for kind in kinds]
        await compare("aiokafka", map(publishing, made), size)


async def storing(servers: str, server: RedisServer, rounds: int) -> None:
    """Measure and print how many delayed messages are stored per second."""
    async with AsyncExitStack() as stack:
        client = stack.enter_context(Client(server.url, brokers=BROKERS))
        producer = stack.enter_context(Producer({"bootstrap.servers": servers}, client=client))
        async_client = await stack.enter_async_context(AsyncClient(server.url, brokers=BROKERS))
        async_producer = await stack.enter_async_context(
            AIOKafkaProducer(bootstrap_servers=servers, client=async_client)
        )
        stores = {
            "schedule_many": partial(_schedule_many, client),
            "confluent": partial(_confluent, producer),
            "aiokafka": partial(_aiokafka, async_producer),
        }
        rates: dict[str, list[float]] = {name: [] for name in stores}
        for _ in range(rounds):
            for name, store in random.sample(list(stores.items()), len(stores)):
                began_s = time.perf_counter()
                await store()
                rates[name].append(STORED / (time.perf_counter() - began_s))
                if client.stats().delayed != STORED:
                    raise SystemExit(f"{name}: not all was stored")
                _empty(server.url)
        _show(rates)


async def _schedule_many(client: Client) -> None:
    for _ in range(STORED // BATCH_MESSAGES):
        client.schedule_many(
            Message(f"kafka:{TOPIC}", BODY, key=_key(), headers=HEADERS, delay="1h")
            for _ in range(BATCH_MESSAGES)
        )


async def _confluent(producer: Producer) -> None:
    for _ in range(STORED):
        producer.produce(TOPIC, BODY, _key(), headers=HEADERS, delay="1h")
    producer.flush()


async def _aiokafka(producer: AIOKafkaProducer) -> None:
    for _ in range(STORED):
        await producer.send(TOPIC, BODY, _key(), headers=HEADERS, delay="1h")
    await producer.flush()


def _show(rates: dict[str, list[float]]) -> None:
    for name, each in rates.items():
        ratio = statistics.median(
            rate / of for rate, of in zip(each, rates["schedule_many"], strict=True)
        )
        sys.stdout.write(f"{name:13} {statistics.median(each):8.0f} delayed/s  ratio {ratio:.2f}\n")


def _key() -> bytes:
    return uuid.uuid4().bytes


def _empty(url: str) -> None:
    with redis.Redis.from_url(url) as connection:
        for suffix in ("due", "messages"):
            connection.delete(*connection.scan_iter(match=f"*:{suffix}", count=1000))


def main(size: Size) -> None:
    """Print the tables."""
    with RedisServer() as redis, KafkaNode(options=()) as kafka:
        servers = kafka.url.removeprefix("kafka://")
        sys.stdout.write(
            f"kafka {kafka.version}  redis {redis.version}  confluent_kafka "
            f"{confluent_kafka.__version__}  aiokafka {aiokafka.__version__}  "
            f"{size.rounds} rounds of {size.messages} messages\n"
        )
        for run in (with_confluent_kafka, with_aiokafka):
            asyncio.run(run(servers, size))
            sys.stdout.flush()
        asyncio.run(storing(servers, redis, 7))


if __name__ == "__main__":
    main(Size(*map(int, [*sys.argv[1:3], *("2000", "40")[len(sys.argv) - 1 :]])))
