"""An answer that all who ask within a second share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from delaybridge.serve.http.disconnect import end_all

T = TypeVar("T")
FRESH_S = 1.0


class Shared(Generic[T]):
    """Made when somebody asks, at most once a second and never twice at a time."""

    def __init__(self) -> None:
        self._making: asyncio.Task[T] | None = None
        self._fresh_until_s = 0.0  # on the loop's clock

    async def answer(self, make: Callable[[], Awaitable[T]]) -> T:
        """The answer of the last second; else the one under way; else a new one."""
        now_s = asyncio.get_running_loop().time()
        if self._making is None or (self._making.done() and now_s >= self._fresh_until_s):
            self._making = asyncio.create_task(self._made(make))
        return await asyncio.shield(self._making)  # others may wait for it, too

    async def close(self) -> None:
        """Make none any more."""
        if self._making is not None:
            await end_all([self._making])

    async def _made(self, make: Callable[[], Awaitable[T]]) -> T:
        try:
            return await make()
        finally:
            self._fresh_until_s = asyncio.get_running_loop().time() + FRESH_S
