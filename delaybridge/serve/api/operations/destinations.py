"""Destinations: what waits for each, and the rules that steer them."""

from __future__ import annotations

from typing import Any

import msgspec

from delaybridge.client.surface import TABLE
from delaybridge.client.verbs import Scope
from delaybridge.errors import MessageError
from delaybridge.operate.views.described import place_data
from delaybridge.serve.http.endpoint import Routes
from delaybridge.serve.http.problems import Problem
from delaybridge.serve.shared.call import Call

_ONE = "/v1/destinations/{destination}"
routes = Routes()


class PlaceState(msgspec.Struct):
    """What waits for a destination, its own rule, and what is in force from broader ones.

    error: by how much the numbers may be wrong, if they are estimates. retrying: messages whose
    last publish failed, by destination and reason. empty: no message is there, as after a
    typing error; near: then a name like it that has some.
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
    empty: bool
    near: str | None


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


@routes("GET /v1/destinations", "List destinations", answer=PlaceList)
async def all_places(call: Call) -> Any:
    """Every destination that has messages, a rule, or trouble."""
    found = await call.site.client.destinations()
    items = [place_data(place, found) for place in found.places]
    return {"items": items, "more": found.more}


def _add(verb: str, text: str) -> None:
    """The route of a verb that takes only the destination."""

    async def handler(call: Call) -> Any:
        await call.verb(f"destinations.{verb}")(call.path["destination"])
        return await show(call)

    handler.__doc__ = text
    routes(f"POST {_ONE}:{verb}", TABLE[f"destinations.{verb}"], answer=PlaceState)(handler)


_add("pause", "Publish nothing to a destination: what falls due waits, in order.")
_add("resume", "End a pause; a pause of its exchange or broker stays.")


@routes(f"POST {_ONE}:purge", TABLE["destinations.purge"], body=Confirmation)
async def purge(call: Call) -> Purged:
    """Cancel all messages of a destination and delete its dead ones."""
    place = call.path["destination"]
    if call.body.confirm != place:
        what = f"write {place[:80]!r} once more; nothing was done"
        raise Problem(422, "not_confirmed", what, "$.confirm")
    answers = await call.site.client.destinations.purge(place)
    return Purged({answer.value: count for answer, count in answers.items()})


@routes(f"GET {_ONE}", "Show a destination", answer=PlaceState)
async def show(call: Call) -> Any:
    """One destination, exchange or broker."""
    found = await call.site.client.destinations(call.path["destination"])
    return place_data(found.places[0], found)


@routes(f"PUT {_ONE}", TABLE["destinations.set_rule"], body=RuleFields, answer=PlaceState)
async def put(call: Call) -> Any:
    """Set the rule of a destination, all of it but the pause."""
    wanted: RuleFields = call.body
    plan = dict(wanted.retry or {})
    if "dead_letter" in plan:
        raise MessageError("unknown_field", "retry.dead_letter", "give it beside retry")
    if wanted.dead_letter is not None:
        plan["dead_letter"] = wanted.dead_letter
    await call.site.client.destinations.set_rule(
        call.path["destination"], rate=wanted.rate, spread=wanted.spread, retry=plan or None
    )
    return await show(call)


@routes(
    f"DELETE {_ONE}", "Remove the rule of a destination", scope=Scope.ADMIN, is_audited=True,
    answer=PlaceState,
)  # fmt: skip
async def delete(call: Call) -> Any:
    """Remove the rule of a destination, also its pause."""
    client, place = call.site.client, call.path["destination"]
    await client.destinations.resume(place)
    await client.destinations.set_rule(place)
    return await show(call)
