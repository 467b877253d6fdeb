"""Attempts: what many wait for is tried once at a time, and all of them share how that ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from math import inf
from typing import Any, Generic, TypeVar

T = TypeVar("T")
_CALM_S = 1.0  # after one that failed


class Attempts(Generic[T]):
    """Tries one thing, again and again, as long as anybody waits for it."""

    def __init__(self, attempt: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._attempt = attempt
        self._under_way: asyncio.Task[T] | None = None
        self._sharing = 0
        self._error: Exception | None = None
        self._failed_s = -inf

    async def share(self) -> T:
        """How the attempt that is under way ends, or a new one.

        If the last one has failed less than a second ago: the same error.
        """
        if self._under_way is None:
            if self._error is not None and time.monotonic() < self._failed_s + _CALM_S:
                raise self._error
            self._under_way, self._sharing = asyncio.create_task(self._try()), 0
        shared = self._under_way
        self._sharing += 1
        try:
            return await asyncio.shield(shared)
        except asyncio.CancelledError:
            if shared is self._under_way and self._sharing == 1:  # its callers have given up
                self._under_way = None
                shared.cancel()
            raise
        finally:
            if shared is self._under_way:
                self._sharing -= 1

    async def _try(self) -> T:
        try:
            found = await self._attempt()
        except Exception as exc:
            self._error, self._failed_s = exc, time.monotonic()
            raise
        else:
            self._error = None
            return found
        finally:
            if asyncio.current_task() is self._under_way:
                self._under_way = None
