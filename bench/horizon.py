"""The horizon and a look of `delaybridge top`: how long a client waits, and what it costs Redis.

    python -m bench.horizon [MESSAGES] [RUNS]

Messages fall due throughout the next six hours, to two destinations. Redis' CPU is that of
`INFO cpu` while the same is asked for again and again. Each figure is the median of the
runs.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from functools import partial
from statistics import median

from bench.rig import BODY, CALL, Bench, Table, open_bench, open_redis, redis_cpu_s
from delaybridge import Message
from delaybridge.operate.top.picture import Picture, read_picture

SPAN_S = 6 * 3600
REPEATS = 5  # of a horizon, for Redis' CPU
ASKED = {  # name -> span, step, destination
    "6h by 1h": ("6h", "1h", None),
    "1h by 1m": ("1h", "1m", None),
    "1m by 1s": ("1m", "1s", None),
    "1000 cells": ("1000m", "1m", None),
    "6h by 1h, one destination": ("6h", "1h", "memory:few"),
}


def fill(bench: Bench, count: int) -> None:
    """One message in ten goes to `few`."""
    draw = random.Random(7)
    for first in range(0, count, CALL):
        bench.client.schedule_many(
            Message(
                f"memory:{'few' if n % 10 == 0 else 'many'}", BODY, delay=draw.random() * SPAN_S
            )
            for n in range(min(CALL, count - first))
        )


def costs_ms(bench: Bench, ask: Callable[[], object]) -> tuple[float, float]:
    """Milliseconds until the answer, and of Redis' CPU."""
    used_s, began_s = redis_cpu_s(bench), time.perf_counter()
    for _ in range(REPEATS):
        ask()
    waited_s = time.perf_counter() - began_s
    return waited_s / REPEATS * 1e3, (redis_cpu_s(bench) - used_s) / REPEATS * 1e3


def main(count: int = 100_000, runs: int = 3) -> None:
    """Print the table."""
    out = Table(f"Horizon: {count:,} messages pending; target < 300 ms")
    with open_redis() as redis, open_bench(redis.url, memory="memory://") as bench:
        fill(bench, count)
        client = bench.client
        asks: dict[str, Callable[[], object]] = {
            name: partial(client.horizon, span, step, destination=destination)
            for name, (span, step, destination) in ASKED.items()
        }
        for counting in (False, True):
            call = partial(read_picture, before=Picture(), counting=counting)
            name = "a look of top" + (", destinations too" if counting else "")
            asks[name] = partial(client.run, call)
        for name, ask in asks.items():
            found = [costs_ms(bench, ask) for _ in range(runs)]
            waited_ms, used_ms = (median(each) for each in zip(*found, strict=True))
            out.line(name, f"{waited_ms:.1f} ms", f"Redis {used_ms:.1f} ms")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
