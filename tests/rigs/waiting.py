"""Waiting with a deadline: how a test waits for something that does not notify it."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

POLL_INTERVAL_S = 0.005

T = TypeVar("T")


class DeadlineExceeded(AssertionError):
    """The condition did not become true before the deadline."""


def wait_until(
    predicate: Callable[[], T],
    deadline_s: float,
    what: str | None = None,
    *,
    interval_s: float = POLL_INTERVAL_S,
) -> T:
    """Return the first true answer of ``predicate``; past the deadline raise, naming ``what``.

    A predicate that is costly to ask is asked less often, by `interval_s`.
    """
    deadline = time.monotonic() + deadline_s
    while not (answer := predicate()):
        if time.monotonic() >= deadline:
            raise DeadlineExceeded(_complaint(predicate, deadline_s, what, answer))
        time.sleep(interval_s)
    return answer


def wait_s(seconds: float) -> None:
    """Wait for a fixed time: an outage has a length."""
    until_s = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= until_s, seconds + 5, interval_s=0.05)


async def wait_until_async(
    predicate: Callable[[], T | Awaitable[T]], deadline_s: float, what: str | None = None
) -> T:
    """`wait_until` for a running event loop; the predicate may be a coroutine function."""
    deadline = time.monotonic() + deadline_s
    while True:
        asked = predicate()
        answer: T = await asked if inspect.isawaitable(asked) else asked  # type: ignore[assignment]
        if answer:
            return answer
        if time.monotonic() >= deadline:
            raise DeadlineExceeded(_complaint(predicate, deadline_s, what, answer))
        await asyncio.sleep(POLL_INTERVAL_S)


def _complaint(
    predicate: Callable[[], object], deadline_s: float, what: str | None, answer: object
) -> str:
    awaited = what or getattr(predicate, "__qualname__", repr(predicate))
    return f"not within {deadline_s:g} s: {awaited} (last answer: {answer!r})"
