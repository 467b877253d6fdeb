"""The hub: hears the fleet's events for all clients of a process, and keeps the last ones."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import deque
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any, NamedTuple

import msgspec

from delaybridge.errors import DelayBridgeError
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

    async def close(self) -> None:
        """End all streams: the server stops."""
        self.is_closed = True
        await end_all(self._tasks)
        self._wake()

    async def _listen(self) -> None:
        redis = self._settings.redis
        store = AsyncStore(redis.url, timeout_s=redis.timeout_s)
        try:
            channel = keys.events(self._settings.namespace)
            async with aclosing(store.listen(channel, self._lost)) as texts:  # type: ignore[type-var]
                async for text in texts:
                    if text is None:
                        self._add(_kept_gap("listening from now on"))
                    elif (beat := read(text)) is not None:
                        self._take(beat)
        finally:
            await store.close()

    def _lost(self, error: DelayBridgeError) -> None:
        logging.getLogger("delaybridge").warning("events are not heard: %s", error)

    def _take(self, beat: Beat) -> None:
        who = f"{beat.worker}.{beat.instance}".replace("\n", " ")
        for index, told in enumerate(beat.lines):
            source = str(told.fields.get("source") or "")
            place = str(told.fields.get("destination") or source)
            data = {
                "time": format_time(told.at_ms),
                "worker": beat.worker,
                "level": logging.getLevelName(told.level).lower(),
                "event": told.event,
                "fields": told.fields,
            }
            id = f"{told.at_ms}-{who}-{beat.number}-{index}"
            text = _text(id, told.event, data)
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


def _text(id: str, event: str, data: Any) -> bytes:
    return b"id: %s\nevent: %s\ndata: %s\n\n" % (id.encode(), event.encode(), _encode(data))
