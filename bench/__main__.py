"""Runs all benchmarks, one after the other: in a short form, or at the full sizes.

    python -m bench [full]

The first line describes the machine, so that the output can be kept as it is.
`make bench` and `make bench FULL=1` run this.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import sysconfig
import time
import timeit
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

# The loop of plain Python: a little of what a worker does all day.
PLAIN = "for i in range(100): d[i & 15] = (i, str(i), max(i, 7))"
NOISY = 0.03  # other guests' share of processor time above which it is reported


class Program(NamedTuple):
    """A benchmark's module, and its arguments: in the short form, at the full sizes, in a test.

    tests/integration/test_bench.py runs each with its tiny sizes, to show that it works.
    """

    name: str
    short: tuple[int, ...]
    full: tuple[int, ...]
    tiny: tuple[Any, ...]


PROGRAMS = (
    Program("stages", (2000,), (5000,), (20,)),
    Program("ingest_stages", (1000,), (1000,), (20,)),
    Program("startup", (5,), (11,), (1,)),
    Program("memory", (20_000,), (200_000,), (100,)),
    Program("life", (20_000, 1), (100_000, 3), (1000, 1)),
    Program("schedule", (20_000, 1), (100_000, 3), (1000, 1)),
    Program("http", (3, 3, 2000), (5, 5, 5000), (1, 1, 20)),
    Program("ledger", (20_000, 1, 50_000), (100_000, 3, 150_000), (300, 1, 300)),
    Program("cold", (200_000, 24), (10_000_000, 72), (2000, 2)),
    Program("horizon", (100_000, 3), (1_000_000, 5), (200, 1)),
    Program("views", (20_000, 256, 2000, 3), (100_000, 1024, 10_000, 5), (200, 4, 9, 1)),
    Program("console", (100_000, 3), (1_000_000, 5), (200, 1)),
    Program("idle", (20_000, 5), (1_000_000, 30), (100, 1)),
    Program("drain", (30_000, 1), (100_000, 3), (1000, 1)),
    Program("burst", (30_000, 1), (60_000, 3), (1000, 1)),
    Program("resident", (40_000,), (1_000_000,), (200,)),
    Program("size", (20_000, 200_000), (40_000, 1_000_000), (200, 500, 50)),
    Program("cluster", (30_000, 1), (100_000, 3), (1000, 1)),
    Program("drain_kafka", (30_000, 1), (100_000, 3), (1000, 1)),
    Program("scale", (20_000, 2, 1), (60_000, 4, 3), (500, 1, 1)),
    Program("wave", (120, 500, 2000, 20), (600, 2, 2000, 20), (2, 5, 10, 1)),
    Program("baselines", (100_000, 10, 128), (1_000_000, 20, 1024), (1000, 1, 4)),
    Program("lateness", (3, 20_000), (10, 1_000_000), (1, 0)),
    Program("metrics", (20_000, 3, 1), (60_000, 10, 5), (300, 1, 1)),
    Program("slow", (5000, 5), (20_000, 20), (50, 1)),
    Program("missing", (1000, 5), (3000, 20), (20, 1)),
    Program("limit", (5, 100, 5000), (10, 100, 5000), (1, 20)),
    Program("shapes", (10_000,), (40_000,), (5,)),
    Program("peers", (5000, 20_000, 2), (60_000, 500_000, 5, 3), (20, 20, 1)),
    Program("bulk", (30_000,), (300_000,), (100,)),
    Program("growth", (100_000, 3), (10_000_000, 5), (100, 1, 1000, 1, ["stats"])),
    Program("ingest", (20_000, 1), (100_000, 3), (500, 1)),
    Program("defaults", (10_000, 3), (50_000, 10), (500, 1)),
    Program("take_over", (12, 4), (200, 4), (1, 1)),
    Program("front", (20_000, 3, 300, 5), (100_000, 5, 1000, 20), (500, 1, 10, 1)),
    Program("intercept_rabbitmq", (500, 20), (500, 60), (50, 2)),
    Program("intercept_kafka", (1000, 10, 4000), (2000, 40, 20_000), (50, 2, 500)),
)


def cpu_ticks() -> tuple[int, int]:
    """Ticks that other guests of the host took from the processors, and all ticks."""
    with open("/proc/stat") as file:
        ticks = [int(number) for number in file.readline().split()[1:9]]
    return ticks[7], sum(ticks)


def interpreter() -> str:
    """Version, compiler and optimizations of this Python, and how fast it runs plain Python."""
    told = sysconfig.get_config_vars("CONFIG_ARGS", "PY_CFLAGS")
    configured, compiled = (str(text) for text in told)
    is_shared = bool(sysconfig.get_config_var("Py_ENABLE_SHARED"))
    maps = Path("/proc/self/maps").read_text()
    if is_shared and "libpython" not in maps:
        # As Debian's: a static program, built apart from the library that sysconfig tells of.
        flags = "flags unknown (the program is not the build that sysconfig describes)"
    else:
        level = re.findall(r"-O\S+", compiled)[-1:] or ["no -O"]
        pgo = "PGO" if "--enable-optimizations" in configured else "no PGO"
        flags = ", ".join([*level, pgo, "LTO" if "--with-lto" in configured else "no LTO"])
    loops_s = timeit.repeat(PLAIN, setup="d = {}", timer=time.process_time, number=2000, repeat=9)
    found = f"Python {platform.python_version()}, {platform.python_compiler()}, {flags}"
    return f"{found}; a loop of plain Python takes {min(loops_s) / 2000 * 1e6:.1f} us"


def main(*, full: bool) -> None:
    """Run all benchmarks. If one fails, the others still run, and the exit code is 1."""
    out = sys.stdout
    cores = len(os.sched_getaffinity(0))
    out.write(f"delaybridge {version('delaybridge')}, {time.strftime('%Y-%m-%d')}, ")
    out.write(f"{cores} cores, Linux {platform.release()}\n{interpreter()}\n")
    out.flush()
    failed = []
    for program in PROGRAMS:
        arguments = map(str, program.full if full else program.short)
        before = cpu_ticks()
        command = [sys.executable, "-m", f"bench.{program.name}", *arguments]
        done = subprocess.run(command, check=False)
        stolen, total = (now - then for now, then in zip(cpu_ticks(), before, strict=True))
        if stolen > total * NOISY:
            out.write(f"  (other guests took {stolen / total:.0%} of the processors' time)\n")
            out.flush()
        if done.returncode:
            failed.append(program.name)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main(full="full" in sys.argv[1:])
