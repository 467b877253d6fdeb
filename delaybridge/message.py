"""The message: what a caller hands in, what lies in the store, what a publisher is given.

`Message` is the caller's view, unchecked (`accept.py` checks it). `Record` is what the store keeps.
A `Delivery` is one claimed message on its way to the broker.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Literal, NamedTuple
from urllib.parse import quote

import msgspec
import uuid_utils

from delaybridge import times
from delaybridge.errors import DecodeError

HeaderPairs = tuple[tuple[str, bytes | None], ...]
Headers = Mapping[str, Any] | Iterable[tuple[str, Any]]


class ContentHeader(NamedTuple):
    """A content header cut into the pieces a record keeps. flags: without that of the headers."""

    body_size: int
    flags: int
    before: bytes
    table: bytes
    after: bytes


Properties = Mapping[str, Any] | ContentHeader

OWN_HEADERS = ("delaybridge-id", "delaybridge-due-ms", "delaybridge-attempt")
RESERVED_PREFIX = "delaybridge-"
MAX_PRIORITY = 255
TABLE_KINDS = ("rabbitmq", "kombu")  # whose headers are kept as an encoded field table
_BASE32HEX = "0123456789abcdefghijklmnopqrstuv"
_SHIFTS = range(120, -1, -10)
PAIRS = [high + low for high in _BASE32HEX for low in _BASE32HEX]  # of which an id is made


class Answer(StrEnum):
    """What a call did: the words of the design, the same in Lua, Python, CLI and HTTP."""

    CREATED = "created"
    DUPLICATE = "duplicate"  # the id is pending already (with `fail`: with the same content)
    CONFLICT = "conflict"  # the id is pending with other content; nothing was done
    REPLACED = "replaced"
    IN_FLIGHT = "in_flight"  # handed to the broker, or about to be: too late
    CANCELLED = "cancelled"  # nothing of it is delivered after this answer
    CANCELLED_MAYBE_DELIVERED = "cancelled_maybe_delivered"  # an earlier publish may have arrived
    RESCHEDULED = "rescheduled"
    RESCHEDULED_MAYBE_DELIVERED = "rescheduled_maybe_delivered"
    DEAD = "dead"  # it lies in the dead set: kick it instead
    KICKED = "kicked"
    DISCARDED = "discarded"
    UNREADABLE = "unreadable"  # in the dead set without a record that can be read: no kick helps
    UNKNOWN = "unknown"  # no such message is pending
    FOREIGN = "foreign"  # from ingest only: the pending message is bound for somewhere else


class State(StrEnum):
    """Where a message is."""

    DELAYED = "delayed"  # waits for its time
    IN_FLIGHT = "in_flight"  # claimed by a worker: on its wheel or with the broker
    PARKED = "parked"  # waits until its broker takes messages again
    DEAD = "dead"  # given up, with a reason


class OnConflict(StrEnum):
    """What `schedule` does where the id is pending already."""

    FAIL = "fail"
    KEEP = "keep"
    REPLACE = "replace"


WAIT: Literal["wait"] = "wait"
"""Conflict policy of ingest alone: as FAIL, but while the id's message is with the broker the
answer is `in_flight`, whatever the content; the caller schedules again once it is settled."""
ConflictPolicy = OnConflict | Literal["wait"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What is accepted; sizes in bytes. The last four: how much may be pending; 0 is no limit."""

    body_bytes: int = 256 * 1024
    headers: int = 64
    headers_bytes: int = 32 * 1024
    id_bytes: int = 255
    delay_ms: int = 10 * times.YEAR_MS
    pending_messages: int = 0
    pending_bytes: int = 0
    destination_messages: int = 0
    destination_bytes: int = 0


class Destination(NamedTuple):
    """Where a message goes: a configured broker's name and an address inside it.

    address: exchange (RabbitMQ; "" is the default exchange), topic, stream or queue.
    routing_key: RabbitMQ only; for the default exchange the queue.
    """

    broker: str
    kind: str
    address: str
    routing_key: str = ""

    def __str__(self) -> str:
        if self.kind != "rabbitmq":
            return f"{self.broker}:{self.address}"
        return f"{self.broker}:{quote(self.address, safe='')}/{self.routing_key}"

    @property
    def label(self) -> str:
        """The destination without its routing key, for circuits, counters and lists."""
        return str(self) if not self.address else str(self._replace(routing_key="")).rstrip("/")


class Record(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A message as it lies in the store, behind the head that the scripts read.

    headers: for RabbitMQ and kombu the encoded field table, byte for byte; else pairs, order and
    duplicates kept. properties: for RabbitMQ `(flags, before, after)`, the property list as
    encoded, cut where the header table goes, or None; for kombu a field table, of any names. ttl_ms
    counts from the due time.
    """

    destination: str
    body: bytes | None
    headers: bytes | HeaderPairs = ()
    properties: tuple[int, bytes, bytes] | bytes | None = None
    key: bytes | None = None
    partition: int | None = None
    ttl_ms: int | None = None
    at_most_once: bool = False

    @property
    def size(self) -> int:
        """Bytes that a window counts for this message."""
        headers = self.headers
        extra = (
            len(headers)
            if isinstance(headers, bytes)
            else sum(len(n) + len(v or b"") for n, v in headers)
        )
        return len(self.body or b"") + len(self.key or b"") + extra + 128

    def suits(self, kind: str) -> bool:
        """Whether it was encoded for a broker of that kind, and not for one of another kind."""
        if not isinstance(self.headers, bytes) or kind not in TABLE_KINDS:
            return isinstance(self.headers, tuple) and kind not in TABLE_KINDS
        if isinstance(self.properties, bytes):
            return kind == "kombu"
        # RabbitMQ's destinations have a slash; older records for kombu may lack properties.
        return kind == "rabbitmq" or (self.properties is None and "/" not in self.destination)


encode_record = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(Record)


def decode_record(data: bytes) -> Record:
    """The record; DecodeError if the bytes are none."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise DecodeError("undecodable", "record", str(exc)) from None


def destination_text(record: bytes) -> str:
    """The destination of an encoded record, or of its beginning; empty if it cannot be read."""
    at = 3 if record[:1] == b"\xdc" else 1  # behind the length of the array: 16 fields or more
    kind = record[at] if len(record) > at else 0
    width = {0xD9: 1, 0xDA: 2}.get(kind, 0)  # of the text's own length, beside that in its type
    start = at + 1 + width
    size = int.from_bytes(record[at + 1 : start]) if width else kind & 0x1F
    is_text = width or 0xA0 <= kind <= 0xBF
    return record[start : start + size].decode(errors="replace") if is_text else ""


class _Addressed(msgspec.Struct, frozen=True):
    """What may be given by its place; all else goes by name."""

    destination: str
    body: bytes | str | None


class Message(_Addressed, frozen=True, kw_only=True):
    """A message to be delivered later, as a caller writes it; checked when it is scheduled.

    Exactly one of `delay` and `at` is given. `key`: Kafka's record key, and for every broker the
    order: messages of one key are delivered in due order. `headers`: a mapping, or pairs.
    `properties`: AMQP's by name (content_type, ...), or a content header that a client library
    encoded, which brings the headers along and is published as those bytes; for kombu any names;
    for Kafka `partition`. `priority`, 0..255, orders messages due in the same millisecond. `ttl`:
    how long after its due time it is worth delivering. `at_most_once`: rather lost than twice.
    """

    delay: timedelta | float | str | None = None
    at: datetime | str | None = None
    id: str | None = None
    key: bytes | str | None = None
    headers: Headers = {}
    properties: Properties = {}
    priority: int = 0
    ttl: timedelta | float | str | None = None
    at_most_once: bool = False


class Delivery:
    """One message on its way out. A publisher hands the same object back with its outcome."""

    __slots__ = ("attempt", "destination", "due_ms", "id", "record", "size")

    def __init__(
        self,
        id: str,
        record: Record,
        destination: Destination,
        due_ms: int,
        attempt: int,
    ) -> None:
        self.id = id
        self.record = record
        self.destination = destination
        self.due_ms = due_ms
        self.attempt = attempt  # 1 for the first
        self.size = record.size  # bytes that a window counts


def new_id() -> str:
    """A uuid7 in 26 characters of base32hex: unique, and ids sort by time as text."""
    number: int = uuid_utils.uuid7().int
    return "".join([PAIRS[number >> shift & 1023] for shift in _SHIFTS])


def rank_of(priority: int) -> int:
    """What orders messages of one millisecond: 0 first. score = due_ms + rank / 256."""
    return MAX_PRIORITY - priority
