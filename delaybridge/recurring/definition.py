"""A definition of a recurring message: its fields, their check, and the message of one run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import dropwhile, takewhile
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from delaybridge import late
from delaybridge.errors import MessageError, quoted
from delaybridge.message import TENANT, Message, id_as_given, id_in_store
from delaybridge.recurring.cron import check_cron, check_zone, cron_times, explained
from delaybridge.recurring.template import check_template, filled
from delaybridge.times import YEAR_3000_MS, YEAR_MS, epoch_ms, format_duration, format_time

MISSED = ("skip", "one", "all")
DEFINITION_BYTES = 128 * 1024
SKIP_TTL_MS = 60_000
EVERY_MS = (1000, 10 * YEAR_MS)
_NAME = late.pattern(rf"(?:{TENANT}/)?[A-Za-z0-9][A-Za-z0-9._-]{{0,99}}")
_TEXT_FIELDS = ("destination", "body", "tz", "key", "cron")
Scalar = str | int | float | bool | None
GIVEN_AS_TEXT = {"every_ms": "every", "start_ms": "start", "end_ms": "end", "ttl_ms": "ttl"}
"""Fields that callers give as text, by other names."""
Moment = Annotated[int, Meta(ge=0, lt=YEAR_3000_MS)]


class Definition(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What is sent, where, and when. As JSON it is a value of the hash `recurring`.

    name: 1 to 100 of `a-z A-Z 0-9 . _ -`; of a tenant with its name and a slash in front.
    destination, key, headers, properties, priority, ttl_ms, at_most_once, retry, tenant: as of a
    `Message`. body: text; or body_base64: bytes; neither: null (Kafka
    only). cron: 5 fields, or 6 with seconds in front, in the time zone `tz`; or every_ms: whole
    seconds, counted from start_ms, else from 1970 in UTC. start_ms, end_ms: no run is due before or
    after. missed: of the runs that became due while no worker ran: `skip` none, `one`, or `all`.
    paused: no run is made.
    """

    name: str
    destination: str
    body: str | None = None
    body_base64: bytes | None = None
    cron: str | None = None
    tz: str = "UTC"
    every_ms: Annotated[int, Meta(ge=1000, le=10 * YEAR_MS)] | None = None
    start_ms: Moment | None = None
    end_ms: Moment | None = None
    missed: Literal["skip", "one", "all"] = "one"
    paused: bool = False
    headers: tuple[tuple[str, Scalar], ...] = ()
    properties: dict[str, Scalar] = {}
    key: str | None = None
    priority: int = 0
    ttl_ms: Moment | None = None
    at_most_once: bool = False
    retry: dict[str, Any] | None = None
    tenant: str = ""

    @classmethod
    def given_fields(cls) -> list[tuple[str, Any, Any]]:
        """Name, type and default of each field as callers give it: times and delays as text.

        Without its name, which paths and arguments have, and its tenant, which tokens have.
        """
        objects: dict[str, tuple[Any, Any]] = dict.fromkeys(
            ("headers", "properties"), (dict[str, Scalar], {})
        )
        found: list[tuple[str, Any, Any]] = []
        for field in msgspec.structs.fields(cls):
            if field.name in GIVEN_AS_TEXT:
                found.append((GIVEN_AS_TEXT[field.name], str | None, None))
            elif field.name not in ("name", "tenant"):
                own = objects.get(field.name, (field.type, field.default))
                found.append((field.name, *own))
        return found

    @property
    def given_name(self) -> str:
        """The name without the tenant."""
        return id_as_given(self.name, self.tenant)

    @property
    def content(self) -> bytes | None:
        """The body before placeholders are replaced."""
        return self.body_base64 if self.body is None else self.body.encode()

    @property
    def grid(self) -> tuple[object, ...]:
        """Definitions with the same grid have the same due times, apart from where they end."""
        return self.cron, self.tz, self.every_ms, self.start_ms

    @property
    def spec(self) -> str:
        """When it runs, in short: `*/15 9-17 * * MON-FRI`, or `every 30s`."""
        return self.cron or f"every {format_duration(self.every_ms or 0)}"

    @property
    def shard_key(self) -> bytes:
        """Decides the bucket of all its messages."""
        return (self.name if self.key is None else self.key).encode()

    def explained(self) -> str:
        """When it runs, in words."""
        return explained(self.cron) if self.cron else self.spec[0].upper() + self.spec[1:]

    def times(self, after_ms: int) -> Iterator[int]:
        """Due times after `after_ms`, in epoch ms, strictly ascending."""
        start_ms, end_ms = self.start_ms or 0, self.end_ms
        if self.cron is not None:
            after_ms = max(after_ms, start_ms - 1000)
            found = cron_times(self.cron, self.tz, after_ms)
            found = dropwhile(lambda due_ms: due_ms < start_ms, found)
        else:
            found = _every(self.every_ms or EVERY_MS[1], start_ms, after_ms)
        return found if end_ms is None else takewhile(lambda due_ms: due_ms <= end_ms, found)

    def message(self, due_ms: int, *, id: str | None = None, ttl_ms: int | None = None) -> Message:
        """The message of the run due at this time. id: instead of `NAME@DUE`."""
        due = due_text(due_ms)
        values = {"due": due, "due_ms": str(due_ms), "name": self.given_name}
        content = self.content
        return Message(
            self.destination,
            None if content is None else filled(content, values),
            at=datetime.fromtimestamp(due_ms // 1000, UTC) + timedelta(milliseconds=due_ms % 1000),
            id=f"{self.given_name}@{due}" if id is None else id,
            key=self.key,
            headers=[(name, _filled(value, values)) for name, value in self.headers],
            properties=self.properties,
            priority=self.priority,
            ttl=None if ttl_ms is None else timedelta(milliseconds=ttl_ms),
            at_most_once=self.at_most_once,
            retry=self.retry,
            tenant=self.tenant,
        )

    def checked(self, now_ms: int) -> Definition:
        """Itself in its canonical form. MessageError names the field at fault.

        The parts of its message are checked when that is accepted.
        """
        _check_own_name(self)
        for field in _TEXT_FIELDS:
            _check_text(getattr(self, field), field)
        if self.body is not None and self.body_base64 is not None:
            raise MessageError("bad_body", "body", "given together with body_base64; give one")
        self._check_templates()
        if self.missed not in MISSED:
            detail = f"got {quoted(self.missed)}; use one of {', '.join(MISSED)}"
            raise MessageError("bad_missed", "missed", detail)
        for field in ("start_ms", "end_ms"):
            if (at_ms := getattr(self, field)) is not None:
                epoch_ms(at_ms, field=field.removesuffix("_ms"))
        found = msgspec.structs.replace(self, **self._checked_times(now_ms))
        if next(found.times((found.start_ms or 1) - 1), None) is None:
            raise MessageError("bad_time", "end", "no run is due between start and end")
        if len(msgspec.json.encode(found)) > DEFINITION_BYTES:
            detail = f"the definition has more than {DEFINITION_BYTES:,} bytes"
            raise MessageError("body_too_large", "body", detail)
        return found

    def _checked_times(self, now_ms: int) -> dict[str, Any]:
        if (self.cron is None) == (self.every_ms is None):
            raise MessageError("time_required", "cron", "give either cron or every")
        if self.cron is not None:
            return {"cron": check_cron(self.cron, now_ms), "tz": check_zone(self.tz)}
        if self.tz != "UTC":
            raise MessageError("bad_tz", "tz", "only together with cron; every counts real time")
        check_every(self.every_ms)
        start_ms = self.start_ms
        return {} if start_ms is None else {"start_ms": -(-start_ms // 1000) * 1000}

    def _check_templates(self) -> None:
        check_template(self.content or b"", "body")
        for name, value in self.headers:
            _check_text(name, "headers")
            if isinstance(value, str):
                _check_text(value, "headers")
                check_template(value.encode(), f"headers.{name}")


def read_definition(name: str, fields: object) -> Definition:
    """A definition from the fields of its JSON object. MessageError says what makes no sense.

    Unknown fields are ignored: a newer version may have written them.
    """
    if not isinstance(fields, Mapping):
        raise MessageError("bad_definition", name, "not a JSON object")
    try:
        return msgspec.convert({**fields, "name": name}, Definition)
    except (msgspec.ValidationError, RecursionError) as exc:
        raise MessageError("bad_definition", name, str(exc)) from None


def is_name(text: str) -> bool:
    """Whether a definition may have this name; no cron expression does."""
    return _NAME.fullmatch(text) is not None


def check_name(name: object) -> str:
    """The name of a definition; MessageError `bad_name`."""
    if not isinstance(name, str) or not is_name(name):
        raise _bad_name(name)
    return name


def _bad_name(name: object) -> MessageError:
    detail = f"got {quoted(name)}; use 1 to 100 of a-z A-Z 0-9 . _ -, a letter or digit first"
    return MessageError("bad_name", "name", detail)


def _check_own_name(one: Definition) -> None:
    """MessageError unless its tenant, and no other, is in front of its name."""
    given = one.given_name if isinstance(one.name, str) else ""
    if one.name != id_in_store(check_name(given), one.tenant) or "/" in given:
        raise _bad_name(one.name)


def check_every(every_ms: int | None) -> None:
    """MessageError `bad_every` if a definition may not have this interval; None is accepted."""
    least, most = EVERY_MS
    if every_ms is not None and (not least <= every_ms <= most or every_ms % 1000):
        detail = f"got {quoted(every_ms)} ms; give whole seconds, 1 s to 10 years"
        raise MessageError("bad_every", "every", detail)


def due_text(due_ms: int) -> str:
    """A due time as ids and placeholders have it: `2026-11-23T09:00:00Z`."""
    return format_time(due_ms).replace(".000Z", "Z")


def _every(every_ms: int, start_ms: int, after_ms: int) -> Iterator[int]:
    due_ms = start_ms + max((after_ms - start_ms) // every_ms + 1, 0) * every_ms
    while True:
        yield due_ms
        due_ms += every_ms


def _filled(value: Scalar, values: dict[str, str]) -> Scalar:
    return filled(value.encode(), values).decode() if isinstance(value, str) else value


def _check_text(value: object, field: str) -> None:
    try:
        str(value or "").encode()
    except UnicodeEncodeError:
        raise MessageError("bad_text", field, "not valid UTF-8") from None
