"""B3: how late messages are received, beside publishing them directly at that moment.

    python -m bench.lateness [SECONDS] [PENDING]

Due -> received by a consumer that imports its client library alone, at 100/s and 1,000/s, with
nothing else pending and with PENDING other messages due tomorrow. One worker, default settings.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from urllib.parse import urlsplit

import pika
from confluent_kafka import Producer

from bench.rig import BODY, PARTITIONS, Table, bench, kafka_topic, quorum_queue
from delaybridge import Message
from delaybridge.times import format_time
from tests.rigs.bridge import rabbitmq_channel
from tests.servers.kafka import KafkaNode
from tests.servers.rabbitmq import RabbitMQNode
from tests.servers.redis import RedisServer

HERE = Path(__file__).parent
AHEAD_S = 3.0  # from scheduling to the first due message
SPARE_S = 60


class Late(NamedTuple):
    """Lateness in ms."""

    p50: float
    p99: float
    most: float
    least: float

    def __str__(self) -> str:
        return f"{self.p50:.2f} / {self.p99:.2f} / {self.most:.1f} ms"


class Receiver:
    """A consumer in a process of its own."""

    def __init__(self, script: str, address: str, source: str, count: int, folder: str) -> None:
        self._path = Path(folder, "late")
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / script), address, source, str(count), str(self._path)],
            stdout=subprocess.PIPE,
        )
        if self._process.stdout is None or self._process.stdout.readline() != b"ready\n":
            raise RuntimeError(f"{script} did not start")

    def late(self, timeout_s: float) -> Late:
        """Wait until it has all."""
        self._process.wait(timeout_s)
        found = sorted(int(line) / 1000 for line in self._path.read_text().split())
        count = len(found)
        return Late(found[count // 2], found[count * 99 // 100], found[-1], found[0])

    def end(self) -> None:
        """It may have ended."""
        self._process.kill()
        self._process.wait()


@contextmanager
def receiving(script: str, address: str, source: str, count: int) -> Iterator[Receiver]:
    """A consumer of so many messages."""
    with TemporaryDirectory() as folder:
        receiver = Receiver(script, address, source, count, folder)
        try:
            yield receiver
        finally:
            receiver.end()


def paced(rate: int, seconds: float, publish: Callable[[], None]) -> None:
    """Call it so often, each time at its moment."""
    began_s = time.monotonic()
    for number in range(int(rate * seconds)):
        wait_s = began_s + number / rate - time.monotonic()
        if wait_s > 0:
            time.sleep(wait_s)
        publish()


class RabbitMQ:
    """Queues, a direct publish and a consumer."""

    name, script, most_ms = "RabbitMQ", "receive_rabbitmq.py", 2

    def __init__(self, url: str) -> None:
        self.brokers, self.address, self.place = {"rabbitmq": url}, url, quorum_queue

    def destination(self, source: str) -> str:
        """Where messages for this queue go."""
        return f"rabbitmq:{source}/key"

    def direct(self, source: str, rate: int, seconds: float) -> None:
        """Publish without delaybridge."""
        with rabbitmq_channel(self.address) as channel:

            def publish() -> None:
                headers = {"sent-us": time.time_ns() // 1000}
                properties = pika.BasicProperties(headers=headers, delivery_mode=2)
                channel.basic_publish(source, "key", BODY, properties, mandatory=True)

            paced(rate, seconds, publish)


class Kafka:
    """The same."""

    name, script, most_ms = "Kafka", "receive_kafka.py", 4

    def __init__(self, url: str) -> None:
        self.brokers, self.address, self.place = {"kafka": url}, urlsplit(url).netloc, kafka_topic

    def destination(self, source: str) -> str:
        """Where messages for this topic go."""
        return f"kafka:{source}"

    def direct(self, source: str, rate: int, seconds: float) -> None:
        """Publish without delaybridge, as the publisher's settings are."""
        producer = Producer(
            {"bootstrap.servers": self.address, "enable.idempotence": True, "linger.ms": 0}
        )

        def publish() -> None:
            sent = [("sent-us", str(time.time_ns() // 1000).encode())]
            producer.produce(source, BODY, headers=sent)
            producer.poll(0)

        for partition in range(PARTITIONS):
            producer.produce(source, BODY, headers=[("sent-us", b"0")], partition=partition)
        producer.flush(20)
        paced(rate, seconds, publish)
        producer.flush(20)


def direct(broker: RabbitMQ | Kafka, rate: int, seconds: float) -> Late:
    """The limit: published at that moment by a client that does nothing else."""
    with broker.place(broker.address) as source:
        count = int(rate * seconds)
        with receiving(broker.script, broker.address, source, count) as receiver:
            broker.direct(source, rate, seconds)
            return receiver.late(SPARE_S)


def delayed(
    redis_url: str, broker: RabbitMQ | Kafka, rate: int, seconds: float, pending: int
) -> Late:
    """The same messages through delaybridge, scheduled before."""
    count = int(rate * seconds)
    with bench(redis_url, **broker.brokers) as mine, broker.place(broker.address) as source:
        mine.fill(broker.destination(source), pending, delay="1d")
        mine.worker()
        mine.until_owned()
        with receiving(broker.script, broker.address, source, count) as receiver:
            first_ms = (time.time() + AHEAD_S) * 1000
            messages = [
                Message(
                    *(broker.destination(source), BODY),
                    at=format_time(round(first_ms + number * 1000 / rate)),
                )
                for number in range(count)
            ]
            for first in range(0, count, 1000):
                mine.client.schedule_many(messages[first : first + 1000])
            return receiver.late(AHEAD_S + seconds + SPARE_S)


def table(redis_url: str, broker: RabbitMQ | Kafka, seconds: float, pending: int) -> None:
    """Print B3 for one broker."""
    must = f"must show direct + 0.7 / + {broker.most_ms} ms"
    out = Table(f"B3 lateness on {broker.name}, p50 / p99 / most; {must}")
    for rate in (100, 1000):
        limit = direct(broker, rate, seconds)
        out.line(f"direct, {rate}/s", str(limit))
        for others in (0, pending):
            late = delayed(redis_url, broker, rate, seconds, others)
            over = f"{late.p50 - limit.p50:+.2f} / {late.p99 - limit.p99:+.2f}"
            early = "early!" if late.least < 0 else ""
            out.line(f"delaybridge, {rate}/s, {others:,} pending", str(late), over, early)


def main(seconds: float = 10, pending: int = 100_000) -> None:
    """Print both tables."""
    with RedisServer() as redis:
        with RabbitMQNode() as rabbitmq:
            table(redis.url, RabbitMQ(rabbitmq.url), seconds, pending)
        with KafkaNode(options=()) as kafka:
            table(redis.url, Kafka(kafka.url), seconds, pending)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
