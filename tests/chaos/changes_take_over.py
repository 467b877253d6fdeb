"""Mistakes in who is taken for dead; see `changes.py`."""

from __future__ import annotations

from typing import Any

from tests.chaos.mutation import Mutation


def miss_once() -> None:
    """Whoever's line is missed once loses its leases, whatever it says meanwhile."""
    from delaybridge.scan.leases import take_over

    async def ousting(self: Any, entry: Any, releases: Any) -> None:
        if releases:
            await self._store.run_isolated(releases)

    take_over._APART_S = 0.0
    take_over.TakeOver._oust = ousting  # type: ignore[method-assign]


def judge_too_soon() -> None:
    """A worker judges by a line that is new."""
    from delaybridge.store.redis.lifeline import Lifeline

    Lifeline.answers_s = float("inf")  # type: ignore[assignment, method-assign]


def keep_lines() -> None:
    """Whoever was taken for dead, and lives, may be so again."""
    from delaybridge.worker import scan_run, shifts

    scan_run.lines_of = lambda running, was_ousted: shifts.lines_of(running, False)  # type: ignore


def never_look() -> None:
    """Nobody looks for the lines of others."""
    from delaybridge.scan.leases.take_over import TakeOver

    TakeOver._next = lambda self: []  # type: ignore[method-assign]


MUTATIONS = {
    "missed-once": Mutation(
        "a worker whose line is missed once loses its leases, whatever it says", miss_once, ("F90",)
    ),
    "judged-too-soon": Mutation("a worker judges by a line that is new", judge_too_soon, ("F91",)),
    "ousted-again": Mutation(
        "a worker that was taken for dead and lives may be so again", keep_lines, ("F92",)
    ),
    "never-looked": Mutation("no worker looks for the lines of others", never_look, ("F87",)),
}
