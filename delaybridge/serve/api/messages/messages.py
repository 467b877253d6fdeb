"""Messages one by one: schedule, show, reschedule, cancel, publish now; and in pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from delaybridge.client.surface import TABLE
from delaybridge.message import Answer, State
from delaybridge.operate.views import questions
from delaybridge.serve.api.messages.changing import OfKey, add_changes, changed, unknown
from delaybridge.serve.api.messages.idempotency import HEADER, schedule_once
from delaybridge.serve.api.messages.ledger import message_with_life
from delaybridge.serve.api.messages.paging import PageOfState, PageQuery, csv_reply
from delaybridge.serve.api.messages.raw import is_raw, raw_message
from delaybridge.serve.api.messages.shapes import (
    ChangedMessage,
    MessagePage,
    NewDue,
    NewMessage,
    ScheduledMessage,
    StoredMessage,
    scheduled,
    shape_of,
)
from delaybridge.serve.http.endpoint import Reply, Routes
from delaybridge.serve.shared.audit import note_reading
from delaybridge.serve.shared.call import Call
from delaybridge.serve.shared.tenancy import TenantClient

_RESCHEDULE = TABLE["reschedule"]
routes = Routes(is_for_tenants=True)


@routes(
    "POST /v1/messages", "Schedule a message", body=NewMessage,
    answers={201: ScheduledMessage, 200: ScheduledMessage, 409: None}, is_raw=is_raw,
)  # fmt: skip
async def schedule(call: Call) -> Reply:
    """Schedule one message. 201 if it is new, 200 if it was there, replaces another or is kept.

    With a header `delaybridge-destination`, or if it is a CloudEvent, the body is the message's,
    whatever its type, and the other fields are headers: `delaybridge-delay`, `delaybridge-id`.
    With an `Idempotency-Key` the same request gets the first answer again, for 24 hours.
    """
    message, policy = (
        await raw_message(call)
        if isinstance(call.body, bytes)
        else (call.body.message(), call.body.on_conflict)
    )
    if HEADER in call.headers:
        return await schedule_once(call, message, policy)
    receipt = await call.client.schedule_message(message, on_conflict=policy)
    return Reply(scheduled(receipt), 201 if receipt.answer is Answer.CREATED else 200)


@routes("GET /v1/messages", "List messages by due time", query=PageOfState, answer=MessagePage)
async def pages(call: Call) -> Reply:
    """A page of messages in order of due time, without their bodies."""
    return await listed(call, call.query.state)


@routes("GET /v1/in-flight", "List messages that workers hold", query=PageQuery, answer=MessagePage)
async def in_flight(call: Call) -> Reply:
    """A page of the messages that workers hold."""
    return await listed(call, State.IN_FLIGHT)


@routes(
    "POST /v1/messages/{id}:publish", "Publish a message now", query=OfKey,
    answers={202: ChangedMessage, 404: None, 409: None},
)  # fmt: skip
async def publish(call: Call) -> Reply:
    """Make a message due now; a worker publishes it at once."""
    id = call.path["id"]
    answer = await call.verb("reschedule")(id, delay=0, key=call.query.key)
    return Reply(changed(_RESCHEDULE, id, answer), 202)


add_changes(routes, "messages")


async def listed(call: Call, state: State) -> Reply:
    """A page of the messages in a state. Those on a Redis server that is silent are `unseen`."""
    found = await found_page(call, call.query, state)
    if call.query.format == "csv":
        return csv_reply(found)
    return Reply(found)


async def found_page(
    call: Call, query: PageQuery, state: State, begun: Callable[[bytes | None], str] | None = None
) -> MessagePage:
    """What fits a query, in its order. begun: what is shown of a body; without it, nothing is.

    MessageError.
    """
    asked = None, query.span_ms(), query.most(), query.after(state)
    fitting, client = query.conditions(), call.client
    if isinstance(client, TenantClient):
        page = await client.page(state, asked, fitting)
    else:
        page = await client.run(
            lambda calls: questions.page(calls, state, *asked, partial=True, conditions=fitting)
        )
    items = [shape_of(each, with_body=False) for each in page.items]
    if begun is not None:
        for item, each in zip(items, page.items, strict=True):
            item.body = begun(each.body)
    unseen = sorted(number for each in page.unseen for number in each.buckets)
    return MessagePage(items, query.following(page.cursor, state), unseen)


@routes("GET /v1/messages/{id}", "Show a message", query=OfKey, answer=StoredMessage, fails=(404,))
async def get(call: Call) -> Any:
    """One message with its body and state; 404 once it is delivered or cancelled.

    With a ledger also its `life`, and then a message that has ended is found, too: with the state
    `published` or `cancelled`. A token that may only read gets the size of the body.
    """
    id = call.path["id"]
    made = await message_with_life(call, id, await call.client.get(id, key=call.query.key))
    if made is None:
        raise unknown(TABLE["get"], id)
    if made.body_bytes is not None:
        await note_reading(call, id)
    return made


@routes("PATCH /v1/messages/{id}", _RESCHEDULE, body=NewDue, query=OfKey, fails=(404, 409))
async def reschedule(call: Call) -> ChangedMessage:
    """Give a message another due time; with `by`, so much later or earlier than it was."""
    due: NewDue = call.body
    id, key = call.path["id"], call.query.key
    if due.by is None:
        answer = await call.verb("reschedule")(id, delay=due.delay, at=due.at(), key=key)
    else:
        (answer,) = await call.verb("move_many")([id], by_ms=due.by_ms(), key=key)
    return changed(_RESCHEDULE, id, answer)


add_changes(routes, "messages", whole=True)
