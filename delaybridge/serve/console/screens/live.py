"""What goes on while a page is open: a tick a second with its numbers, and the fleet's events."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from starlette.types import Receive, Send
from starlette.types import Scope as Connection

from delaybridge.events import Event
from delaybridge.operate.views.destinations import known_place
from delaybridge.serve.access.sessions import cookies
from delaybridge.serve.api.operations.stream import STREAM_HEADERS
from delaybridge.serve.console.page import Pages
from delaybridge.serve.console.rendering import language_of, link
from delaybridge.serve.console.snapshot import snapshots_of
from delaybridge.serve.http.disconnect import Ending
from delaybridge.serve.http.endpoint import Routes
from delaybridge.serve.shared.call import Call
from delaybridge.worker.eventlog import name_of

_EVERY_S = 1.0
routes = Routes()
pages = Pages()


class LiveQuery(msgspec.Struct, forbid_unknown_fields=True):
    """language: of the page, `en` or `zh`; without it, as the browser has chosen or asks.

    In a browser with pages of two languages, those of each share a stream.
    """

    language: str = ""


class TickStream:
    """One open page: an ASGI application that sends ticks until one of both ends it, or its session
    does."""

    def __init__(self, call: Call) -> None:
        self._call = call
        chosen = call.query.language or cookies(call.headers).get("delaybridge-language", "")
        self._language = language_of(call.headers, chosen)

    async def __call__(self, scope: Connection, receive: Receive, send: Send) -> None:
        """Send a tick every second."""
        site = self._call.site
        with self._call.seat():
            ending: Ending = scope["extensions"]["connection"]["ending"]
            await send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
            while not (site.is_draining or ending.has_ended) and await self._call.is_known():
                text = await snapshots_of(site).tick(self._language)
                await send({"type": "http.response.body", "body": text, "more_body": True})
                ending.waiter = asyncio.get_running_loop().create_future()
                if not ending.has_ended:
                    await asyncio.wait([ending.waiter], timeout=_EVERY_S)
            await send({"type": "http.response.body", "body": b""})


@routes("GET /live", "Follow the numbers of the console", query=LiveQuery)
async def live(call: Call) -> TickStream:
    """The numbers of the frame once a second, as server-sent events."""
    return TickStream(call)


class TailQuery(msgspec.Struct, forbid_unknown_fields=True):
    """As of `/v1/events`: event names are separated by commas."""

    destination: str = ""
    event: str = ""


@pages("/tail", "Tail", query=TailQuery)
async def tail(call: Call) -> dict[str, Any]:
    """Where the events come from, and their names: a browser asks for each by name."""
    query: TailQuery = call.query
    if place := query.destination:  # else its stream would be refused, again and again
        query.destination = await call.site.client.run(lambda calls: known_place(calls, place))
    known = {name_of(kind) for kind in Event.__subclasses__()}
    wanted = [name for name in query.event.replace(" ", "").split(",") if name]
    return {
        "api": link("/v1/events", destination=query.destination, event=",".join(wanted)),
        "query": query,
        "known": sorted(known),
        "names": sorted(known | set(wanted)),
    }
