"""What a client does about recurring messages: `client.recurring`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from delaybridge.client.requests import Requests
from delaybridge.client.verbs import Awaiting, Blocking, Scope, verb
from delaybridge.errors import MessageError, quoted
from delaybridge.message import Answer
from delaybridge.recurring.cron import check_cron, check_zone
from delaybridge.recurring.definition import Definition, Scalar, check_every
from delaybridge.recurring.definitions import Backfilled, Definitions, Recurring
from delaybridge.store.messages.scheduling import Receipt
from delaybridge.store.protocol.verbs import Steps
from delaybridge.times import At, Delay, at_ms, delay_ms

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MOST_RUNS = 1000
_READS: dict[str, Any] = {"every": delay_ms, "ttl": delay_ms, "start": at_ms, "end": at_ms}


class Preview(NamedTuple):
    """words: when it runs. times: the next runs, in its time zone."""

    words: str
    times: list[datetime]


class RecurringVerbs(Requests):
    """Verbs of recurring messages.

    A definition says what is sent, where, and when. Workers make a message of each run, one run
    ahead, with the id `NAME@DUE`, as `report@2026-11-23T09:00:00Z`.
    """

    @verb(Scope.WRITE, "Add a recurring definition", is_audited=True)
    def add(
        self, /, name: str, destination: str, body: bytes | str | None, **fields: Any
    ) -> Steps[Answer]:
        """Add a definition.

        Args:
            name: 1 to 100 letters, digits, `.`, `_`, `-`.
            destination: as for `Client.schedule`.
            body: as for `Client.schedule`. In text, bytes and headers, `${due}`, `${due_ms}` and
                `${name}` stand for the run's due time and the name; write `$${` for `${`.
            cron: 5 fields, as `*/15 9-17 * * MON-FRI`, or 6 with seconds in front; or `every`:
                `"30s"`, a timedelta or seconds, at least one second.
            tz: the time zone of `cron`, as `Europe/Berlin`; by default UTC.
            start, end: no run is due before or after; an aware datetime or RFC 3339 text. `every`
                counts from `start`, else from midnight 1970 in UTC.
            missed: which runs are made that became due while no worker ran: `one` (the default),
                `skip` or `all`.
            headers, properties, key, priority, ttl, at_most_once, retry: as for `Client.schedule`;
                values of headers are text, numbers or booleans, and the key is text.
            paused: add it paused.
            replace: replace another definition of this name; its runs that are not due are
                cancelled.

        Returns:
            `created`, `duplicate` (it is there already) or `replaced`.

        Raises:
            MessageError: an argument is wrong, or there are 10,000 definitions.
            MessageConflict: a MessageError: the name has another definition.
        """
        replace = fields.pop("replace", False)
        definition = definition_of(name, destination, body, **fields)
        return Definitions(self._calls).add(definition, replace=replace)

    @verb(Scope.READ, "List recurring definitions")
    def list(self) -> Steps[list[Recurring]]:
        """Every definition by name, with its state, next and last run."""
        return Definitions(self._calls).list_all()

    @verb(Scope.READ, "Show a recurring definition")
    def get(self, name: str) -> Steps[Recurring | None]:
        """One definition; None if there is none of this name."""
        return Definitions(self._calls).get(name)

    @verb(Scope.WRITE, "Pause a definition", is_audited=True)
    def pause(self, name: str) -> Steps[bool]:
        """Make no further run, and cancel those that are not due; False: no such definition."""
        return (yield from Definitions(self._calls).pause(name, paused=True)) is not None

    @verb(Scope.WRITE, "Resume a definition", is_audited=True)
    def resume(self, name: str) -> Steps[bool]:
        """Go on with the first run from now on; False: no such definition."""
        return (yield from Definitions(self._calls).pause(name, paused=False)) is not None

    @verb(Scope.WRITE, "Remove a definition", is_audited=True)
    def remove(self, name: str) -> Steps[bool]:
        """Remove a definition, and cancel its runs that are not due; False: there is none."""
        return (yield from Definitions(self._calls).remove(name)) is not None

    @verb(Scope.WRITE, "Run a definition now")
    def run(self, name: str) -> Steps[Receipt | None]:
        """Schedule one more run, due now; the plan stays as it is. None: no such definition."""
        return Definitions(self._calls).run(name)

    @verb(Scope.WRITE, "Make missed runs", is_audited=True)
    def backfill(self, name: str, start: At, end: At = None) -> Steps[Backfilled | None]:
        """Make the runs from `start` until before `end` (now) that were not made.

        They are due at once, in order, without a ttl. The same call again makes nothing twice.

        Raises:
            MessageError: the span is in the future, or has more than 10,000 runs.
        """
        if start is None:
            raise MessageError("time_required", "start", "missing; say where to begin")
        to_ms = None if end is None else at_ms(end, field="end")
        return Definitions(self._calls).backfill(name, at_ms(start, field="start"), to_ms)

    def preview(
        self, cron: str | None = None, *, every: Delay = None, tz: str = "UTC", count: int = 5
    ) -> Preview:
        """When a definition with these times would run next. No I/O."""
        return preview_of(cron, every, tz, count)


class RecurringMessages(RecurringVerbs, Blocking):
    """Recurring messages of a `Client`: `client.recurring`."""


class AsyncRecurringMessages(RecurringVerbs, Awaiting):
    """Recurring messages of an `AsyncClient`: `client.recurring`."""


def definition_of(
    name: str,
    destination: str,
    body: bytes | str | None,
    *,
    headers: Mapping[str, Scalar] | list[tuple[str, Scalar]] = (),  # type: ignore[assignment]
    properties: Mapping[str, Scalar] | None = None,
    retry: Mapping[str, Any] | None = None,
    **given: Any,
) -> Definition:
    """A definition of a caller's arguments, not checked yet. MessageError: one cannot be read.

    given: other fields, as `Definition.given_fields` has them.
    """
    for field, read in _READS.items():
        if (value := given.pop(field, None)) is not None:
            given[f"{field}_ms"] = read(value, field=field)
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    text, data = _content(body)
    return Definition(
        name=name,
        destination=destination,
        body=text,
        body_base64=data,
        headers=tuple((each, _header(each, value)) for each, value in pairs),
        properties=dict(properties or {}),
        retry=None if retry is None else dict(retry),
        **given,
    )


def preview_of(cron: str | None, every: Delay, tz: str, count: int) -> Preview:
    """The words and the next runs of these times."""
    now_ms = time.time_ns() // 1_000_000
    if not isinstance(count, int) or not 1 <= count <= _MOST_RUNS:
        raise MessageError("bad_limit", "count", f"got {quoted(count)}; give 1 to {_MOST_RUNS}")
    if (cron is None) == (every is None):
        raise MessageError("time_required", "cron", "give either cron or every")
    if cron is not None:
        cron = check_cron(cron, now_ms)
    definition = definition_of("preview", "", "", cron=cron, every=every, tz=check_zone(tz))
    check_every(definition.every_ms)
    return preview_of_definition(definition, count, now_ms)


def preview_of_definition(definition: Definition, count: int, now_ms: int) -> Preview:
    """The words and the next runs of a definition."""
    zone = ZoneInfo(definition.tz)
    found = islice(definition.times(now_ms), count)
    times = [(_EPOCH + timedelta(milliseconds=due_ms)).astimezone(zone) for due_ms in found]
    return Preview(definition.explained(), times)


def _content(body: object) -> tuple[str | None, bytes | None]:
    """The body as text if it is UTF-8, else as bytes."""
    if body is None or isinstance(body, str):
        return body, None
    if not isinstance(body, bytes | bytearray | memoryview):
        raise MessageError("bad_body", "body", f"got {type(body).__name__}; give bytes or text")
    try:
        return bytes(body).decode(), None
    except UnicodeDecodeError:
        return None, bytes(body)


def _header(name: object, value: object) -> Scalar:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise MessageError("bad_header", f"headers.{name}", "not UTF-8; give text") from None
    if not isinstance(value, str | int | float | None):
        what = f"got {type(value).__name__}; give text, a number or a boolean"
        raise MessageError("bad_header", f"headers.{name}", what)
    return value
