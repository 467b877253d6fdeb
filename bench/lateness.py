"""B3: how late messages are received, compared with publishing directly at the due time.

    python -m bench.lateness [SECONDS] [PENDING]

Measured from the due time until a consumer that imports only its client library has the message, at
100/s and 1,000/s, with nothing else pending and with PENDING other messages due tomorrow. One
worker, default settings. With PENDING, RabbitMQ at 1,000/s also with metrics scraped each second,
and beside HELD messages that are due for a paused destination. `bench.ledger` measures the same
beside a promotion.
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

from bench.beside import scraped
from bench.rig import (
    BODY,
    PARTITIONS,
    POLL_S,
    Table,
    kafka_topic,
    open_bench,
    open_kafka,
    open_rabbitmq,
    open_redis,
    quorum_queue,
)
from delaybridge import Message
from delaybridge.times import format_time
from tests.rigs.bridge import rabbitmq_channel
from tests.servers.process import free_port

HERE = Path(__file__).parent
AHEAD_S = 3.0  # from scheduling to the first due message
RATES = (100, 1000)
HELD = 100_000
SPARE_S = 60  # how long the last message may take to arrive


class Lateness(NamedTuple):
    """Percentiles of lateness, in ms. A negative `least` means that a message came early."""

    p50: float
    p99: float
    most: float
    least: float

    def __str__(self) -> str:
        return f"{self.p50:.2f} / {self.p99:.2f} / {self.most:.1f} ms"


class Receiver:
    """A plain consumer in a process of its own. path: how late each message was, in us."""

    def __init__(self, script: str, address: str, target: str, count: int, folder: str) -> None:
        self.path = Path(folder, "late")
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / script), address, target, str(count), str(self.path)],
            stdout=subprocess.PIPE,
        )
        if self._process.stdout is None or self._process.stdout.readline() != b"ready\n":
            raise RuntimeError(f"{script} did not start")

    def lateness(self, timeout_s: float) -> Lateness:
        """Wait until it has received all messages; how late they were."""
        self._process.wait(timeout_s)
        return percentiles([int(line) for line in self.path.read_text().split()])

    def end(self) -> None:
        """Kill the process, if it has not ended."""
        self._process.kill()
        self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()


def percentiles(late_us: list[int]) -> Lateness:
    """Percentiles of these microseconds, in ms."""
    found = sorted(each / 1000 for each in late_us)
    count = len(found)
    return Lateness(found[count // 2], found[count * 99 // 100], found[-1], found[0])


@contextmanager
def receiving(script: str, address: str, target: str, count: int) -> Iterator[Receiver]:
    """Start a consumer of `count` messages; it is killed when the block ends."""
    with TemporaryDirectory() as folder:
        receiver = Receiver(script, address, target, count, folder)
        try:
            yield receiver
        finally:
            receiver.end()


def paced(rate: int, seconds: float, publish: Callable[[], None]) -> None:
    """Call `publish` `rate` times per second, evenly spaced."""
    began_s = time.monotonic()
    for number in range(int(rate * seconds)):
        wait_s = began_s + number / rate - time.monotonic()
        if wait_s > 0:
            time.sleep(wait_s)
        publish()


class RabbitMQ:
    """What B3 needs of RabbitMQ: a queue for each run, a direct publish, a consumer."""

    name, script, targets_ms = "RabbitMQ", "receive_rabbitmq.py", (0.3, 0.7)

    def __init__(self, url: str) -> None:
        self.brokers, self.address, self.new_target = {"rabbitmq": url}, url, quorum_queue

    def destination(self, queue: str) -> str:
        """The destination of messages for this queue."""
        return f"rabbitmq:{queue}/key"

    def publish(self, queue: str, rate: int, seconds: float) -> None:
        """Publish without delaybridge, evenly spaced."""
        with rabbitmq_channel(self.address) as channel:

            def publish() -> None:
                headers = {"sent-us": time.time_ns() // 1000}
                properties = pika.BasicProperties(headers=headers, delivery_mode=2)
                channel.basic_publish(queue, "key", BODY, properties, mandatory=True)

            paced(rate, seconds, publish)


class Kafka:
    """What B3 needs of Kafka: a topic for each run, a direct publish, a consumer."""

    name, script, targets_ms = "Kafka", "receive_kafka.py", (0.7, 4)

    def __init__(self, url: str) -> None:
        self.brokers, self.address = {"kafka": url}, urlsplit(url).netloc
        self.new_target = kafka_topic

    def destination(self, topic: str) -> str:
        """The destination of messages for this topic."""
        return f"kafka:{topic}"

    def publish(self, topic: str, rate: int, seconds: float) -> None:
        """Publish without delaybridge, evenly spaced, with the settings of its publisher."""
        producer = Producer(
            {"bootstrap.servers": self.address, "enable.idempotence": True, "linger.ms": 0}
        )

        def publish() -> None:
            sent = str(time.time_ns() // 1000).encode()
            producer.produce(topic, BODY, headers=[("sent-us", sent)])
            producer.poll(0)

        for partition in range(PARTITIONS):
            producer.produce(topic, BODY, headers=[("sent-us", b"0")], partition=partition)
        producer.flush(20)
        paced(rate, seconds, publish)
        producer.flush(20)


def direct(broker: RabbitMQ | Kafka, rate: int, seconds: float) -> Lateness:
    """The limit: lateness of messages that a client publishes at the due time itself."""
    with broker.new_target(broker.address) as target:
        count = int(rate * seconds)
        with receiving(broker.script, broker.address, target, count) as receiver:
            broker.publish(target, rate, seconds)
            return receiver.lateness(SPARE_S)


def delayed(
    redis_url: str,
    broker: RabbitMQ | Kafka,
    rate: int,
    seconds: float,
    pending: int,
    held: int = 0,
    /,
    **settings: str,
) -> Lateness:
    """Lateness of the same messages, scheduled ahead with delaybridge; settings: of the worker.

    held: messages that are due for a paused destination.
    """
    count = int(rate * seconds)
    with (
        open_bench(redis_url, **broker.brokers) as bench,
        broker.new_target(broker.address) as target,
    ):
        destination = broker.destination(target)
        bench.fill(destination, pending, delay="1d")
        bench.client.destinations.pause(held_to := destination.replace(target, "held"))
        bench.fill(held_to, held)
        bench.start_worker(**settings)
        bench.wait_until_owned()
        while bench.count_in("parked") < held:
            time.sleep(POLL_S)
        with receiving(broker.script, broker.address, target, count) as receiver:
            first_ms = (time.time() + AHEAD_S) * 1000
            messages = [
                Message(destination, BODY, at=format_time(round(first_ms + number * 1000 / rate)))
                for number in range(count)
            ]
            for first in range(0, count, 1000):
                bench.client.schedule_many(messages[first : first + 1000])
            return receiver.lateness(AHEAD_S + seconds + SPARE_S)


def table(redis_url: str, broker: RabbitMQ | Kafka, seconds: float, pending: int) -> None:
    """Measure and print B3 for one broker."""
    p50_ms, p99_ms = broker.targets_ms
    limits = f"target: direct + {p50_ms} / + {p99_ms} ms"
    out = Table(f"B3 lateness on {broker.name}, p50 / p99 / max; {limits}")
    for rate in RATES:
        limit = direct(broker, rate, seconds)
        out.line(f"direct, {rate}/s", str(limit))

        def line(name: str, late: Lateness, limit: Lateness = limit) -> None:
            over = f"{late.p50 - limit.p50:+.2f} / {late.p99 - limit.p99:+.2f}"
            out.line(name, str(late), over, "early!" if late.least < 0 else "")

        for others in sorted({0, pending}):
            late = delayed(redis_url, broker, rate, seconds, others)
            line(f"delaybridge, {rate}/s, {others:,} pending", late)
    if pending and isinstance(broker, RabbitMQ):
        with scraped(port := free_port()):
            late = delayed(redis_url, broker, rate, seconds, 0, METRICS__PORT=str(port))
        line(f"delaybridge, {rate}/s, scraped each second", late)
        line(
            f"delaybridge, {rate}/s, {HELD:,} held",
            delayed(redis_url, broker, rate, seconds, 0, HELD),
        )


def main(seconds: float = 10, pending: int = 100_000) -> None:
    """Print both tables."""
    with open_redis() as redis:
        with open_rabbitmq() as rabbitmq:
            table(redis.url, RabbitMQ(rabbitmq.url), seconds, pending)
        with open_kafka() as kafka:
            table(redis.url, Kafka(kafka.url), seconds, pending)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
