"""The dead set: messages that were given up, and those that ingest refused."""

from __future__ import annotations

from typing import Any

import msgspec

from delaybridge.client.surface import TABLE
from delaybridge.message import State
from delaybridge.operate.views.burials import Burials, DeadGroup
from delaybridge.serve.api.messages.changing import OfKey, add_changes, unknown
from delaybridge.serve.api.messages.messages import listed
from delaybridge.serve.api.messages.paging import PageQuery
from delaybridge.serve.api.messages.shapes import MessagePage, StoredMessage, shape_of
from delaybridge.serve.http.endpoint import Reply, Routes
from delaybridge.serve.shared.audit import note_reading
from delaybridge.serve.shared.call import Call
from delaybridge.store.protocol.stored import Stored

_MOST = 5000
routes = Routes()


class DeadSummary(msgspec.Struct):
    """The largest group first. looked: how many messages were counted; more: there are others."""

    items: list[DeadGroup]
    looked: int
    more: bool


@routes("GET /v1/dead:summary", "Count dead messages by reason")
async def summary(call: Call) -> DeadSummary:
    """The dead messages by reason and destination. Of many, the oldest 5,000 are counted."""
    burials, looked, cursor = Burials(), 0, None
    while looked < _MOST:
        page = await call.site.client.dead(limit=1000, cursor=cursor)
        burials.add(page.items)
        looked, cursor = looked + len(page.items), page.cursor
        if cursor is None:
            break
    return DeadSummary(burials.groups(), looked, cursor is not None)


@routes(
    "GET /v1/dead", "List dead messages", is_for_tenants=True, query=PageQuery,
    answer=MessagePage,
)  # fmt: skip
async def pages(call: Call) -> Reply:
    """A page of dead messages by time of burial, with the reasons."""
    return await listed(call, State.DEAD)


add_changes(routes, "dead")


@routes(
    "GET /v1/dead/{id}", "Show a dead message", is_for_tenants=True, query=OfKey,
    answer=StoredMessage, fails=(404,),
)  # fmt: skip
async def show(call: Call) -> Any:
    """A dead message with its body; also one that ingest quarantined under this id.

    A token that may only read gets the size of the body.
    """
    id = call.path["id"]
    found: list[Stored] = []
    if (stored := await call.client.get(id, key=call.query.key)) is not None:
        found.append(stored)
    found += await call.verb("dead.quarantined")(id)
    for one in found:
        if one.state is State.DEAD:
            if one.body is not None:
                await note_reading(call, id)
            return shape_of(one, with_body=call.may_read_bodies)
    raise unknown(TABLE["dead.kick"], id)


add_changes(routes, "dead", whole=True)
