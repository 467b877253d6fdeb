"""Many new messages in one request; each has a result of its own."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from delaybridge.message import Answer
from delaybridge.web.endpoint import Call, Endpoint, Reply, Scope
from delaybridge.web.idempotency import HEADER
from delaybridge.web.problems import Problem, at_item, problem_of, undecodable
from delaybridge.web.shapes import NewMessage, scheduled

_MOST = 1000
_MOST_BYTES = 64 * 2**20


class Batch(msgspec.Struct, forbid_unknown_fields=True):
    """1 to 1000 messages, each as for `POST /v1/messages`."""

    messages: list[msgspec.Raw]


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


async def schedule_batch(call: Call) -> Reply:
    """Schedule many messages in one round trip to Redis. One that is refused hinders no other."""
    batch: Batch = call.body
    if HEADER in call.headers:
        what = "a batch takes none: give each message an id, then the batch can be sent again"
        raise Problem(422, "bad_idempotency_key", what, "$.Idempotency-Key")
    if not batch.messages:
        raise Problem(422, "batch_empty", "give 1 to 1000 messages", "$.messages")
    if len(batch.messages) > _MOST:
        what = f"{len(batch.messages)} messages; at most {_MOST}"
        raise Problem(413, "batch_too_large", what, "$.messages")
    # All are called in the same tick, so the client sends them together.
    raws = enumerate(batch.messages)
    items = await asyncio.gather(*(_item(call, number, raw) for number, raw in raws))
    return Reply(BatchAnswer(items), 207)


async def _item(call: Call, number: int, raw: msgspec.Raw) -> BatchItem:
    try:
        try:
            wanted = msgspec.json.decode(raw, type=NewMessage)
        except msgspec.MsgspecError as exc:
            raise undecodable(exc, NewMessage) from None
        receipt = await call.site.client.schedule_message(
            wanted.message(), on_conflict=wanted.on_conflict
        )
        made = scheduled(receipt)
    except Exception as exc:
        found = at_item(problem_of(exc), number)
        return BatchItem(found.status, code=found.code, detail=found.detail, at=found.at)
    status = 201 if receipt.answer is Answer.CREATED else 200
    return BatchItem(status, made.id, made.result, made.due, made.due_ms)


_ANSWERS: dict[int, Any] = {207: BatchAnswer, 413: None}
ENDPOINTS = (
    Endpoint(
        method="POST", path="/v1/messages:batch", scope=Scope.WRITE, handler=schedule_batch,
        summary="Schedule many messages", body=Batch, answers=_ANSWERS, most_bytes=_MOST_BYTES,
    ),
)  # fmt: skip
