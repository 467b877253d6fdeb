"""Verbs that change messages: routes made of the rows of the client's table.

A row whose first argument is an id is `POST /v1/messages/{id}:VERB`, unless its route says another
request; its other arguments are the fields of the body. What has several messages is a job.
"""

from __future__ import annotations

import inspect
from typing import Any

import msgspec

from delaybridge.client.surface import TABLE
from delaybridge.client.verbs import Verb
from delaybridge.message import Answer, State
from delaybridge.serve.api.messages.shapes import ChangedMessage, may_live, too_late
from delaybridge.serve.http.endpoint import Routes
from delaybridge.serve.http.problems import Problem
from delaybridge.serve.shared.call import Call

_TYPES: dict[str, Any] = {"str": str, "int": int, "bool": bool}
_TYPES |= dict.fromkeys(("Delay", "At", "str | None"), str | None)
_OWN = {
    "cancel": (
        "DELETE /v1/messages/{id}",
        "Cancel a message: after `cancelled` it is not delivered.",
    ),
    "dead.discard": ("DELETE /v1/dead/{id}", "Delete a message from the dead set for good."),
    "dead.kick": ("", "Take a message out of the dead set, due now; its attempts start again."),
}
"""Name of a verb -> its request, if it is another than the usual one, and what it does."""
_BY_HAND = ("reschedule",)
_NO_FIELDS = ("key", "dry_run", "spread_ms")  # they come otherwise, in the query or by a field


class OfKey(msgspec.Struct, forbid_unknown_fields=True):
    """key: the message's own, if it has one; it saves a search through all buckets."""

    key: str | None = None


def changes_of(subject: str) -> list[tuple[str, str, str]]:
    """Each verb that changes messages, by what its first argument is: `id`, or `messages`.

    Its name in the table, as `dead.kick`; the noun of its path, as `dead`; its own name.
    """
    split = ((name, *name.rpartition(".")[::2]) for name, row in TABLE.items()
             if row.subject == subject and row.states)  # fmt: skip
    return [(name, noun or "messages", verb) for name, noun, verb in split]


def add_changes(routes: Routes, noun: str, *, whole: bool = False) -> None:
    """The routes of the verbs of one message. whole: those without a verb in the path.

    The others come before those: `/{id}` fits them, too.
    """
    for name, of, verb in changes_of("id"):
        request, text = _OWN.get(name, ("", ""))
        if of == noun and bool(request) is whole and name not in _BY_HAND:
            _add(routes, name, request or f"POST /v1/{noun}/{{id}}:{verb}", text)


def _add(routes: Routes, name: str, request: str, text: str) -> None:
    row = TABLE[name]
    body = body_of(row, f"{row.name.title()}{'Dead' if name.startswith('dead.') else ''}Message")

    async def handler(call: Call) -> ChangedMessage:
        id, given = call.path["id"], msgspec.structs.asdict(call.body) if body else {}
        answer = await call.verb(name)(id, key=call.query.key, **given)
        return changed(row, id, answer)

    handler.__doc__ = text or f"{row.help}."
    known = {"body": body, "query": OfKey, "answer": ChangedMessage, "fails": (404, 409)}
    routes(request, row, is_for_tenants=True, **known)(handler)


def body_of(row: Verb[..., Any], name: str, base: type[msgspec.Struct] | None = None) -> Any:
    """A struct of a verb's further arguments; `base`, or None, if there are none."""
    fields = [
        (one.name, kind) if one.default is one.empty else (one.name, kind, one.default)
        for one in inspect.signature(row.call).parameters.values()
        if one.kind is one.KEYWORD_ONLY and one.name not in _NO_FIELDS
        for kind in [_TYPES[one.annotation]]
    ]
    if not fields:
        return base
    about = {"__doc__": f"{row.help}: the arguments of the library."}
    bases = None if base is None else (base,)
    return msgspec.defstruct(
        name, fields, bases=bases, namespace=about, kw_only=True, forbid_unknown_fields=True
    )


def changed(row: Verb[..., Any], id: str, answer: Answer) -> ChangedMessage:
    """The answer to a change; Problem if nothing was changed."""
    answer, notes = Answer(answer), [*getattr(answer, "notes", ())]
    if answer is Answer.UNKNOWN:
        raise unknown(row, id)
    if answer is Answer.DEAD:
        raise Problem(409, "dead", f"{id[:80]!r} is in the dead set: kick or discard it", "$.id")
    if answer is Answer.IN_FLIGHT:
        raise may_live(id) if State.DEAD in row.states else too_late(id, answer)
    if answer is Answer.UNREADABLE:
        what = "its record cannot be read; look at it, then discard it"
        raise Problem(409, answer.value, what, "$.id")
    if answer in (Answer.REFUSED, Answer.CHANGED):
        what = notes[0] if notes else "others changed it, or it goes elsewhere; it stays as it is"
        raise Problem(409, answer.value, what, "$.id")
    return ChangedMessage(id, answer.value, notes)


def unknown(row: Verb[..., Any], id: str) -> Problem:
    """The problem of an id that a verb does not know."""
    return Problem(404, "unknown", f"no message {id[:80]!r} {row.unknown}", "$.id")
