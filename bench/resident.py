"""B11: the memory of one worker process.

    python -m bench.resident [PENDING]

Its resident set at idle, while it drains a backlog of PENDING messages of 100 bytes, and in a burst
of 256-KiB bodies. Compared with the bound that follows from its windows: its memory at idle, the
bytes of the wheel, twice those of the publish window (each message is there as a message and as
frames), and OBJECTS bytes for each message that the wheel and the window may hold.
"""

from __future__ import annotations

import sys
import time

from bench.rig import (
    Bench,
    Table,
    open_bench,
    open_rabbitmq,
    open_redis,
    quorum_queue,
    resident_bytes,
)
from delaybridge.settings.settings import Settings

MIB = 2**20
OBJECTS = 1024  # bytes of Python objects for one message, besides the message's own bytes
LARGE = 256 * 1024


def peak_mib(bench: Bench, pid: int) -> float:
    """The most MiB that the worker has resident until the backlog is drained."""
    peak = 0.0
    while bench.count_in("due", "mirror"):
        peak = max(peak, resident_bytes(pid) / MIB)
        time.sleep(0.05)
    return peak


def main(pending: int = 100_000) -> None:
    """Print the table."""
    scan, publish = Settings().scan, Settings().publish
    windows = scan.wheel_bytes + 2 * publish.window_bytes
    windows += (scan.wheel_messages + publish.window_messages) * OBJECTS
    with open_redis() as redis, open_rabbitmq() as broker:
        out = Table("B11 a worker's memory: resident set")
        with open_bench(redis.url, rabbitmq=broker.url) as bench:
            pid = bench.start_worker()
            bench.wait_until_owned()
            time.sleep(2)
            idle = resident_bytes(pid) / MIB
            out.line("idle", f"{idle:,.0f} MiB")
            out.line("bound, from its windows", f"{idle + windows / MIB:,.0f} MiB")
        for name, count, size in (
            (f"backlog of {pending:,} x 100 B", pending, 100),
            (f"burst of {pending // 200:,} x 256 KiB", pending // 200, LARGE),
        ):
            with (
                open_bench(redis.url, rabbitmq=broker.url) as bench,
                quorum_queue(broker.url) as queue,
            ):
                bench.fill(f"rabbitmq:{queue}/key", count, body=b"x" * size)
                out.line(name, f"{peak_mib(bench, bench.start_worker()):,.0f} MiB")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
