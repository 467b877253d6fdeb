"""Recurring: what is sent again and again, when it runs next, and a form that shows it before."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import msgspec

from delaybridge.errors import DelayBridgeError
from delaybridge.recurring.definition import Definition
from delaybridge.recurring.definitions import Recurring
from delaybridge.serve.console.bodies import is_kept_by_fields
from delaybridge.serve.console.page import Pages
from delaybridge.serve.http.problems import Problem
from delaybridge.serve.shared.audit import note_reading
from delaybridge.serve.shared.call import Call
from delaybridge.times import format_time

_ROWS = 1000
pages = Pages()


class RecurringQuery(msgspec.Struct, forbid_unknown_fields=True):
    """edit: the name of the definition in the form. new: the form is empty. find: part of names."""

    edit: str = ""
    new: bool = False
    find: str = ""


@pages("/recurring", "Recurring", query=RecurringQuery)
async def recurring(call: Call) -> dict[str, Any]:
    """All definitions, and one of them in the form."""
    query: RecurringQuery = call.query
    every = await call.site.client.recurring.list()
    fitting = [one for one in every if query.find in one.name]
    chosen = next((one for one in every if one.name == query.edit), None)
    if query.edit and chosen is None:
        raise Problem(404, "unknown", f"no definition is named {query.edit[:80]!r}", "$.edit")
    if chosen is not None:
        await note_reading(call, f"the recurring definition {chosen.name}")
    return {
        "api": "/v1/recurring",
        "query": query,
        "all": len(every),
        "rows": [(one, _words(one)) for one in fitting[:_ROWS]],
        "more": max(0, len(fitting) - _ROWS),
        "chosen": chosen,
        "given": _given(chosen.definition) if chosen and call.may_read_bodies else None,
    }


def _words(one: Recurring) -> str:
    """When it runs, in words; empty if that cannot be said."""
    try:
        return one.definition.explained() if one.definition else ""
    except DelayBridgeError:
        return ""


def _given(definition: Definition | None) -> dict[str, Any] | None:
    """The fields as a form has them; None if a form cannot hold them: headers that repeat."""
    if definition is None or len(dict(definition.headers)) < len(definition.headers):
        return None
    fields: dict[str, Any] = msgspec.to_builtins(definition)
    fields["headers"] = dict(definition.headers)
    if definition.body is not None and not is_kept_by_fields(definition.body):
        fields |= {"body": None, "body_base64": b64encode(definition.body.encode()).decode()}
    for name in ("every", "ttl"):
        value = fields.pop(f"{name}_ms", None)
        fields[name] = "" if value is None else f"{value}ms"
    for name in ("start", "end"):
        value = fields.pop(f"{name}_ms", None)
        fields[name] = "" if value is None else format_time(value)
    return fields
