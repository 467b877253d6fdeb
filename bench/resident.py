"""B11: the memory of one worker process.

    python -m bench.resident [PENDING]

Resident set at idle, while it drains a backlog of PENDING messages of 100 bytes, and in a burst of
256-KiB bodies; beside it the bound that its windows give: what it takes at idle, the bytes of the
wheel, those of the publish window twice (as a message and as frames), and OBJECTS for each message
that either may hold.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from bench.rig import Bench, Table, bench, quorum_queue
from delaybridge.settings.settings import Settings
from tests.servers.rabbitmq import RabbitMQNode
from tests.servers.redis import RedisServer

MIB = 2**20
OBJECTS = 1024  # bytes of Python's objects for one message, its own bytes not counted
LARGE = 256 * 1024


def resident(pid: int) -> float:
    """MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def most(mine: Bench, pid: int) -> float:
    """The highest while it drains."""
    found = 0.0
    while mine.left("due", "mirror"):
        found = max(found, resident(pid))
        time.sleep(0.05)
    return found


def main(pending: int = 100_000) -> None:
    """Print the table."""
    scan, publish = Settings().scan, Settings().publish
    windows = scan.wheel_bytes + 2 * publish.window_bytes
    windows += (scan.wheel_messages + publish.window_messages) * OBJECTS
    with RedisServer() as redis, RabbitMQNode() as broker:
        out = Table("B11 a worker's memory: resident set")
        with bench(redis.url, rabbitmq=broker.url) as mine:
            pid = mine.worker()
            mine.until_owned()
            time.sleep(2)
            idle = resident(pid)
            out.line("idle", f"{idle:,.0f} MiB")
            out.line("bound, by its windows", f"{idle + windows / MIB:,.0f} MiB")
        for name, count, size in (
            (f"backlog of {pending:,} x 100 B", pending, 100),
            (f"burst of {pending // 200:,} x 256 KiB", pending // 200, LARGE),
        ):
            with bench(redis.url, rabbitmq=broker.url) as mine, quorum_queue(broker.url) as queue:
                mine.fill(f"rabbitmq:{queue}/key", count, body=b"x" * size)
                out.line(name, f"{most(mine, mine.worker()):,.0f} MiB")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
