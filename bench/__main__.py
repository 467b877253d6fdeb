"""Every benchmark after the other: `make bench`, in a short form; `make bench FULL=1`.

    python -m bench [full]

Prints what the machine is first, so that the output can be kept as it is (bench/RESULTS.md).
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from importlib.metadata import version

NOISY = 0.03  # a share of time taken by others that is worth a word

# Module and arguments: short, full.
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


def cpu_time() -> tuple[int, int]:
    """What other guests of the host took of the processors, and all there was, in ticks."""
    with open("/proc/stat") as file:
        ticks = [int(number) for number in file.readline().split()[1:9]]
    return ticks[7], sum(ticks)


def main(*, full: bool) -> None:
    """Run them all; one that fails does not keep the others from running."""
    out = sys.stdout
    cores = len(os.sched_getaffinity(0))
    out.write(f"delaybridge {version('delaybridge')}, {time.strftime('%Y-%m-%d')}, ")
    out.write(f"Python {platform.python_version()}, {cores} cores, {platform.release()}\n")
    out.flush()
    failed = []
    for name, short, whole in PROGRAMS:
        arguments = [str(number) for number in (whole if full else short)]
        before = cpu_time()
        done = subprocess.run([sys.executable, "-m", f"bench.{name}", *arguments], check=False)
        stolen, whole_time = (now - then for now, then in zip(cpu_time(), before, strict=True))
        if stolen > whole_time * NOISY:
            out.write(f"  (other guests took {stolen / whole_time:.0%} of the processors' time)\n")
            out.flush()
        if done.returncode:
            failed.append(name)
    if failed:
        sys.exit(f"not run to their end: {', '.join(failed)}")


if __name__ == "__main__":
    main(full="full" in sys.argv[1:])
