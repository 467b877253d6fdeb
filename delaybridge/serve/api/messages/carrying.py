"""Messages as lines of JSON: a download of all that match, and an import as a job."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial

import msgspec

from delaybridge.carry.exporting import ALL_STATES, MessageExport, portions
from delaybridge.carry.importing import Import
from delaybridge.carry.line import BadLine, read_line
from delaybridge.client.notes import Notes
from delaybridge.client.verbs import Scope
from delaybridge.serve.api.messages.batch import size_of_batch
from delaybridge.serve.api.messages.bulk import Filter, selection_of
from delaybridge.serve.api.messages.export import Download
from delaybridge.serve.http.endpoint import Reply, Routes
from delaybridge.serve.shared import jobs
from delaybridge.serve.shared.call import Call
from delaybridge.serve.shared.jobs import Progress
from delaybridge.serve.stored.jobs import Job

_LINES = "application/octet-stream"
_HEADERS = {
    "Content-Type": _LINES,
    "Content-Disposition": 'attachment; filename="messages.jsonl"',
    "Cache-Control": "no-store",
}
_log = logging.getLogger("delaybridge")
routes = Routes(scope=Scope.ADMIN)


class How(msgspec.Struct, forbid_unknown_fields=True):
    """dry_run: store nothing. in_flight: also what was in flight, and may have been delivered."""

    dry_run: bool = False
    in_flight: bool = False


class LinesQuery(Filter, kw_only=True):
    """As a filter of the bulk verbs; all four states if none is given."""


@routes(
    "GET /v1/messages:lines", "Download messages as lines", query=LinesQuery, answer=bytes,
    is_safe=True, media=_LINES,
)  # fmt: skip
async def lines(call: Call) -> Download:
    """All messages that match, in all four states, with their bodies: a JSON object a line.

    `POST /v1/messages:import` takes them. If something fails on the way, the connection is closed
    before the last chunk.
    """
    selection = replace(await selection_of(call.query, ALL_STATES, call), is_whole=True)
    run = MessageExport(selection.states, lambda bad: _log.warning("not exported: %s", bad))

    client = call.site.patient

    async def texts() -> AsyncIterator[bytes]:
        async for page in client.select(selection):
            for some in portions(page):
                yield await client.run(partial(run.read, some=some))

    found = texts()
    return Download(call, _HEADERS, await anext(found, b""), found)


@routes(
    "POST /v1/messages:import", "Import messages from lines", is_audited=True, query=How,
    body=bytes, answers={202: Job}, size=size_of_batch,
)  # fmt: skip
async def import_lines(call: Call) -> Reply:
    """Store messages from the lines of the body; those that cannot be stored hinder no others."""
    notes, client, how = Notes(), call.site.patient, call.query
    limits = call.site.settings.limits.as_limits()

    def tell(bad: BadLine) -> None:
        notes.add(f"{bad.field}: {bad.what}", bad.place)

    run = Import(
        client.kinds, limits, tell=tell, takes_in_flight=how.in_flight, dry=how.dry_run
    )  # fmt: skip
    texts = enumerate(call.body.splitlines(), 1)
    found = ((n, read_line(text, f"line {n}")) for n, text in texts if text.strip())

    async def progress() -> Progress:
        told = Counter[str]()
        for batch in run.batches(found):
            await client.run(partial(run.store, batch=batch))
            yield len(batch), run.counts - told
            told = run.counts.copy()
        yield 0, run.counts - told

    return Reply(await jobs.begin(call, "import", progress(), notes), 202)
