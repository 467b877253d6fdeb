"""B6: the CPU and the commands that an idle worker costs.

    python -m bench.idle [PENDING] [SECONDS]

One worker with 16 buckets, first with nothing pending, then with PENDING messages due tomorrow.
Commands are counted with MONITOR, without those that run inside scripts. Compared with an asyncio
loop that only sleeps.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from contextlib import suppress
from urllib.parse import urlsplit

from bench.rig import Table, cpu_seconds, open_bench, open_redis

SETTLE_S = 3.0
SLEEPER = "import asyncio; asyncio.run(asyncio.sleep(1e6))"


def cpu_share(pid: int, seconds: float) -> float:
    """Share of a core that the process uses, measured for `seconds`."""
    before_s = cpu_seconds(pid)
    time.sleep(seconds)
    return (cpu_seconds(pid) - before_s) / seconds


def commands_per_second(url: str, seconds: float) -> float:
    """Commands per second that clients send, measured for `seconds`."""
    at = urlsplit(url)
    with socket.create_connection((at.hostname or "", at.port or 6379)) as monitor:
        monitor.sendall(b"MONITOR\r\n")
        monitor.settimeout(0.2)
        seen, until_s = b"", time.monotonic() + seconds
        while time.monotonic() < until_s:
            with suppress(TimeoutError):
                seen += monitor.recv(65536)
    lines = seen.split(b"\r\n")[1:-1]
    # For a command that runs inside a script, MONITOR shows `lua` in place of the client.
    return sum(b" lua]" not in line for line in lines) / seconds


def main(pending: int = 100_000, seconds: float = 10) -> None:
    """Print the table."""
    out = Table("B6 idle: target < 1 % of a core, < 5 commands/s")
    with subprocess.Popen([sys.executable, "-c", SLEEPER]) as sleeper:
        time.sleep(SETTLE_S)
        out.line("empty asyncio loop", f"{cpu_share(sleeper.pid, seconds):.2%} of a core")
        sleeper.kill()
    with open_redis() as redis:
        for others in (0, pending):
            with open_bench(redis.url, memory="memory://") as bench:
                bench.fill("memory:orders", others, delay="1d")
                pid = bench.start_worker()
                bench.wait_until_owned()
                time.sleep(SETTLE_S)
                share, sent = cpu_share(pid, seconds), commands_per_second(redis.url, seconds)
                out.line(
                    f"worker, {others:,} pending",
                    f"{share:.2%} of a core",
                    f"{sent:.1f} commands/s",
                )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
