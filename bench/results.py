"""Writes bench/RESULTS.md, and the figures that docs/peers.md and the README quote from it.

    python -m bench.results [DUE] [PENDING] [SECONDS] [RUNS]

First some of the programs of `make bench`, then the peers; bench.peers has the meaning of these
numbers. It takes a quarter of an hour, and wants the machine for itself: what other programs
took of the processors is told.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from bench.__main__ import cpu_ticks, interpreter
from bench.peers.__main__ import LATE, RATE, markdown, measured, tables
from bench.peers.peer import cpu_of_all_s

ROOT = Path(__file__).parents[1]
RESULTS, PEERS, README = (
    ROOT / name for name in ("bench/RESULTS.md", "docs/peers.md", "README.md")
)
MARKS = "<!-- figures: written by bench/results.py -->", "<!-- end of figures -->"
# Programs of `make bench`, and the numbers that each is given.
OWN: tuple[tuple[Any, ...], ...] = (
    ("schedule", 20_000, 2),
    ("drain", 40_000, 2),
    ("drain_kafka", 40_000, 2),
    ("ingest", 20_000, 2),
    ("lateness", 3, 1_000_000),
    ("stages", 2000),
)
HEAD = """# Results of one run

Written by `make results` on {date}, at commit {commit}. {disturbance}

{machine}

## Beside other ways to delay a message

The same load for each: 100 bytes a message, kept on a disk; {due:,} due at once, {pending:,} others
pending, {seconds:g} s at 1,000/s. Median of {runs}, and in brackets the least and the largest.
`bench/peers/__main__.py` says what each column is, and each peer's file how it is set.

{tables}
{versions}

## delaybridge alone

[docs/performance.md](../docs/performance.md) explains these tables.

```
{own}```
"""


def machine() -> str:
    """Processor, memory, system and interpreter, in a sentence each."""
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    cores, memory = len(os.sched_getaffinity(0)), psutil.virtual_memory().total >> 30
    name = cpu[1] if cpu else platform.machine()
    shared = f"{cores} cores ({name}) for everything, {memory} GiB"
    return f"{shared}, Linux {platform.release()}. {interpreter()}."


def commit() -> str:
    """The commit of this tree, and whether something in it differs."""
    asked = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(
        asked, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


class Disturbance:
    """What other programs and other guests of the host took of the processors since it began."""

    def __init__(self) -> None:
        self._stolen, self._ticks = cpu_ticks()
        self._idle_s, self._own_s = self._idle(), cpu_of_all_s()

    def __str__(self) -> str:
        stolen, ticks = cpu_ticks()
        seconds = (ticks - self._ticks) / os.sysconf("SC_CLK_TCK")
        stolen_s = (stolen - self._stolen) / os.sysconf("SC_CLK_TCK")
        own_s = cpu_of_all_s() - self._own_s
        others_s = max(0.0, seconds - stolen_s - own_s - (self._idle() - self._idle_s))
        return (
            f"Other programs took {others_s / seconds:.0%} of the processors meanwhile, other "
            f"guests of the host {stolen_s / seconds:.0%}."
        )

    def _idle(self) -> float:
        times = psutil.cpu_times()
        return float(times.idle + times.iowait)


def own_tables() -> str:
    """What the programs print."""
    found = []
    for name, *numbers in OWN:
        command = [sys.executable, "-m", f"bench.{name}", *map(str, numbers)]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
        found.append(done.stdout if not done.returncode else f"{name}: failed\n")
    return "\n".join(text.strip("\n") + "\n" for text in found)


def cells_of(results: str, column: str) -> dict[str, list[str]]:
    """The rows of the table with this second column, without ranges, by peer; its head first."""
    table = results[results.index(f"| peer | {column} |") :].partition("\n\n")[0]
    rows = (re.sub(r" \([^)]*\)", "", row).strip("| ").split(" | ") for row in table.splitlines())
    return {name: cells for name, *cells in rows if name != "---"}


def with_figures(page: str, results: str) -> str:
    """docs/peers.md with the medians of these results between its marks, and what each cannot."""
    figures, limits = (cells_of(results, name) for name in ("adds/s", "an added message is in"))
    shown = [[name, *cells] for name, cells in figures.items()]
    cannot = [[name, *cells[:2]] for name, cells in limits.items()]
    written = "\n".join(markdown(head, rows) for head, *rows in (shown, cannot))
    before, mark, rest = page.partition(MARKS[0])
    _, closing, after = rest.partition(MARKS[1])
    if not mark or not closing:
        raise LookupError(f"docs/peers.md lacks {MARKS}")
    return f"{before}{mark}\n{written}{closing}{after}"


def with_speed(readme: str, results: str) -> str:
    """The README with delaybridge's adds a second and median lateness of these results."""
    head, own = (cells_of(results, "adds/s")[name] for name in ("peer", "delaybridge"))
    adds = round(int(own[head.index("adds/s")].replace(",", "")), -3)
    late = own[head.index(LATE)].partition(" ")[0]
    said = f"schedules {adds:,} a second. Median lateness: {late} ms at {RATE:,}"
    found, times = re.subn(r"schedules \S+ a second\. Median lateness: \S+ ms at \S+", said, readme)
    if times != 1:
        raise LookupError("README.md does not say once how many a client schedules a second")
    return found


def main(due: int = 20_000, pending: int = 90_000, seconds: float = 2, runs: int = 3) -> None:
    """Measure, and write all three pages."""
    told = {"date": time.strftime("%Y-%m-%d"), "commit": commit(), "machine": machine()}
    disturbance = Disturbance()
    told["own"] = own_tables()
    sheets, versions = measured(due, pending, seconds, runs)
    told |= {"tables": tables(sheets, due, pending), "versions": versions}
    numbers = {"due": due, "pending": pending, "seconds": seconds, "runs": runs}
    results = HEAD.format(**told, **numbers, disturbance=disturbance)
    RESULTS.write_text(results)
    PEERS.write_text(with_figures(PEERS.read_text(), results))
    README.write_text(with_speed(README.read_text(), results))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
