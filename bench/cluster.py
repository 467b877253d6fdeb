"""B14: one Redis, and Redis Clusters of one, two and three masters, on this machine's cores.

    python -m bench.cluster [MESSAGES] [RUNS]

Schedules messages of 100 bytes with ids drawn by the client (`schedule_many`), then drains them as
a backlog with one worker to a publisher that only counts. Each figure is the median of the runs;
the layouts take turns. Redis' and the worker's CPU time a message say what a Cluster costs; the
rates say little about more masters where these, the client and the worker share few cores.
"""

from __future__ import annotations

import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import NamedTuple

from bench.rig import Table, cpu_seconds, open_bench
from tests.servers.cluster import ClusterSite
from tests.servers.redis import RedisServer

_TO = "memory:bench"
MASTERS = (1, 2, 3)


class Layout(NamedTuple):
    """Servers that are up. pids: of the masters."""

    name: str
    url: str
    pids: Sequence[int]


class Costs(NamedTuple):
    """Messages per second, and microseconds of CPU per message."""

    schedule: float
    schedule_client_us: float
    schedule_redis_us: float
    drain: float
    drain_worker_us: float
    drain_redis_us: float

    @property
    def redis_us(self) -> float:
        """All that the masters spend on a message."""
        return self.schedule_redis_us + self.drain_redis_us

    @property
    def ours_us(self) -> float:
        """What the client and the worker spend on it."""
        return self.schedule_client_us + self.drain_worker_us


@contextmanager
def layouts() -> Iterator[list[Layout]]:
    """One server, and Clusters of one, two and three; in one process tree, mostly idle."""
    with ExitStack() as stack:
        single = stack.enter_context(RedisServer())
        found = [Layout("one Redis", single.url, [single.pid])]
        for masters in MASTERS:
            site = stack.enter_context(ClusterSite(masters=masters, replicas=0))
            name = f"Cluster of {masters}"
            found.append(Layout(name, site.url, [node.pid for node in site.masters]))
        yield found


def measure(layout: Layout, count: int) -> Costs:
    """Schedule and drain `count` messages."""
    me = os.getpid()
    with open_bench(layout.url, memory="memory://") as bench:
        bench.fill(_TO, 1000)  # scripts are loaded, connections open
        used_s = [cpu_seconds(me), sum(map(cpu_seconds, layout.pids))]
        began_s = time.monotonic()
        bench.fill(_TO, count)
        took_s = time.monotonic() - began_s
        client_s = cpu_seconds(me) - used_s[0]
        redis_s = sum(map(cpu_seconds, layout.pids)) - used_s[1]
        worker = [bench.start_worker()]
        parts = {"worker": worker, "redis": layout.pids}
        rate, costs_us = bench.drain_costs(count + 1000, parts)
    us = 1e6 / count
    return Costs(
        count / took_s, client_s * us, redis_s * us, rate, costs_us["worker"], costs_us["redis"]
    )


def main(count: int = 100_000, runs: int = 3) -> None:
    """Print the table."""
    figures: dict[str, list[Costs]] = defaultdict(list)
    with layouts() as all_layouts:
        for _ in range(runs):
            for layout in all_layouts:
                figures[layout.name].append(measure(layout, count))
    title = f"B14 cluster: {count:,} messages, {os.cpu_count()} cores; at most 1.15 times the CPU"
    out = Table(f"{title} of one Redis")
    base: Costs | None = None
    for name, found in figures.items():
        costs = Costs(*map(median, zip(*found, strict=True)))
        base = base or costs
        out.line(
            name,
            f"schedule {costs.schedule / 1000:.0f}k/s, drain {costs.drain / 1000:.0f}k/s",
            f"Redis {costs.redis_us:.2f} us, {costs.redis_us / base.redis_us:.2f}",
            f"client and worker {costs.ours_us:.2f} us, {costs.ours_us / base.ours_us:.2f}",
        )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
