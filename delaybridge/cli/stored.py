"""One message in full, with its body."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

from delaybridge.cli.failure import Exit, Failure
from delaybridge.cli.output import body_field, described, in_time, moment, value_text
from delaybridge.cli.session import Session

if TYPE_CHECKING:
    from delaybridge.store.stored import Stored

_HEX_BYTES = 16


def show_stored(session: Session, stored: Stored, form: str) -> None:
    """One message with its body."""
    if form == "raw":
        _write_raw(stored.body or b"")
        return
    if session.output.json:
        session.output.result({**described(stored), **body_field(stored.body)}, "")
        return
    body = _body_lines(stored.body, form)
    session.output.fields(_facts(stored))
    if stored.body is None:
        session.output.line("body is null")
    elif body:
        session.output.line()
        for line in body:
            session.output.line(line)


def _facts(stored: Stored) -> list[tuple[str, str]]:
    from delaybridge.times import format_duration

    now_ms = time.time_ns() // 1_000_000
    facts: list[tuple[str, Any]] = [
        ("id", stored.id),
        ("state", stored.state.value + (", fired" if stored.fired else "")),
        ("destination", stored.destination or "?"),
        ("due", _since(stored.due_ms, now_ms) if stored.is_readable else None),
        ("first due", _since(stored.first_due_ms, now_ms)),
        ("dead since", moment(stored.dead_ms)),
        ("reason", stored.reason),
        ("failing since", _since(stored.failing_ms, now_ms)),
        ("last error", stored.last_error),
        ("attempts", f"{stored.attempts}{', may have arrived' if stored.maybe_delivered else ''}"),
        ("priority", stored.priority or None),
        ("ttl", None if stored.ttl_ms is None else format_duration(stored.ttl_ms)),
        ("delivery", "at most once" if stored.at_most_once else None),
        ("key", None if stored.key is None else value_text(stored.key)),
        ("bucket", stored.bucket),
        ("bytes", None if stored.body is None else len(stored.body)),
    ]
    facts += [("property", f"{name}={value_text(v)}") for name, v in stored.properties.items()]
    facts += [("header", f"{name}={value_text(value)}") for name, value in stored.headers]
    return [(name, str(value)) for name, value in facts if value is not None]


def _since(at_ms: int | None, now_ms: int) -> str | None:
    return None if at_ms is None else f"{moment(at_ms)}  {in_time(at_ms - now_ms)}"


def _body_lines(body: bytes | None, form: str) -> list[str]:
    if not body:
        return []
    if form == "hex":
        return list(_hex_dump(body))
    if form == "json":
        try:
            return json.dumps(json.loads(body), indent=2).split("\n")
        except (ValueError, RecursionError):
            what = "the body is no JSON; show it as --body text or hex"
            raise Failure(Exit.REFUSED, "bad_body", "--body", what) from None
    return body.decode(errors="backslashreplace").split("\n")


def _hex_dump(body: bytes) -> list[str]:
    width = _HEX_BYTES * 3 - 1
    lines = []
    for at in range(0, len(body), _HEX_BYTES):
        part = body[at : at + _HEX_BYTES]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{at:08x}  {part.hex(' ').ljust(width)}  {text}")
    return lines


def _write_raw(body: bytes) -> None:
    if sys.stdout is None:
        return
    if sys.stdout.isatty():
        what = "raw bytes could steer this terminal; redirect stdout, or use text or hex"
        raise Failure(Exit.REFUSED, "usage", "--body", what)
    sys.stdout.flush()
    sys.stdout.buffer.write(body)
    sys.stdout.buffer.flush()
