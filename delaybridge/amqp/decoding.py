"""AMQP 0-9-1 decoded: header tables and content headers, for people, for kombu and for ingest."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from delaybridge.amqp.encoding import (
    AFTER_HEADERS,
    BEFORE_HEADERS,
    CONTENT_ENCODING_FLAG,
    CONTENT_TYPE_FLAG,
    EPOCH,
    HEADER_START,
    HEADERS_FLAG,
    LAST_SECOND,
    LONG,
    MESSAGE_ID_FLAG,
    check_finite,
    encode_properties,
)
from delaybridge.errors import DecodeError
from delaybridge.message import ContentHeader

_DECODE_NESTING = 32


def entries(data: bytes) -> Iterator[tuple[bytes, int, int, int]]:
    """Locate each header without decoding it: name, start, start of its value, end.

    DecodeError if the bytes are broken.
    """
    position, size = 0, len(data)
    try:
        while position < size:
            at = position + 1 + data[position]
            kind = data[at]
            if kind in _SIZED_KINDS:
                end = at + 5 + LONG.unpack_from(data, at + 1)[0]
            else:
                end = at + 1 + _FIXED_SIZES[kind]
            yield data[position + 1 : at], position, at, end
            position = end
    except (IndexError, KeyError, struct.error):
        raise DecodeError("undecodable", "headers", "the table is broken") from None
    if position != size:
        raise DecodeError("undecodable", "headers", "the table is cut short")


def decode_value(data: bytes, at: int, name: str) -> Any:
    """The value at that position, as `decode_table` returns it."""
    return _decoded(data, at, name, 0)[0]


def decode_table(data: bytes) -> list[tuple[str, Any]]:
    """The headers in their order, every type RabbitMQ knows; DecodeError if the bytes are broken.

    Text that is not UTF-8 is returned as bytes; a time as datetime, or as its epoch seconds if it
    is out of datetime's range. Publishing to RabbitMQ decodes nothing.
    """
    return list(_entries(data, "headers", 0))


def _entries(data: bytes, field: str, depth: int) -> Iterator[tuple[str, Any]]:
    position = 0
    while position < len(data):
        size = data[position]
        name = cut(data, position + 1, size, field).decode(errors="backslashreplace")
        value, position = _decoded(data, position + 1 + size, name, depth)
        yield name, value


def _items(data: bytes, field: str, depth: int) -> Iterator[Any]:
    position = 0
    while position < len(data):
        value, position = _decoded(data, position, field, depth)
        yield value


def _decoded(data: bytes, position: int, field: str, depth: int) -> tuple[Any, int]:
    kind = cut(data, position, 1, field)
    position += 1
    if fixed := _FIXED.get(kind):
        layout, convert = fixed
        piece = cut(data, position, layout.size, field)
        return convert(*layout.unpack(piece)), position + layout.size
    if kind not in (b"S", b"x", b"A", b"F"):
        raise DecodeError("undecodable", field, f"unknown type {kind!r}")
    (size,) = LONG.unpack(cut(data, position, LONG.size, field))
    piece = cut(data, position + LONG.size, size, field)
    return _sized(kind, piece, field, depth), position + LONG.size + size


def _sized(kind: bytes, piece: bytes, field: str, depth: int) -> Any:
    if kind == b"x":
        return piece
    if kind == b"S":
        return as_text(piece)
    if depth >= _DECODE_NESTING:
        raise DecodeError("undecodable", field, f"nested more than {_DECODE_NESTING} deep")
    if kind == b"A":
        return list(_items(piece, field, depth + 1))
    return dict(_entries(piece, field, depth + 1))


def _when(seconds: int) -> datetime | int:
    return EPOCH + timedelta(seconds=seconds) if seconds <= LAST_SECOND else seconds


def _unscaled(scale: int, unscaled: int) -> Decimal:
    return Decimal(unscaled).scaleb(-scale)


def _none() -> None:
    return None


def _same(value: Any) -> Any:
    return value


_FIXED: Mapping[bytes, tuple[struct.Struct, Callable[..., Any]]] = {
    b"t": (struct.Struct(">?"), bool),
    b"b": (struct.Struct(">b"), _same),
    b"B": (struct.Struct(">B"), _same),
    b"s": (struct.Struct(">h"), _same),
    b"U": (struct.Struct(">h"), _same),
    b"u": (struct.Struct(">H"), _same),
    b"I": (struct.Struct(">i"), _same),
    b"i": (struct.Struct(">I"), _same),
    b"l": (struct.Struct(">q"), _same),
    b"L": (struct.Struct(">q"), _same),
    b"f": (struct.Struct(">f"), _same),
    b"d": (struct.Struct(">d"), _same),
    b"D": (struct.Struct(">Bi"), _unscaled),
    b"T": (struct.Struct(">Q"), _when),
    b"V": (struct.Struct(""), _none),
}


_FIXED_SIZES = {kind[0]: layout.size for kind, (layout, _) in _FIXED.items()}
_SIZED_KINDS = frozenset(b"SxAF")


def as_text(data: bytes) -> str | bytes:
    """Text if the bytes are UTF-8, else the bytes themselves."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def cut(data: bytes, start: int, size: int, field: str) -> bytes:
    """The `size` bytes from `start`; DecodeError if there are fewer."""
    piece = data[start : start + size]
    if len(piece) != size:
        raise DecodeError("undecodable", field, f"cut short: {len(piece)} of {size} bytes")
    return piece


_TEXT_FLAGS_BEFORE_ID = (1 << 10, 1 << 9, 1 << 8)
_PROPERTY_SIZES = {"B": 1, "Q": 8}


def split_content_header(payload: bytes) -> ContentHeader:
    """Cut a content-header frame's payload into the pieces that a record keeps, without decoding.

    The pieces joined again are the same bytes. DecodeError if the payload is broken.
    """
    try:
        _, _, body_size, flags = HEADER_START.unpack_from(payload)
        at = start = HEADER_START.size
        if flags & CONTENT_TYPE_FLAG:
            at += 1 + payload[at]
        if flags & CONTENT_ENCODING_FLAG:
            at += 1 + payload[at]
        before, table = payload[start:at], b""
        if flags & HEADERS_FLAG:
            end = at + LONG.size + LONG.unpack_from(payload, at)[0]
            table, at = payload[at + LONG.size : end], end
    except (struct.error, IndexError):
        raise DecodeError("undecodable", "properties", "the content header is cut short") from None
    if flags & 1:
        raise DecodeError("undecodable", "properties", "property flags of a later protocol")
    if at > len(payload):
        raise DecodeError("undecodable", "headers", "the content header is cut short")
    return ContentHeader(body_size, flags & ~HEADERS_FLAG, before, table, payload[at:])


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
    if not flags & MESSAGE_ID_FLAG:
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
    for group, data in ((BEFORE_HEADERS, before), (AFTER_HEADERS, after)):
        kinds = {name: kind for name, _, kind in group}
        for name, start, end in spans_of(flags, data, group):
            piece = data[start:end]
            if kinds[name] == "s":
                found[name] = as_text(piece[1:])
            else:
                found[name] = int.from_bytes(piece, "big")
    return found


def spans_of(
    flags: int, data: bytes, group: Iterable[tuple[str, int, str]]
) -> Iterator[tuple[str, int, int]]:
    position = 0
    for name, flag, kind in group:
        if not flags & flag:
            continue
        if kind == "s":
            size = 1 + cut(data, position, 1, name)[0]
        else:
            size = _PROPERTY_SIZES[kind]
        cut(data, position, size, name)
        yield name, position, position + size
        position += size
