"""The end of a connection, for the answer that waits on it; the end of tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

_AGAIN_S = 5.0  # longer than what a cancelled task may still write


class Ending:
    """has_ended: the client is gone. waiter: woken at that moment.

    is_read: of a body that an application answers while it arrives: whether it waits for more, or
    works; None: it is no such body.
    break_off: ends the connection within such an answer; what was sent before still arrives. None:
    only the server that this application is part of can do so.
    """

    __slots__ = ("break_off", "has_ended", "is_read", "waiter")

    def __init__(self) -> None:
        self.has_ended = False
        self.is_read: bool | None = None
        self.break_off: Callable[[], None] | None = None
        self.waiter: asyncio.Future[None] | None = None

    def end(self) -> None:
        """Note that the client is gone, and wake what waits."""
        self.has_ended = True
        self.wake()

    def wake(self) -> None:
        """Wake the answer that waits on this connection."""
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)


async def end_all(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks until all have ended: a library may swallow a cancellation. What they raise is
    dropped."""
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        done, pending = await asyncio.wait(pending, timeout=_AGAIN_S)
        for task in done:
            if not task.cancelled():
                task.exception()
