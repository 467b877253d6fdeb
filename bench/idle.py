"""B6: what a worker costs that has nothing to do.

    python -m bench.idle [PENDING] [SECONDS]

One worker with 16 buckets: none pending, and PENDING messages due tomorrow. Commands are counted by
MONITOR, without those that run inside scripts. Beside it: an asyncio loop that only sleeps.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from contextlib import suppress
from urllib.parse import urlsplit

from bench.rig import Table, bench, cpu_seconds
from tests.servers.redis import RedisServer

SETTLE_S = 3.0
SLEEPER = "import asyncio; asyncio.run(asyncio.sleep(1e6))"


def busy(pid: int, seconds: float) -> float:
    """Share of a core that the process uses."""
    before_s = cpu_seconds(pid)
    time.sleep(seconds)
    return (cpu_seconds(pid) - before_s) / seconds


def commands(url: str, seconds: float) -> float:
    """Commands a second that arrive from outside: those of scripts say lua where others say who."""
    at = urlsplit(url)
    with socket.create_connection((at.hostname or "", at.port or 6379)) as monitor:
        monitor.sendall(b"MONITOR\r\n")
        monitor.settimeout(0.2)
        seen, until_s = b"", time.monotonic() + seconds
        while time.monotonic() < until_s:
            with suppress(TimeoutError):
                seen += monitor.recv(65536)
    lines = seen.split(b"\r\n")[1:-1]
    return sum(b" lua]" not in line for line in lines) / seconds


def main(pending: int = 100_000, seconds: float = 10) -> None:
    """Print the table."""
    out = Table("B6 idle: must show < 1 % of a core, < 5 commands/s")
    with subprocess.Popen([sys.executable, "-c", SLEEPER]) as sleeper:
        time.sleep(SETTLE_S)
        out.line("empty asyncio loop", f"{busy(sleeper.pid, seconds):.2%} of a core")
        sleeper.kill()
    with RedisServer() as redis:
        for others in (0, pending):
            with bench(redis.url, memory="memory://") as mine:
                mine.fill("memory:orders", others, delay="1d")
                pid = mine.worker()
                mine.until_owned()
                time.sleep(SETTLE_S)
                share, sent = busy(pid, seconds), commands(redis.url, seconds)
                out.line(
                    f"worker, {others:,} pending",
                    f"{share:.2%} of a core",
                    f"{sent:.1f} commands/s",
                )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
