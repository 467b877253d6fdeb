"""What commands share that schedule messages: their fields, standard input, receipts."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import IO, Any

import delaybridge
from delaybridge import late
from delaybridge.gathering import FIELDS, gathering_of
from delaybridge.operate.terminal import grammar
from delaybridge.operate.terminal.failure import Failure, refused
from delaybridge.operate.terminal.grammar import text_or_bytes
from delaybridge.operate.terminal.invocation import Invocation
from delaybridge.operate.views.described import moment
from delaybridge.times import in_time

# AMQP properties that are numbers; all others are text.
_NUMBERS = ("delivery_mode", "priority", "timestamp", "partition")
_WHOLE_NUMBER = late.pattern(r"-?[0-9]{1,18}")


def message_fields(given: dict[str, Any]) -> dict[str, Any]:
    """The options of a message with headers, properties and retry plan as a client takes them."""
    plan = {field: given[field] for field in grammar.PLAN if given[field] is not None}
    # A recurring message has an `every` of its own.
    gathered = FIELDS if "debounce" in given else ()
    gathering = gathering_of(given, "--") if gathered else None
    apart = (*grammar.PLAN, *gathered)
    kept = {name: value for name, value in given.items() if name not in apart}
    kept |= {} if gathering is None else {"delay": gathering}
    headers = [(name, text_or_bytes(value)) for name, value in _pairs(given["headers"], "-H")]
    properties = _properties(given["properties"])
    return {**kept, "headers": headers, "properties": properties, "retry": plan or None}


def _pairs(texts: Sequence[str], flag: str) -> Iterator[tuple[str, str]]:
    """The names and values of options written NAME=VALUE."""
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise refused(flag, f"got {text[:80]!r}; write NAME=VALUE")
        yield name, value


def _properties(texts: Sequence[str]) -> dict[str, Any]:
    """AMQP properties by name; those that are numbers as numbers."""
    pairs = [*_pairs(texts, "-P")]
    for name, count in Counter(name for name, _ in pairs).items():
        if count > 1:
            raise refused("-P", f"{name} is given twice")
    for name, value in pairs:
        if name in _NUMBERS and not _WHOLE_NUMBER.fullmatch(value):
            what = f"got {name}={value[:80]!r}; give a whole number"
            raise refused("-P", what, "bad_property")
    return {name: int(v) if name in _NUMBERS else text_or_bytes(v) for name, v in pairs}


def stdin_bytes(call: Invocation, what: str) -> IO[bytes]:
    """stdin as bytes, with a hint if it is a terminal. Failure if it is closed."""
    if sys.stdin is None or sys.stdin.closed:
        raise refused("BODY", "stdin is closed; pipe the input into it")
    if sys.stdin.isatty():
        call.note(f"reading {what} from the terminal; Ctrl-D ends it")
    return sys.stdin.buffer


def stdin_body(call: Invocation) -> bytes:
    """All of stdin. A body that is too long is refused without reading the rest."""
    limit = call.settings.limits.body_bytes
    body = stdin_bytes(call, "the body").read(limit + 1)
    if len(body) > limit:
        raise too_large("BODY", limit)
    return body


def too_large(field: str, limit: int) -> Failure:
    """A body over the limit."""
    what = f"longer than {limit} bytes, the limit (limits.body_bytes)"
    return refused(field, what, "body_too_large")


def warn_without_workers(call: Invocation, client: delaybridge.Client) -> None:
    """Warn if no worker runs: the message is scheduled, but nothing will deliver it."""
    # Not by `stats`: it counts messages in each bucket, and imports ten modules more.
    from delaybridge.operate.views.remote_control import living_workers

    with suppress(delaybridge.DelayBridgeError):  # the user may lack the right to read it
        if not client.run(living_workers):
            call.note("warning: no worker runs; start one: delaybridge scan")


def described(receipt: delaybridge.Receipt, now_ms: int) -> tuple[dict[str, Any], str]:
    """As data, and as a line: id, due time, bucket, and the answer unless it is `created`."""
    wait_ms, due = receipt.due_ms - now_ms, moment(receipt.due_ms)
    data = {
        "id": receipt.id,
        "answer": receipt.answer.value,
        "due": due,
        "due_ms": receipt.due_ms,
        "bucket": receipt.bucket,
    }
    text = f"{receipt.id}  due {due}  {in_time(wait_ms)}  bucket {receipt.bucket}"
    is_created = receipt.answer.value == "created"
    return data, text if is_created else f"{text}  {receipt.answer.value}"
