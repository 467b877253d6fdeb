"""Who waits for messages of pull topics: woken by an event, one subscription for all of a process.

One waiter is woken for each event. If it got messages, there may be more: it wakes the next.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing

from delaybridge.errors import DelayBridgeError
from delaybridge.message import PULL
from delaybridge.serve.http.disconnect import Ending, end_all
from delaybridge.settings.settings import Settings
from delaybridge.store.protocol import keys
from delaybridge.store.redis.store import AsyncStore


class ReadyHub:
    """Hears which topics have messages, and wakes those who wait for them."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._waiting: dict[str, dict[asyncio.Future[None], None]] = {}  # topic -> in order
        self._listening: asyncio.Task[None] | None = None
        self._heard = asyncio.Event()
        self.is_closed = False

    async def start(self) -> None:
        """Listen from now on; returns once nothing is missed."""
        if self._listening is None:
            self._listening = asyncio.create_task(self._listen())
        await self._heard.wait()

    def enter(self, topic: str, ending: Ending) -> asyncio.Future[None]:
        """Wait for the topic from now on, until the connection ends. Then call `leave`."""
        waiter = ending.waiter = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(topic, {})[waiter] = None
        return waiter

    def leave(self, topic: str, waiter: asyncio.Future[None], *, wakes: bool) -> None:
        """Wait no more. wakes: the next is to look: there may be messages that this one left."""
        waiting = self._waiting.get(topic, {})
        waiting.pop(waiter, None)
        if wakes:
            self._wake(topic)
        if not waiting:
            self._waiting.pop(topic, None)

    async def close(self) -> None:
        """Wake all for good: the server stops."""
        self.is_closed = True
        if self._listening is not None:
            await end_all([self._listening])
        self._heard.set()
        self._wake_all()

    async def _listen(self) -> None:
        redis = self._settings.redis
        store = AsyncStore(redis.url, timeout_s=redis.timeout_s)
        try:
            channel = keys.offers(self._settings.namespace)
            async with aclosing(store.listen(channel, self._lost)) as texts:  # type: ignore[type-var]
                async for text in texts:
                    if text is None:  # something may have been missed: all look once
                        self._heard.set()
                        self._wake_all()
                    else:
                        self._wake(text.removeprefix(f"{PULL}:"))
        finally:
            await store.close()

    def _lost(self, error: DelayBridgeError) -> None:
        self._heard.set()  # who waits now looks again once it is heard
        logging.getLogger("delaybridge").warning("ready messages are not heard: %s", error)

    def _wake(self, topic: str) -> None:
        waiting = self._waiting.get(topic, {})
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)
                break

    def _wake_all(self) -> None:
        for waiting in self._waiting.values():
            for waiter in waiting:
                if not waiter.done():
                    waiter.set_result(None)
