"""B1: drain of a backlog, beside publishing alone.

    python -m bench.drain [MESSAGES] [RUNS]

One worker process, one quorum queue, 100-byte bodies, confirms, mandatory, the mirror on. Each
figure is the median of the runs; `drain` counts from the first settled message to the last.
"""

from __future__ import annotations

import sys

from bench.raw_rabbitmq import pika_async, raw
from bench.rig import Table, bench, median, quorum_queue
from tests.servers.rabbitmq import RabbitMQNode
from tests.servers.redis import RedisServer


def drain(redis_url: str, url: str, count: int) -> tuple[float, float]:
    """(Messages per second, microseconds of CPU a message) of one worker on a backlog."""
    with bench(redis_url, rabbitmq=url) as mine, quorum_queue(url) as queue:
        mine.fill(f"rabbitmq:{queue}/key", count)
        return mine.drained(count, [mine.worker()])


def table(redis_url: str, url: str, count: int, runs: int) -> None:
    """Print B1."""
    figures: dict[str, list[tuple[float, float]]] = {"raw": [], "pika": [], "delaybridge": []}
    for _ in range(runs):
        with quorum_queue(url) as queue:
            figures["raw"].append(raw(url, queue, count))
        with quorum_queue(url) as queue:
            figures["pika"].append(pika_async(url, queue, count))
        figures["delaybridge"].append(drain(redis_url, url, count))
    out = Table(f"B1 drain: {count:,} messages, one worker, quorum queue; must show >= 0.8 of raw")
    limit = median([rate for rate, _ in figures["raw"]])
    for name, found in figures.items():
        rate, cpu_us = median([r for r, _ in found]), median([c for _, c in found])
        out.line(name, f"{rate:,.0f}/s", f"{rate / limit:.2f} of raw", f"{cpu_us:.1f} us CPU")


def main(count: int = 40_000, runs: int = 3) -> None:
    """Print the table."""
    with RedisServer() as redis, RabbitMQNode() as broker:
        table(redis.url, broker.url, count, runs)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
