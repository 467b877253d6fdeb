"""The shapes of messages in requests and answers; OpenAPI is made of them."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from delaybridge.accept.json_body import body_given
from delaybridge.errors import MessageError
from delaybridge.gathering import gathering_of
from delaybridge.ledger.recording.life_of_id import RecordedLife
from delaybridge.message import Message, OnConflict
from delaybridge.serve.http.problems import Problem
from delaybridge.store.messages.scheduling import Receipt
from delaybridge.store.protocol.stored import Stored
from delaybridge.times import epoch_ms, format_time, offset_ms

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SHORT, _RECENT = 255, 256  # characters; texts


class Due(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """When: one of the three."""

    delay: str | None = None
    due: str | None = None
    due_ms: int | None = None

    def at(self) -> datetime | str | None:
        """`due` or `due_ms`, as the client takes it. MessageError."""
        if [self.delay, self.due, self.due_ms].count(None) != 2:
            given = any(each is not None for each in (self.delay, self.due, self.due_ms))
            code = "time_ambiguous" if given else "time_required"
            raise MessageError(code, "delay", "give one of delay, due and due_ms")
        if self.due_ms is None:
            return self.due
        return _EPOCH + timedelta(milliseconds=epoch_ms(self.due_ms, field="due_ms"))


class NewDue(Due, kw_only=True):
    """When, or by how much later: `by` as `+10m` or `-1h`."""

    by: str | None = None

    def by_ms(self) -> int:
        """`by` as a number of milliseconds. MessageError."""
        if any(each is not None for each in (self.delay, self.due, self.due_ms)):
            raise MessageError("time_ambiguous", "by", "give one of delay, due, due_ms and by")
        return offset_ms(self.by or "")


class NewMessage(Due, kw_only=True):
    """A message to schedule. Its body is one of text, JSON and base64.

    debounce, throttle: in place of a time, the key of what is debounced, with quiet and longest, or
    throttled, with every.
    """

    debounce: str | None = None
    throttle: str | None = None
    quiet: str | None = None
    longest: str | None = None
    every: str | None = None
    destination: str
    body: str | None | UnsetType = UNSET
    body_json: msgspec.Raw | UnsetType = UNSET
    body_base64: bytes | UnsetType = UNSET
    id: str | None = None
    key: str | None = None
    headers: dict[str, Any] | list[tuple[str, Any]] = {}
    properties: dict[str, Any] = {}
    priority: int = 0
    ttl: str | None = None
    at_most_once: bool = False
    retry: dict[str, Any] | None = None
    on_conflict: OnConflict = OnConflict.FAIL

    def message(self) -> Message:
        """As the client takes it, not checked yet. MessageError."""
        gathering, at, delay, to = None, None, self.delay, self.destination
        is_plain = self.due is self.debounce is self.throttle is None and self.due_ms is None
        if delay is None or not (is_plain and self.quiet is self.longest is self.every is None):
            gathering, at = gathering_of(msgspec.structs.asdict(self)), self.at()
        # The same objects again, since the client recognizes a destination and a delay by identity.
        # Not interned: what a client sent must not outlive it, and some versions of Python 3.12
        # keep an interned text for ever.
        if len(to) + len(delay or "") <= _SHORT:
            to, delay = _recent(to), delay and _recent(delay)
        return Message(
            to, body_given(self.body, self.body_json, self.body_base64),
            delay=gathering or delay, at=at, id=self.id, key=self.key, headers=self.headers,
            properties=self.properties, priority=self.priority, ttl=self.ttl,
            at_most_once=self.at_most_once, retry=self.retry,
        )  # fmt: skip

    def at(self) -> datetime | str | None:
        if self.debounce is None and self.throttle is None:
            return super().at()
        if [self.delay, self.due, self.due_ms, self.id].count(None) != 4:
            what = "a debounce or throttle has no delay, due, due_ms and id; give one"
            raise MessageError("time_ambiguous", "delay", what)
        return None


@lru_cache(_RECENT)
def _recent(text: str) -> str:
    return text


class ScheduledMessage(msgspec.Struct, omit_defaults=True):
    """A message is stored. result: created, duplicate, replaced, kept. due_ms: on Redis' clock."""

    id: str
    result: str
    due: str
    due_ms: int
    duplicate: bool = False


class ChangedMessage(msgspec.Struct, omit_defaults=True):
    """The answer to a change of one message: the words of the library. notes: what is left out."""

    id: str
    result: str
    notes: list[str] = []


class StoredMessage(msgspec.Struct, omit_defaults=True):
    """A message in the store. Bytes that are no UTF-8 are in the fields that end in `_base64`.

    life: only with a ledger, which also shows messages that have ended. tenant: whose it is, for
    tokens of no tenant; its name is the beginning of the id.
    """

    id: str
    state: str
    destination: str
    due: str
    due_ms: int
    attempts: int
    body_bytes: int | None
    body: str | None | UnsetType = UNSET
    body_base64: str | UnsetType = UNSET
    key: str | None = None
    key_base64: str | None = None
    headers: list[tuple[str, Any]] = []
    properties: dict[str, Any] = {}
    priority: int = 0
    ttl_ms: int | None = None
    at_most_once: bool = False
    retry: dict[str, Any] | None = None
    maybe_delivered: bool = False
    fired: bool = False
    first_due: str | None = None
    first_due_ms: int | None = None
    last_error: str | None = None
    failing_since_ms: int | None = None
    reason: str | None = None
    dead: str | None = None
    dead_ms: int | None = None
    bucket: int = 0
    tenant: str = ""
    life: RecordedLife | None = None


class MessagePage(msgspec.Struct):
    """Some messages. next_cursor: pass it on as `cursor` for the next page; null on the last.

    unseen: numbers of buckets whose Redis server is silent; their messages are missing.
    """

    items: Sequence[StoredMessage]
    next_cursor: str | None
    unseen: list[int] = []


def scheduled(receipt: Receipt) -> ScheduledMessage:
    """The shape of a receipt; Problem if nothing was stored."""
    if (found := RESULTS.get(receipt)) is None:
        raise too_late(receipt.id, receipt.answer)
    due_ms, result = receipt.due_ms, found[1]
    return ScheduledMessage(receipt.id, result, due_text(due_ms), due_ms, result == "duplicate")


RESULTS = {
    "created": (201, "created"),
    **{word: (200, word) for word in ("duplicate", "replaced", "kept")},
}
"""The answers of the store if a message is in it: the status, and the word."""
due_text = lru_cache(1000)(format_time)
"""A due time as it is shown; many messages are due together."""


def too_late(id: str, answer: str) -> Problem:
    """The problem of a message that cannot be changed any more."""
    what = f"{id[:80]!r} was handed to the broker, or is about to be"
    return Problem(409, answer, what, "$.id")


def may_live(id: str) -> Problem:
    """The problem of a dead message that is elsewhere, too, as a key came back old."""
    what = f"{id[:80]!r} may live: it is dead and elsewhere; try again once that is mended"
    return Problem(409, "in_flight", what, "$.id")


def shape_of(stored: Stored, *, with_body: bool) -> StoredMessage:
    """The shape of a stored message."""
    made = StoredMessage(
        state=stored.state.value,
        due=format_time(stored.due_ms),
        body_bytes=None if stored.body is None else len(stored.body),
        headers=[(name, _plain(value)) for name, value in stored.headers],
        properties={name: _plain(value) for name, value in stored.properties.items()},
        first_due=None if stored.first_due_ms is None else format_time(stored.first_due_ms),
        dead=None if stored.dead_ms is None else format_time(stored.dead_ms),
        failing_since_ms=stored.failing_ms,
        retry=None if stored.retry is None else msgspec.to_builtins(stored.retry),
        **{name: getattr(stored, name) for name in _SAME},
    )
    made.key, made.key_base64 = as_text(stored.key)
    if with_body:
        text, data = as_text(stored.body)
        if data is None:
            made.body = text
        else:
            made.body_base64 = data
    return made


_OTHERS = {"state", "headers", "properties", "retry", "key", "body"}
_SAME = [
    each.name
    for each in fields(Stored)
    if each.name in StoredMessage.__struct_fields__ and each.name not in _OTHERS
]


def as_text(value: bytes | None) -> tuple[str | None, str | None]:
    """Text, or base64 of what is no UTF-8."""
    if value is None:
        return None, None
    try:
        return value.decode(), None
    except UnicodeDecodeError:
        return None, base64.b64encode(value).decode()


def _plain(value: Any) -> Any:
    """The value of a header as JSON can hold it."""
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    try:
        return msgspec.to_builtins(value, str_keys=True)
    except TypeError:
        return str(value)
