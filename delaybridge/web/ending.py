"""The end of a connection, told to whoever waits on it."""

from __future__ import annotations

import asyncio


class Ending:
    """has_ended: the client is gone. waiter: woken at that moment."""

    __slots__ = ("has_ended", "waiter")

    def __init__(self) -> None:
        self.has_ended = False
        self.waiter: asyncio.Future[None] | None = None

    def end(self) -> None:
        """The connection has ended."""
        self.has_ended = True
        self.wake()

    def wake(self) -> None:
        """Wake whoever waits."""
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)
