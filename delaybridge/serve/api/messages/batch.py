"""Many new messages in one request; each has a result of its own."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec

from delaybridge.serve.api.messages.idempotency import HEADER
from delaybridge.serve.api.messages.plain import plain_batch
from delaybridge.serve.api.messages.shapes import NewMessage
from delaybridge.serve.api.messages.together import (
    BatchItem,
    scheduled_together,
    stored_together,
)
from delaybridge.serve.http.endpoint import Reply, Routes
from delaybridge.serve.http.json_text import are_plain, as_type, as_types, decoded, elements
from delaybridge.serve.http.problems import Problem
from delaybridge.serve.shared.call import Call
from delaybridge.settings.settings import Settings

_MOST = 1000
_AT_ONCE = 256 * 1024  # the longest text that is read as a whole
_GROUP_BYTES = 2**20  # of the texts of messages that are stored together
_AWAY = 503
_AS_ONE = {"$ref": "#/components/schemas/NewMessage"}

_AROUND = re.compile(rb'\s*\{\s*"messages"\s*:\s*\[\s*\]\s*\}\s*')

routes = Routes(is_for_tenants=True)


class Batch(msgspec.Struct, forbid_unknown_fields=True):
    """1 to 1000 messages, each as for `POST /v1/messages`."""

    messages: list[Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema=_AS_ONE)]]


class BatchAnswer(msgspec.Struct):
    """The result of each message, in the same order."""

    items: list[BatchItem]


def size_of_batch(settings: Settings) -> tuple[int, str]:
    """The most bytes of a body with many messages, and what helps if there are more."""
    return settings.serve.batch_bytes, "send fewer messages at once, or raise serve.batch_bytes"


def refuse_key(call: Call) -> None:
    """Problem 422 if the request has an `Idempotency-Key`."""
    if HEADER in call.headers:
        what = "many messages take none: give each an id, then they can be sent again"
        raise Problem(422, "bad_idempotency_key", what, "$.Idempotency-Key")


@routes(
    "POST /v1/messages:batch", "Schedule many messages", body=Batch,
    answers={207: BatchAnswer, 413: None}, size=size_of_batch,
    is_raw=lambda headers: True,  # it is read in pieces
)  # fmt: skip
async def schedule_batch(call: Call) -> Reply:
    """Schedule many messages in few round trips to Redis. One that is refused hinders no other."""
    refuse_key(call)
    plain = plain_batch(call.body) if len(call.body) <= _AT_ONCE else None
    if plain and len(plain) <= _MOST:
        return _reply(await stored_together(call, plain))
    texts = await _messages(call)
    if not texts:
        raise Problem(422, "batch_empty", "give 1 to 1000 messages", "$.messages")
    items: list[BatchItem] = []
    most = _GROUP_BYTES
    while len(items) < len(texts):
        numbers = _group(texts, len(items), most)
        some = texts[numbers.start : numbers.stop]
        found = await scheduled_together(call, as_types(some, NewMessage) or map(_read, some))
        items += found
        if all(each.status == _AWAY for each in found):
            most = len(call.body)  # the others wait together until it answers
    return _reply(items)


def _reply(items: list[BatchItem]) -> Reply:
    for number, item in enumerate(items):
        if item.code is not None:
            item.at = f"$.messages[{number}]{(item.at or '$')[1:]}"
    return Reply(BatchAnswer(items), 207)


async def _messages(call: Call) -> list[bytes]:
    """The texts of the messages. Problem: there are too many, or one of them is no JSON."""
    if len(call.body) <= _AT_ONCE:
        found = _plain(call.body)
        if found is None:
            found = [bytes(each) for each in (await decoded(call.body, Batch)).messages]
        _check_count(len(found))
        return found
    found, sizes = [], (call.site.most_bytes, call.site.most_dense)
    async for raw in elements(call.body, "messages", *sizes):
        found.append(raw)
        _check_count(len(found))
    return found


def _plain(body: bytes) -> list[bytes] | None:
    """The messages, if the body is nothing but a list of plain objects."""
    try:
        found = [bytes(each) for each in msgspec.json.decode(body, type=Batch).messages]
    except (ValueError, RecursionError):
        return None
    for comma in (b",", b", "):
        parts = _AROUND.fullmatch(body.replace(comma.join(found), b"", 1)) if found else None
        if parts and are_plain(found):
            return found
    return None


def _read(raw: bytes) -> NewMessage | Problem:
    try:
        return as_type(raw, NewMessage)
    except Problem as exc:
        return exc


def _check_count(count: int) -> None:
    if count > _MOST:
        raise Problem(413, "batch_too_large", f"more than {_MOST} messages", "$.messages")


def _group(raws: list[bytes], first: int, most: int) -> range:
    """The numbers of the next messages: of one, and of more while their texts are not too long."""
    if not first and sum(map(len, raws)) <= most:
        return range(len(raws))
    end, size = first + 1, len(raws[first])
    while end < len(raws) and size + len(raws[end]) <= most:
        size += len(raws[end])
        end += 1
    return range(first, end)
