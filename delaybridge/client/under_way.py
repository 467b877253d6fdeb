"""The store of an `AsyncClient`: closing it waits for the calls that are under way."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from delaybridge.store.protocol.command import LedgerSteps, Steps
from delaybridge.store.redis.store import AsyncStore

T = TypeVar("T")


class ClientStore(AsyncStore):
    """An `AsyncStore` that knows which of its calls have no answer yet."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._under_way = set[asyncio.Future[None]]()

    async def complete(self, steps: Steps[T] | LedgerSteps[T]) -> T:
        """As `AsyncStore.complete`."""
        over = asyncio.get_running_loop().create_future()
        self._under_way.add(over)
        try:
            return await super().complete(steps)
        finally:
            self._under_way.discard(over)
            over.set_result(None)

    async def close(self) -> None:
        """Wait until the calls so far have ended, then close every connection."""
        try:
            if self._under_way:
                await asyncio.wait(self._under_way)
        finally:
            await super().close()
