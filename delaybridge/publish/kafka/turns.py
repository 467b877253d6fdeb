"""Turns: topics are looked up a few at a time, those that exist before all others.

A look-up costs cluster and worker about a millisecond, and a broker answers one after the other.
Thousands at once, each for a topic that does not exist, would hold up those of every other topic.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import IntEnum

AT_ONCE = 8  # look-ups under way
_LAST_TURN = 4  # each fourth turn is for one that others go before


class Rank(IntEnum):
    """What is known of a topic. The first go first."""

    PROVED = 0  # it existed when it was looked up last, or since
    NEW = 1
    REFUSED = 2  # it was missing, or no one may use it


class Turns:
    """Who may look up now, and who waits."""

    def __init__(self) -> None:
        self._under_way = 0
        self._waiting: tuple[deque[asyncio.Future[None]], ...] = tuple(deque() for _ in Rank)
        self._count = 0

    @asynccontextmanager
    async def turn(self, rank: Rank) -> AsyncIterator[None]:
        """Wait for a turn, which lasts as long as the block."""
        await self._take(rank)
        try:
            yield
        finally:
            self._pass_on()

    async def _take(self, rank: Rank) -> None:
        if self._under_way < AT_ONCE:
            self._under_way += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting[rank].append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # its turn had come
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        while queues := [queue for queue in self._waiting if queue]:
            self._count += 1
            turn = queues[0 if self._count % _LAST_TURN else -1].popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._under_way -= 1
