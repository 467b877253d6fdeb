"""Bulk verbs: cancel, reschedule, publish now, kick and discard, by ids or by a filter, as jobs."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from delaybridge.client.notes import Notes
from delaybridge.client.spreading import Spreading
from delaybridge.client.surface import TABLE
from delaybridge.client.verbs import Scope
from delaybridge.errors import MessageError
from delaybridge.message import Answer, State
from delaybridge.serve.access.sessions import GUARD
from delaybridge.serve.api.messages.changing import body_of, changes_of
from delaybridge.serve.api.messages.paging import Filters
from delaybridge.serve.api.messages.shapes import ChangedMessage, NewDue
from delaybridge.serve.http.endpoint import Reply, Routes
from delaybridge.serve.http.problems import Problem
from delaybridge.serve.shared import jobs
from delaybridge.serve.shared.call import Call
from delaybridge.serve.shared.jobs import Named, Verb
from delaybridge.serve.shared.tenancy import verb_of
from delaybridge.serve.stored.jobs import RUNNING, Job
from delaybridge.store.messages.selection import Selection
from delaybridge.times import delay_ms

_MOST_IDS = 1000
_TEXTS = {
    "dead.kick_many": "Take many messages out of the dead set, due now or spread over a span.",
    "dead.discard_many": "Delete many messages from the dead set for good.",
}
_CHOOSING = Filters.__struct_fields__
routes = Routes(is_for_tenants=True)


class Filter(Filters, kw_only=True):
    """Messages that fit every field given. destination: also an exchange or a broker.

    reason: the first word of why it is dead or failed last. state: delayed, in_flight or parked;
    all three if it is not given. due_from_ms, due_to_ms: included. header: `name=value`, or `name`.
    attempts: at least this many failed.
    """

    state: State | None = None


class Bulk(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Either ids, at most 1000, or a filter; an empty filter is every message.

    dry_run: change nothing; count the messages that match, or say what would become of each id.
    """

    ids: list[str] | None = None
    filter: Filter | None = None
    dry_run: bool = False


class BulkDue(Bulk, kw_only=True):
    """The same, and the new due time: one of the four. by: so much later, as `+10m`, or `-1h`."""

    delay: str | None = None
    due: str | None = None
    due_ms: int | None = None
    by: str | None = None


class BulkOver(Bulk, kw_only=True):
    """The same. over: spread them evenly over this span, in their order, as 10m."""

    over: str | None = None


class Matched(msgspec.Struct):
    """A dry run. matched: how many messages match now, or how many ids were given.

    states: those that match, by state. items: what the verb would answer now, for each id.
    """

    matched: int
    states: dict[str, int] = {}
    items: list[ChangedMessage] = []


_STARTED = {202: Job, 200: Matched}


class JobList(msgspec.Struct):
    """The jobs of the last day, the latest first."""

    items: list[Job]


_RESCHEDULE = TABLE["reschedule_many"]


@routes("POST /v1/messages:reschedule", _RESCHEDULE, body=BulkDue, answers=_STARTED)
async def reschedule(call: Call) -> Reply:
    """Give many messages the same new due time; with `by`, move each by the same span."""
    wanted: BulkDue = call.body
    due = msgspec.convert(wanted, NewDue, from_attributes=True)
    if due.by is not None:
        return await _bulk(call, "move", "move_many", {"by_ms": due.by_ms()})
    given = {"delay": due.delay, "at": due.at()}
    return await _bulk(call, "reschedule", "reschedule_many", given)


@routes(
    "POST /v1/messages:publish", "Publish many messages now", is_audited=True, body=BulkOver,
    answers=_STARTED,
)  # fmt: skip
async def publish(call: Call) -> Reply:
    """Make many messages due now, or spread over a span."""
    return await _bulk(call, "publish", "reschedule_many", {"delay": 0})


def _add(name: str, noun: str, word: str) -> None:
    """The route of a row whose first argument are messages: a job applies it."""
    row, verb = TABLE[name], word.removesuffix("_many")
    base = BulkOver if "spread_ms" in inspect.signature(row.call).parameters else Bulk
    body = body_of(row, f"Bulk{verb.title()}{'Dead' if noun == 'dead' else ''}", base)
    further = [name for name in body.__struct_fields__ if name not in base.__struct_fields__]

    async def handler(call: Call) -> Reply:
        given = {name: getattr(call.body, name) for name in further}
        return await _bulk(call, verb, name, given)

    handler.__doc__ = _TEXTS.get(name, f"{row.help}.")
    routes(f"POST /v1/{noun}:{verb}", row, body=body, answers=_STARTED)(handler)


for name, noun, verb in changes_of("messages"):
    if name not in ("reschedule_many", "move_many"):
        _add(name, noun, verb)


async def _bulk(call: Call, word: str, name: str, given: Mapping[str, Any]) -> Reply:
    """Begin a job, or tell what it would do. word: what it is called. name: of its row."""
    wanted: Bulk = call.body
    verb: Any = partial(verb_of(call.patient, name), **given)
    if (wanted.ids is None) == (wanted.filter is None):
        raise MessageError("bad_selection", "ids", "give either ids or filter")
    if "to" in given:
        await verb([], dry_run=True)  # MessageError: there can be no such destination
    over_ms = _over_ms(wanted)
    if wanted.ids is not None:
        ids = _ids(wanted)
        if wanted.dry_run:
            return Reply(Matched(len(ids), items=await _foreseen(ids, verb)))
        counted = Counter[int | None]({None: len(ids)})
        pages = _one_page(ids)
    else:
        if call.may is not Scope.ADMIN:
            raise Problem(403, "forbidden", "a filter needs an admin token; or give ids")
        chosen = wanted.filter or Filter()
        selection = await selection_of(chosen, TABLE[name].states, call)
        verb = partial(verb, **_bound_for(given, chosen))
        counted = Counter()
        if wanted.dry_run or over_ms:
            by_state = await _count(call, selection, counted)
        if wanted.dry_run:
            return Reply(Matched(by_state.total(), by_state))
        pages = call.patient.select(selection)
    do = _spread(verb, Spreading(over_ms, counted)) if over_ms else verb
    notes = Notes()
    return Reply(await jobs.begin(call, word, jobs.applied(pages, do, notes), notes), 202)


def _bound_for(given: Mapping[str, Any], chosen: Filter) -> dict[str, Any]:
    """The place of the filter, at which the verb looks once more when it changes a message."""
    named = given.get("bound_for") or chosen.destination
    return {"bound_for": named} if "bound_for" in given else {}


def _over_ms(wanted: Bulk) -> int:
    if isinstance(wanted, BulkOver) and wanted.over is not None:
        return delay_ms(wanted.over, field="over")
    return 0


def _ids(wanted: Bulk) -> list[str]:
    ids = [*dict.fromkeys(wanted.ids or ())]
    if not 0 < len(ids) <= _MOST_IDS:
        raise MessageError("bad_selection", "ids", f"got {len(ids)}; give 1 to {_MOST_IDS}")
    return ids


async def _foreseen(ids: Sequence[str], verb: Any) -> list[ChangedMessage]:
    """What the verb would answer now for each id; in batches, as a job applies it."""
    found: list[ChangedMessage] = []
    for at in range(0, len(ids), jobs.BATCH_MESSAGES):
        some = ids[at : at + jobs.BATCH_MESSAGES]
        answers = await verb(some, dry_run=True)
        found += [
            ChangedMessage(id, one.value, [*getattr(one, "notes", ())])
            for id, one in zip(some, answers, strict=True)
        ]
    return found


async def selection_of(wanted: Filter, states: Sequence[State], call: Call) -> Selection:
    """The messages that a filter means. MessageError: a field is wrong, or a page asks for all."""
    # A page of the console must say which messages it means; their state alone is not enough.
    if GUARD in call.headers and not any(getattr(wanted, each) for each in _CHOOSING):
        raise MessageError("bad_selection", "filter", "set a filter first: all would match")
    if wanted.state is not None and wanted.state not in states:
        what = f"got {wanted.state}; this verb takes {', '.join(states)}"
        raise MessageError("bad_state", "filter.state", what)
    fields = msgspec.structs.asdict(wanted)
    state, place = fields.pop("state"), fields.pop("destination")
    if place is not None and not call.tenant:
        await call.site.patient.destinations(place)  # MessageError if it cannot exist
    return Selection(states=tuple(states if state is None else (state,)), place=place, **fields)


async def _count(call: Call, selection: Selection, counted: Counter[int | None]) -> Counter[str]:
    """The messages by state; in `counted` by bucket."""
    by_state = Counter[str]()
    async for page in call.patient.select(selection):
        counted.update(one.bucket for one in page)
        by_state.update(one.state.value for one in page)
    return by_state


async def _one_page(ids: Sequence[str]) -> AsyncIterator[Sequence[Named]]:
    yield ids


def _spread(verb: Any, spreading: Spreading) -> Verb:
    async def spread(some: Sequence[Named]) -> list[Answer]:
        found: list[Answer] = await verb(some, spread_ms=spreading.later_ms(some))
        return found

    return spread


@routes("GET /v1/jobs", "List bulk verbs")
async def all_jobs(call: Call) -> JobList:
    """The bulk verbs of the last day."""
    return JobList(await jobs.all_jobs(call))


@routes("GET /v1/jobs/{id}", "Show a bulk verb", fails=(404,))
async def show_job(call: Call) -> Job:
    """How far a bulk verb is."""
    id = call.path["id"]
    found = next((job for job in await jobs.all_jobs(call) if job.id == id), None)
    if found is None:
        raise Problem(404, "unknown", f"no job {id[:80]!r}; they are kept for a day", "$.id")
    return found


@routes("DELETE /v1/jobs/{id}", "Stop a bulk verb", is_audited=True, fails=(404, 409))
async def stop_job(call: Call) -> Job:
    """Stop a bulk verb; what it did stays done."""
    job = await show_job(call)
    if job.state == RUNNING and not await jobs.stop(call.site, job.id):
        raise Problem(409, "elsewhere", "another process runs it; ask that one, or wait")
    return await show_job(call)
