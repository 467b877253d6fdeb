"""Openings: channels are opened a few at a time, those of exchanges that work before all others.

An opening costs broker and worker about a millisecond. Thousands at once, each for an exchange that
does not exist, would hold up the confirms of every other exchange of the connection for seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from operator import attrgetter
from typing import Any, Protocol

AT_ONCE = 6  # openings under way
PACE_S = 0.01  # after which one more is begun: a broker that is far away takes long to answer
AT_MOST = 256
MAX_CHANNELS = 1000  # that are open; a broker allows 2047 by default
_OTHERS_TURN = 4  # each fourth opening is for an exchange that was refused before
Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
"""Starts a task; what it raises ends the connection."""


class Opener(Protocol):
    """An exchange that needs a channel.

    was_refused: the broker refused its last opening. is_idle: it has no message. proved_s: when
    its last confirm came (loop time).
    """

    was_refused: bool
    proved_s: float

    @property
    def is_idle(self) -> bool: ...

    async def open_channel(self) -> None:
        """Open it; raises nothing but CancelledError."""

    def release(self) -> None:
        """Close the channel: another exchange needs one."""


class Openings:
    """The exchanges of one publisher whose channel is open, is being opened, or is to be opened.

    open: those that have a channel; they enter and leave it by themselves. most: how many may have
    one, if the connection allows fewer than MAX_CHANNELS.
    """

    def __init__(self, spawn: Spawn) -> None:
        self.open: dict[Opener, None] = {}
        self.most = MAX_CHANNELS
        self._spawn = spawn
        self._waiting: tuple[dict[Opener, None], dict[Opener, None]] = {}, {}  # the refused last
        self._under_way: dict[Opener, asyncio.Task[None]] = {}
        self._turn = 0
        self._timer: asyncio.TimerHandle | None = None  # set while some wait

    def is_planned(self, exchange: Opener) -> bool:
        """Whether its channel is being opened, or is to be."""
        return exchange in self._under_way or any(exchange in each for each in self._waiting)

    def plan(self, exchange: Opener) -> None:
        """Open its channel when its turn comes."""
        if not self.is_planned(exchange):
            self._waiting[exchange.was_refused][exchange] = None
            self._start()

    def drop(self, exchange: Opener) -> None:
        """Open no channel for it: its connection is lost."""
        for each in self._waiting:
            each.pop(exchange, None)
        if (task := self._under_way.pop(exchange, None)) is not None:
            task.cancel()

    def _start(self, at_once: int = AT_ONCE) -> None:
        while len(self._under_way) < at_once and any(self._waiting):
            if len(self.open) + len(self._under_way) >= min(self.most, MAX_CHANNELS):
                self._release()
            exchange = self._next()
            self._under_way[exchange] = self._spawn(self._open(exchange))
        if any(self._waiting) and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(PACE_S, self._start_one_more)

    def _start_one_more(self) -> None:
        self._timer = None
        self._start(min(len(self._under_way) + 1, AT_MOST))

    async def _open(self, exchange: Opener) -> None:
        try:
            await exchange.open_channel()
        finally:
            if self._under_way.get(exchange) is asyncio.current_task():
                del self._under_way[exchange]
            self._start()

    def _next(self) -> Opener:
        """The one that has waited longest of the healthy and new ones, or of the others."""
        self._turn += 1
        first, others = self._waiting
        is_their_turn = not first or not self._turn % _OTHERS_TURN
        queue = others if others and is_their_turn else first
        exchange = next(iter(queue))
        del queue[exchange]
        return exchange

    def _release(self) -> None:
        """Close the idle channels that have had no confirm for longest."""
        idle = sorted((each for each in self.open if each.is_idle), key=attrgetter("proved_s"))
        for exchange in idle[: max(1, min(self.most, MAX_CHANNELS) // 10)]:
            exchange.release()
