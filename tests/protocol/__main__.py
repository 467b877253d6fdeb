"""`make protocol`: every exploration at its full size, every mutant, and what they found."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from multiprocessing import Pool
from pathlib import Path
from time import perf_counter

from tests.protocol.bounds import Bounds
from tests.protocol.explorations import MUTANTS, SMALL, WHOLE, Mutant
from tests.protocol.explore import Explored, explore

KEPT = Path(__file__).with_name("explored.json")


def main(wanted: list[str]) -> int:
    """wanted: names; none: all. Returns the exit code."""
    jobs: list[Bounds | Mutant] = [*WHOLE, *SMALL.values(), *MUTANTS]
    jobs = [job for job in jobs if not wanted or job.name in wanted]
    started, total, wrong = perf_counter(), 0, [job.name for job in jobs]
    with Pool(2) as pool:
        for job, explored, took_s in pool.imap_unordered(explored_of, jobs):
            total += explored.states
            if shown(job, explored, took_s, in_full=bool(wanted)):
                wrong.remove(job.name)
                keep(job.name, explored.states)
    print(f"{total:,} states in {perf_counter() - started:.0f} s; wrong: {', '.join(wrong) or '-'}")
    return 1 if wrong or not jobs else 0


def keep(name: str, states: int) -> None:
    """Keep how many states this exploration had, and when, for docs/how-we-know.md."""
    kept = json.loads(KEPT.read_text())
    kept[name] = [states, f"{datetime.now(UTC):%Y-%m-%d}"]
    KEPT.write_text(json.dumps(dict(sorted(kept.items())), indent=1) + "\n")


def explored_of(job: Bounds | Mutant) -> tuple[Bounds | Mutant, Explored, float]:
    started = perf_counter()
    if isinstance(job, Mutant):
        explored = explore(job.mutated, stop=frozenset({job.violates}))
    else:
        explored = explore(job)
    return job, explored, perf_counter() - started


def shown(job: Bounds | Mutant, explored: Explored, took_s: float, *, in_full: bool) -> bool:
    """Print a line, and the ways to what should not be; whether all is as it should be."""
    if isinstance(job, Mutant):
        kind, is_right = "mutant", job.violates in explored.promises
    else:
        kind, is_right = "protocol", explored.whole and not explored.violated
    found = " ".join(map(str, sorted(explored.promises))) or "-"
    verdict = f"violated: {found}" + ("" if is_right else "  WRONG")
    size = f"{explored.states:9,} states {took_s:5.0f} s"
    print(f"{kind:9}{job.name:34}{size}  {verdict}", flush=True)
    if in_full or (kind == "protocol" and not is_right):
        for what, way in explored.violated.items():
            print("", what, *(f"   {step}" for step in way), sep="\n   ", flush=True)
    return is_right


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
