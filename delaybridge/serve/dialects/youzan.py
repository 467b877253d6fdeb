"""The dialect of Youzan's article: `POST / {"command": ...}`, replies `{success, error, ...}`."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec

from delaybridge.errors import MessageError
from delaybridge.serve.dialects.dialect import Dialect, content_of, destination_of, drop, put
from delaybridge.serve.dialects.popping import Pop
from delaybridge.serve.http.problems import Problem
from delaybridge.serve.shared.call import Call
from delaybridge.store.messages.pulling import ReceivedMessage


class YouzanCommand(msgspec.Struct, rename={"ttr": "TTR"}):
    """delay, ttr: seconds. ttr: the time to run."""

    command: str
    topic: str = ""
    id: str = ""
    delay: int = 0
    ttr: int = 0
    body: Any = None


class CommandEnvelope(msgspec.Struct):
    """error: why not. value: the body of the job."""

    success: bool
    error: str = ""
    id: str = ""
    value: str = ""


DIALECT = Dialect(lambda text: CommandEnvelope(False, text))


def _popped(found: ReceivedMessage | None) -> CommandEnvelope:
    if found is None:
        return CommandEnvelope(True)
    return CommandEnvelope(True, "", found.id, (found.body or b"").decode(errors="replace"))


@DIALECT("POST /", "Run a command", body=YouzanCommand)
async def run(call: Call) -> CommandEnvelope | Pop:
    """Run a command. An `add` replaces a job with its id that still waits."""
    job: YouzanCommand = call.body
    if job.command == "add":
        return await _add(call, job)
    if job.command == "pop":
        return Pop(call, [job.topic], 0, _popped, DIALECT)
    if job.command in ("finish", "delete"):
        await drop(call, job.id)
        return CommandEnvelope(True, id=job.id)
    what = f"got {job.command[:80]!r}; known are add, pop, finish, delete"
    raise Problem(422, "bad_command", what, "$.command")


async def _add(call: Call, job: YouzanCommand) -> CommandEnvelope:
    if not job.id:
        raise MessageError("bad_id", "id", "give the id of the job")
    for field in ("delay", "ttr"):
        if getattr(job, field) < 0:
            raise MessageError("bad_time", field, "give seconds from now, 0 or more")
    place = destination_of(call, job.topic)
    headers = {"topic": job.topic, "ttr": str(job.ttr)}
    delay = timedelta(seconds=min(job.delay, 2**40))
    await put(call, place, content_of(job.body), job.id, delay=delay, headers=headers)
    return CommandEnvelope(True, id=job.id)
