"""What metrics cost a worker: a drain and the lateness, with a port that is scraped and without.

    python -m bench.metrics [MESSAGES] [SECONDS] [PAIRS]

In pairs, in turn, on the same servers. CPU is that of the process that publishes; its parent serves
a scrape each second (a Prometheus makes one in fifteen). Counting itself is on in both, since
`delaybridge stats` reads it: the last table says what it costs for each message of a batch.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from statistics import median

import psutil

from bench.beside import scraped
from bench.lateness import RabbitMQ, delayed
from bench.rig import BODY, POLL_S, Bench, Table, cpu_seconds, open_bench, open_rabbitmq, open_redis
from delaybridge import Message, events
from delaybridge.histogram import spread
from delaybridge.operate.metrics.counts import Counts
from delaybridge.times import format_time
from tests.servers.process import free_port

RATE = 1000
RATES = (100, 1000)
AHEAD_S = 1.0
BATCHES = (1, 10, 1000)
_REPEATS = 200


def drain(redis_url: str, count: int, **settings: str) -> tuple[float, float]:
    """Messages a second of one worker on a backlog, and its microseconds of CPU for each.

    Nothing leaves the process: a broker would take the processors by turns, and blur the figures.
    """
    with open_bench(redis_url, memory="memory://") as bench:
        bench.fill("memory:orders/key", count)
        pid = bench.start_worker(**settings)
        return bench.measure_drain(count, [child_of(pid) if settings else pid])


def paced(redis_url: str, seconds: float, **settings: str) -> tuple[float, float]:
    """Microseconds of a worker's CPU for each message, at each of the rates, without a broker."""
    with open_bench(redis_url, memory="memory://") as bench:
        pid = bench.start_worker(**settings)
        bench.wait_until_owned()
        worker = child_of(pid) if settings else pid
        slow, fast = (_cpu_us(bench, worker, rate, seconds) for rate in RATES)
        return slow, fast


def _cpu_us(bench: Bench, worker: int, rate: int, seconds: float) -> float:
    count, first_ms = int(rate * seconds), (time.time() + AHEAD_S) * 1000
    bench.client.schedule_many(
        [
            Message("memory:orders/key", BODY, at=format_time(round(first_ms + n * 1000 / rate)))
            for n in range(count)
        ]
    )
    time.sleep(max(0.0, first_ms / 1000 - time.time()))
    before_s = cpu_seconds(worker)
    while bench.count_in("due", "mirror", "parked"):
        time.sleep(POLL_S)
    return (cpu_seconds(worker) - before_s) / count * 1e6


def child_of(parent: int) -> int:
    """The process that publishes."""
    while True:
        for child in psutil.Process(parent).children():
            if any("spawn_main" in word for word in child.cmdline()):
                return int(child.pid)
        time.sleep(POLL_S)


def pair(
    work: Callable[..., tuple[float, float]], *, on_first: bool
) -> dict[bool, tuple[float, float]]:
    """The figures without (False) and with (True) metrics."""
    found = {}
    for is_on in (on_first, not on_first):
        if not is_on:
            found[False] = work()
            continue
        port = free_port()
        with scraped(port) as sizes:
            found[True] = work(METRICS__PORT=str(port))
        if not sizes:
            raise RuntimeError("no scrape was answered")
    return found


def compare(
    title: str, units: tuple[str, str], pairs: int, work: Callable[..., tuple[float, float]]
) -> None:
    """Measure and print pairs of two figures each, and the median of their quotients."""
    found = [pair(work, on_first=number % 2 == 1) for number in range(pairs)]
    out = Table(title)
    for is_on, name in ((False, "off"), (True, "on, scraped each second")):
        first, second = (median(one[is_on][place] for one in found) for place in (0, 1))
        out.line(name, f"{first:,.2f} {units[0]}", f"{second:,.2f} {units[1]}")
    first, second = (median(one[True][n] / one[False][n] for one in found) for n in (0, 1))
    out.line("on / off, median of the pairs", f"{first:.3f}", f"{second:.3f}")


def counting_us(batch: int) -> float:
    """Microseconds for each message of a batch: its events, made and counted."""
    counts, lowest = Counts(), float("inf")
    late_ms = [n % 3 for n in range(batch)]
    of = {"rabbitmq:orders": batch}
    for _ in range(_REPEATS):
        began_s = time.perf_counter()
        counts(events.Claimed(messages=batch, took_ms=0.5, destinations=of))
        counts(events.FireAllowed(messages=batch, destinations=of))
        counts(
            events.Published(
                destination="rabbitmq:orders",
                messages=batch,
                late_ms=max(late_ms),
                late_sum_ms=sum(late_ms),
                lateness=spread(late_ms),
                confirm_ms=[1],
            )
        )
        counts(events.Settled(messages=batch, destinations=of))
        lowest = min(lowest, time.perf_counter() - began_s)
    return lowest * 1e6 / batch


def report_us() -> float:
    """Microseconds of a report of 50 destinations."""
    counts = Counts()
    for number in range(50):
        named = f"rabbitmq:orders.{number}"
        counts(events.Published(destination=named, messages=1, late_ms=1, lateness={0: 1}))
    began_s = time.perf_counter()
    for _ in range(_REPEATS):
        counts.copy()
    return (time.perf_counter() - began_s) / _REPEATS * 1e6


def main(count: int = 40_000, seconds: float = 5, pairs: int = 3) -> None:
    """Print the tables."""
    with open_redis() as redis, open_rabbitmq() as broker:
        compare(
            f"Metrics: drain of {count:,} messages, no broker; target: within 2 % of off",
            ("/s", "us CPU"),
            pairs,
            lambda **settings: drain(redis.url, count, **settings),
        )
        compare(
            f"Metrics: CPU for each message at {RATES[0]}/s and {RATES[1]:,}/s, no broker",
            ("us", "us"),
            pairs,
            lambda **settings: paced(redis.url, seconds, **settings),
        )

        def late(**settings: str) -> tuple[float, float]:
            found = delayed(redis.url, RabbitMQ(broker.url), RATE, seconds, 0, **settings)
            return found.p50, found.p99

        compare(f"Metrics: lateness at {RATE:,}/s, p50 and p99", ("ms", "ms"), pairs, late)
    out = Table("Metrics: counting, always on")
    for batch in BATCHES:
        out.line(f"a batch of {batch:,}", f"{counting_us(batch):.3f} us a message")
    out.line("a report each second, 50 destinations", f"{report_us():.0f} us")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
