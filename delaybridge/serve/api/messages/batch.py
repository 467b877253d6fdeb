"""Many new messages in one request; each has a result of its own."""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec

from delaybridge.message import Answer
from delaybridge.serve.api.messages.idempotency import HEADER
from delaybridge.serve.api.messages.shapes import NewMessage, scheduled
from delaybridge.serve.http.endpoint import Reply, Routes
from delaybridge.serve.http.json_text import as_type, decoded, elements
from delaybridge.serve.http.problems import Problem, at_item, problem_of
from delaybridge.serve.shared.call import Call
from delaybridge.settings.settings import Settings

_MOST = 1000
_AT_ONCE = 256 * 1024  # the longest text that is read as a whole
_GROUP_BYTES = 2**20  # of the texts of messages that are stored together
_AWAY = 503
_AS_ONE = {"$ref": "#/components/schemas/NewMessage"}

routes = Routes(is_for_tenants=True)


class Batch(msgspec.Struct, forbid_unknown_fields=True):
    """1 to 1000 messages, each as for `POST /v1/messages`."""

    messages: list[Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema=_AS_ONE)]]


class BatchItem(msgspec.Struct, omit_defaults=True):
    """status: as if the message had been sent alone. Then its receipt, or what is wrong with it."""

    status: int
    id: str | None = None
    result: str | None = None
    due: str | None = None
    due_ms: int | None = None
    code: str | None = None
    detail: str | None = None
    at: str | None = None


class BatchAnswer(msgspec.Struct):
    """The result of each message, in the same order."""

    items: list[BatchItem]


def size_of_batch(settings: Settings) -> tuple[int, str]:
    """The most bytes of a body with many messages, and what helps if there are more."""
    return settings.serve.batch_bytes, "send fewer messages at once, or raise serve.batch_bytes"


@routes(
    "POST /v1/messages:batch", "Schedule many messages", body=Batch,
    answers={207: BatchAnswer, 413: None}, size=size_of_batch,
    is_raw=lambda headers: True,  # it is read in pieces
)  # fmt: skip
async def schedule_batch(call: Call) -> Reply:
    """Schedule many messages in few round trips to Redis. One that is refused hinders no other."""
    if HEADER in call.headers:
        what = "a batch takes none: give each message an id, then the batch can be sent again"
        raise Problem(422, "bad_idempotency_key", what, "$.Idempotency-Key")
    raws = await _messages(call)
    if not raws:
        raise Problem(422, "batch_empty", "give 1 to 1000 messages", "$.messages")
    items: list[BatchItem] = []
    most = _GROUP_BYTES
    while len(items) < len(raws):
        numbers = _group(raws, len(items), most)
        # All are called in the same tick, so the client sends them together.
        found = await asyncio.gather(*(_item(call, number, raws[number]) for number in numbers))
        items += found
        if all(each.status == _AWAY for each in found):
            most = len(call.body)  # the others wait together until it answers
    return Reply(BatchAnswer(items), 207)


async def _messages(call: Call) -> list[bytes]:
    """The texts of the messages. Problem: there are too many, or one of them is no JSON."""
    if len(call.body) <= _AT_ONCE:
        found = [bytes(each) for each in (await decoded(call.body, Batch)).messages]
        _check_count(len(found))
        return found
    found, sizes = [], (call.site.most_bytes, call.site.most_dense)
    async for raw in elements(call.body, "messages", *sizes):
        found.append(raw)
        _check_count(len(found))
    return found


def _check_count(count: int) -> None:
    if count > _MOST:
        raise Problem(413, "batch_too_large", f"more than {_MOST} messages", "$.messages")


def _group(raws: list[bytes], first: int, most: int) -> range:
    """The numbers of the next messages: of one, and of more while their texts are not too long."""
    end, size = first + 1, len(raws[first])
    while end < len(raws) and size + len(raws[end]) <= most:
        size += len(raws[end])
        end += 1
    return range(first, end)


async def _item(call: Call, number: int, raw: bytes) -> BatchItem:
    try:
        wanted = as_type(raw, NewMessage)
        receipt = await call.client.schedule_message(
            wanted.message(), on_conflict=wanted.on_conflict
        )
        made = scheduled(receipt)
    except Exception as exc:
        found = at_item(problem_of(exc), number)
        return BatchItem(found.status, code=found.code, detail=found.detail, at=found.at)
    status = 201 if receipt.answer is Answer.CREATED else 200
    return BatchItem(status, made.id, made.result, made.due, made.due_ms)
