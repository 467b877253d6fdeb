"""The dialect of mykit-delay: replies `{success, data, code, message}`; GET changes things."""

from __future__ import annotations

import itertools
import os
import socket
import time
from collections.abc import Sequence
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import msgspec

from delaybridge.client.verbs import Scope
from delaybridge.errors import MessageConflict, MessageError
from delaybridge.ledger.comparing.agreement import WantedRows
from delaybridge.message import Answer, State
from delaybridge.serve.api.messages.ledger import first_ms, records_of, restored
from delaybridge.serve.api.messages.shapes import may_live
from delaybridge.serve.dialects.dialect import Dialect, content_of, destination_of, drop, put
from delaybridge.serve.dialects.popping import Pop, number_of
from delaybridge.serve.http.problems import Problem
from delaybridge.serve.shared import jobs
from delaybridge.serve.shared.call import Call
from delaybridge.serve.shared.jobs import Progress
from delaybridge.serve.shared.tenancy import Tenancy, verb_of
from delaybridge.store.messages.pulling import ReceivedMessage
from delaybridge.store.messages.selection import Selection
from delaybridge.times import epoch_ms

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NEW_STATUS = (0, 5)  # WaitPut, Restore
_READY = 2
_TRIES = 3
_WAIT_S = 60


class MykitJob(msgspec.Struct):
    """delay, ttl: milliseconds; the delay counts from createTime, by default now."""

    topic: str
    id: str | None = None
    bizKey: str | None = None
    delay: int = 0
    ttl: int = 0
    body: Any = None
    subtopic: str | None = None
    createTime: int | None = None
    status: int = 0
    priority: int = 0


class NamedJob(msgspec.Struct):
    """A job, in all the spellings of the original and its article."""

    jobId: str = ""
    JobId: str = ""
    id: str = ""

    def one(self) -> str:
        """The id; MessageError if there is none."""
        found = self.jobId or self.JobId or self.id
        if not found:
            raise MessageError("bad_id", "jobId", "give the id of a job")
        return found


class Expired(msgspec.Struct):
    """expire: also those whose time has come."""

    expire: bool = True


class Confirmed(msgspec.Struct):
    """confirm: the namespace."""

    confirm: str = ""


class MykitEnvelope(msgspec.Struct):
    """code: 200 or 500."""

    success: bool
    data: Any = None
    code: int = 200
    message: str = "success"


class FromTopic(msgspec.Struct):
    """Where jobs are fetched from."""

    topic: str
    subtopic: str = ""


DIALECT = Dialect(lambda text: MykitEnvelope(False, None, 500, text))


@DIALECT("POST /push", "Store a job", body=MykitJob)
async def push(call: Call) -> MykitEnvelope:
    """Store a job: its id. One with the id given that still waits is replaced."""
    job: MykitJob = call.body
    if job.status not in _NEW_STATUS:
        raise MessageError("bad_value", "status", f"got {job.status}; a new job has 0 or 5")
    for field in ("delay", "ttl"):
        if getattr(job, field) < 0:
            raise MessageError("bad_time", field, "give milliseconds, 0 or more")
    place = destination_of(call, job.topic, job.subtopic or "")
    body, fields = content_of(job.body), {**_due(job), "headers": _headers(job)}
    fields["priority"] = job.priority
    if job.id:
        await put(call, place, body, job.id, **fields)
        return MykitEnvelope(True, job.id)
    return MykitEnvelope(True, await _new(call, job, place, body, fields))


async def _new(call: Call, job: MykitJob, place: str, body: bytes, fields: dict[str, Any]) -> str:
    """Store a job under an id of the original's form, which no other message has."""
    for left in reversed(range(_TRIES)):
        id = _id(job)
        try:
            await call.client.schedule(place, body, id=id, **fields)
        except MessageConflict:  # two processes of one host counted alike
            if not left:
                raise
        else:
            break
    return id


def _due(job: MykitJob) -> dict[str, Any]:
    if not job.createTime:
        return {"delay": timedelta(milliseconds=min(job.delay, 2**53))}
    due_ms = epoch_ms(job.createTime + job.delay, field="createTime")
    return {"at": _EPOCH + timedelta(milliseconds=due_ms)}


def _headers(job: MykitJob) -> dict[str, str]:
    names = ("topic", "subtopic", "bizKey", "ttl")
    return {name: str(value) for name in names if (value := getattr(job, name))}


def _id(job: MykitJob) -> str:
    """`topic[:bizKey]:ip:snowflake`."""
    number = (
        (time.time_ns() // 1_000_000) << 22 | (os.getpid() & 0x3FF) << 12 | next(_COUNT) & 0xFFF
    )
    return ":".join([job.topic, *([job.bizKey] if job.bizKey else []), _own_ip(), str(number)])


_COUNT = itertools.count()


@cache
def _own_ip() -> str:
    """The address this host sends from. Nothing is sent."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.connect(("192.0.2.1", 9))
            return str(sock.getsockname()[0])
    except OSError:
        return "127.0.0.1"


@DIALECT("GET /delete", scope=Scope.WRITE, query=NamedJob)
async def delete(call: Call) -> MykitEnvelope:
    """Delete a job; an unknown one counts as deleted."""
    await drop(call, call.query.one())
    return MykitEnvelope(True)


@DIALECT("GET /reStoreJob", scope=Scope.WRITE, query=NamedJob)
@DIALECT("GET /reStore/{id}", scope=Scope.WRITE, query=NamedJob)
async def restore_one(call: Call) -> MykitEnvelope:
    """Bring a job back from the dead set, or by the ledger; one that waits is left as it is."""
    id = call.path.get("id") or call.query.one()
    answer = await call.verb("dead.kick")(id)
    if answer is Answer.UNKNOWN and (records := records_of(call.site)) is not None:
        wanted = WantedRows(ids=frozenset([Tenancy(call.tenant).in_store(id)]))
        if any([found["restored"] async for _, found in restored(call.site, records, wanted)]):
            return MykitEnvelope(True)
    if answer is Answer.KICKED:
        return MykitEnvelope(True)
    if answer is Answer.IN_FLIGHT:
        raise may_live(id)
    found = await call.client.get(id)
    if found is None or found.state is State.DEAD:
        what = f"{id[:80]!r} neither waits nor is dead: it was delivered, deleted, or never here"
        raise Problem(404, "unknown", what)
    return MykitEnvelope(True, message="it waits already")


@DIALECT("GET /reStore", scope=Scope.ADMIN, is_noted=True, query=Expired)
async def restore(call: Call) -> MykitEnvelope:
    """Bring all jobs back, as a job of its own: its id.

    With a ledger what Redis lacks, also of other clients; then the dead set. The time of all dead
    ones has come: with expire=false they stay.
    """
    parts: list[Progress] = []
    # A ledger is everybody's: a token of a tenant has none.
    if (records := None if call.tenant else records_of(call.site)) is not None:
        wanted = WantedRows(from_ms=first_ms(expired=call.query.expire))
        parts.append(restored(call.site, records, wanted))
    if call.query.expire:
        dead = Selection(states=(State.DEAD,), place=_ours(call))
        pages = call.patient.select(dead)
        parts.append(jobs.applied(pages, verb_of(call.patient, "dead.kick_many")))
    if not parts:
        return MykitEnvelope(True, message="nothing to do: the time of every dead job has come")
    return await _begin(call, "restore", *parts)


@DIALECT("GET /clearAll", scope=Scope.ADMIN, is_noted=True, query=Confirmed)
async def clear(call: Call) -> MykitEnvelope:
    """Cancel all jobs that wait, with a ledger also what Redis lacks; as a job: its id."""
    if call.query.confirm != call.site.settings.namespace:
        what = "this cancels every job; add ?confirm=NAMESPACE"
        raise Problem(422, "unconfirmed", what)
    pages = call.patient.select(Selection(place=_ours(call)))
    return await _begin(call, "cancel", jobs.applied(pages, verb_of(call.patient, "cancel_many")))


async def _begin(call: Call, verb: str, *parts: Progress) -> MykitEnvelope:
    started = await jobs.begin(call, verb, _in_turn(parts))
    return MykitEnvelope(True, started.id, message=f"see /v1/jobs/{started.id}")


async def _in_turn(parts: Sequence[Progress]) -> Progress:
    for part in parts:
        async with aclosing(part):
            async for found in part:
                yield found


def _ours(call: Call) -> str:
    """The broker that all jobs of this dialect are for."""
    return call.site.settings.serve.compat_destination.partition(":")[0]


@DIALECT("GET /finish", scope=Scope.WRITE, query=NamedJob)
async def finish(call: Call) -> MykitEnvelope:
    """Refused, as by the original."""
    raise Problem(501, "not_supported", "finish is not supported")


@DIALECT("GET /get/topic", scope=Scope.WRITE, query=FromTopic)
async def fetch(call: Call) -> Pop:
    """Fetch a job of a topic; waits for one, and gives null if there is none.

    It comes again after its ttl, by default 30 s, unless it is deleted: the original finishes none.
    """
    asked = call.query.topic, call.query.subtopic
    return Pop(call, [asked], _WAIT_S, _fetched, DIALECT, ttr=("ttl", 0.001))


def _fetched(found: ReceivedMessage | None) -> MykitEnvelope:
    if found is None:
        return MykitEnvelope(True)
    named = {name: (value or b"").decode(errors="replace") for name, value in found.headers}
    job = {name: named.get(name) for name in ("topic", "subtopic", "bizKey")}
    ttl = number_of(dict(found.headers).get("ttl"))
    body = None if found.body is None else found.body.decode(errors="replace")
    extra = {"id": found.id, "body": body, "ttl": ttl}
    return MykitEnvelope(True, {**job, **extra, "status": _READY})
