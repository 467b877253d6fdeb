"""Messages one by one: schedule, show, reschedule, cancel, publish now; and in pages."""

from __future__ import annotations

import base64
from typing import Any
from zlib import crc32

import msgspec

from delaybridge.errors import MessageError
from delaybridge.message import Answer, State
from delaybridge.web.endpoint import Call, Endpoint, Reply, Scope
from delaybridge.web.problems import Problem
from delaybridge.web.shapes import (
    Changed,
    Due,
    MessagePage,
    NewMessage,
    ScheduledMessage,
    StoredMessage,
    scheduled,
    shape_of,
    too_late,
)

_MOST = 500  # messages of a page
_NOT_CHANGED = (Answer.UNKNOWN, Answer.IN_FLIGHT, Answer.DEAD)


class OfKey(msgspec.Struct, forbid_unknown_fields=True):
    """key: the message's own; it saves a search through all buckets."""

    key: str | None = None


class PageQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which messages. due_from_ms, due_to_ms: both included."""

    state: State = State.DELAYED
    destination: str | None = None
    due_from_ms: int | None = None
    due_to_ms: int | None = None
    limit: int = 100
    cursor: str | None = None


async def schedule(call: Call) -> Reply:
    """Schedule one message. 201 if it is new, 200 if it was there already or replaces another."""
    wanted: NewMessage = call.body
    message = wanted.message()
    receipt = await call.site.client.schedule(
        message.destination, message.body, delay=message.delay, at=message.at, id=message.id,
        key=message.key, headers=message.headers, properties=message.properties,
        priority=message.priority, ttl=message.ttl, at_most_once=message.at_most_once,
        retry=message.retry, on_conflict=wanted.on_conflict,
    )  # fmt: skip
    return Reply(scheduled(receipt), 201 if receipt.answer is Answer.CREATED else 200)


async def get(call: Call) -> Reply:
    """One message with its body and state; 404 once it is delivered or cancelled."""
    found = await call.site.client.get(call.path["id"], key=call.query.key)
    if found is None:
        raise _unknown(call.path["id"])
    return Reply(shape_of(found, with_body=True))


async def pages(call: Call) -> Reply:
    """A page of messages in order of due time, without their bodies."""
    query: PageQuery = call.query
    if not 1 <= query.limit <= _MOST:
        raise Problem(422, "bad_limit", f"give 1 to {_MOST}", "$.limit")
    page = await call.site.client.pending(
        state=query.state,
        destination=query.destination,
        due_from_ms=query.due_from_ms,
        due_to_ms=query.due_to_ms,
        limit=query.limit,
        cursor=_cursor(query),
    )
    items = [shape_of(each, with_body=False) for each in page.items]
    following = None if page.cursor is None else _cursor_text(page.cursor, query)
    return Reply(MessagePage(items, following))


async def reschedule(call: Call) -> Reply:
    """Give a message another due time."""
    due: Due = call.body
    at = due.at()
    id, key = call.path["id"], call.query.key
    answer = await call.site.client.reschedule(id, delay=due.delay, at=at, key=key)
    return Reply(changed(id, answer))


async def cancel(call: Call) -> Reply:
    """Cancel a message: after `cancelled` it is not delivered."""
    id = call.path["id"]
    return Reply(changed(id, await call.site.client.cancel(id, key=call.query.key)))


async def publish(call: Call) -> Reply:
    """Make a message due now; a worker publishes it at once."""
    id = call.path["id"]
    answer = await call.site.client.reschedule(id, delay=0, key=call.query.key)
    return Reply(changed(id, answer), 202)


def changed(id: str, answer: Answer) -> Changed:
    """The answer to a change; Problem if nothing was changed."""
    if answer is Answer.UNKNOWN:
        raise _unknown(id)
    if answer is Answer.DEAD:
        raise Problem(409, "dead", f"{id[:80]!r} is in the dead set: kick or discard it", "$.id")
    if answer is Answer.IN_FLIGHT:
        raise too_late(id, answer)
    return Changed(id, answer.value)


def _unknown(id: str) -> Problem:
    what = f"no message {id[:80]!r} is pending: it was delivered or cancelled, or never scheduled"
    return Problem(404, "unknown", what, "$.id")


def _cursor(query: PageQuery) -> tuple[float, str] | None:
    if query.cursor is None:
        return None
    try:
        data = base64.urlsafe_b64decode(query.cursor.encode("ascii"))
        score, id, filter = msgspec.msgpack.decode(data, type=tuple[float, str, int])
    except (ValueError, msgspec.MsgspecError):
        raise MessageError("bad_cursor", "cursor", "pass on next_cursor as it was") from None
    if filter != _filter(query):
        raise MessageError("bad_cursor", "cursor", "it belongs to a list with other filters")
    return score, id


def _cursor_text(cursor: tuple[float, str], query: PageQuery) -> str:
    data = msgspec.msgpack.encode((*cursor, _filter(query)))
    return base64.urlsafe_b64encode(data).decode()


def _filter(query: PageQuery) -> int:
    """A digest of everything but limit and cursor."""
    same: Any = (query.state, query.destination, query.due_from_ms, query.due_to_ms)
    return crc32(msgspec.msgpack.encode(same))


_BY_ID = {200: Changed, 404: None, 409: None}
ENDPOINTS = (
    Endpoint(
        method="POST", path="/v1/messages", scope=Scope.WRITE, handler=schedule,
        summary="Schedule a message", body=NewMessage,
        answers={201: ScheduledMessage, 200: ScheduledMessage, 409: None},
    ),
    Endpoint(
        method="GET", path="/v1/messages", scope=Scope.READ, handler=pages,
        summary="List messages by due time", query=PageQuery, answers={200: MessagePage},
    ),
    Endpoint(
        method="POST", path="/v1/messages/{id}:publish", scope=Scope.WRITE, handler=publish,
        summary="Publish a message now", query=OfKey, answers={202: Changed, 404: None, 409: None},
    ),
    Endpoint(
        method="GET", path="/v1/messages/{id}", scope=Scope.READ, handler=get,
        summary="Show a message", query=OfKey, answers={200: StoredMessage, 404: None},
    ),
    Endpoint(
        method="PATCH", path="/v1/messages/{id}", scope=Scope.WRITE, handler=reschedule,
        summary="Reschedule a message", body=Due, query=OfKey, answers=_BY_ID,
    ),
    Endpoint(
        method="DELETE", path="/v1/messages/{id}", scope=Scope.WRITE, handler=cancel,
        summary="Cancel a message", query=OfKey, answers=_BY_ID,
    ),
)  # fmt: skip
