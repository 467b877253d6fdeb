"""Fan-out: what a process hears from Redis once wakes all its clients that wait for it.

The last events are kept. Of the requests that wait for messages of a pull topic one is woken for
each event. If it got messages, there may be more: it wakes the next.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple

import msgspec

from delaybridge.errors import DelayBridgeError, printable
from delaybridge.message import PULL
from delaybridge.operate.notices.event_channel import Beat, read
from delaybridge.serve.http.disconnect import Ending, end_all
from delaybridge.settings.settings import Settings
from delaybridge.store.protocol import keys
from delaybridge.store.redis.store import AsyncStore
from delaybridge.times import format_time

_KEPT = 10_000  # events
ALIVE_S = 15.0  # between comments that keep a quiet connection open
_PART = 500  # events in one write
_encode = msgspec.json.encode
_TEXT = b"id: %s\nevent: %s\ndata: %s\n\n"
_AT = re.compile(r"[0-9]{1,15}(?=-)")  # what an id begins with


class Kept(NamedTuple):
    """An event, ready to be sent. place: the destination or source that it is about, if any."""

    id: str
    at_ms: int
    event: str
    place: str
    source: str
    text: bytes


class EventHub:
    """Hears the events of all workers, keeps the last ones, and wakes whoever waits."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._kept: deque[Kept] = deque(maxlen=_KEPT)
        self._gap = _kept_gap("this server has just begun to listen")
        self._waiting: set[asyncio.Future[None]] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self.count = 0  # events so far
        self.is_closed = False

    def start(self) -> None:
        """Listen to the fleet from now on."""
        if not self._tasks:
            self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._remind())]

    async def wait(self, ending: Ending) -> None:
        """Wait for an event, for the time of a comment, or until the connection ends."""
        waiter = ending.waiter = asyncio.get_running_loop().create_future()
        self._waiting.add(waiter)
        try:
            await waiter
        finally:
            self._waiting.discard(waiter)

    def since(self, number: int) -> tuple[Sequence[Kept], int]:
        """The events after the first `number`, a part of them, and the number reached."""
        missed = self.count - len(self._kept) - number
        if missed > 0:
            gap = _kept_gap(f"{missed} events were missed: read faster")
            return [gap], number + missed
        first = len(self._kept) - (self.count - number)
        some = [self._kept[i] for i in range(first, min(first + _PART, len(self._kept)))]
        return some, number + len(some)

    def place_of(self, id: str) -> tuple[int, Kept | None]:
        """The number to go on from after the event with this id; a gap if some may be missing."""
        for back, one in enumerate(reversed(self._kept)):
            if one.id == id:
                return self.count - back, None
        # Another process sent it: go on from its time.
        at_ms = int(found[0]) if (found := _AT.match(id)) else 0
        later = sum(1 for one in self._kept if one.at_ms >= at_ms)
        is_covered = later < len(self._kept)
        return self.count - later, None if is_covered else self._gap

    def told_of(self, id: str) -> list[dict[str, Any]]:
        """What those kept tell of this message, in their order."""
        mark = _encode(id)
        found = [one.text.rpartition(b"\ndata: ")[2] for one in self._kept if mark in one.text]
        told = [msgspec.json.decode(data) for data in found]
        return [one for one in told if id in one.get("fields", {}).get("ids", ())]

    async def close(self) -> None:
        """End all streams: the server stops."""
        self.is_closed = True
        await end_all(self._tasks)
        self._wake()

    async def _listen(self) -> None:
        channel = keys.events(self._settings.namespace)
        async for text in heard(self._settings, channel, self._lost):
            if text is None:
                self._add(_kept_gap("listening from now on"))
            elif (beat := read(text)) is not None:
                self._take(beat)

    def _lost(self, error: DelayBridgeError) -> None:
        logging.getLogger("delaybridge").warning("events are not heard: %s", error)

    def _take(self, beat: Beat) -> None:
        who = printable(f"{beat.worker}.{beat.instance}")
        for index, told in enumerate(beat.lines):
            source = str(told.fields.get("source") or "")
            place = str(told.fields.get("destination") or source)
            data = {
                "time": format_time(told.at_ms),
                "worker": beat.worker,
                "level": logging.getLevelName(told.level).lower(),
                "event": told.event,
                "fields": told.named_fields,
            }
            id = f"{told.at_ms}-{who}-{beat.number}-{index}"
            text = _TEXT % (id.encode(), printable(told.event).encode(), _encode(data))
            self._kept.append(Kept(id, told.at_ms, told.event, place, source, text))
            self.count += 1
        if beat.dropped:
            self._add(_kept_gap(f"{beat.worker} told {beat.dropped} events less than happened"))
        self._wake()

    def _add(self, one: Kept) -> None:
        self._kept.append(one)
        self.count += 1
        self._wake()

    async def _remind(self) -> None:
        while True:
            await asyncio.sleep(ALIVE_S)
            self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)


def _kept_gap(what: str) -> Kept:
    """An event that says that others are missing. It has no id: the last one stays the client's."""
    data = _encode({"reason": what})
    return Kept("", 0, "gap", "", "", b"event: gap\ndata: %s\n\n" % data)


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
        async for text in heard(self._settings, keys.offers(self._settings.namespace), self._lost):
            if text is None:  # something may have been missed: all look once
                self._heard.set()
                self._wake_all()
            else:
                self._wake(text.removeprefix(f"{PULL}:"))

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


async def heard(
    settings: Settings, channel: str, lost: Callable[[DelayBridgeError], None]
) -> AsyncIterator[str | None]:
    """The texts of a channel, by a connection of its own; None: some may have been missed."""
    store = AsyncStore(settings.redis.url, timeout_s=settings.redis.timeout_s)
    try:
        async with aclosing(store.listen(channel, lost)) as texts:  # type: ignore[type-var]
            async for text in texts:
                yield text
    finally:
        await store.close()
