"""One message in its three forms.

A caller passes in a `Message`, not yet checked. The store keeps a `Record`, which `accept` makes of
it. A `Delivery` is a claimed message on its way to a broker.
"""

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Literal, NamedTuple
from urllib.parse import quote

import msgspec
import uuid_utils

from delaybridge import times
from delaybridge.backoff import RetryPlan
from delaybridge.errors import DecodeError
from delaybridge.gathering import Gathering, Later

HeaderPairs = tuple[tuple[str, bytes | None], ...]
Headers = Mapping[str, Any] | Iterable[tuple[str, Any]]


class ContentHeader(NamedTuple):
    """An AMQP content header, split at its header table into the parts that a record keeps.

    flags: the property flags, except the one for the header table.
    """

    body_size: int
    flags: int
    before: bytes
    table: bytes
    after: bytes


Properties = Mapping[str, Any] | ContentHeader

OWN_HEADERS = ("delaybridge-id", "delaybridge-due-ms", "delaybridge-attempt")
RESERVED_PREFIX = "delaybridge-"
MAX_PRIORITY = 255
TENANT_CHARS = 31  # the most of a tenant's name: its length is then one byte of the record
TENANT = rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{TENANT_CHARS - 1}}}"  # a regular expression
_TENANT = re.compile(TENANT)
PULL = "pull"  # name and kind of the topics that consumers receive from, without a broker
TABLE_KINDS = ("rabbitmq", "kombu")  # kinds whose headers are kept as an encoded field table
_BASE32HEX = "0123456789abcdefghijklmnopqrstuv"
_SHIFTS = range(120, -1, -10)
PAIRS = [high + low for high in _BASE32HEX for low in _BASE32HEX]  # an id is 13 of them


class Answer(StrEnum):
    """The answer to a call. The words are the same in Lua, Python and on the command line."""

    CREATED = "created"
    DUPLICATE = "duplicate"  # pending (with `fail`: same content), or delivered within the window
    CONFLICT = "conflict"  # the id is pending with other content; nothing was changed
    REPLACED = "replaced"
    IN_FLIGHT = "in_flight"  # too late: handed to the broker, or about to be; if dead: it may live
    CANCELLED = "cancelled"  # it is not delivered after this answer
    CANCELLED_MAYBE_DELIVERED = "cancelled_maybe_delivered"  # an earlier publish may have arrived
    RESCHEDULED = "rescheduled"  # it is not delivered before its new due time
    RESCHEDULED_MAYBE_DELIVERED = "rescheduled_maybe_delivered"  # as for cancelled
    DEAD = "dead"  # in the dead set: only kick and discard change it
    KICKED = "kicked"  # taken out of the dead set, due now
    DISCARDED = "discarded"  # deleted from the dead set
    REDIRECTED = "redirected"  # it goes to its new destination, and to no other
    REDIRECTED_MAYBE_DELIVERED = "redirected_maybe_delivered"  # as for cancelled, to the old one
    REFUSED = "refused"  # the new destination does not take it: it stays as it is
    CHANGED = "changed"  # it is not as it was found: it stays as it is now
    UNREADABLE = "unreadable"  # its record cannot be decoded: it stays as it is
    UNKNOWN = "unknown"  # no such message is pending, or none is dead
    FINISHED = "finished"  # received from a pull topic, and done
    EXTENDED = "extended"  # received, and its consumer has more time
    RELEASED = "released"  # received, and given back
    FOREIGN = "foreign"  # to ingest only: the pending message goes to another destination
    KEPT = "kept"  # throttled: delivered at the end of the span, unless another takes its place


class State(StrEnum):
    """Where a message is. A published or cancelled message is no longer stored: it has no state."""

    DELAYED = "delayed"  # waits for its due time
    IN_FLIGHT = "in_flight"  # claimed by a worker: on its wheel or with the broker
    PARKED = "parked"  # due, waits until its broker or destination takes messages again
    DEAD = "dead"  # given up, with a reason


class OnConflict(StrEnum):
    """What `schedule` does if the id is pending. For one that is fired it waits, whatever it is."""

    FAIL = "fail"  # same content: duplicate; other content: conflict
    KEEP = "keep"  # duplicate, whatever the content
    REPLACE = "replace"  # the new message takes the place of the pending one


KNOWN: Literal["known"] = "known"
"""Conflict policy for recurring messages only: as KEEP, but nothing happens unless the bucket knows
the source that they come from (then the list of answers is empty); a run has its id, so also a
fired one is a duplicate."""
CARRIED: Literal["carried"] = "carried"
"""Conflict policy for messages that were tried elsewhere: as FAIL, and their attempts are kept."""
ConflictPolicy = OnConflict | Literal["known", "carried"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of one message and of a namespace. 0: no limit; for those of a namespace only.

    body_bytes: the most bytes of a body, and of a key. headers, headers_bytes: the most headers of
    a message, and their bytes in all. id_bytes: the most bytes of an id. delay_ms: the longest
    delay in milliseconds. pending_messages, pending_bytes: how much may be pending in the
    namespace; destination_messages, destination_bytes: the same for each destination;
    tenant_messages, tenant_bytes: for each tenant, unless `tenants` has other numbers for it.
    """

    body_bytes: int = 256 * 1024
    headers: int = 64
    headers_bytes: int = 32 * 1024
    id_bytes: int = 255
    delay_ms: int = 10 * times.YEAR_MS
    pending_messages: int = 0
    pending_bytes: int = 0
    destination_messages: int = 0
    destination_bytes: int = 0
    tenant_messages: int = 0
    tenant_bytes: int = 0
    tenants: Mapping[str, tuple[int, int]] = field(default_factory=dict, hash=False)


class Destination(NamedTuple):
    """Where a message goes: the name of a configured broker, and an address inside it.

    kind: of the broker, as `rabbitmq`. address: exchange (RabbitMQ; "" is the default exchange),
    topic, stream or queue. routing_key: RabbitMQ only; for the default exchange the queue.
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


class MessagePlan(RetryPlan, frozen=True, omit_defaults=True):
    """The retry plan of one message. Fields that are None are as if it had none.

    max_attempts: then it is given up. base_ms: the wait after the first failure; factor: each
    further wait is longer by it; max_ms: the longest wait; jitter: the share by which each wait
    varies at random. dead_letter: the destination that it is published to when it is given up.
    """

    dead_letter: str | None = None


class Record(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A message as the store keeps it, after the head that the scripts read.

    headers: for RabbitMQ and kombu the encoded field table, byte for byte; for other kinds pairs,
    in order and with duplicates. properties: for RabbitMQ `(flags, before, after)`, the encoded
    property list split where the header table belongs, or None; for kombu a field table with any
    names. partition: Kafka only; None lets the worker choose it by the key. ttl_ms counts from the
    due time.
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
    def retry(self) -> MessagePlan | None:
        """The message's own retry plan."""
        return None

    @property
    def tenant(self) -> str:
        """Whose message it is: it is stored as `TENANT/ID` and delivered as `ID`; empty: as it is
        stored."""
        return ""

    def given_id(self, id: str, due_ms: int) -> str:
        """The id that consumers see of a message that is stored under this one."""
        return id

    @property
    def size(self) -> int:
        """The bytes that count against a window."""
        headers = self.headers
        if isinstance(headers, bytes):
            size = len(headers) + 128
        else:
            size = sum([len(n) + len(v or b"") for n, v in headers]) + 128
        return size + len(self.body or b"") + len(self.key or b"")

    def suits(self, kind: str) -> bool:
        """Whether the record was encoded for brokers of this kind."""
        if not isinstance(self.headers, bytes) or kind not in TABLE_KINDS:
            return isinstance(self.headers, tuple) and kind not in TABLE_KINDS
        if isinstance(self.properties, bytes):
            return kind == "kombu"
        # Destinations on RabbitMQ have a slash; older records for kombu may have no properties.
        return kind == "rabbitmq" or (self.properties is None and "/" not in self.destination)


class PlannedRecord(Record, array_like=True, frozen=True, gc=False):
    """A record with a retry plan, as its ninth item; versions that know no plans ignore it."""

    retry: MessagePlan | None = None


class TenantRecord(Record, array_like=True, frozen=True, gc=False):
    """A record of a tenant, named by its tenth item; the ninth is the plan, or None."""

    retry: MessagePlan | None = None
    tenant: str = ""

    def given_id(self, id: str, due_ms: int) -> str:
        return id_as_given(id, self.tenant) if self.tenant else id


class GatheredRecord(TenantRecord, array_like=True, frozen=True, gc=False):
    """A record of a debounce or a throttle, whose messages follow each other under one id.

    To consumers each is a message of its own, named also by when it was due. until_ms: the eleventh
    item: until when it may be postponed, written by the script that stores it; 0: it is throttled.
    """

    until_ms: float = 0.0

    def given_id(self, id: str, due_ms: int) -> str:
        return f"{super().given_id(id, due_ms)}@{due_ms}"


def planned(
    record: Record, plan: MessagePlan | None, tenant: str = "", gathering: Gathering | None = None
) -> Record:
    """The record with a plan, a tenant and a gathering, as far as it has them."""
    if gathering is not None:
        return GatheredRecord(**msgspec.structs.asdict(record), retry=plan, tenant=tenant)
    if tenant:
        return TenantRecord(**msgspec.structs.asdict(record), retry=plan, tenant=tenant)
    if plan is None:
        return record
    return PlannedRecord(**msgspec.structs.asdict(record), retry=plan)


encode_record = msgspec.msgpack.Encoder().encode
_NINE_ITEMS, _TEN_ITEMS, _MORE_ITEMS = 0x99, 0x9A, 0x9B  # the first byte of such an array
_KINDS = {_NINE_ITEMS: PlannedRecord, _TEN_ITEMS: TenantRecord, _MORE_ITEMS: GatheredRecord}
_PLAN = 8  # its place
_decoder = msgspec.msgpack.Decoder(Record)
_decoders = {items: msgspec.msgpack.Decoder(kind) for items, kind in _KINDS.items()}
ELEVEN_ITEMS = b"\x9b"
UNTIL_BYTES = 9  # of the eleventh item, always a float
TENANT_BYTES = 1 + TENANT_CHARS + UNTIL_BYTES  # of a record's end: they hold the tenant's name


def decode_record(data: bytes) -> Record:
    """The record; DecodeError if the bytes cannot be decoded. A plan that is invalid is ignored."""
    try:
        if data[0] < _NINE_ITEMS:
            return _decoder.decode(data)
        items = min(data[0], _MORE_ITEMS)
        with suppress(msgspec.ValidationError):
            return _decoders[items].decode(data)  # type: ignore[no-any-return]
        kept = msgspec.msgpack.decode(data, type=list)
        kept[_PLAN] = None
        return msgspec.convert(kept, _KINDS[items])  # type: ignore[no-any-return]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, IndexError) as exc:
        raise DecodeError("undecodable", "record", str(exc)) from None


def destination_text(record: bytes) -> str:
    """The destination of an encoded record, read from its beginning; empty if unreadable.

    The rest of the record is not needed and not read.
    """
    at = 3 if record[:1] == b"\xdc" else 1  # after the array's length; 0xdc: in two more bytes
    kind = record[at] if len(record) > at else 0
    width = {0xD9: 1, 0xDA: 2}.get(kind, 0)  # bytes of the text's length; 0: it is in the type
    start = at + 1 + width
    size = int.from_bytes(record[at + 1 : start]) if width else kind & 0x1F
    is_text = width or 0xA0 <= kind <= 0xBF
    return record[start : start + size].decode(errors="replace") if is_text else ""


def tenant_text(record: bytes) -> str:
    """The tenant of an encoded record, read from its end; empty if it has none.

    `destination_text` reads the beginning. Of a record only the last 41 bytes are needed, after its
    first one, which says that it has ten items, or more.
    """
    if record[:1] < bytes([_TEN_ITEMS]) or record[:1] >= b"\xa0":
        return ""
    if record[0] > _TEN_ITEMS:
        record = record[:-UNTIL_BYTES]
    for size in range(1, min(TENANT_CHARS, len(record) - 2) + 1):
        if record[-size - 1] == 0xA0 + size:  # no character of a tenant looks so
            return record[-size:].decode(errors="replace")
    return ""


Retry = MessagePlan | Mapping[str, Any] | None
Body = bytes | str | None | msgspec.UnsetType  # unset: the body is given as `json`


class _Addressed(msgspec.Struct, frozen=True):
    """The fields that may be positional arguments."""

    destination: str
    body: Body = msgspec.UNSET


class Message(_Addressed, frozen=True, kw_only=True):
    """A message to be delivered later. It is checked when it is scheduled.

    Give either `delay` or `at`.

    Args:
        destination: `rabbitmq:EXCHANGE/ROUTING.KEY`, `rabbitmq:/QUEUE`, `kafka:TOPIC`, ...
        body: bytes, text (sent as UTF-8), or None (Kafka only: a tombstone).
        json: instead of a body: a dict, a dataclass, a model of pydantic, ...; sent as JSON.
        delay: `"1h30m"`, a timedelta, or seconds; counted by Redis' clock. Or a `Debounce` or a
            `Throttle`, whose key is then the id.
        at: an aware datetime or RFC 3339 text. A time in the past means now.
        id: at most 255 bytes; generated if omitted.
        key: messages with the same key are delivered in the order in which they are due; for Kafka
            it is also the record's key.
        headers: a mapping or pairs.
        properties: AMQP properties by name, as `{"content_type": "text/plain"}`; for kombu any
            names; for Kafka `partition`. Drop-in producers pass the content header that their
            library encoded: it contains the headers, too, and is published byte for byte.
        priority: 0 to 255; of messages due in the same millisecond the highest goes first.
        ttl: like `delay`; a message that is this late moves to the dead set as `expired`.
        at_most_once: may be lost in a crash, is never delivered twice.
        retry: a `MessagePlan`, or a mapping with some of its fields, as `{"max_attempts": 3}`; the
            others are those of the destination or of the workers' settings.
        tenant: whose message it is: it is stored, and named by you, as `TENANT/ID`, and delivered
            with the id `ID`.
    """

    json: Any = msgspec.UNSET
    delay: Later = None
    at: datetime | str | None = None
    id: str | None = None
    key: bytes | str | None = None
    headers: Headers = {}
    properties: Properties = {}
    priority: int = 0
    ttl: timedelta | float | str | None = None
    at_most_once: bool = False
    retry: Retry = None
    tenant: str = ""


class Delivery:
    """A message handed to a publisher, which reports this same object with its outcome.

    id: as it is stored. given_id: as consumers see it (`Record.given_id`). due_ms: epoch
    milliseconds. attempt: 1 for the first publish. size: as `Record.size`.
    """

    __slots__ = ("attempt", "destination", "due_ms", "given_id", "id", "record", "size")

    def __init__(
        self, id: str, record: Record, destination: Destination, due_ms: int, attempt: int
    ) -> None:
        self.id = id
        self.record = record
        self.destination = destination
        self.due_ms = due_ms
        self.attempt = attempt
        self.size = record.size
        self.given_id = record.given_id(id, due_ms)


def is_tenant(name: object) -> bool:
    """Whether a tenant may have this name: 1 to 31 of a-z A-Z 0-9 . _ -, no sign first."""
    return isinstance(name, str) and _TENANT.fullmatch(name) is not None


def id_in_store(id: str, tenant: str) -> str:
    """The id under which a message of this tenant is stored."""
    return f"{tenant}/{id}" if tenant else id


def id_as_given(id: str, tenant: str) -> str:
    """The id that a message of this tenant was given, and is delivered with."""
    return id.removeprefix(f"{tenant}/") if tenant else id


def new_id() -> str:
    """A UUIDv7 as 26 characters of base32hex: unique; sorting ids as text sorts them by time."""
    number: int = uuid_utils.uuid7().int
    return "".join([PAIRS[number >> shift & 1023] for shift in _SHIFTS])


def rank_of(priority: int) -> int:
    """The order of messages due in the same millisecond, 0 first. score = due_ms + rank / 256."""
    return MAX_PRIORITY - priority
