"""B10: how long the command line and a worker take to start.

    python -m bench.startup [RUNS]

`delaybridge --help` and `schedule` are measured to their end, with their CPU, `delaybridge scan` to
its first claim. Compared with a Python that imports nothing. What is imported has been compiled
before, as in an installed package. redis-py also imports OpenTelemetry's SDK where that is
installed, as it is for the tests; `plain` is without it.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from statistics import median

from bench.rig import Table, open_bench, open_redis

PLAIN = (
    "import sys; sys.modules['opentelemetry'] = None; "
    "from delaybridge.operate.cli import main; sys.exit(main())"
)


def run_ms(*arguments: str) -> tuple[float, float]:
    """Milliseconds that Python takes with these arguments, from its start to its end; of CPU."""
    began_s, used = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, *arguments],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": ""},
    )  # fmt: skip
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    return (time.monotonic() - began_s) * 1000, cpu_s * 1000


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
    out = Table("B10 start-up, median: targets --help 100 ms, schedule 250 ms of CPU; scan 500 ms")
    with open_redis() as redis:
        memory = ("--redis", redis.url, "--broker", "memory=memory://")
        once = (*memory, "schedule", "memory:a", "x", "--in", "1d")
        for name, arguments in (
            ("python -c pass", ("-c", "pass")),
            ("delaybridge --help", ("-m", "delaybridge", "--help")),
            ("delaybridge schedule", ("-m", "delaybridge", *once)),
            ("delaybridge schedule, plain", ("-c", PLAIN, *once)),
        ):
            run_ms(*arguments)
            taken = [run_ms(*arguments) for _ in range(runs)]
            waited, cpu = (median(each) for each in zip(*taken, strict=True))
            out.line(name, f"{waited:,.0f} ms", f"CPU {cpu:,.0f} ms")
        found = median([first_claim_ms(redis.url) for _ in range(runs)])
        out.line("delaybridge scan, first claim", f"{found:,.0f} ms")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
