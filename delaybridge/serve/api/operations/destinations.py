"""Destinations: what waits for each, and the rules that steer them."""

from __future__ import annotations

from typing import Any

import msgspec

from delaybridge.errors import MessageError
from delaybridge.operate.views.described import place_data
from delaybridge.serve.http.endpoint import Endpoint, Reply, Scope
from delaybridge.serve.http.problems import Problem
from delaybridge.serve.shared.call import Call


class PlaceState(msgspec.Struct):
    """What waits for a destination, its own rule, and what is in force from broader ones.

    error: by how much the numbers may be wrong, if they are estimates. retrying: messages whose
    last publish failed, by destination and reason.
    """

    destination: str
    delayed: int
    in_flight: int
    parked: int
    dead: int
    error: int
    next_due_ms: int | None
    next_due: str | None
    state: str
    paused_by: str | None
    paused_since: str | None
    trouble: str | None
    retrying: list[dict[str, Any]]
    rule: dict[str, Any]
    in_force: dict[str, Any]
    ignored_by: list[str]


class PlaceList(msgspec.Struct):
    """more: how many destinations with fewer messages are not listed."""

    items: list[PlaceState]
    more: int


class RuleFields(msgspec.Struct, forbid_unknown_fields=True):
    """A whole rule: what is not given is not set. A pause stays as it is.

    rate: messages a second. spread: as 10m. retry: max_attempts, base_ms, factor, max_ms, jitter.
    dead_letter: a destination; empty: the dead set.
    """

    rate: float | None = None
    spread: str | None = None
    retry: dict[str, Any] | None = None
    dead_letter: str | None = None


class Confirmation(msgspec.Struct, forbid_unknown_fields=True):
    """confirm: the destination once more."""

    confirm: str


class Purged(msgspec.Struct):
    """How many messages got each answer of cancel or discard; `in_flight` were too late."""

    answers: dict[str, int]


async def all_places(call: Call) -> Reply:
    """Every destination that has messages, a rule, or trouble."""
    found = await call.site.client.destinations()
    items = [place_data(place, found) for place in found.places]
    return Reply({"items": items, "more": found.more})


async def show(call: Call) -> Reply:
    """One destination, exchange or broker."""
    found = await call.site.client.destinations(call.path["destination"])
    return Reply(place_data(found.places[0], found))


async def put(call: Call) -> Reply:
    """Set the rule of a destination, all of it but the pause."""
    wanted: RuleFields = call.body
    plan = dict(wanted.retry or {})
    if "dead_letter" in plan:
        raise MessageError("unknown_field", "retry.dead_letter", "give it beside retry")
    if wanted.dead_letter is not None:
        plan["dead_letter"] = wanted.dead_letter
    await call.site.client.set_rule(
        call.path["destination"], rate=wanted.rate, spread=wanted.spread, retry=plan or None
    )
    return await show(call)


async def delete(call: Call) -> Reply:
    """Remove the rule of a destination, also its pause."""
    client, place = call.site.client, call.path["destination"]
    await client.resume(place)
    await client.set_rule(place)
    return await show(call)


async def pause(call: Call) -> Reply:
    """Publish nothing to a destination: what falls due waits, in order."""
    await call.site.client.pause(call.path["destination"])
    return await show(call)


async def resume(call: Call) -> Reply:
    """End a pause; a pause of its exchange or broker stays."""
    await call.site.client.resume(call.path["destination"])
    return await show(call)


async def purge(call: Call) -> Reply:
    """Cancel all messages of a destination and delete its dead ones."""
    place = call.path["destination"]
    if call.body.confirm != place:
        what = f"write {place[:80]!r} once more; nothing was done"
        raise Problem(422, "not_confirmed", what, "$.confirm")
    answers = await call.site.client.purge(place)
    return Reply(Purged({answer.value: count for answer, count in answers.items()}))


_ONE = "/v1/destinations/{destination}"
ENDPOINTS = (
    Endpoint(
        method="GET", path="/v1/destinations", scope=Scope.READ, handler=all_places,
        summary="List destinations", answers={200: PlaceList},
    ),
    Endpoint(
        method="POST", path=f"{_ONE}:pause", scope=Scope.ADMIN, handler=pause,
        is_audited=True,
        summary="Pause a destination", answers={200: PlaceState},
    ),
    Endpoint(
        method="POST", path=f"{_ONE}:resume", scope=Scope.ADMIN, handler=resume,
        is_audited=True,
        summary="Resume a destination", answers={200: PlaceState},
    ),
    Endpoint(
        method="POST", path=f"{_ONE}:purge", scope=Scope.ADMIN, handler=purge,
        is_audited=True,
        summary="Purge a destination", body=Confirmation, answers={200: Purged},
    ),
    Endpoint(
        method="GET", path=_ONE, scope=Scope.READ, handler=show,
        summary="Show a destination", answers={200: PlaceState},
    ),
    Endpoint(
        method="PUT", path=_ONE, scope=Scope.ADMIN, handler=put,
        is_audited=True,
        summary="Set the rule of a destination", body=RuleFields, answers={200: PlaceState},
    ),
    Endpoint(
        method="DELETE", path=_ONE, scope=Scope.ADMIN, handler=delete,
        is_audited=True,
        summary="Remove the rule of a destination", answers={200: PlaceState},
    ),
)  # fmt: skip
