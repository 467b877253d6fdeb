"""AMQP 0-9-1 headers and properties: encoded once, stored as bytes, joined when published.

The store keeps a message's headers and properties as the bytes that go over the wire: `encode_*`
makes them from a caller's values, `content_header` joins them with delaybridge's own headers.
Nothing is decoded on that path; `decode_*` is for showing messages, for kombu, and for rare cases.
"""

from __future__ import annotations

import difflib
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from enum import Enum
from typing import Any, NamedTuple

from delaybridge.amqp.table import (
    as_text,
    check_finite,
    cut,
    decode_table,
    encode_table,
    epoch_seconds,
    utf8,
)
from delaybridge.errors import DecodeError, MessageError, shown
from delaybridge.message import ContentHeader

__all__ = [
    "check_content",
    "content_header",
    "decode_properties",
    "decode_table",
    "encode_properties",
    "encode_table",
    "message_id",
    "split_content_header",
]

BASIC_CLASS = 60
DIRECT_REPLY_TO = "amq.rabbitmq.reply-to"
OWN_ID = "delaybridge-id"

_MAX_EXPIRATION_MS = 2**32 - 1  # the broker closes the channel above it

HEADERS_FLAG = 1 << 13
_DELIVERY_MODE_FLAG = 1 << 12
USER_ID_FLAG = 1 << 4
_CONTENT_TYPE_FLAG, _CONTENT_ENCODING_FLAG = 1 << 15, 1 << 14
_TEXT_FLAGS_BEFORE_ID = (1 << 10, 1 << 9, 1 << 8)
_EXPIRATION_FLAG, _MESSAGE_ID_FLAG = 1 << 8, 1 << 7
_BEFORE_EXPIRATION = ("delivery_mode", "priority", "correlation_id", "reply_to")

# Name, flag and kind of each property in wire order; the header table goes between
# content_encoding and delivery_mode.
_BEFORE_HEADERS = (
    ("content_type", _CONTENT_TYPE_FLAG, "s"),
    ("content_encoding", _CONTENT_ENCODING_FLAG, "s"),
)
_AFTER_HEADERS = (
    ("delivery_mode", _DELIVERY_MODE_FLAG, "B"),
    ("priority", 1 << 11, "B"),
    ("correlation_id", 1 << 10, "s"),
    ("reply_to", 1 << 9, "s"),
    ("expiration", _EXPIRATION_FLAG, "s"),
    ("message_id", _MESSAGE_ID_FLAG, "s"),
    ("timestamp", 1 << 6, "Q"),
    ("type", 1 << 5, "s"),
    ("user_id", USER_ID_FLAG, "s"),
    ("app_id", 1 << 3, "s"),
    ("cluster_id", 1 << 2, "s"),
)
PROPERTY_NAMES = tuple(name for name, _, _ in _BEFORE_HEADERS + _AFTER_HEADERS)
_FIXED_SIZES = {"B": 1, "Q": 8}

_LONG = struct.Struct(">I")
_HEADER_START = struct.Struct(">HHQH")


def encode_properties(properties: Mapping[str, Any]) -> tuple[int, bytes, bytes]:
    """The property list as `(flags, before, after)`, cut where the header table goes.

    Names as in pika's BasicProperties; a property that is None is absent. MessageError for an
    unknown name, or a value for which the broker would close the channel: bad_property,
    bad_priority, bad_expiration.
    """
    for name in properties:
        if name not in PROPERTY_NAMES:
            raise MessageError("bad_property", "properties", _unknown_property(name))
    flags = 0
    parts = []
    for group in (_BEFORE_HEADERS, _AFTER_HEADERS):
        pieces = []
        for name, flag, kind in group:
            if (value := properties.get(name)) is not None:
                flags |= flag
                pieces.append(_property(name, value, kind))
        parts.append(b"".join(pieces))
    return flags, parts[0], parts[1]


def _unknown_property(name: object) -> str:
    if name == "headers":
        return "'headers' is not a property here; use the message's `headers`"
    near = difflib.get_close_matches(shown(name), PROPERTY_NAMES, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(PROPERTY_NAMES)}"
    return f"{shown(name)} is not an AMQP property{hint}"


def _property(name: str, value: Any, kind: str) -> bytes:
    if isinstance(value, Enum):  # pika's DeliveryMode
        value = value.value
    if name in _CHECKS:
        value = _CHECKS[name](value)
    return bytes([value]) if kind == "B" else _sized_property(name, value, kind)


def _sized_property(name: str, value: Any, kind: str) -> bytes:
    if kind == "Q":
        return int(value).to_bytes(8, "big")
    data = utf8(value, "bad_property", name) if isinstance(value, str) else value
    if not isinstance(data, bytes):
        raise MessageError(
            "bad_property", name, f"got {type(value).__name__}; give text of at most 255 bytes"
        )
    if len(data) > 255:
        raise MessageError("bad_property", name, f"{len(data)} bytes; at most 255")
    return bytes([len(data)]) + data


def _delivery_mode(value: Any) -> int:
    if isinstance(value, bool) or value not in (1, 2):
        raise MessageError(
            "bad_property", "delivery_mode", f"got {shown(value)}; 1 transient, 2 persistent"
        )
    return int(value)


def _priority(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 255:
        raise MessageError("bad_priority", "priority", f"got {shown(value)}; give 0 to 255")
    return value


def _expiration(value: Any) -> str:
    # Only ASCII digits: int() would take other scripts' digits, signs and underscores.
    if not isinstance(value, str) or not (value.isascii() and value.isdigit()):
        raise MessageError(
            "bad_expiration",
            "expiration",
            f"got {shown(value)}; give milliseconds as text of digits",
        )
    if len(value) > 10 or int(value) > _MAX_EXPIRATION_MS:
        raise MessageError(
            "bad_expiration", "expiration", f"got {shown(value)}; at most {_MAX_EXPIRATION_MS} ms"
        )
    return value


def _reply_to(value: Any) -> Any:
    text = value.decode("latin-1") if isinstance(value, bytes) else value
    if not isinstance(text, str):
        return value  # `_sized_property` refuses its type
    if text == DIRECT_REPLY_TO or text.startswith(DIRECT_REPLY_TO + "."):
        raise MessageError(
            "bad_property", "reply_to", f"{DIRECT_REPLY_TO} ends with the sender's connection"
        )
    return value


def _timestamp(value: Any) -> int:
    if isinstance(value, datetime):
        return epoch_seconds(value, "timestamp")
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise MessageError(
            "bad_property",
            "timestamp",
            f"got {shown(value)}; give epoch seconds or an aware datetime",
        )
    return value


_CHECKS: Mapping[str, Callable[[Any], Any]] = {
    "delivery_mode": _delivery_mode,
    "priority": _priority,
    "expiration": _expiration,
    "reply_to": _reply_to,
    "timestamp": _timestamp,
}


_ID_START = bytes([len(OWN_ID)]) + OWN_ID.encode() + b"S"
_DUE_START = b"\x12delaybridge-due-msl"
_ATTEMPT_START = b"\x13delaybridge-attemptI"
_OWN_END = struct.Struct(f">{len(_DUE_START)}sq{len(_ATTEMPT_START)}si")
_OWN_END_ATTEMPT = struct.Struct(f">{len(_ATTEMPT_START)}si")
_OWN_START = struct.Struct(f">{len(_ID_START)}sI")
_OWN_SIZE = _OWN_START.size + _OWN_END.size
_PERSISTENT = b"\x02"


def content_header(
    table: bytes,
    properties: tuple[int, bytes, bytes] | None,
    body_size: int,
    id: bytes,
    due_ms: int,
    attempt: int,
    login: bytes = b"",
) -> bytes:
    """The payload of a content-header frame: the stored bytes plus delaybridge's three headers.

    delivery_mode 2 is added if the sender gave none. A user_id other than `login` is left out: the
    broker would close the channel.
    """
    flags, before, after = properties or (0, b"", b"")
    if not flags & _DELIVERY_MODE_FLAG:
        flags |= _DELIVERY_MODE_FLAG
        after = _PERSISTENT + after
    if flags & USER_ID_FLAG:
        flags, after = _without_foreign_user_id(flags, after, login)
    size = len(id)
    return b"".join(
        (
            _HEADER_START.pack(BASIC_CLASS, 0, body_size, flags | HEADERS_FLAG),
            before,
            _LONG.pack(len(table) + _OWN_SIZE + size),
            table,
            _OWN_START.pack(_ID_START, size),
            id,
            _OWN_END.pack(_DUE_START, due_ms, _ATTEMPT_START, attempt),
            after,
        )
    )


class HeaderParts(NamedTuple):
    """A content header cut where messages of one shape differ.

    start, body size, flags and `before`, table, own_id, id, due, due time, attempt, `after`.
    """

    start: bytes
    before: bytes
    own_id: bytes
    due: bytes
    attempt: bytes


def header_parts(
    flags: int, before: bytes, after_size: int, table_size: int, id_size: int, attempt: int
) -> tuple[HeaderParts, int]:
    """The parts that `content_header` gives all messages of a shape, and its length.

    Not for messages with a user_id, whose `after` may change.
    """
    end = _OWN_END_ATTEMPT.pack(_ATTEMPT_START, attempt)
    if not flags & _DELIVERY_MODE_FLAG:
        flags |= _DELIVERY_MODE_FLAG
        end += _PERSISTENT
    own_size = len(_ID_START) + _LONG.size + id_size + len(_DUE_START) + 8
    table_size += own_size + _OWN_END_ATTEMPT.size
    parts = HeaderParts(
        struct.pack(">HH", BASIC_CLASS, 0),
        struct.pack(">H", flags | HEADERS_FLAG) + before + _LONG.pack(table_size),
        _OWN_START.pack(_ID_START, id_size),
        _DUE_START,
        end,
    )
    extra = after_size + len(end) - _OWN_END_ATTEMPT.size
    return parts, _HEADER_START.size + len(before) + _LONG.size + table_size + extra


def _without_foreign_user_id(flags: int, after: bytes, login: bytes) -> tuple[int, bytes]:
    for name, start, end in _spans(flags, after, _AFTER_HEADERS):
        if name == "user_id" and after[start + 1 : end] != login:
            return flags & ~USER_ID_FLAG, after[:start] + after[end:]
    return flags, after


def split_content_header(payload: bytes) -> ContentHeader:
    """Cut a content-header frame's payload into the pieces that a record keeps, without decoding.

    The pieces joined again are the same bytes. DecodeError if the payload is broken.
    """
    try:
        _, _, body_size, flags = _HEADER_START.unpack_from(payload)
        at = start = _HEADER_START.size
        if flags & _CONTENT_TYPE_FLAG:
            at += 1 + payload[at]
        if flags & _CONTENT_ENCODING_FLAG:
            at += 1 + payload[at]
        before, table = payload[start:at], b""
        if flags & HEADERS_FLAG:
            end = at + _LONG.size + _LONG.unpack_from(payload, at)[0]
            table, at = payload[at + _LONG.size : end], end
    except (struct.error, IndexError):
        raise DecodeError("undecodable", "properties", "the content header is cut short") from None
    if flags & 1:
        raise DecodeError("undecodable", "properties", "property flags of a later protocol")
    if at > len(payload):
        raise DecodeError("undecodable", "headers", "the content header is cut short")
    return ContentHeader(body_size, flags & ~HEADERS_FLAG, before, table, payload[at:])


def with_expiration(content: ContentHeader, expiration: Any) -> ContentHeader:
    """The message with this `expiration`, if it has none. MessageError if it is none itself."""
    if content.flags & _EXPIRATION_FLAG:
        return content
    at = 0
    for name, _, end in _spans(content.flags, content.after, _AFTER_HEADERS):
        if name in _BEFORE_EXPIRATION:
            at = end
    after = content.after[:at] + _property("expiration", expiration, "s") + content.after[at:]
    return content._replace(flags=content.flags | _EXPIRATION_FLAG, after=after)


def check_content(content: ContentHeader) -> list[tuple[str, Any]]:
    """The headers of a message that a client library encoded, checked by the rules of `encode_*`.

    MessageError for a value for which the broker would close the channel or the connection;
    DecodeError if the bytes are broken.
    """
    encode_properties(decode_properties(content.flags, content.before, content.after))
    headers = decode_table(content.table)
    for name, value in headers:
        check_finite(value, name)
    return headers


def message_id(flags: int, after: bytes) -> bytes | None:
    """The message_id among the properties that follow the headers; None if there is none."""
    if not flags & _MESSAGE_ID_FLAG:
        return None
    # Before it: delivery_mode and priority, a byte each, and three texts that begin with a size.
    at = (flags >> 12 & 1) + (flags >> 11 & 1)
    try:
        for flag in _TEXT_FLAGS_BEFORE_ID:
            if flags & flag:
                at += 1 + after[at]
        size = after[at]
    except IndexError:
        raise DecodeError("undecodable", "properties", "the content header is cut short") from None
    return cut(after, at + 1, size, "message_id")


def decode_properties(flags: int, before: bytes, after: bytes) -> dict[str, Any]:
    """The properties by name; text that is not UTF-8 as bytes. DecodeError if broken."""
    found: dict[str, Any] = {}
    for group, data in ((_BEFORE_HEADERS, before), (_AFTER_HEADERS, after)):
        kinds = {name: kind for name, _, kind in group}
        for name, start, end in _spans(flags, data, group):
            piece = data[start:end]
            if kinds[name] == "s":
                found[name] = as_text(piece[1:])
            else:
                found[name] = int.from_bytes(piece, "big")
    return found


def _spans(
    flags: int, data: bytes, group: Iterable[tuple[str, int, str]]
) -> Iterator[tuple[str, int, int]]:
    position = 0
    for name, flag, kind in group:
        if not flags & flag:
            continue
        if kind == "s":
            size = 1 + cut(data, position, 1, name)[0]
        else:
            size = _FIXED_SIZES[kind]
        cut(data, position, size, name)
        yield name, position, position + size
        position += size
