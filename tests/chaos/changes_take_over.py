"""Mistakes in who is taken for dead; see `changes.py`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.chaos.mutation import Mutation


def open_lines_late(seconds: float) -> None:
    """A line is opened so much later."""
    from delaybridge.store.redis.store import AsyncStore

    lifeline = AsyncStore.lifeline

    @asynccontextmanager
    async def late(self: Any, node: str) -> AsyncIterator[Any]:
        await asyncio.sleep(seconds)
        async with lifeline(self, node) as line:
            yield line

    AsyncStore.lifeline = late  # type: ignore[method-assign]


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
    "judged-too-soon": Mutation("a worker judges by a line that is new", judge_too_soon, ("F91",)),
    "ousted-again": Mutation(
        "a worker that was taken for dead and lives may be so again", keep_lines, ("F92",)
    ),
    "never-looked": Mutation("no worker looks for the lines of others", never_look, ("F87",)),
}
