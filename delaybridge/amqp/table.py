"""AMQP 0-9-1 header tables: encodes a caller's values, decodes bytes to show them.

The types are RabbitMQ's, which differ from the standard's text (see its errata): `l` and `L` are
both signed 64 bits, `s` is a signed short, `x` a byte array.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from math import isfinite
from typing import Any

from delaybridge.errors import DecodeError, MessageError

MAX_NESTING = 4
MAX_TABLE_BYTES = 128 * 1024  # a broker's default frame; no larger table can be sent
MAX_NAME_BYTES = 255

_DECODE_NESTING = 32
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_SECOND = 253_402_300_799  # 9999-12-31T23:59:59Z

_LONG = struct.Struct(">I")
_INT32 = struct.Struct(">ci")
_INT64 = struct.Struct(">cq")
_DOUBLE = struct.Struct(">cd")
_DECIMAL = struct.Struct(">cBi")
_SECONDS = struct.Struct(">cQ")
_SIZED = struct.Struct(">cI")


def encode_table(pairs: Iterable[tuple[str, Any]]) -> bytes:
    """The entries of a header table, without its 4-byte length, in the order given.

    str, bytes, bool, int (32 bits, else 64), finite float, None, aware datetime of 1970..9999
    (whole seconds), Decimal, and lists and dicts of these, 4 deep. MessageError names the header
    at fault; its codes: non_finite, duplicate_header, nested_too_deep, header_out_of_range,
    zone_required, unsupported_header_type, headers_too_large, bad_header.
    """
    entries = []
    seen = set()
    for name, value in pairs:
        encoded = _name(name, name) + _value(value, name, 0)
        if name in seen:
            raise MessageError("duplicate_header", name, "AMQP headers have each name once")
        seen.add(name)
        entries.append(encoded)
    return _bounded(entries, "headers")


def _name(name: Any, header: Any) -> bytes:
    if not isinstance(name, str) or not name:
        raise MessageError(
            "bad_header",
            header if isinstance(header, str) else "headers",
            "a name is text and not empty",
        )
    data = utf8(name, "bad_header", header)
    if len(data) > MAX_NAME_BYTES:
        raise MessageError(
            "bad_header", header[:40], f"a name of {len(data)} bytes; at most {MAX_NAME_BYTES}"
        )
    return bytes([len(data)]) + data


def _value(value: Any, header: str, depth: int) -> bytes:
    for kind, encode in _ENCODERS:
        if isinstance(value, kind):
            return encode(value, header, depth)
    raise MessageError(
        "unsupported_header_type", header, f"got {type(value).__name__}, which AMQP cannot carry"
    )


def _text(value: str, header: str, depth: int) -> bytes:
    data = utf8(value, "bad_header", header)
    return _SIZED.pack(b"S", len(data)) + data


def _bytes(value: bytes | bytearray, header: str, depth: int) -> bytes:
    return _SIZED.pack(b"x", len(value)) + value


def _bool(value: bool, header: str, depth: int) -> bytes:
    return b"t\x01" if value else b"t\x00"


def _int(value: int, header: str, depth: int) -> bytes:
    if -(2**31) <= value < 2**31:
        return _INT32.pack(b"I", value)
    if -(2**63) <= value < 2**63:
        return _INT64.pack(b"l", value)
    raise MessageError("header_out_of_range", header, "an integer of more than 64 bits")


def _float(value: float, header: str, depth: int) -> bytes:
    if not isfinite(value):
        # RabbitMQ answers 541 and drops the connection.
        raise MessageError("non_finite", header, f"got {value!r}; give a finite number")
    return _DOUBLE.pack(b"d", value)


def check_finite(value: Any, header: str) -> None:
    """MessageError `non_finite` if a decoded value is or contains NaN or an infinity."""
    if isinstance(value, float):
        _float(value, header, 0)
    elif isinstance(value, list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            check_finite(item, header)


def _void(value: None, header: str, depth: int) -> bytes:
    return b"V"


def _datetime(value: datetime, header: str, depth: int) -> bytes:
    return _SECONDS.pack(b"T", epoch_seconds(value, header))


def epoch_seconds(value: datetime, field: str) -> int:
    """Whole seconds since 1970; MessageError without a zone or outside 1970..9999."""
    if value.utcoffset() is None:
        raise MessageError("zone_required", field, "a time without zone; give one with tzinfo")
    seconds = (value - _EPOCH) // timedelta(seconds=1)
    if not 0 <= seconds <= _LAST_SECOND:
        raise MessageError("header_out_of_range", field, "a time outside 1970..9999")
    return seconds


def _decimal(value: Decimal, header: str, depth: int) -> bytes:
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise MessageError("non_finite", header, f"got {value}; give a finite number")
    # AMQP: an unscaled 32-bit integer and how many of its digits are decimals.
    if len(digits) + max(exponent, 0) > 10 or -exponent > 255:
        raise MessageError(
            "header_out_of_range", header, "a decimal of more than 32 bits or 255 decimals"
        )
    unscaled = int("".join(map(str, digits))) * 10 ** max(exponent, 0) * (-1 if sign else 1)
    if not -(2**31) <= unscaled < 2**31:
        raise MessageError("header_out_of_range", header, "a decimal of more than 32 bits")
    return _DECIMAL.pack(b"D", max(-exponent, 0), unscaled)


def _list(value: list[Any], header: str, depth: int) -> bytes:
    _check_depth(depth, header)
    data = _bounded((_value(item, header, depth + 1) for item in value), header)
    return _SIZED.pack(b"A", len(data)) + data


def _dict(value: Mapping[Any, Any], header: str, depth: int) -> bytes:
    _check_depth(depth, header)
    data = _bounded(
        (_name(name, header) + _value(item, header, depth + 1) for name, item in value.items()),
        header,
    )
    return _SIZED.pack(b"F", len(data)) + data


_ENCODERS: tuple[tuple[type, Callable[[Any, str, int], bytes]], ...] = (
    (str, _text),
    (bool, _bool),  # before int, since a bool is an int
    (int, _int),
    (bytes, _bytes),
    (bytearray, _bytes),
    (float, _float),
    (type(None), _void),
    (datetime, _datetime),
    (Decimal, _decimal),
    (list, _list),
    (dict, _dict),
)


def _check_depth(depth: int, header: str) -> None:
    # This also stops at a list or dict that contains itself.
    if depth >= MAX_NESTING:
        raise MessageError(
            "nested_too_deep", header, f"lists and dicts may be nested {MAX_NESTING} deep"
        )


def _bounded(pieces: Iterable[bytes], header: str) -> bytes:
    # Counted as it grows: a few small lists that contain each other many times make gigabytes.
    kept = []
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > MAX_TABLE_BYTES:
            raise MessageError(
                "headers_too_large", header, f"more than {MAX_TABLE_BYTES} bytes when encoded"
            )
        kept.append(piece)
    return b"".join(kept)


def utf8(text: str, code: str, field: Any) -> bytes:
    """The text as UTF-8; MessageError with that code for a lone surrogate."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise MessageError(code, str(field), "text with a lone surrogate") from None


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
                end = at + 5 + _LONG.unpack_from(data, at + 1)[0]
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
    (size,) = _LONG.unpack(cut(data, position, _LONG.size, field))
    piece = cut(data, position + _LONG.size, size, field)
    return _sized(kind, piece, field, depth), position + _LONG.size + size


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
    return _EPOCH + timedelta(seconds=seconds) if seconds <= _LAST_SECOND else seconds


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
