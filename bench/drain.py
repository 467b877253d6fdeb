"""B1: drain of a backlog, compared with publishing alone.

    python -m bench.drain [MESSAGES] [RUNS]

One worker process, one quorum queue, 100-byte bodies, confirms, mandatory. Each figure is the
median of the runs; a drain is measured as Bench.drain_costs says.
"""

from __future__ import annotations

import sys
from statistics import median

from bench.raw_rabbitmq import publish_raw, publish_with_pika
from bench.rig import Table, open_bench, open_rabbitmq, open_redis, quorum_queue


def drain(redis_url: str, url: str, count: int, **settings: str) -> tuple[float, float]:
    """Messages per second and microseconds of CPU per message of one worker on a backlog."""
    with open_bench(redis_url, rabbitmq=url) as bench, quorum_queue(url) as queue:
        bench.fill(f"rabbitmq:{queue}/key", count)
        return bench.measure_drain(count, [bench.start_worker(**settings)])


def table(redis_url: str, url: str, count: int, runs: int) -> None:
    """Measure and print B1."""
    figures: dict[str, list[tuple[float, float]]] = {"raw": [], "pika": [], "delaybridge": []}
    for _ in range(runs):
        with quorum_queue(url) as queue:
            figures["raw"].append(publish_raw(url, queue, count))
        with quorum_queue(url) as queue:
            figures["pika"].append(publish_with_pika(url, queue, count))
        figures["delaybridge"].append(drain(redis_url, url, count))
    out = Table(f"B1 drain: {count:,} messages, one worker, quorum queue; target >= 0.85 of raw")
    limit = median([rate for rate, _ in figures["raw"]])
    for name, found in figures.items():
        rate, cpu_us = median([r for r, _ in found]), median([c for _, c in found])
        out.line(name, f"{rate:,.0f}/s", f"{rate / limit:.2f} of raw", f"{cpu_us:.1f} us CPU")


def main(count: int = 40_000, runs: int = 3) -> None:
    """Print the table."""
    with open_redis() as redis, open_rabbitmq() as broker:
        table(redis.url, broker.url, count, runs)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
