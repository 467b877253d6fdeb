"""Raw bodies: the request's body is the message's, and its instructions are in the headers.

A CloudEvent is one, too; its instructions may also be attributes: `delaybridgedelay`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote, unquote_to_bytes

from delaybridge.errors import MessageError
from delaybridge.ingest.instructions import INSTRUCTIONS, instructions, is_instruction
from delaybridge.message import MAX_PRIORITY, TABLE_KINDS, Message, OnConflict
from delaybridge.serve.http.json_text import decoded
from delaybridge.serve.http.problems import Problem
from delaybridge.serve.shared.call import Call
from delaybridge.times import got_delay

DESTINATION = "delaybridge-destination"
STRUCTURED = "application/cloudevents+json"
_BINARY = "ce-specversion"
_ATTRIBUTE = re.compile(r"[a-z0-9]{1,64}")
_QUOTED = re.compile(r'"((?:[^"\\]|\\["\\])*)"')
_REQUIRED = ("id", "source", "specversion", "type")
_BY_ATTRIBUTE = {name.replace("-", ""): name for name in INSTRUCTIONS if is_instruction(name)}
# How the bindings of CloudEvents to Kafka and AMQP write an attribute; else as over HTTP.
_PREFIXES = {"kafka": "ce_", **dict.fromkeys(TABLE_KINDS, "cloudEvents:")}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_IN_MS = tuple(
    f"delaybridge-{name}" for name in ("delay", "ttl", "quiet", "longest", "every")
)  # in a table of AMQP a number of ms
Pairs = list[tuple[str, Any]]


def is_raw(headers: Mapping[str, str]) -> bool:
    """Whether the headers say what to do with the body, and not the body itself."""
    return (
        DESTINATION in headers
        or _BINARY in headers
        or headers.get("content-type", "").lower().startswith(STRUCTURED)
    )


async def raw_message(call: Call) -> tuple[Message, OnConflict]:
    """The message of a raw body, not checked yet, and its conflict policy.

    Problem or MessageError: the event or an instruction is wrong.
    """
    attributes = await _attributes(call)
    told: Pairs = [
        (name, value.encode("latin-1"))
        for name, value in call.headers.items()
        if is_instruction(name)
    ]
    for name in [*attributes]:
        if name in _BY_ATTRIBUTE:
            told.append((_BY_ATTRIBUTE[name], _as_sent(attributes.pop(name))))
    for name, value in told:
        if name in _IN_MS and isinstance(value, bytes) and value.isdigit():
            raise MessageError("bad_time", name, got_delay(value.decode()))
    asked = instructions(told)
    if asked.cancel or asked.reschedule:
        what = "over HTTP use DELETE or PATCH on /v1/messages/{id}"
        raise MessageError("bad_flag", "delaybridge-cancel", what)
    if not asked.destination:
        what = f"say where to: the header {DESTINATION}"
        raise MessageError("bad_destination", DESTINATION, what)
    if not asked.is_timed:
        raise MessageError("time_required", "delaybridge-delay", "say when, or delaybridge-due")
    kind = call.client.kinds.get(asked.destination.partition(":")[0], "")
    headers, properties = _described(call, kind, attributes)
    delay = None if asked.delay_ms is None else timedelta(milliseconds=asked.delay_ms)
    message = Message(
        asked.destination,
        call.body,
        delay=delay if asked.gathering is None else asked.gathering,
        at=None if asked.due_ms is None else _EPOCH + timedelta(milliseconds=asked.due_ms),
        id=asked.id,
        key=asked.key,
        headers=headers,
        properties=properties,
        priority=MAX_PRIORITY - asked.rank,
        ttl=None if asked.ttl_ms is None else timedelta(milliseconds=asked.ttl_ms),
        at_most_once=asked.at_most_once,
        retry=asked.retry,
    )
    return message, asked.policy or OnConflict.FAIL


def _as_sent(value: Any) -> Any:
    """Text as bytes, as the value of a header is."""
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value


def _described(
    call: Call, kind: str, attributes: Mapping[str, Any]
) -> tuple[Pairs, dict[str, Any]]:
    """The headers and properties that tell a consumer what the body is."""
    headers: Pairs = []
    if call.media != STRUCTURED:
        prefix = _PREFIXES.get(kind, "ce-")
        written = _percent_encoded if kind == "http" else str
        headers = [(f"{prefix}{name}", written(value)) for name, value in attributes.items()]
    media = call.headers.get("content-type")
    if media is None:
        return headers, {}
    if kind in TABLE_KINDS:
        return headers, {"content_type": media}
    return [*headers, ("content-type", media)], {}


def _percent_encoded(value: str) -> str:
    """As CloudEvents writes an attribute into a header of HTTP."""
    return quote(value, safe="!#$&'()*+,/:;<=>?@[\\]^`{|}~")


async def _attributes(call: Call) -> dict[str, Any]:
    """The attributes of a CloudEvent; none if the body is something else. Problem `bad_event`."""
    if call.media == STRUCTURED:
        event = await decoded(call.body, dict[str, Any], call.site.most_dense)
        found = {name: value for name, value in event.items() if not name.startswith("data")}
    elif _BINARY in call.headers:
        found = dict(_in_headers(call.headers))
    else:
        return {}
    for name in _REQUIRED:
        if not isinstance(value := found.get(name), str) or not value:
            raise _bad(name, "a CloudEvent has id, source, specversion and type: text, not empty")
    if found["specversion"] != "1.0":
        raise _bad("specversion", f"got {found['specversion'][:40]!r}; give 1.0")
    return found


def _in_headers(headers: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for header, text in headers.items():
        if not header.startswith("ce-"):
            continue
        name = header.removeprefix("ce-")
        if not _ATTRIBUTE.fullmatch(name):
            raise _bad(name, "the name of an attribute has 1 to 64 of a-z 0-9")
        if quoted := _QUOTED.fullmatch(text):
            text = re.sub(r"\\(.)", r"\1", quoted[1])
        try:
            yield name, unquote_to_bytes(text.encode("latin-1")).decode()
        except UnicodeDecodeError:
            raise _bad(name, "write UTF-8, percent-encoded") from None


def _bad(name: str, what: str) -> Problem:
    return Problem(422, "bad_event", f"{name[:80]}: {what}", f"$.{name[:80]}")
