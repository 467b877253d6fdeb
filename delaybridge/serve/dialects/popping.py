"""Fetching jobs as the originals do: one at a time, of several topics, by a poll that may wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import msgspec
from starlette.types import Receive, Send
from starlette.types import Scope as Connection

from delaybridge.errors import MessageError
from delaybridge.message import PULL
from delaybridge.serve.dialects.dialect import NO_PULL, Dialect, destination_of
from delaybridge.serve.http.disconnect import Ending
from delaybridge.serve.shared.call import Call
from delaybridge.serve.shared.tenancy import Tenancy
from delaybridge.store.messages.pulling import ReceivedMessage

_TTR_S = (1, 43_200)  # of a pull topic
_TOPICS = 100  # of one request
_DIGITS = 15
_FIRST_TTR = "30s"


def number_of(text: bytes | None) -> int:
    """What a header says; 0 if it is no number. Anybody may have written it: it may be huge."""
    if not text or not text.isdigit():
        return 0
    return int(text) if len(text) <= _DIGITS else 10**_DIGITS


class Pop:
    """An ASGI application: the first job of some topics that is due, waiting for up to `wait_s`."""

    def __init__(
        self,
        call: Call,
        topics: Sequence[str | tuple[str, str]],
        wait_s: float,
        shown: Callable[[ReceivedMessage | None], Any],
        dialect: Dialect,
        *,
        ttr: tuple[str, float] = ("ttr", 1.0),
    ) -> None:
        """Problem or MessageError if these are no pull topics.

        topics: also of (topic, subtopic). ttr: the header that has the time to run, and its unit in
        seconds.
        """
        if len(topics) > _TOPICS:  # each is asked for by itself
            what = f"{len(topics):,} topics; at most {_TOPICS}"
            raise MessageError("bad_value", "topic", what)
        places = [
            destination_of(call, *((topic,) if isinstance(topic, str) else topic))
            for topic in topics
        ]
        if not all(place.startswith(f"{PULL}:") for place in places):
            raise NO_PULL
        self._call, self._wait_s = call, wait_s
        self._own = Tenancy(call.tenant)
        self._topics = [place.removeprefix(f"{PULL}:") for place in dict.fromkeys(places)]
        self._shown, self._dialect = shown, dialect
        self._header, self._unit_s = ttr

    async def __call__(self, scope: Connection, receive: Receive, send: Send) -> None:
        """Answer. A client that is gone takes nothing."""
        ending: Ending = scope["extensions"]["connection"]["ending"]
        try:
            call = self._call
            seats = call.site.seats
            with seats.seat(call.tenant, call.digest) if self._wait_s else nullcontext():
                found = await self._found(ending)
            if found and ending.has_ended:
                await self._call.verb("topics.release")([found])
                return
            content = self._shown(found)
        except Exception as exc:
            content = self._dialect.refused(exc)
        text = msgspec.json.encode(content)
        headers = [(b"content-length", b"%d" % len(text)), (b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": text})

    async def _found(self, ending: Ending) -> ReceivedMessage | None:
        hub, loop = self._call.site.ready, asyncio.get_running_loop()
        ends_s = loop.time() + self._wait_s
        await hub.start()
        found = None
        while not (hub.is_closed or ending.has_ended):
            waiters = {topic: hub.enter(self._own.topic(topic), ending) for topic in self._topics}
            try:
                found = await self._look()
                left_s = ends_s - loop.time()
                if found or left_s <= 0:
                    break
                await asyncio.wait(
                    waiters.values(), timeout=left_s, return_when=asyncio.FIRST_COMPLETED
                )
            finally:
                wakes = found is not None or hub.is_closed or ending.has_ended
                for topic, waiter in waiters.items():
                    hub.leave(self._own.topic(topic), waiter, wakes=wakes)
        return found

    async def _look(self) -> ReceivedMessage | None:
        """A job, held for the time to run that it was stored with."""
        receive, extend = map(self._call.verb, ("topics.receive", "topics.extend"))
        for topic in self._topics:
            if some := await receive(topic, ttr=_FIRST_TTR):
                if asked := number_of(dict(some[0].headers).get(self._header)):
                    least, most = _TTR_S
                    await extend(some, ttr=max(least, min(asked * self._unit_s, most)))
                return some[0]  # type: ignore[no-any-return]
        return None
