"""Runs all benchmarks, one after the other: in a short form, or at the full sizes.

    python -m bench [full]

The first line describes the machine, so that the output can be kept as it is (bench/RESULTS.md).
`make bench` and `make bench FULL=1` run this.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from importlib.metadata import version

NOISY = 0.03  # other guests' share of processor time above which it is reported

# Each benchmark's module, its arguments in the short form and at the full sizes.
PROGRAMS: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...] = (
    ("stages", (2000,), (5000,)),
    ("startup", (5,), (11,)),
    ("memory", (20_000,), (200_000,)),
    ("schedule", (20_000, 1), (100_000, 3)),
    ("idle", (20_000, 5), (1_000_000, 30)),
    ("drain", (30_000, 1), (100_000, 3)),
    ("burst", (30_000, 1), (60_000, 3)),
    ("resident", (40_000,), (1_000_000,)),
    ("drain_kafka", (30_000, 1), (100_000, 3)),
    ("lateness", (3, 20_000), (10, 1_000_000)),
    ("slow", (5000, 5), (20_000, 20)),
    ("shapes", (10_000,), (40_000,)),
    ("peers", (10_000, 20_000, 2), (60_000, 500_000, 5)),
    ("bulk", (30_000,), (300_000,)),
    ("growth", (100_000, 3), (10_000_000, 5)),
    ("ingest", (20_000, 1), (100_000, 3)),
)


def cpu_ticks() -> tuple[int, int]:
    """Ticks that other guests of the host took from the processors, and all ticks."""
    with open("/proc/stat") as file:
        ticks = [int(number) for number in file.readline().split()[1:9]]
    return ticks[7], sum(ticks)


def main(*, full: bool) -> None:
    """Run all benchmarks. If one fails, the others still run, and the exit code is 1."""
    out = sys.stdout
    cores = len(os.sched_getaffinity(0))
    out.write(f"delaybridge {version('delaybridge')}, {time.strftime('%Y-%m-%d')}, ")
    out.write(f"Python {platform.python_version()}, {cores} cores, {platform.release()}\n")
    out.flush()
    failed = []
    for name, short_sizes, full_sizes in PROGRAMS:
        arguments = [str(number) for number in (full_sizes if full else short_sizes)]
        before = cpu_ticks()
        done = subprocess.run([sys.executable, "-m", f"bench.{name}", *arguments], check=False)
        stolen, total = (now - then for now, then in zip(cpu_ticks(), before, strict=True))
        if stolen > total * NOISY:
            out.write(f"  (other guests took {stolen / total:.0%} of the processors' time)\n")
            out.flush()
        if done.returncode:
            failed.append(name)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main(full="full" in sys.argv[1:])
