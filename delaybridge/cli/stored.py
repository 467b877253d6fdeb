"""Messages as the store keeps them: one in full with its body, or a page of them."""

from __future__ import annotations

import base64
import json
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import delaybridge
from delaybridge.cli.failure import refused
from delaybridge.cli.grammar import PAGE_LIMIT
from delaybridge.cli.output import Row, moment, moment_and_wait, plain
from delaybridge.cli.session import Invocation

_HEX_BYTES = 16


def show_page(
    call: Invocation,
    query: dict[str, Any],
    row: Callable[[delaybridge.Stored], Row],
    spare: tuple[str, ...],
    nothing: str,
) -> None:
    """A page of messages as a table, and below it how to continue, or a note that it is empty.

    query: the arguments of `Client.pending`; its limit is capped to one page.
    """
    if query["limit"] > PAGE_LIMIT:
        call.note(f"--limit is capped to {PAGE_LIMIT}; continue with --cursor")
        query["limit"] = PAGE_LIMIT
    with call.client() as client:
        page = client.pending(**query)
    output = call.output
    if not output.table(page.items, row, spare=spare, data=described):
        call.note(nothing)
    if page.cursor is None:
        return
    cursor = cursor_text(page.cursor)
    if output.json:
        output.error_line(json.dumps({"next": {"cursor": cursor}}))
    else:
        output.line(f"next: --cursor {shlex.quote(cursor)}")


def cursor_text(cursor: tuple[float, str]) -> str:
    """`1795197600450.99:ID`."""
    score, id = cursor
    return f"{int(score) if score.is_integer() else repr(score)}:{id}"


def found_under(client: delaybridge.Client, id: str, key: bytes | None) -> list[delaybridge.Stored]:
    """The message with this id, if any, then records quarantined under the id."""
    stored = client.get(id, key=key)
    return [*([] if stored is None else [stored]), *client.quarantined(id)]


def show_stored(call: Invocation, found: Sequence[delaybridge.Stored], form: str) -> None:
    """The first of these messages with its body, and the names of the others."""
    stored, *others = found
    output, body = call.output, stored.body
    if form == "raw":
        _write_raw(body or b"")
    elif output.json:
        output.result({**described(stored), **_bytes_field("body", body)}, "")
    else:
        lines = _body_lines(body, form) if body else ""
        output.fields(_facts(stored))
        if body is None:
            output.line("body is null")
        elif lines:
            output.line(f"\n{lines}")
    for other in others:
        call.note(f"also in the dead set: {other.id}: {other.reason}")


def described(stored: delaybridge.Stored) -> dict[str, Any]:
    """A stored message as JSON; the names of fields that hold encoded bytes end in `_base64`."""
    data: dict[str, Any] = {
        "id": stored.id,
        "state": stored.state.value,
        "destination": stored.destination,
        "due": moment(stored.due_ms),
        "due_ms": stored.due_ms,
        "priority": stored.priority,
        "attempts": stored.attempts,
        "maybe_delivered": stored.maybe_delivered,
        "fired": stored.fired,
        "bucket": stored.bucket,
        "headers": plain(stored.headers),
        "properties": plain(stored.properties),
        "ttl_ms": stored.ttl_ms,
        "at_most_once": stored.at_most_once,
        "body_bytes": None if stored.body is None else len(stored.body),
    }
    data |= _bytes_field("key", stored.key)
    if stored.first_due_ms is not None:
        data |= {"first_due": moment(stored.first_due_ms), "first_due_ms": stored.first_due_ms}
    if stored.last_error is not None:
        data |= {"last_error": stored.last_error, "failing_since_ms": stored.failing_ms}
    if stored.dead_ms is not None:
        data |= {"dead": moment(stored.dead_ms), "dead_ms": stored.dead_ms}
    if stored.reason is not None:
        data["reason"] = stored.reason
    return data


def _bytes_field(name: str, value: bytes | None) -> dict[str, Any]:
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}


def headers_text(stored: delaybridge.Stored) -> str:
    """Headers in a table's cell."""
    return " ".join(f"{name}={plain(value)}" for name, value in stored.headers)


def _facts(stored: delaybridge.Stored) -> Iterator[tuple[str, object]]:
    from delaybridge.times import format_duration

    now_ms = time.time_ns() // 1_000_000
    yield "id", stored.id
    yield "state", stored.state.value + (", fired" if stored.fired else "")
    yield "destination", stored.destination or "?"
    yield "due", moment_and_wait(stored.due_ms if stored.is_readable else None, now_ms)
    yield "first due", moment_and_wait(stored.first_due_ms, now_ms)
    yield "dead since", moment(stored.dead_ms)
    yield "reason", stored.reason
    yield "failing since", moment_and_wait(stored.failing_ms, now_ms)
    yield "last error", stored.last_error
    yield "attempts", f"{stored.attempts}{', may have arrived' if stored.maybe_delivered else ''}"
    yield "priority", stored.priority or None
    yield "ttl", None if stored.ttl_ms is None else format_duration(stored.ttl_ms)
    yield "delivery", "at most once" if stored.at_most_once else None
    yield "key", plain(stored.key)
    yield "bucket", stored.bucket
    yield "bytes", None if stored.body is None else len(stored.body)
    for name, value in stored.properties.items():
        yield "property", f"{name}={plain(value)}"
    for name, value in stored.headers:
        yield "header", f"{name}={plain(value)}"


def _body_lines(body: bytes, form: str) -> str:
    if form == "hex":
        parts = ((at, body[at : at + _HEX_BYTES]) for at in range(0, len(body), _HEX_BYTES))
        width = _HEX_BYTES * 3 - 1
        return "\n".join(
            f"{at:08x}  {part.hex(' ').ljust(width)}  "
            + "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
            for at, part in parts
        )
    if form == "json":
        try:
            return json.dumps(json.loads(body), indent=2)
        except (ValueError, RecursionError):
            what = "the body is not JSON; show it as --body text or hex"
            raise refused("--body", what, "bad_body") from None
    return body.decode(errors="backslashreplace")


def _write_raw(body: bytes) -> None:
    if sys.stdout is None:
        return
    if sys.stdout.isatty():
        what = "raw bytes could control this terminal; redirect stdout, or use text or hex"
        raise refused("--body", what)
    sys.stdout.flush()
    sys.stdout.buffer.write(body)
    sys.stdout.buffer.flush()
