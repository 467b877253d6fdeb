"""B7: drain of a backlog into Kafka, with one worker process and with two.

    python -m bench.drain_kafka [MESSAGES] [RUNS]

Compared with two limits: a confluent-kafka producer with the publisher's settings and one header,
and the store alone, with a publisher that confirms at once (`memory`).
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from statistics import median

from confluent_kafka import Producer

from bench.rig import BODY, Table, kafka_topic, open_bench, open_kafka, open_redis


def produce(servers: str, count: int) -> tuple[float, float]:
    """Messages per second and microseconds of CPU per message of a plain producer."""
    with kafka_topic(servers) as topic:
        producer = Producer(
            {
                "bootstrap.servers": servers,
                "enable.idempotence": True,
                "acks": "all",
                "queue.buffering.max.messages": count,
            }
        )
        headers: list[tuple[str, str | bytes | None]] = [("delaybridge-id", b"0" * 26)]
        producer.produce(topic, BODY, headers=headers)
        producer.flush()  # an idempotent producer first asks the broker for its id
        began_s, began_cpu_s = time.monotonic(), time.process_time()
        for _ in range(count):
            producer.produce(topic, BODY, headers=headers)
            producer.poll(0)
        producer.flush()
        took_s, cpu_s = time.monotonic() - began_s, time.process_time() - began_cpu_s
        return count / took_s, cpu_s / count * 1e6


def drain(redis_url: str, url: str, count: int, workers: int) -> tuple[float, float]:
    """Messages per second and microseconds of CPU per message of the workers on a backlog."""
    servers = url.removeprefix("kafka://")
    with open_bench(redis_url, kafka=url) as bench, kafka_topic(servers) as topic:
        bench.fill(f"kafka:{topic}", count)
        return bench.measure_drain(count, [bench.start_worker() for _ in range(workers)])


def store_alone(redis_url: str, count: int) -> tuple[float, float]:
    """The same figures for claim, fire and settle, with a publisher that only confirms."""
    with open_bench(redis_url, memory="memory://") as bench:
        bench.fill("memory:x", count)
        return bench.measure_drain(count, [bench.start_worker()])


def main(count: int = 40_000, runs: int = 3) -> None:
    """Print the table: medians; a ratio is of one run, and its limits of just before."""
    figures: dict[str, list[tuple[float, float]]] = defaultdict(list)
    ratios: dict[str, list[float]] = defaultdict(list)
    with open_redis() as redis, open_kafka() as kafka:
        servers = kafka.url.removeprefix("kafka://")
        for _ in range(runs):
            turn = {
                "confluent-kafka producer": produce(servers, count),
                "store alone, memory publisher": store_alone(redis.url, count),
                "delaybridge, 1 worker": drain(redis.url, kafka.url, count, 1),
                "delaybridge, 2 workers": drain(redis.url, kafka.url, count, 2),
            }
            limit = min([rate for rate, _ in turn.values()][:2])
            for name, found in turn.items():
                figures[name].append(found)
                ratios[name].append(found[0] / limit)
    out = Table(f"B7 Kafka drain: {count:,} messages; target >= 0.95 of the smaller limit")
    for name, all_found in figures.items():
        rate, cpu_us = map(median, zip(*all_found, strict=True))
        ratio = f"{median(ratios[name]):.2f}"
        out.line(name, f"{rate:,.0f}/s", ratio, f"{cpu_us:.1f} us CPU")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
