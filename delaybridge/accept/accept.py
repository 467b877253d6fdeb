"""What is accepted: one validation for every surface, before anything is written.

Pure: no broker and no store is asked. Each refusal is a `MessageError` with a code, the field and
the remedy.
"""

from __future__ import annotations

import difflib
import re
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import unquote

import msgspec

from delaybridge import times
from delaybridge.amqp.header import (
    PROPERTY_NAMES,
    check_content,
    encode_properties,
    encode_table,
)
from delaybridge.errors import DelayOutOfRange, MessageError, shown
from delaybridge.message import (
    OWN_HEADERS,
    RESERVED_PREFIX,
    TABLE_KINDS,
    ContentHeader,
    Destination,
    HeaderPairs,
    Headers,
    Limits,
    Message,
    Properties,
    Record,
    encode_record,
    new_id,
    rank_of,
)

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_Encoded = tuple[int, bytes, bytes]
_MOST_KNOWN = 10_000
_NAME_CHARS = 255  # of a broker, as far as near ones are looked for
_UNDESCRIBED: Mapping[str, tuple[bytes, bytes | None]] = {
    "rabbitmq": (b"", None),
    "kombu": (b"", b""),
}


class Accepted(msgspec.Struct, frozen=True, gc=False):
    """A checked message, ready for `schedule`. `when`: epoch ms, or `+` and a delay in ms."""

    id: str
    shard_key: bytes
    when: str
    rank: int
    payload: bytes


class Known(dict[str, tuple[Destination, str]]):
    """Destinations that were given before, each with how it is written; bounded."""

    def parse(self, text: str, kinds: Mapping[str, str]) -> tuple[Destination, str]:
        """`parse_destination`, once for each text."""
        found = self.get(text) if isinstance(text, str) else None
        if found is None:
            destination = parse_destination(text, kinds)
            if len(self) >= _MOST_KNOWN:  # routing keys may be without number
                self.clear()
            found = self[text] = destination, str(destination)
        return found


def accept(
    message: Message,
    kinds: Mapping[str, str],
    limits: Limits,
    known: Known | None = None,
    draw: Callable[[], str] = new_id,
) -> Accepted:
    """Check everything that can be checked without a broker; MessageError names the first fault.

    kinds: name of each configured broker -> its kind. known: of the same kinds. draw: an id for a
    message that has none.
    """
    id = draw() if message.id is None else check_id(message.id, limits)
    destination, written = (Known() if known is None else known).parse(message.destination, kinds)
    key = check_key(message.key)
    if key is not None and len(key) > limits.body_bytes:
        what = f"{len(key):,} bytes; limits.body_bytes, {limits.body_bytes:,}, holds for keys, too"
        raise MessageError("key_too_large", "key", what)
    record = Record(
        written,
        _body_bytes(message.body, destination, limits),
        *_described(message, destination, limits),
        key,
        _partition(message.properties, destination),
        None if message.ttl is None else times.delay_ms(message.ttl, field="ttl"),
        _flag(message.at_most_once, "at_most_once"),
    )
    return Accepted(
        id,
        id.encode() if key is None else key,
        when(message.delay, message.at, limits),
        rank_of(_priority(message.priority)),
        encode_record(record),
    )


def when(delay: timedelta | float | str | None, at: datetime | str | None, limits: Limits) -> str:
    """The time as the scripts take it: `+` and ms for a delay, epoch ms for a time."""
    if delay is not None and at is not None:
        raise MessageError("time_ambiguous", "delay", "both delay and at are given; give one")
    if delay is not None:
        wait_ms = times.delay_ms(delay)
        check_delay(wait_ms, limits, "delay")
        return f"+{wait_ms}"
    if at is not None:
        due_ms = times.at_ms(at)
        check_delay(due_ms - time.time_ns() // 1_000_000, limits, "at")
        return str(due_ms)
    raise MessageError("time_required", "delay", "neither delay nor at is given; give one")


def check_id(id: object, limits: Limits | None = None) -> str:
    """`id` itself: 1 to 255 bytes of printable UTF-8, no space at an end; else `bad_id`."""
    most = (limits or Limits()).id_bytes
    if not isinstance(id, str):
        raise MessageError("bad_id", "id", f"got {type(id).__name__}; give text")
    try:
        size = len(id.encode())
    except UnicodeEncodeError:
        raise MessageError("bad_id", "id", "not valid UTF-8") from None
    if not 1 <= size <= most:
        raise MessageError("bad_id", "id", f"{size} bytes; give 1 to {most}")
    if not id.isprintable() or id != id.strip():
        raise MessageError(
            "bad_id", "id", f"{id!r} holds an unprintable character, or a space at an end"
        )
    return id


def parse_destination(text: object, kinds: Mapping[str, str]) -> Destination:
    """`rabbitmq:EXCHANGE/ROUTING.KEY`, `kafka:TOPIC`, ...: MessageError for anything else.

    The part before the colon is the name of a configured broker. An exchange whose name holds a
    slash or a per cent sign is written with `%2F` and `%25`.
    """
    if not isinstance(text, str) or not text:
        raise MessageError("bad_destination", "destination", "empty; write BROKER:ADDRESS")
    broker, colon, address = text.partition(":")
    if not colon:
        raise MessageError(
            "bad_destination", "destination", f"{shown(text)} has no colon: BROKER:ADDRESS"
        )
    kind = kinds.get(broker)
    if kind is None or address.startswith("//"):
        raise MessageError(
            "unknown_destination", "destination", _unknown_broker(text, broker, kinds)
        )
    destination = (
        _rabbitmq(broker, address) if kind == "rabbitmq" else Destination(broker, kind, address)
    )
    _check_address(destination)
    return destination


def _rabbitmq(broker: str, address: str) -> Destination:
    exchange, slash, routing_key = address.partition("/")
    if not slash:
        raise MessageError(
            "bad_destination",
            "destination",
            f"{shown(address)} has no slash: {broker}:EXCHANGE/ROUTING.KEY, or {broker}:/QUEUE",
        )
    try:
        exchange = unquote(exchange, errors="strict")
    except UnicodeDecodeError:
        raise MessageError("bad_destination", "destination", "the exchange is not UTF-8") from None
    return Destination(broker, "rabbitmq", exchange, routing_key)


def _check_address(destination: Destination) -> None:
    address, routing_key = destination.address, destination.routing_key
    if destination.kind == "rabbitmq":
        for part, what in ((address, "exchange"), (routing_key, "routing key")):
            _short_text(part, what)
        if not address and not routing_key:
            raise MessageError("bad_destination", "destination", "the queue's name is missing")
    elif destination.kind == "kafka":
        if not _TOPIC.fullmatch(address) or address in (".", ".."):
            raise MessageError(
                "bad_destination",
                "destination",
                f"{shown(address)} is no topic: 1 to 249 of a-z A-Z 0-9 . _ -",
            )
    else:
        _short_text(address, "address")
        if not address:
            raise MessageError("bad_destination", "destination", "the address is empty")


def _short_text(text: str, what: str) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise MessageError("bad_destination", "destination", f"the {what} is not UTF-8") from None
    if size > 255 or "\0" in text:
        raise MessageError(
            "bad_destination", "destination", f"the {what} has {size} bytes; at most 255, no NUL"
        )


def _unknown_broker(text: str, broker: str, kinds: Mapping[str, str]) -> str:
    if "//" in text:
        return "a URL is no destination; configure the broker and name it: BROKER:ADDRESS"
    near = (
        difflib.get_close_matches(broker[:_NAME_CHARS], kinds, n=3, cutoff=0.5) or sorted(kinds)[:5]
    )
    return f"no broker is named {shown(broker)}; configured: {', '.join(near) or 'none'}"


def check_delay(wait_ms: int, limits: Limits, name: str) -> None:
    """Return if a due time so far ahead is accepted; DelayOutOfRange otherwise."""
    if wait_ms > limits.delay_ms:
        raise DelayOutOfRange(
            "too_far", name, f"{wait_ms} ms ahead; the limit (limits.delay) is {limits.delay_ms} ms"
        )


def check_key(key: object) -> bytes | None:
    """A key as bytes; MessageError `bad_key`."""
    if key is None or isinstance(key, bytes):
        return key
    if isinstance(key, str):
        try:
            return key.encode()
        except UnicodeEncodeError:
            raise MessageError("bad_key", "key", "not valid UTF-8; give bytes") from None
    raise MessageError("bad_key", "key", f"got {type(key).__name__}; give text or bytes")


def _body_bytes(body: object, destination: Destination, limits: Limits) -> bytes | None:
    if isinstance(body, bytes):
        pass
    elif body is None:
        if destination.kind != "kafka":
            raise MessageError("null_body", "body", "null; only Kafka knows null, give b''")
        return None
    elif isinstance(body, str):
        try:
            body = body.encode()
        except UnicodeEncodeError:
            raise MessageError(
                "bad_body", "body", "text with a lone surrogate; give bytes"
            ) from None
    elif isinstance(body, bytearray | memoryview):
        body = bytes(body)
    else:
        raise MessageError("bad_body", "body", f"got {type(body).__name__}; give bytes or text")
    check_body_size(body, destination.broker, limits)
    return body


def check_body_size(body: bytes, broker: str, limits: Limits) -> None:
    """Return if a body of that size is accepted; MessageError otherwise."""
    if len(body) > limits.body_bytes:
        raise MessageError(
            "body_too_large",
            "body",
            f"{len(body)} bytes for {broker}; the limit (limits.body_bytes) is {limits.body_bytes}",
        )


def _described(
    message: Message, destination: Destination, limits: Limits
) -> tuple[bytes | HeaderPairs, _Encoded | bytes | None]:
    """Headers and properties as a record keeps them."""
    properties = message.properties
    if properties == {} and (message.headers == {} or message.headers == ()):
        return _UNDESCRIBED.get(destination.kind, ((), None))
    if not isinstance(properties, ContentHeader):
        encoded = _headers(message.headers, destination, limits)
        return encoded, _properties(properties, destination, limits)
    if destination.kind != "rabbitmq" or message.headers:
        raise MessageError(
            "bad_property", "properties", "a content header is RabbitMQ's, and holds all headers"
        )
    pairs = check_content(properties)
    for name, _ in pairs:
        _check_header_name(name)
        if name in OWN_HEADERS:
            raise MessageError("reserved_header", name, "set by delaybridge when it publishes")
    check_header_sizes(len(pairs), len(properties.table), limits)
    return properties.table, (properties.flags, properties.before, properties.after)


def _headers(headers: Headers, destination: Destination, limits: Limits) -> bytes | HeaderPairs:
    pairs = _pairs(headers)
    for name, _ in pairs:
        _check_header_name(name)
    kept = [(name, value) for name, value in pairs if name not in OWN_HEADERS]
    check_header_sizes(len(kept), 0, limits)
    if destination.kind in TABLE_KINDS:
        encoded: bytes | HeaderPairs = encode_table(kept)
        size = len(encoded)
    else:
        encoded = tuple((name, _header_bytes(name, value, destination)) for name, value in kept)
        size = sum(len(name.encode()) + len(value or b"") for name, value in encoded)
    check_header_sizes(len(kept), size, limits)
    return encoded


def check_header_sizes(count: int, size: int, limits: Limits) -> None:
    """Return if so many headers of that size in all are accepted; MessageError otherwise."""
    if count > limits.headers:
        raise MessageError("too_many_headers", "headers", f"{count}; the limit is {limits.headers}")
    if size > limits.headers_bytes:
        raise MessageError(
            "headers_too_large", "headers", f"{size} bytes; the limit is {limits.headers_bytes}"
        )


def _pairs(headers: Headers) -> list[tuple[str, Any]]:
    try:
        return list(headers.items() if isinstance(headers, Mapping) else map(_pair, headers))
    except TypeError:
        raise MessageError(
            "bad_header", "headers", f"got {type(headers).__name__}; give a mapping or pairs"
        ) from None


def _pair(pair: Any) -> tuple[str, Any]:
    if isinstance(pair, tuple | list) and len(pair) == 2:
        return pair[0], pair[1]
    raise MessageError("bad_header", "headers", "a header is a pair of name and value")


def _check_header_name(name: object) -> None:
    if not isinstance(name, str) or not name:
        raise MessageError("bad_header", "headers", "a header's name is text and not empty")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise MessageError("bad_header", "headers", "a header's name is not UTF-8") from None
    if size > 255 or not name.isprintable():
        raise MessageError(
            "bad_header", "headers", f"{shown(name)}: at most 255 bytes, all printable"
        )
    if name.startswith(RESERVED_PREFIX) and name not in OWN_HEADERS:
        raise MessageError(
            "reserved_header", "headers", f"{shown(name)}: the prefix {RESERVED_PREFIX!r} is ours"
        )


def _header_bytes(name: str, value: object, destination: Destination) -> bytes | None:
    if value is None and destination.kind == "redis":
        raise MessageError("unsupported_header_type", name, "null; a stream has none, give b''")
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise MessageError("bad_header", name, "text with a lone surrogate") from None
    raise MessageError(
        "unsupported_header_type", name, f"got {type(value).__name__}; give bytes, text or None"
    )


def _properties(
    properties: Mapping[str, Any], destination: Destination, limits: Limits
) -> _Encoded | bytes | None:
    if not isinstance(properties, Mapping):
        raise MessageError("bad_property", "properties", "give a mapping of names to values")
    if destination.kind == "rabbitmq":
        return encode_properties(properties) if properties else None
    if destination.kind == "kombu":
        return _kombu_properties(properties, limits)
    known = {"partition"} if destination.kind == "kafka" else set()
    for name in properties:
        if name not in known:
            raise MessageError(
                "bad_property", "properties", f"{shown(name)} is no property of {destination.kind}"
            )
    return None


def _kombu_properties(properties: Mapping[str, Any], limits: Limits) -> bytes:
    """Any names, every type kept; AMQP's names are held to AMQP's rules."""
    encode_properties({n: v for n, v in properties.items() if n in PROPERTY_NAMES})
    encoded = encode_table(properties.items())
    check_header_sizes(0, len(encoded), limits)
    return encoded


def _partition(properties: Properties, destination: Destination) -> int | None:
    if not properties or destination.kind != "kafka" or not isinstance(properties, Mapping):
        return None
    partition = properties.get("partition")
    if partition is None:
        return None
    if isinstance(partition, bool) or not isinstance(partition, int) or not 0 <= partition < 2**31:
        raise MessageError("bad_partition", "partition", f"got {shown(partition)}; give 0 or more")
    return partition


def _priority(priority: object) -> int:
    if isinstance(priority, bool) or not isinstance(priority, int) or not 0 <= priority <= 255:
        raise MessageError("bad_priority", "priority", f"got {shown(priority)}; give 0 to 255")
    return priority


def _flag(value: object, name: str) -> bool:
    if not isinstance(value, bool):
        raise MessageError("bad_flag", name, f"got {shown(value)}; give true or false")
    return value
