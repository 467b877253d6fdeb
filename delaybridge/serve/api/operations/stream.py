"""The fleet's events as server-sent events: `delaybridge tail` for programs.

One subscription for all clients of a process. The last events are kept, so that a client that comes
back, also to another process, goes on where it was. A client that waits costs one future, no task.
"""

from __future__ import annotations

import msgspec
from starlette.types import Receive, Send
from starlette.types import Scope as Connection

from delaybridge.ingest.names import tenant_of
from delaybridge.message import PULL
from delaybridge.operate.notices.event_channel import is_of
from delaybridge.operate.views.destinations import known_place
from delaybridge.serve.http.disconnect import Ending
from delaybridge.serve.http.endpoint import Routes
from delaybridge.serve.http.problems import Problem
from delaybridge.serve.shared.call import Call
from delaybridge.serve.shared.event_fanout import Kept
from delaybridge.serve.shared.tenancy import Tenancy

_RETRY_MS = 3000
STREAM_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]
routes = Routes(is_for_tenants=True)


class EventQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Only of this destination, exchange or broker; only these events, separated by commas."""

    destination: str | None = None
    event: str | None = None


class Stream:
    """One client: an ASGI application that sends what fits, until one of both ends it, or its token
    does."""

    def __init__(self, call: Call) -> None:
        self._call, hub, query = call, call.site.events, call.query
        self._hub, self._place = hub, query.destination
        self._own, self._tenants = Tenancy(call.tenant), call.site.settings.ingest.tenants
        self._wanted = frozenset(query.event.split(",")) if query.event else None
        self._number, self._gap = hub.count, None
        if last_id := call.headers.get("last-event-id"):
            self._number, self._gap = hub.place_of(last_id)

    async def __call__(self, scope: Connection, receive: Receive, send: Send) -> None:
        """Send events as they happen."""
        hub = self._hub
        with self._call.seat():
            ending: Ending = scope["extensions"]["connection"]["ending"]
            await send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
            first = b"retry: %d\n\n" % _RETRY_MS + (self._gap.text if self._gap else b"")
            await _part(send, first)
            while not (hub.is_closed or ending.has_ended) and await self._call.is_known():
                while (text := self._next()) is not None:
                    await _part(send, text)
                if not ending.has_ended:
                    await hub.wait(ending)
                if self._number == hub.count:
                    await _part(send, b":\n\n")
            await send({"type": "http.response.body", "body": b""})

    def _next(self) -> bytes | None:
        """The text of the next events that fit; None if there are no more events."""
        if self._number >= self._hub.count:
            return None
        some, self._number = self._hub.since(self._number)
        fitting = (one for one in some if self._fits(one))
        if self._own.tenant:
            return b"".join(self._own.text(one.text.decode()).encode() for one in fitting)
        return b"".join(one.text for one in fitting)

    def _fits(self, one: Kept) -> bool:
        if one.event == "gap":
            return True
        if self._own.tenant and not self._is_own(one):
            return False
        if self._wanted is not None and one.event not in self._wanted:
            return False
        return self._place is None or is_of(self._own.text(one.place), self._place)

    def _is_own(self, one: Kept) -> bool:
        """Whether it is about a source or a pull topic of the tenant: events name no messages, and
        the other destinations may be everybody's."""
        if one.source:
            return tenant_of(*one.source.partition(":")[::2], self._tenants) == self._own.tenant
        return one.place.startswith(f"{PULL}:{self._own.prefix}")


async def _part(send: Send, text: bytes) -> None:
    if text:
        await send({"type": "http.response.body", "body": text, "more_body": True})


@routes(
    "GET /v1/events", "Follow the events of the fleet", query=EventQuery, answer=bytes,
    media="text/event-stream",
)  # fmt: skip
async def events(call: Call) -> Stream:
    """The events of all workers and ingest processes as they happen: server-sent events.

    A token of a tenant gets those of its sources and of its pull topics.

    `Last-Event-ID` goes on after that event, also on another server. Where some may be missing, an
    event `gap` says so.
    """
    hub = call.site.events
    if hub.is_closed:
        later = {"Retry-After": "3"}
        raise Problem(503, "draining", "told to stop; connect again", headers=later)
    if (place := call.query.destination) is not None:
        found = await call.site.client.run(lambda calls: known_place(calls, place))
        call.query.destination = found
    hub.start()
    return Stream(call)
