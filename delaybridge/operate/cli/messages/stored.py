"""Messages as the store keeps them: one in full with its body and its life, or a page of them."""

from __future__ import annotations

import base64
import json
import shlex
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import delaybridge
from delaybridge.operate.terminal.failure import Exit, Failure, refused
from delaybridge.operate.terminal.grammar import PAGE_LIMIT
from delaybridge.operate.terminal.invocation import Invocation
from delaybridge.operate.terminal.output import Output, Row, moment_and_wait
from delaybridge.operate.views.described import moment, plain
from delaybridge.times import in_time

if TYPE_CHECKING:
    from delaybridge.backoff import RetryPlan
    from delaybridge.ledger.sql.rows import Life, Step
    from delaybridge.operate.views.listing import Cursor
    from delaybridge.store.calls import Calls
    from delaybridge.store.protocol.verbs import Steps

_HEX_BYTES = 16
# Fields that JSON shows under the same name.
_FIELDS = (
    "id state destination due_ms priority attempts maybe_delivered fired bucket headers properties "
    "ttl_ms at_most_once"
).split()


def show_page(
    call: Invocation, query: dict[str, Any], columns: tuple[str, ...], spare: tuple[str, ...]
) -> Exit:
    """A page of messages as a table, and below it how to continue, or a note that it is empty.

    query: the arguments of `Client.pending`; its limit is capped to one page. PARTLY if buckets
    are missing, whose server does not answer.
    """
    if query["limit"] > PAGE_LIMIT:
        call.note(f"--limit is capped to {PAGE_LIMIT}; continue with --cursor")
        query["limit"] = PAGE_LIMIT
    with call.client() as client:
        try:
            page = client.run(lambda calls: page_of(calls, **query, partial=True))
        except delaybridge.MessageError as exc:
            if exc.code == "unknown_destination":
                client.destinations(query["destination"])  # raises, with one that is like it
            raise
        now_ms = call.now_ms(client)
        is_empty = not (page.items or page.cursor or page.unseen)
        why = _why_none(client, query) if is_empty else ""
    output = call.output

    def row(item: delaybridge.Stored) -> Row:
        cells = cells_of(item, now_ms)
        return {title: cells[title] for title in columns}

    output.table(page.items, row, spare=spare, data=described)
    if page.cursor is not None:
        cursor = cursor_text(page.cursor)
        if output.json:
            output.error_line(json.dumps({"next": {"cursor": cursor}}))
        else:
            output.line(f"next: --cursor {shlex.quote(cursor)}")
    elif is_empty:
        call.note(f"no {query['state']} messages{why}")
    return call.say_unseen(page.unseen)


def page_of(
    calls: Calls,
    *,
    state: delaybridge.State,
    limit: int,
    destination: str | None = None,
    due_from_ms: int | None = None,
    due_to_ms: int | None = None,
    cursor: Cursor | None = None,
    partial: bool = False,
    **conditions: Any,
) -> Steps[delaybridge.Page]:
    """A page of the messages that fit what options ask for; those not given are None.

    partial: without buckets whose server does not answer, instead of StoreUnavailable.
    """
    from delaybridge.operate.views import questions
    from delaybridge.store.messages.record_filters import Conditions

    fitting = Conditions(**{name: value for name, value in conditions.items() if value is not None})
    asked = state, destination, (due_from_ms, due_to_ms), limit, cursor
    return questions.page(calls, *asked, partial=partial, conditions=fitting)


def _why_none(client: delaybridge.Client, query: Mapping[str, Any]) -> str:
    """Why a list may be empty although there are messages."""
    if (destination := query.get("destination")) is not None:
        found = client.destinations(destination)
        if found.is_unused:
            return f"; {found.unused_text}"
    if query["state"] != "delayed":
        return ""
    return "; those due within seconds have --state in_flight, those that wait for a broker parked"


def cells_of(item: delaybridge.Stored, now_ms: int) -> Row:
    """The cells of every list of messages, by title."""
    return {
        "DUE": moment(item.due_ms),
        ">IN": in_time(item.due_ms - now_ms),
        "DEAD SINCE": moment(item.dead_ms),
        "ID": item.id,
        "DESTINATION": item.destination or "?",
        ">TRY": item.attempts,
        ">BYTES": "null" if item.body is None else len(item.body),
        "HEADERS": " ".join(f"{name}={plain(value)}" for name, value in item.headers),
        "FIRST DUE": moment(item.first_due_ms),
        "REASON": item.reason or item.last_error,
    }


def cursor_text(cursor: tuple[float, str]) -> str:
    """A cursor as lists print it: `1795197600450.99:ID`."""
    score, id = cursor
    return f"{int(score) if score.is_integer() else repr(score)}:{id}"


def show_message(
    call: Invocation, given: dict[str, Any], missing: str, state: delaybridge.State | None = None
) -> None:
    """The message with an id and its body, then the names of others quarantined under the id.

    given: id, key, and the form of the body. state: only a message in this state. Failure, with
    `missing`, if none is found.
    """
    id = given["id"]
    with call.client() as client:
        stored = client.get(id, key=given["key"])
        found = [*([] if stored is None else [stored]), *client.dead.quarantined(id)]
        now_ms = call.now_ms(client)
    wanted = [one for one in found if state in (None, one.state)]
    life = life_of(call, id)
    if not wanted and state is None and life is not None and life.rows:
        _show_ended(call, id, life)
        return
    if not wanted:
        where = f"; it is {found[0].state}" if found else ""
        raise Failure(Exit.NOT_FOUND, "unknown", id, missing + where)
    show_stored(call, wanted[0], given["form"], now_ms, life)
    for other in wanted[1:]:
        call.note(f"also in the dead set: {other.id}: {other.reason}")


def _show_ended(call: Invocation, id: str, life: Life) -> None:
    """A message that is not in Redis, but in the ledger."""
    last = life.rows[-1]
    data = {"id": id, "state": last.state, "destination": last.destination}
    if call.output.json:
        call.output.result(data | {"life": described_life(life)}, "")
    else:
        call.output.fields(data.items())
        show_life(call.output, life)


def show_stored(
    call: Invocation, stored: delaybridge.Stored, form: str, now_ms: int, life: Life | None = None
) -> None:
    """A message, its body, and its life if there is a ledger."""
    output, body = call.output, stored.body
    if form == "raw":
        _write_raw(body or b"")
    elif output.json:
        told = {} if life is None else {"life": described_life(life)}
        output.result({**described(stored), **_bytes_field("body", body), **told}, "")
    else:
        lines = _body_lines(body, form) if body else ""
        output.fields(_facts(stored, now_ms))
        if body is None:
            output.line("body is null")
        elif lines:
            output.line(f"\n{lines}")
        if life is not None:
            show_life(output, life)


def described(stored: delaybridge.Stored) -> dict[str, Any]:
    """A stored message as JSON; the names of fields that hold encoded bytes end in `_base64`."""
    data = {name: plain(getattr(stored, name)) for name in _FIELDS}
    data |= {"due": moment(stored.due_ms), **_bytes_field("key", stored.key)}
    data["body_bytes"] = None if stored.body is None else len(stored.body)
    if stored.first_due_ms is not None:
        data |= {"first_due": moment(stored.first_due_ms), "first_due_ms": stored.first_due_ms}
    if stored.last_error is not None:
        data |= {"last_error": stored.last_error, "failing_since_ms": stored.failing_ms}
    if stored.dead_ms is not None:
        data |= {"dead": moment(stored.dead_ms), "dead_ms": stored.dead_ms}
    if stored.reason is not None:
        data["reason"] = stored.reason
    if stored.retry is not None:
        data["retry"] = described_plan(stored.retry)
    return data


def described_plan(plan: RetryPlan | None) -> dict[str, Any]:
    """The fields that a retry plan sets."""
    fields = {} if plan is None else {name: getattr(plan, name) for name in plan.__struct_fields__}
    return {name: value for name, value in fields.items() if value is not None}


def plan_text(plan: RetryPlan | None) -> str | None:
    """`max_attempts=3 base_ms=10000`; None if nothing is set."""
    pairs = described_plan(plan).items()
    return " ".join(f"{name}={value}" for name, value in pairs) or None


def _bytes_field(name: str, value: bytes | None) -> dict[str, Any]:
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}


def _facts(stored: delaybridge.Stored, now_ms: int) -> Iterator[tuple[str, object]]:
    from delaybridge.times import format_duration

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
    yield "retry", plan_text(stored.retry)
    yield "key", plain(stored.key)
    yield "tenant", stored.tenant or None
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


def life_of(call: Invocation, id: str) -> Life | None:
    """The life of an id, by the ledger; None if there is no ledger, or it does not answer."""
    settings = call.settings
    if not settings.ledger.url:
        return None
    from delaybridge.ledger.sql.opening import open_ledger
    from delaybridge.store.protocol.verbs import Work

    ledger = open_ledger(settings.ledger.url, timeout_s=settings.redis.timeout_s)
    try:
        from delaybridge.ledger.sql.records import Records

        records = Records(settings.namespace)
        return ledger.run(Work(lambda on: records.life(on, id)))
    except delaybridge.StoreUnavailable as exc:
        call.note(f"warning: {exc}")
        return None
    finally:
        ledger.close()


def show_life(output: Output, life: Life) -> None:
    """Print the calls of a life and how each ended, a line for each."""
    output.line("\nlife, by the ledger:")
    events: list[tuple[int, str]] = []
    for row in life.rows:
        events.append((row.created_ms, f"scheduled, due {moment(row.due_ms)}"))
        if row.state not in {step.after for step in life.steps} | {"delayed"}:
            events.append((row.updated_ms, _because(row.state, row.error)))
    events += ((step.at_ms, _told(step)) for step in life.steps)
    for at_ms, what in sorted(events, key=lambda event: event[0]):
        output.line(f"  {moment(at_ms)}  {what}")


def described_life(life: Life) -> dict[str, Any]:
    """A life as JSON, as over HTTP."""
    import msgspec

    from delaybridge.ledger.recording.life_of_id import recorded_life

    found: dict[str, Any] = msgspec.to_builtins(recorded_life(life))
    return found


def _told(step: Step) -> str:
    return _because(f"{step.before} -> {step.after}  {step.worker}", step.error)


def _because(text: str, error: str) -> str:
    return f"{text}: {error}" if error else text
