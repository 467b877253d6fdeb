"""The cost of the Kafka drop-ins for a record without a delay, and their rate of delayed ones.

    python -m bench.intercept_kafka [MESSAGES] [ROUNDS] [STORED]

100-byte messages with a key and two headers. First table: microseconds of this process' CPU per
message that is not delayed, from the call to its acknowledgement, for plain, plain again and the
drop-in (bench.intercept_rabbitmq explains these columns). For confluent_kafka also the time of
`produce` by itself, in the thread that calls it, since all of the drop-in's work is done there.
Second table: STORED delayed messages, how many are stored per second, and the ratio to
`Client.schedule_many` with as many messages in a call.
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

from bench.intercept_rabbitmq import TRACE, Publish, Size, compare
from bench.rig import BODY, Bench, Table, open_bench, open_kafka, open_redis
from delaybridge import AsyncClient, Client, Message
from delaybridge.intercept.aiokafka import AIOKafkaProducer
from delaybridge.intercept.confluent_kafka import Producer
from delaybridge.intercept.kafka_outbox import BATCH_MESSAGES

TOPIC = "bench-intercept"
KEY = b"17"
HEADERS: list[tuple[str, Any]] = [("trace", TRACE.encode()), ("n", b"1")]
BROKERS = {"kafka": "kafka://127.0.0.1"}
STORING_ROUNDS = 7


async def with_confluent_kafka(out: Table, servers: str, size: Size) -> None:
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
    await compare(out, "confluent", map(publishing, made), size)
    for headers in (None, HEADERS):
        rounds = [[_call_us(one, headers, size.messages) for one in made] for _ in range(size[1])]
        plain, again, drop_in = map(statistics.median, zip(*rounds, strict=True))
        out.line(
            f"produce alone, {len(headers or ())} headers",
            *(f"plain {plain:.2f} us", f"again {again:.2f} us", f"drop-in {drop_in:.2f} us"),
        )


def _call_us(producer: confluent_kafka.Producer, headers: Any, count: int) -> float:
    began_s = time.thread_time()
    for _ in range(count):
        producer.produce(TOPIC, BODY, KEY, headers=headers)
    took_s = time.thread_time() - began_s
    producer.flush()
    return took_s / count * 1e6


async def with_aiokafka(out: Table, servers: str, size: Size) -> None:
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
        await compare(out, "aiokafka", map(publishing, made), size)


async def storing(servers: str, redis_url: str, count: int, rounds: int) -> None:
    """Measure and print how many delayed messages are stored per second."""
    out = Table(f"delayed messages stored: {rounds} rounds of {count:,}")
    with open_bench(redis_url, **BROKERS) as bench:
        async with AsyncExitStack() as stack:
            options: dict[str, Any] = {"namespace": bench.namespace, "brokers": BROKERS}
            client = stack.enter_context(Client(redis_url, **options))
            producer = stack.enter_context(Producer({"bootstrap.servers": servers}, client=client))
            async_client = await stack.enter_async_context(AsyncClient(redis_url, **options))
            async_producer = await stack.enter_async_context(
                AIOKafkaProducer(bootstrap_servers=servers, client=async_client)
            )
            stores = {
                "schedule_many": partial(_schedule_many, client, count),
                "confluent": partial(_confluent, producer, count),
                "aiokafka": partial(_aiokafka, async_producer, count),
            }
            rates: dict[str, list[float]] = {name: [] for name in stores}
            for _ in range(rounds):
                for name, store in random.sample(list(stores.items()), len(stores)):
                    began_s = time.perf_counter()
                    await store()
                    rates[name].append(count / (time.perf_counter() - began_s))
                    _empty(bench, name, count)
    for name, each in rates.items():
        shares = [rate / of for rate, of in zip(each, rates["schedule_many"], strict=True)]
        ratio = statistics.median(shares)
        out.line(name, f"{statistics.median(each):,.0f}/s", f"ratio {ratio:.2f}")


async def _schedule_many(client: Client, count: int) -> None:
    for first in range(0, count, BATCH_MESSAGES):
        client.schedule_many(
            Message(f"kafka:{TOPIC}", BODY, key=_key(), headers=HEADERS, delay="1h")
            for _ in range(min(BATCH_MESSAGES, count - first))
        )


async def _confluent(producer: Producer, count: int) -> None:
    for _ in range(count):
        producer.produce(TOPIC, BODY, _key(), headers=HEADERS, delay="1h")
    producer.flush()


async def _aiokafka(producer: AIOKafkaProducer, count: int) -> None:
    for _ in range(count):
        await producer.send(TOPIC, BODY, _key(), headers=HEADERS, delay="1h")
    await producer.flush()


def _key() -> bytes:
    return uuid.uuid4().bytes


def _empty(bench: Bench, name: str, count: int) -> None:
    if (found := bench.count_in("due")) != count:
        raise RuntimeError(f"{name}: {found:,} of {count:,} were stored")
    for zset in ("due", "messages"):
        bench.redis.delete(*bench.redis.scan_iter(f"{{{bench.namespace}:*}}:{zset}", count=1000))


def main(messages: int = 2000, rounds: int = 40, stored: int = 20_000) -> None:
    """Print the tables."""
    with open_redis() as redis, open_kafka() as kafka:
        servers = kafka.url.removeprefix("kafka://")
        out = Table(f"records that are not delayed: {rounds} rounds of {messages:,}")
        for run in (with_confluent_kafka, with_aiokafka):
            asyncio.run(run(out, servers, Size(messages, rounds)))
        asyncio.run(storing(servers, redis.url, stored, min(rounds, STORING_ROUNDS)))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
