"""Waiting: until something is so, with a deadline that costs nothing while things are well.

`until` is how a test waits. That nothing more comes is shown by a marker message sent after it;
where nothing can be sent, by `quiet`.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

DEADLINE_S = 60.0  # generous: a machine that is starved for a while is no fault of the product
PATIENCE_S = 30.0  # of a client with Redis: it gives up after half of it without an answer
CANCELLED_AGAIN_S = 20.0  # longer than a task takes to clean up, which this would interrupt
OFTEN_S = 0.5  # between all further attempts
FIRST_INTERVAL_S, LAST_INTERVAL_S = 0.002, 0.05

T = TypeVar("T")
What = str | Callable[[], str] | None


class DeadlineExceeded(AssertionError):
    """The condition did not become true before the deadline."""


def until(
    predicate: Callable[[], T],
    what: What = None,
    *,
    deadline_s: float = DEADLINE_S,
    interval_s: float | None = None,
) -> T:
    """Return the first true answer of ``predicate``; past the deadline raise, naming ``what``.

    Asked every 50 ms, at first more often; a predicate that costs much to ask, by `interval_s`.
    """
    began = time.monotonic()
    while not (answer := predicate()):
        if (waited_s := time.monotonic() - began) >= deadline_s:
            raise DeadlineExceeded(_complaint(predicate, deadline_s, what, answer))
        time.sleep(_interval_s(waited_s) if interval_s is None else interval_s)
    return answer


async def until_async(
    predicate: Callable[[], T | Awaitable[T]],
    what: What = None,
    *,
    deadline_s: float = DEADLINE_S,
    interval_s: float | None = None,
) -> T:
    """`until` for a running event loop; the predicate may be a coroutine function."""
    began = time.monotonic()
    while True:
        asked = predicate()
        answer: T = await asked if inspect.isawaitable(asked) else asked  # type: ignore[assignment]
        if answer:
            return answer
        if (waited_s := time.monotonic() - began) >= deadline_s:
            raise DeadlineExceeded(_complaint(predicate, deadline_s, what, answer))
        await asyncio.sleep(_interval_s(waited_s) if interval_s is None else interval_s)


async def ended(*tasks: asyncio.Task[Any], deadline_s: float = DEADLINE_S) -> None:
    """Cancel tasks until they have ended; past the deadline raise, naming where one goes on.

    Once is not enough: redis-py sends with Python 3.11's `wait_for`, which drops a cancellation
    that arrives in the moment it completes, and no time-out of a test covers the end of a fixture.
    """
    until_s = time.monotonic() + deadline_s
    pending, again_s = set(tasks), CANCELLED_AGAIN_S
    while pending:
        for task in pending:
            task.cancel()
        done, pending = await asyncio.wait(pending, timeout=again_s)
        again_s = min(again_s, OFTEN_S)
        for task in done:
            if not task.cancelled():
                task.exception()  # or asyncio logs that it was never retrieved
        if pending and time.monotonic() >= until_s:
            places = "; ".join(map(_place, pending))
            raise DeadlineExceeded(f"not ended {deadline_s:g} s after it was cancelled: {places}")


async def stopped(*tasks: asyncio.Task[Any]) -> None:
    """Wait for tasks that were told to end; raises what ended one.

    Past the deadline they are cancelled. `asyncio.timeout` would wait for them all the same: who
    awaits a task and is cancelled waits until that has ended.
    """
    if not tasks:
        return
    _, pending = await asyncio.wait(tasks, timeout=DEADLINE_S)
    places = "; ".join(map(_place, pending))
    await ended(*pending)
    if pending:
        raise DeadlineExceeded(f"not ended {DEADLINE_S:g} s after it was told to: {places}")
    for task in tasks:
        task.result()


def end_all_of(loop: asyncio.AbstractEventLoop) -> None:
    """At the end of a loop, as asyncio does; but asyncio cancels once and waits without limit."""
    if tasks := asyncio.all_tasks(loop):
        loop.run_until_complete(ended(*tasks))


def quiet(seconds: float) -> None:
    """Let time pass: an outage has a length, or nothing more may come and nothing can show it.

    The only fixed wait of the tests. Use a marker message instead wherever one can be sent.
    """
    time.sleep(max(seconds, 0))


async def quiet_async(seconds: float) -> None:
    """`quiet` for a running event loop."""
    await asyncio.sleep(max(seconds, 0))


def _interval_s(waited_s: float) -> float:
    """Short while little time was lost; then longer, since the awaited work needs the CPU, too."""
    return min(max(FIRST_INTERVAL_S, waited_s / 10), LAST_INTERVAL_S)


def _place(task: asyncio.Task[Any]) -> str:
    """Where a task waits: the lines of its coroutines, the outermost first."""
    lines, awaited = [], task.get_coro()
    while (frame := getattr(awaited, "cr_frame", None)) is not None:
        lines.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
        awaited = awaited.cr_await  # type: ignore[union-attr]
    return " > ".join(lines)


def _complaint(
    predicate: Callable[[], object], deadline_s: float, what: What, answer: object
) -> str:
    said = what() if callable(what) else what
    awaited = said or getattr(predicate, "__qualname__", repr(predicate))
    return f"not within {deadline_s:g} s: {awaited} (last answer: {answer!r:.300})"
