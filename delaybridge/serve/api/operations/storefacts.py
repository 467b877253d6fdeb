"""What Redis is, and what delaybridge keeps there."""

from __future__ import annotations

from delaybridge.operate.views.described import plain
from delaybridge.operate.views.facts import StoreFacts, read_facts
from delaybridge.serve.api.description.typed import object_of
from delaybridge.serve.http.endpoint import Endpoint, Reply, Scope
from delaybridge.serve.shared.call import Call


async def facts_of(call: Call) -> StoreFacts:
    """The facts, with one look at Redis."""
    return await call.site.client.run(read_facts)


async def store(call: Call) -> Reply:
    """Version, memory, persistence and replicas of each server; entries of our keys."""
    return Reply(plain(await facts_of(call)))


ENDPOINTS = (
    Endpoint(
        method="GET", path="/v1/store", scope=Scope.READ, handler=store,
        summary="Show what Redis is", answers={200: object_of(StoreFacts)},
    ),
)  # fmt: skip
