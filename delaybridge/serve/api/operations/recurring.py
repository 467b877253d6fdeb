"""Recurring messages: definitions, and what may be done with them."""

from __future__ import annotations

from typing import Any

import msgspec

from delaybridge.errors import MessageConflict, MessageError
from delaybridge.message import Answer
from delaybridge.operate.views.described import plain
from delaybridge.recurring.client import preview_of
from delaybridge.recurring.definition import Definition
from delaybridge.recurring.definitions import Backfilled, Recurring
from delaybridge.serve.api.description.openapi import object_of
from delaybridge.serve.api.messages.shapes import ScheduledMessage, scheduled
from delaybridge.serve.http.endpoint import Reply, Routes
from delaybridge.serve.http.problems import Problem
from delaybridge.serve.shared.audit import note_reading
from delaybridge.serve.shared.call import Call
from delaybridge.serve.shared.tenancy import ROWS

_ONE = "/v1/recurring/{name}"
routes = Routes(is_for_tenants=True)


DefinitionFields: Any = msgspec.defstruct(
    "DefinitionFields",
    Definition.given_fields(),
    namespace={
        "__doc__": "What is sent, where and when: `cron` (with `tz`) or `every`. "
        "See docs/recurring.md."
    },
    kw_only=True,
    forbid_unknown_fields=True,
)
NewDefinition: Any = msgspec.defstruct(
    "NewDefinition",
    [("name", str)],
    bases=(DefinitionFields,),
    namespace={"__doc__": "A definition and its name."},
    kw_only=True,
    forbid_unknown_fields=True,
)


class DefinitionState(msgspec.Struct):
    """A definition, and how far it is. definition: its fields; empty if they cannot be read."""

    name: str
    definition: dict[str, Any]
    state: str
    next_ms: int | None
    last_ms: int | None
    missed: int
    error: str


class DefinitionList(msgspec.Struct):
    """All of them, by name."""

    items: list[DefinitionState]


class DefinitionAnswer(msgspec.Struct):
    """result: created, duplicate, replaced, paused, resumed or removed."""

    name: str
    result: str


_ADDED = {201: DefinitionAnswer, 200: DefinitionAnswer}


class Span(msgspec.Struct, forbid_unknown_fields=True):
    """From when until when (now) runs are made; RFC 3339."""

    start: str
    end: str | None = None


class PreviewQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Either cron, with tz, or every. n: how many runs."""

    cron: str | None = None
    every: str | None = None
    tz: str = "UTC"
    n: int = 5


class PreviewRuns(msgspec.Struct):
    """When it runs, in words, and the next runs in its time zone."""

    words: str
    runs: list[str]


@routes("GET /v1/recurring", ROWS["recurring.list"], answer=DefinitionList)
async def definitions(call: Call) -> Any:
    """Every definition with its state, next and last run."""
    found = await call.verb("recurring.list")()
    if found:
        await note_reading(call, "all recurring definitions")
    return {"items": [_shape(call, each) for each in found]}


@routes(
    "POST /v1/recurring", ROWS["recurring.add"], body=NewDefinition, answers={**_ADDED, 409: None}
)
async def add(call: Call) -> Reply:
    """Add a definition; another of this name is a conflict."""
    return await _add(call, call.body.name, replace=False)


@routes("GET /v1/recurring:preview", "Preview the runs of a cron expression", query=PreviewQuery)
async def preview(call: Call) -> PreviewRuns:
    """When a definition with these times would run next."""
    query: PreviewQuery = call.query
    found = preview_of(query.cron, query.every, query.tz, query.n)
    return PreviewRuns(found.words, [each.isoformat() for each in found.times])


def _add_route(verb: str, request: str, text: str) -> None:
    """The route of a verb that takes only a name."""

    async def handler(call: Call) -> DefinitionAnswer:
        await _of_known(call, verb)
        return DefinitionAnswer(call.path["name"], f"{verb.removesuffix('e')}ed")

    handler.__doc__ = text
    routes(request, ROWS[f"recurring.{verb}"], answer=DefinitionAnswer, fails=(404,))(handler)


_add_route("pause", f"POST {_ONE}:pause", "Make no further run; cancel those that are not due.")
_add_route("resume", f"POST {_ONE}:resume", "Go on with the first run from now on.")


async def _add(call: Call, name: str, *, replace: bool) -> Reply:
    fields = {n: getattr(call.body, n) for n in DefinitionFields.__struct_fields__}
    destination, text, data = (fields.pop(n) for n in ("destination", "body", "body_base64"))
    if text is not None and data is not None:
        raise MessageError("body_ambiguous", "body", "give one of body and body_base64")
    body = data if text is None else text
    try:
        answer = await call.verb("recurring.add")(
            name, destination, body, replace=replace, **fields
        )
    except MessageConflict as exc:
        raise Problem(409, exc.code, exc.detail, "$.name") from None
    return Reply(DefinitionAnswer(name, answer.value), 201 if answer is Answer.CREATED else 200)


@routes(f"POST {_ONE}:run", ROWS["recurring.run"], answers={202: ScheduledMessage, 404: None})
async def run(call: Call) -> Reply:
    """Send it once now, besides its plan."""
    receipt = await _of_known(call, "run")
    return Reply(scheduled(receipt), 202)


@routes(
    f"POST {_ONE}:backfill", ROWS["recurring.backfill"], body=Span, answer=object_of(Backfilled),
    fails=(404,),
)  # fmt: skip
async def backfill(call: Call) -> Any:
    """Make the runs of a span in the past that were not made."""
    return plain(await _of_known(call, "backfill", call.body.start, call.body.end))


@routes(f"GET {_ONE}", ROWS["recurring.get"], answer=DefinitionState, fails=(404,))
async def show(call: Call) -> Any:
    """One definition with its state, next and last run."""
    found = await _of_known(call, "get")
    await note_reading(call, f"the recurring definition {found.name}")
    return _shape(call, found)


@routes(
    f"PUT {_ONE}", "Add or replace a definition", is_audited=True, body=DefinitionFields,
    answers=_ADDED,
)  # fmt: skip
async def put(call: Call) -> Reply:
    """Add a definition, or replace the one of this name."""
    return await _add(call, call.path["name"], replace=True)


def _shape(call: Call, one: Recurring) -> dict[str, Any]:
    fields = {} if one.definition is None else msgspec.to_builtins(one.definition)
    if not call.may_read_bodies:
        fields = {name: value for name, value in fields.items() if not name.startswith("body")}
    return {**one._asdict(), "definition": fields}


async def _of_known(call: Call, verb: str, *arguments: Any) -> Any:
    """What a verb answers about the definition in the path; Problem 404 if it is unknown."""
    name = call.path["name"]
    if not (found := await call.verb(f"recurring.{verb}")(name, *arguments)):
        raise Problem(404, "unknown", f"no definition is named {name[:80]!r}", "$.name")
    return found


_add_route("remove", f"DELETE {_ONE}", "Remove a definition, and cancel its runs that are not due.")
