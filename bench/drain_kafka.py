"""B7: drain of a backlog into Kafka, with one worker process and with two.

    python -m bench.drain_kafka [MESSAGES] [RUNS]

Beside it a confluent-kafka producer with the publisher's settings, one header, and the store alone:
the same messages through a publisher that confirms at once (`memory`).
"""

from __future__ import annotations

import sys
import time

from confluent_kafka import Producer

from bench.rig import BODY, Table, bench, kafka_topic, median
from tests.servers.kafka import KafkaNode
from tests.servers.redis import RedisServer


def producer(servers: str, count: int) -> tuple[float, float]:
    """(Messages per second, microseconds of CPU a message) of a plain producer."""
    with kafka_topic(servers) as topic:
        plain = Producer(
            {
                "bootstrap.servers": servers,
                "enable.idempotence": True,
                "acks": "all",
                "queue.buffering.max.messages": count,
            }
        )
        headers = [("delaybridge-id", b"0" * 26)]
        plain.produce(topic, BODY, headers=headers)
        plain.flush()  # what an idempotent producer asks for first
        began_s, began_cpu_s = time.monotonic(), time.process_time()
        for _ in range(count):
            plain.produce(topic, BODY, headers=headers)
            plain.poll(0)
        plain.flush()
        took_s, cpu_s = time.monotonic() - began_s, time.process_time() - began_cpu_s
        return count / took_s, cpu_s / count * 1e6


def drain(redis_url: str, url: str, count: int, workers: int) -> tuple[float, float]:
    """The same of our workers on a backlog."""
    with bench(redis_url, kafka=url) as mine, kafka_topic(url.removeprefix("kafka://")) as topic:
        mine.fill(f"kafka:{topic}", count)
        return mine.drained(count, [mine.worker() for _ in range(workers)])


def store_alone(redis_url: str, count: int) -> tuple[float, float]:
    """Claim, fire and settle, and a publisher that does nothing."""
    with bench(redis_url, memory="memory://") as mine:
        mine.fill("memory:x", count)
        return mine.drained(count, [mine.worker()])


def main(count: int = 40_000, runs: int = 3) -> None:
    """Print the table."""
    with RedisServer() as redis, KafkaNode(options=()) as kafka:
        servers = kafka.url.removeprefix("kafka://")
        figures = {
            "confluent-kafka producer": [producer(servers, count) for _ in range(runs)],
            "store alone, memory publisher": [store_alone(redis.url, count) for _ in range(runs)],
        }
        for workers in (1, 2):
            name = f"delaybridge, {workers} worker{'s' * (workers > 1)}"
            figures[name] = [drain(redis.url, kafka.url, count, workers) for _ in range(runs)]
        rates = {name: median([rate for rate, _ in found]) for name, found in figures.items()}
        limit = min(list(rates.values())[:2])
        out = Table(f"B7 Kafka drain: {count:,} messages; must show >= 0.6 of the smaller limit")
        for name, found in figures.items():
            cpu_us = median([cpu for _, cpu in found])
            out.line(
                name, f"{rates[name]:,.0f}/s", f"{rates[name] / limit:.2f}", f"{cpu_us:.1f} us CPU"
            )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
