"""How many messages per second ingest moves from a delay exchange or delay topic into the store.

    python -m bench.ingest [MESSAGES] [RUNS]

100-byte bodies with an id and a delay of an hour; one process of each kind. Each figure is the
median of the runs, and is compared with limits of the same run. RabbitMQ: two consumers of the same
quorum queue that only acknowledge, `raw` (cuts frames by hand, decodes nothing) and `pika` (pika's
own consumer). Kafka: `consumer` only counts records; `store` writes to the store without a broker.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from operator import truediv
from pathlib import Path

import pika
import redis
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from pika.adapters.blocking_connection import BlockingChannel

from bench.rig import BODY, cpu_seconds, open_kafka, open_rabbitmq, open_redis
from delaybridge import Client, Message
from delaybridge.amqp.connection import open_connection
from delaybridge.ingest.rabbitmq.connection import Deliveries, IntakeConnection
from delaybridge.ingest.rabbitmq.topology import declarations
from delaybridge.ingest.routes import SUFFIX, Route
from delaybridge.store.protocol.verbs import new_stamp
from tests.rigs.bridge import rabbitmq_channel
from tests.servers.sources import Running

HOUR_MS = 3_600_000
PREFETCH = 4000
CPU_US = 4  # of ingest, for a message of RabbitMQ


def fill_queue(url: str, queue: str, count: int) -> None:
    """Put `count` delayed messages into the intake queue of the delay exchange `queue`."""
    with rabbitmq_channel(url) as channel:
        route = Route("rabbitmq", "rabbitmq", queue, queue.removesuffix(SUFFIX))
        for method, arguments in declarations(route):
            getattr(channel, method)(**arguments)
        for number in range(count):
            properties = pika.BasicProperties(
                headers={"x-delay": HOUR_MS}, delivery_mode=2, message_id=f"{queue}-{number}"
            )
            channel.basic_publish(queue, "some.key", BODY, properties)
        while channel.queue_declare(queue, passive=True).method.message_count < count:
            time.sleep(0.05)


def raw_consumer(url: str, queue: str, count: int) -> float:
    """Messages per second of a consumer that cuts frames and acknowledges in batches."""

    async def consume() -> float:
        loop = asyncio.get_running_loop()
        connection = await open_connection(
            pika.URLParameters(url), lambda p, loop: IntakeConnection(p, loop, 2**40)
        )
        connection.read_much()
        channel = await connection.open_channel(lambda *_: None)
        arrived = asyncio.Event()
        deliveries = Deliveries(arrived.set)
        connection.take_deliveries(channel.channel_number, deliveries)
        await connection.call(channel, "basic_qos", prefetch_count=PREFETCH)
        began_s, seen = loop.time(), 0
        await connection.call(
            channel, "basic_consume", queue=queue, on_message_callback=lambda *_: None
        )
        while seen < count:
            await arrived.wait()
            arrived.clear()
            seen += len(deliveries.messages)
            connection.ack(channel.channel_number, deliveries.messages[-1].tag, multiple=True)
            deliveries.messages.clear()
        rate = count / (loop.time() - began_s)
        connection.close()
        await asyncio.wait([connection.lost], timeout=1)
        return rate

    return asyncio.run(consume())


def pika_consumer(url: str, queue: str, count: int) -> float:
    """Messages per second of pika's own consumer, which acknowledges in batches."""
    seen = 0

    def received(channel: BlockingChannel, method: object, _: object, body: bytes) -> None:
        nonlocal seen
        seen += 1
        if seen % 500 == 0 or seen == count:
            channel.basic_ack(method.delivery_tag, multiple=True)  # type: ignore[attr-defined]
            if seen == count:
                channel.stop_consuming()

    with rabbitmq_channel(url) as channel:
        channel.basic_qos(prefetch_count=PREFETCH)
        began_s = time.monotonic()
        channel.basic_consume(queue, received)
        channel.start_consuming()
        return count / (time.monotonic() - began_s)


def ingest(redis_url: str, broker: str, arguments: list[str], count: int) -> tuple[float, float]:
    """Messages per second and microseconds of CPU per message of `delaybridge ingest`."""
    namespace = f"bench-{uuid.uuid4().hex[:8]}"
    name = arguments[1]
    with tempfile.TemporaryDirectory() as folder, Client(redis_url, namespace=namespace) as client:
        client.stats()
        log = Path(folder, "log").open("wb")
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "delaybridge", "--redis", redis_url),
                *("--namespace", namespace, "--broker", f"{name}={broker}", *arguments),
            ],
            stdout=log,
            stderr=log,
            env=os.environ,
            cwd=folder,
        )
        try:
            return _ingest_rate(redis_url, namespace, process.pid, count)
        finally:
            process.terminate()
            process.wait()
            log.close()


def _ingest_rate(redis_url: str, namespace: str, pid: int, count: int) -> tuple[float, float]:
    """The figures of `ingest`, from the last look at an empty store to the last message."""
    keys = [f"{{{namespace}:{n}}}:due" for n in range(16)]
    connection = redis.Redis.from_url(redis_url)

    def stored() -> int:
        with connection.pipeline(transaction=False) as pipeline:
            for key in keys:
                pipeline.zcard(key)
            return sum(pipeline.execute())

    began_s, began_cpu_s = time.monotonic(), cpu_seconds(pid)
    while not stored():
        time.sleep(0.005)
        began_s, began_cpu_s = time.monotonic(), cpu_seconds(pid)
    while (now := stored()) < count:
        time.sleep(0.01)
    took_s, cpu_s = time.monotonic() - began_s, cpu_seconds(pid) - began_cpu_s
    return now / took_s, cpu_s / now * 1e6


def fill_topic(servers: str, topic: str, count: int) -> None:
    """Create a delay topic of four partitions, and put `count` delayed records into it."""
    admin = AdminClient({"bootstrap.servers": servers})
    for future in admin.create_topics([NewTopic(topic, 4, 1)]).values():
        future.result(20)
    producer = Producer({"bootstrap.servers": servers, "queue.buffering.max.messages": count + 1})
    for number in range(count):
        producer.produce(
            topic, BODY, f"key-{number}", headers=[("delaybridge-delay", str(HOUR_MS))]
        )
        producer.poll(0)
    producer.flush()


def kafka_consumer(servers: str, topic: str, count: int) -> float:
    """Records per second of a plain consumer that reads key, value and headers."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": uuid.uuid4().hex,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    seen, began_s = 0, 0.0
    while seen < count:
        messages = consumer.consume(1000, 0.2)
        if messages and not began_s:
            began_s = time.monotonic()
        for message in messages:
            seen += 1 if message.error() is None else 0
            message.key(), message.value(), message.headers()
    consumer.close()
    return count / (time.monotonic() - began_s)


def store_writes(redis_url: str, count: int) -> float:
    """Messages per second of storing accepted messages in batches of a thousand."""
    with Client(redis_url, namespace=f"bench-{uuid.uuid4().hex[:8]}") as client:
        client.stats()
        messages = [
            Message("kafka:x", BODY, delay="1h", key=f"key-{n}", id=f"id-{n}") for n in range(count)
        ]
        accepted = [(new_stamp(), client.accept(message)) for message in messages]
        began_s = time.monotonic()
        for first in range(0, count, 1000):
            client.schedule_accepted(accepted[first : first + 1000])
        return count / (time.monotonic() - began_s)


def rabbitmq_table(redis: Running, broker: Running, count: int, runs: int) -> None:
    """Measure and print the figures of the delay exchange."""
    figures: dict[str, list[float]] = {"raw": [], "pika": [], "ingest": [], "cpu": []}
    for _ in range(runs):
        queue = f"b{uuid.uuid4().hex[:8]}.delay"
        consumers: list[tuple[str, Callable[[str, str, int], float]]] = [
            ("raw", raw_consumer),
            ("pika", pika_consumer),
        ]
        for name, consumer in consumers:
            fill_queue(broker.url, queue, count)
            figures[name].append(consumer(broker.url, queue, count))
        fill_queue(broker.url, queue, count)
        rate, cpu_us = ingest(
            redis.url, broker.url, ["ingest", "rabbitmq", "--exchange", queue], count
        )
        figures["ingest"].append(rate)
        figures["cpu"].append(cpu_us)
    _print("RabbitMQ delay exchange", figures, {"raw": 0.75, "pika": None}, f" (target {CPU_US})")


def kafka_table(redis: Running, broker: Running, count: int, runs: int) -> None:
    """Measure and print the figures of the delay topic."""
    servers = broker.url.removeprefix("kafka://")
    figures: dict[str, list[float]] = {"consumer": [], "store": [], "ingest": [], "cpu": []}
    for _ in range(runs):
        topic = f"b{uuid.uuid4().hex[:8]}.delay"
        fill_topic(servers, topic, count)
        figures["consumer"].append(kafka_consumer(servers, topic, count))
        figures["store"].append(store_writes(redis.url, count))
        rate, cpu_us = ingest(redis.url, broker.url, ["ingest", "kafka", "--topic", topic], count)
        figures["ingest"].append(rate)
        figures["cpu"].append(cpu_us)
    _print("Kafka delay topic", figures, {"consumer": None, "store": 0.85}, "")


def _print(
    title: str, figures: dict[str, list[float]], limits: dict[str, float | None], cpu: str
) -> None:
    """limits: what ingest is compared with, and the least share of it that it must reach."""
    middle = {name: statistics.median(values) for name, values in figures.items()}
    sys.stdout.write(f"\n{title}\n")
    for name in limits:
        sys.stdout.write(f"  {name:<10} {middle[name]:>9,.0f}/s\n")
    shares = {  # each of its own run
        name: statistics.median(map(truediv, figures["ingest"], figures[name])) for name in limits
    }
    ratios = "  ".join(
        f"{shares[name]:.2f} of {name}" + (f" (target {least})" if least else "")
        for name, least in limits.items()
    )
    sys.stdout.write(
        f"  {'ingest':<10} {middle['ingest']:>9,.0f}/s  {ratios}  "
        f"{middle['cpu']:.1f} us CPU a message{cpu}\n"
    )
    sys.stdout.flush()


def main(count: int = 30_000, runs: int = 3) -> None:
    """Print both tables."""
    with open_redis() as redis:
        with open_rabbitmq() as broker:
            rabbitmq_table(redis, broker, count, runs)
        with open_kafka() as kafka:
            kafka_table(redis, kafka, count, runs)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
