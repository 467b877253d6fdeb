"""The dialect of ouqiang/delay-queue: POST with JSON, replies `{code, message, data}`."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec

from delaybridge.client.verbs import Scope
from delaybridge.errors import MessageError, text_of
from delaybridge.serve.dialects.dialect import Dialect, content_of, destination_of, drop, put
from delaybridge.serve.dialects.popping import Pop, number_of
from delaybridge.serve.shared.audit import note_reading
from delaybridge.serve.shared.call import Call
from delaybridge.store.messages.pulling import ReceivedMessage
from delaybridge.store.protocol.stored import Stored

_MOST_DELAY_S = 2**31
_MOST_TTR_S = 86_400
_WAIT_S = 178


class QueueJob(msgspec.Struct):
    """delay, ttr: seconds. ttr: the time to run."""

    id: str
    topic: str
    delay: int
    ttr: int
    body: str = ""


class JobId(msgspec.Struct):
    """One job."""

    id: str


class FromTopics(msgspec.Struct):
    """topic: one, or several with commas between them."""

    topic: str


class QueueEnvelope(msgspec.Struct):
    """code: 0 or 1."""

    code: int
    message: str
    data: Any = None


DIALECT = Dialect(lambda text: QueueEnvelope(1, text))


@DIALECT("POST /push", "Store a job", body=QueueJob)
async def push(call: Call) -> QueueEnvelope:
    """Store a job. One with this id that still waits is replaced, as in the original."""
    job: QueueJob = call.body
    id, topic = job.id.strip(), job.topic.strip()
    if not id:
        raise MessageError("bad_id", "id", "give the id of the job")
    if not 0 < job.delay <= _MOST_DELAY_S:
        raise MessageError("bad_time", "delay", "give 1 to 2147483648 seconds")
    if not 0 < job.ttr <= _MOST_TTR_S:
        raise MessageError("bad_time", "ttr", "give 1 to 86400 seconds")
    place = destination_of(call, topic)
    headers = {"topic": topic, "ttr": str(job.ttr)}
    delay = timedelta(seconds=job.delay)
    await put(call, place, content_of(job.body.strip()), id, delay=delay, headers=headers)
    return QueueEnvelope(0, "ok")


@DIALECT("POST /pop", "Fetch a job", body=FromTopics)
async def pop(call: Call) -> Pop:
    """Fetch a job of some topics, `a,b`; waits for one, and gives null if there is none."""
    topics = [topic.strip() for topic in call.body.topic.split(",")]
    return Pop(call, topics, _WAIT_S, _popped, DIALECT)


def _popped(found: ReceivedMessage | None) -> QueueEnvelope:
    if found is None:
        return QueueEnvelope(0, "ok")
    return QueueEnvelope(0, "ok", {"id": found.id, "body": text_of(found.body or b"")})


@DIALECT("POST /finish", "Finish a job", body=JobId)
@DIALECT("POST /delete", "Delete a job", body=JobId)
async def delete(call: Call) -> QueueEnvelope:
    """Delete or finish a job; also an unknown one. It does not come again."""
    await drop(call, call.body.id.strip())
    return QueueEnvelope(0, "ok")


@DIALECT("POST /get", "Show a job", scope=Scope.READ, body=JobId)
async def get(call: Call) -> QueueEnvelope:
    """Show a job; null if it is unknown. delay: when it is due, in seconds since 1970.

    body: empty for a token that may only read.
    """
    found = await call.client.get(call.body.id.strip())
    if found is None:
        return QueueEnvelope(0, "ok")
    await note_reading(call, found.id)
    return QueueEnvelope(0, "ok", _shown(found, with_body=call.may_read_bodies))


def _shown(found: Stored, *, with_body: bool) -> dict[str, Any]:
    headers = dict(found.headers)
    return {
        "topic": text_of(headers.get("topic", found.destination)),
        "id": found.id,
        "delay": -(-found.due_ms // 1000),
        "ttr": number_of(text_of(headers.get("ttr", "")).encode()),
        "body": (found.body or b"" if with_body else b"").decode(errors="replace"),
    }
