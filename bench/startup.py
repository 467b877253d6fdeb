"""B10: how long the command line and a worker take to start.

    python -m bench.startup [RUNS]

`delaybridge --help` is measured to its end, `delaybridge scan` to its first claim. Compared with a
Python that imports nothing.
"""

from __future__ import annotations

import subprocess
import sys
import time
from statistics import median

from bench.rig import Table, open_bench, open_redis


def run_ms(*arguments: str) -> float:
    """Milliseconds that Python takes with these arguments, from its start to its end."""
    began_s = time.monotonic()
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)
    return (time.monotonic() - began_s) * 1000


def first_claim_ms(redis_url: str) -> float:
    """Milliseconds from the start of a worker until it has claimed a due message."""
    with open_bench(redis_url, memory="memory://") as bench:
        bench.fill("memory:orders", 1)
        began_s = time.monotonic()
        bench.start_worker()
        while bench.count_in("due"):
            time.sleep(0.001)
        return (time.monotonic() - began_s) * 1000


def main(runs: int = 9) -> None:
    """Print the table."""
    out = Table("B10 start-up, median: targets 150 ms; 500 ms")
    for name, arguments in (
        ("python -c pass", ("-c", "pass")),
        ("delaybridge --help", ("-m", "delaybridge", "--help")),
    ):
        out.line(name, f"{median([run_ms(*arguments) for _ in range(runs)]):,.0f} ms")
    with open_redis() as redis:
        found = median([first_claim_ms(redis.url) for _ in range(runs)])
        out.line("delaybridge scan, first claim", f"{found:,.0f} ms")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
