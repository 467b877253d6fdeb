"""What Redis is, and what delaybridge keeps there."""

from __future__ import annotations

from typing import Any

from delaybridge.operate.views.described import plain
from delaybridge.operate.views.facts import StoreFacts, read_facts
from delaybridge.serve.api.description.typed import object_of
from delaybridge.serve.http.routes import Routes
from delaybridge.serve.shared.call import Call

routes = Routes()


async def facts_of(call: Call) -> StoreFacts:
    """The facts, with one look at Redis."""
    return await call.site.client.run(read_facts)


@routes("GET /v1/store", "Show what Redis is", answer=object_of(StoreFacts))
async def store(call: Call) -> Any:
    """Version, memory, persistence and replicas of each server; entries of our keys."""
    return plain(await facts_of(call))
