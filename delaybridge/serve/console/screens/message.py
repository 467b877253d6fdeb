"""Message: its life, its headers, its body, and what can be done with it."""

from __future__ import annotations

import re
import shlex
from typing import Any

import msgspec

from delaybridge.client.verbs import Scope
from delaybridge.errors import MessageError
from delaybridge.serve.api.messages.ledger import message_with_life
from delaybridge.serve.api.messages.shapes import StoredMessage
from delaybridge.serve.console.bodies import FORMS, MOST_BYTES, body_of, digest, viewed
from delaybridge.serve.console.lists import asked_ms
from delaybridge.serve.console.page import Pages, refusal
from delaybridge.serve.console.rendering import link, segment
from delaybridge.serve.console.snapshot import snapshots_of
from delaybridge.serve.console.timeline import gaps_of, steps_of
from delaybridge.serve.http.endpoint import Reply, Routes
from delaybridge.serve.http.problems import Problem
from delaybridge.serve.shared.audit import note_reading
from delaybridge.serve.shared.call import Call
from delaybridge.store.protocol.stored import Stored
from delaybridge.times import format_time

_TRACE = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
routes = Routes()
pages = Pages()


class MessageQuery(msgspec.Struct, forbid_unknown_fields=True, rename={"as_": "as"}):
    """key: the message's own. as: how the body is shown; empty: in the form that fits;
    none: it is not shown, and counts as unread."""

    key: str | None = None
    as_: str = ""


@pages("/messages/{id}", "Message", name="message", query=MessageQuery)
async def message(call: Call) -> dict[str, Any]:
    """Everything that is known of a message."""
    query: MessageQuery = call.query
    item = await _read(call)
    stats = await snapshots_of(call.site).stats()
    body = body_of(item)
    view = None
    if body is not None and call.may_read_bodies and query.as_ != "none":
        view = viewed(body, query.as_)
        await note_reading(call, item.id)
    steps = steps_of(item, stats.now_ms)
    api = f"/v1/messages/{segment(item.id)}"
    trace = trace_id(item)
    return {
        "api": link(api, key=query.key),
        "item": item,
        "key": query.key,
        "one": api,
        "body": body,
        "view": view,
        "forms": FORMS,
        "most": MOST_BYTES,
        "digest": None if body is None else digest(body),
        "may_read_bodies": call.may_read_bodies,
        "steps": steps,
        "gaps": gaps_of(steps),
        "asked_ms": asked_ms(item),
        "trace": trace,
        "trace_url": call.site.settings.serve.trace_url.replace("{trace_id}", trace or ""),
        "commands": commands(item, query.key),
        "owner": next((b.owner for b in stats.buckets if b.bucket == item.bucket), None),
        "now_ms": stats.now_ms,
    }


@routes(
    "GET /messages/{id}/body", "Download a body", scope=Scope.WRITE, is_safe=True,
    query=MessageQuery, refusal=refusal,
)  # fmt: skip
async def body(call: Call) -> Reply:
    """The bytes of a message's body, to be saved."""
    item = await _read(call)
    content = body_of(item)
    if content is None:
        raise Problem(404, "no_body", "this message has no body", "$.id")
    await note_reading(call, item.id)
    headers = {
        "Content-Type": "application/octet-stream",
        "Content-Disposition": "attachment; filename=body.bin",
        "Content-Security-Policy": "default-src 'none'; sandbox",
    }
    return Reply(content, 200, headers)


async def _read(call: Call) -> StoredMessage:
    """The message with its body, also one that ingest quarantined. Problem 404."""
    id, client = call.path["id"], call.site.client
    try:
        found: Stored | None = await client.get(id, key=call.query.key)
        if found is None:
            found = next(iter(await client.dead.quarantined(id)), None)
        # The size and the digest of a body are for all; who may see more is asked by those above.
        item = await message_with_life(call._replace(may=Scope.ADMIN), id, found)
    except MessageError as exc:  # no message can have this id
        raise Problem(404, "unknown", exc.detail, "$.id") from None
    if item is None:
        raise Problem(404, "unknown_message", f"no message {id[:80]!r} is pending or dead", "$.id")
    return item


def trace_id(item: StoredMessage) -> str | None:
    """The trace that the message belongs to, by its header."""
    for name, value in item.headers:
        if name.lower() == "traceparent" and (found := _TRACE.fullmatch(str(value))):
            return found[1]
    return None


def commands(item: StoredMessage, key: str | None) -> list[str]:
    """The same in a shell."""
    of_key = [] if key is None else [f"--key={key}"]
    named = shlex.join([*of_key, "--", item.id])
    if item.state == "dead":
        verbs = ["dead show", "dead kick", "dead discard"]
    elif item.state in ("published", "cancelled", "expired"):
        verbs = ["message show"]
    else:
        verbs = ["message show", "message reschedule --in 10m", "message publish-now"]
        verbs.append("message cancel")
    return [f"delaybridge {verb} {named}" for verb in verbs] + [_again(item)]


def _again(item: StoredMessage) -> str:
    """The command that schedules the same once more. The body comes from a file."""
    words = ["delaybridge", "schedule", "--at", format_time(item.due_ms)]
    if item.key is not None:
        words.append(f"--key={item.key}")
    words += [word for name, value in item.headers for word in ("-H", f"{name}={value}")]
    words += [word for name, value in item.properties.items() for word in ("-P", f"{name}={value}")]
    if item.tenant:
        words += ["--tenant", item.tenant]
    if item.priority:
        words += ["--priority", str(item.priority)]
    return f"{shlex.join([*words, '--', item.destination, '-'])} < body.bin"
