"""B10: how long it takes to start.

    python -m bench.startup [RUNS]

`delaybridge --help` to its end; `delaybridge scan` to its first claim. Beside them: a Python that
imports nothing.
"""

from __future__ import annotations

import subprocess
import sys
import time

from bench.rig import Table, bench, median
from tests.servers.redis import RedisServer


def took_ms(*arguments: str) -> float:
    """A command of Python's, to its end."""
    began_s = time.monotonic()
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)
    return (time.monotonic() - began_s) * 1000


def first_claim_ms(redis_url: str) -> float:
    """From the start of the process until a due message has left its place."""
    with bench(redis_url, memory="memory://") as mine:
        mine.fill("memory:orders", 1)
        began_s = time.monotonic()
        mine.worker()
        while mine.left("due"):
            time.sleep(0.001)
        return (time.monotonic() - began_s) * 1000


def main(runs: int = 9) -> None:
    """Print the table."""
    out = Table("B10 start-up, median: must show 150 ms; 500 ms")
    for name, arguments in (
        ("python -c pass", ("-c", "pass")),
        ("delaybridge --help", ("-m", "delaybridge", "--help")),
    ):
        out.line(name, f"{median([took_ms(*arguments) for _ in range(runs)]):,.0f} ms")
    with RedisServer() as redis:
        found = median([first_claim_ms(redis.url) for _ in range(runs)])
        out.line("delaybridge scan, first claim", f"{found:,.0f} ms")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
