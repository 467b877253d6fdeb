"""`python -m tests.mutants [--fast] [NAME...]`: a table of mutants and the tests that kill them.

A name may be the beginning of several. --fast: what its room's tests let live meets the whole fast
tier. Exit code 1: one survives.
"""

from __future__ import annotations

import sys

from tests.mutants.runner import meet_all
from tests.mutants.table import MUTANTS


def main(words: list[str]) -> int:
    names = tuple(word for word in words if not word.startswith("--"))
    chosen = [mutant for mutant in MUTANTS if not names or mutant.name.startswith(names)]
    if not chosen:
        print(f"no mutant is called {' or '.join(names)}")
        return 2
    width = max(len(mutant.name) for mutant in chosen)
    alive = 0
    for mutant, met in meet_all(chosen, all_fast="--fast" in words):
        alive += not met.killed_by
        killer = met.killed_by or f"ALIVE: {met.why or mutant.breaks}"
        print(f"{mutant.name:{width}}  {met.seconds:6.1f} s  {killer}", flush=True)
    print(f"{len(chosen)} mutants, {alive} alive")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
