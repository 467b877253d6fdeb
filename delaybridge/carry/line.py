"""A message as one line of JSON, version 1: a public form (docs/carry.md).

The names are those of the HTTP API. What is written by hand or by another program needs an id, a
destination, a due time and a body.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import UNSET, Meta, UnsetType

from delaybridge.accept.accept import DestinationCache, accept
from delaybridge.accept.json_body import body_given
from delaybridge.errors import DecodeError, MessageError, printable
from delaybridge.message import MAX_PRIORITY, Limits, Message, State, id_as_given, id_in_store
from delaybridge.operate.views.described import plain
from delaybridge.store.protocol.record import HEAD_SIZE, split_record
from delaybridge.store.protocol.replies import Row
from delaybridge.store.protocol.stored import stored
from delaybridge.times import YEAR_3000_MS, at_ms, epoch_ms

VERSION = 1
Moment = Annotated[int, Meta(ge=0, lt=YEAR_3000_MS)] | None
_BOM = b"\xef\xbb\xbf"
_NAMED = re.compile(r"field `([^`]+)`")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NO_LIMITS = Limits(body_bytes=2**40, headers=2**20, headers_bytes=2**40, delay_ms=2**53)
_SAME = (
    "id state destination due_ms priority ttl_ms at_most_once tenant attempts maybe_delivered "
    "first_due_ms last_error reason dead_ms fired"
).split()  # fields of a `Stored` under the same name


class Line(
    msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="v",
    tag=VERSION,
):  # fmt: skip
    """A message. Bytes that are no UTF-8 are in the fields that end in `_base64`.

    id: as it is stored, so of a tenant with its name in front. due: RFC 3339, instead of due_ms.
    body, body_json, body_base64: one of them; null: a tombstone of Kafka. The other fields are
    those of `GET /v1/messages/{id}`; all of state `in_flight` are told and not imported, unless
    that is asked for. version: which state of the message was exported; opaque. record_base64:
    as it is stored, if the fields alone would not give the same bytes.
    """

    id: str
    destination: str
    due_ms: int | None = None
    due: str | None = None
    state: State = State.DELAYED
    body: str | None | UnsetType = UNSET
    body_json: msgspec.Raw | UnsetType = UNSET
    body_base64: bytes | UnsetType = UNSET
    key: str | None = None
    key_base64: bytes | None = None
    headers: dict[str, Any] | list[tuple[str, Any]] = {}
    properties: dict[str, Any] = {}
    priority: Annotated[int, Meta(ge=0, le=MAX_PRIORITY)] = 0
    ttl_ms: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    at_most_once: bool = False
    retry: dict[str, Any] | None = None
    tenant: str = ""
    attempts: Annotated[int, Meta(ge=0, le=999_999_999)] = 0
    maybe_delivered: bool = False
    fired: bool = False
    first_due_ms: Moment = None
    last_error: str | None = None
    failing_since_ms: Moment = None
    reason: str | None = None
    dead_ms: Moment = None
    version: str = ""
    record_base64: bytes | None = None

    def message(self) -> Message:
        """As the client takes it, not checked yet. MessageError."""
        id = id_as_given(self.id, self.tenant)
        if id_in_store(id, self.tenant) != self.id:
            what = f"an id of tenant {self.tenant} begins with {self.tenant}/"
            raise MessageError("bad_id", "id", what)
        body = body_given(self.body, self.body_json, self.body_base64)
        return Message(
            self.destination, body, at=self.at(), id=id, tenant=self.tenant,
            key=self.shard_key(), headers=self.headers, properties=self.properties,
            priority=self.priority,
            ttl=None if self.ttl_ms is None else timedelta(milliseconds=self.ttl_ms),
            at_most_once=self.at_most_once, retry=self.retry,
        )  # fmt: skip

    def at(self) -> datetime:
        """When it is due. MessageError."""
        if (self.due_ms is None) == (self.due is None):
            code = "time_required" if self.due is None else "time_ambiguous"
            raise MessageError(code, "due_ms", "give one of due_ms and due")
        if self.due_ms is None:
            return _EPOCH + timedelta(milliseconds=at_ms(self.due or "", field="due"))
        return _EPOCH + timedelta(milliseconds=epoch_ms(self.due_ms, field="due_ms"))

    def shard_key(self) -> str | bytes | None:
        """Its key. MessageError: it has two."""
        if self.key is not None and self.key_base64 is not None:
            raise MessageError("bad_key", "key", "give one of key and key_base64")
        return self.key if self.key_base64 is None else self.key_base64


class BadLine(NamedTuple):
    """A line, or an entry of another system, that is no message.

    place: where it is, as `line 17`. field: at fault, as `due_ms`. what: is wrong, and the remedy.
    """

    place: str
    field: str
    what: str

    def __str__(self) -> str:
        return printable(f"{self.place}: {self.field}: {self.what}")


_decoder = msgspec.json.Decoder(Line)
encode_line = msgspec.json.Encoder().encode


def read_line(text: bytes | None, place: str) -> Line | BadLine:
    """The line, or what is wrong with it. None: it is too long to be kept."""
    if text is None:
        return BadLine(place, "line", "too long for a message")
    try:
        return _decoder.decode(text.removeprefix(_BOM))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        what, _, field = str(exc).partition(" - at `$")
        named = _NAMED.search(what)
        if field.strip(".`") == "v":
            what = f"{what}; this program reads version {VERSION}"
        return BadLine(place, named[1] if named else field.strip(".`") or "line", what)


def exported(
    row: Row, bucket: int, kinds: Mapping[str, str], cache: DestinationCache
) -> Line | BadLine:
    """A stored message as a line; with `record_base64` unless its other fields give the same bytes.

    kinds: name of each configured broker -> its kind. What a consumer of a pull topic has is
    `in_flight`. BadLine: not even its head can be read.
    """
    try:
        _, payload = split_record(row.record)
    except DecodeError as exc:
        return BadLine(row.id, exc.field, f"{exc.detail}; it stays where it is")
    found = stored(row, bucket)
    line = Line(**{name: getattr(found, name) for name in _SAME}, record_base64=payload)
    line.version = row.record[1:HEAD_SIZE].hex()
    line.failing_since_ms = found.failing_ms
    if not found.is_readable:
        return line
    if row.is_given and found.due_ms * 1_000_000 > time.time_ns():
        line.state = State.IN_FLIGHT
    line.headers = [(name, plain(value)) for name, value in found.headers] or {}
    line.properties = {name: plain(value) for name, value in found.properties.items()}
    line.retry = None if found.retry is None else msgspec.to_builtins(found.retry)
    line.body, line.body_base64 = _text_or_bytes(found.body)
    if found.key is not None:
        key, data = _text_or_bytes(found.key)
        line.key, line.key_base64 = (key, None) if data is UNSET else (None, data)
    with suppress(MessageError):
        if accept(line.message(), kinds, _NO_LIMITS, cache).payload == payload:
            line.record_base64 = None
    return line


def _text_or_bytes(value: bytes | None) -> tuple[Any, Any]:
    try:
        return None if value is None else value.decode(), UNSET
    except UnicodeDecodeError:
        return UNSET, value
