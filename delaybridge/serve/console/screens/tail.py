"""Tail: the fleet's events as they happen."""

from __future__ import annotations

from typing import Any

import msgspec

from delaybridge.events import Event
from delaybridge.serve.console.page import ConsolePage
from delaybridge.serve.console.rendering import link
from delaybridge.serve.shared.call import Call
from delaybridge.worker.eventlog import name_of


class TailQuery(msgspec.Struct, forbid_unknown_fields=True):
    """As of `/v1/events`: event names are separated by commas."""

    destination: str = ""
    event: str = ""


async def tail(call: Call) -> dict[str, Any]:
    """Where the events come from, and their names: a browser asks for each by name."""
    query: TailQuery = call.query
    known = {name_of(kind) for kind in Event.__subclasses__()}
    wanted = [name for name in query.event.replace(" ", "").split(",") if name]
    return {
        "api": link("/v1/events", destination=query.destination, event=",".join(wanted)),
        "query": query,
        "known": sorted(known),
        "names": sorted(known | set(wanted)),
    }


PAGES = (ConsolePage(path="/tail", name="tail", title="Tail", data=tail, query=TailQuery),)
