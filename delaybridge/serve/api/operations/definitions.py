"""Rules and recurring definitions as one document: export and import."""

from __future__ import annotations

from typing import Any

import msgspec

from delaybridge.client.verbs import Scope
from delaybridge.operate.views.transfer import Difference, checked, contents, differences, write
from delaybridge.serve.http.endpoint import Routes
from delaybridge.serve.http.problems import Problem
from delaybridge.serve.shared.audit import note_reading
from delaybridge.serve.shared.call import Call
from delaybridge.store.calls import Calls
from delaybridge.store.protocol.verbs import Steps

_DONE = ("added", "changed", "removed")
routes = Routes()


class Document(msgspec.Struct, forbid_unknown_fields=True):
    """All rules of destinations and all recurring definitions. delaybridge: 1, the version."""

    delaybridge: int
    destinations: dict[str, dict[str, Any]] = {}
    recurring: list[dict[str, Any]] = []


class ImportQuery(msgspec.Struct, forbid_unknown_fields=True):
    """dry_run: write nothing. prune: remove what is not in the document."""

    dry_run: bool = False
    prune: bool = False


class ImportedItem(msgspec.Struct):
    """change: added, changed, unchanged, removed or kept."""

    section: str
    name: str
    change: str


class Imported(msgspec.Struct):
    """What was done, or would be."""

    items: list[ImportedItem]
    dry_run: bool


@routes("GET /v1/definitions", "Export rules and recurring definitions", answer=Document)
async def export(call: Call) -> Any:
    """All rules and recurring definitions; without progress, as the last run."""
    if not call.may_read_bodies:
        what = "the document has bodies, so it needs a token that may write"
        raise Problem(403, "forbidden", what)
    here = await call.site.client.run(contents)
    if here.unreadable:
        names = ", ".join(f"{section}.{name}" for section, name in here.unreadable[:5])
        raise Problem(500, "unreadable", f"{names} cannot be read in full; see: doctor")
    await note_reading(call, "all recurring definitions")
    return here.document()


@routes(
    "PUT /v1/definitions", "Import rules and recurring definitions", scope=Scope.ADMIN,
    is_audited=True, is_dense=True, body=Document, query=ImportQuery,
)  # fmt: skip
async def import_(call: Call) -> Imported:
    """Make rules and definitions as the document says; all of it is checked first."""
    query: ImportQuery = call.query
    document = msgspec.to_builtins(call.body)
    listed = await call.site.client.run(lambda calls: _import(calls, document, query))
    return Imported([ImportedItem(*one) for one in listed], query.dry_run)


def _import(calls: Calls, document: Any, query: ImportQuery) -> Steps[list[Difference]]:
    wanted, faults = yield from checked(calls, document)
    if faults:
        raise faults[0]
    listed = differences((yield from contents(calls)), wanted, prune=query.prune)
    for one in listed:
        if not query.dry_run and one.word in _DONE:
            yield from write(calls, wanted, one)
    return listed
