"""Header tables and properties of AMQP 0-9-1: a caller's values, encoded once, to be stored.

The types are RabbitMQ's, which differ from the standard's text (see its errata): `l` and `L` are
both signed 64 bits, `s` is a signed short, `x` a byte array.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from math import isfinite
from typing import Any

from delaybridge.errors import MessageError, nearest, quoted

MAX_NESTING = 4
MAX_TABLE_BYTES = 128 * 1024  # a broker's default frame; no larger table can be sent
MAX_NAME_BYTES = 255
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LAST_SECOND = 253_402_300_799  # 9999-12-31T23:59:59Z

LONG = struct.Struct(">I")
HEADER_START = struct.Struct(">HHQH")  # of a content header
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
    seconds = (value - EPOCH) // timedelta(seconds=1)
    if not 0 <= seconds <= LAST_SECOND:
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


DIRECT_REPLY_TO = "amq.rabbitmq.reply-to"

_MAX_EXPIRATION_MS = 2**32 - 1  # the broker closes the channel above it

HEADERS_FLAG = 1 << 13
DELIVERY_MODE_FLAG = 1 << 12
USER_ID_FLAG = 1 << 4
CONTENT_TYPE_FLAG, CONTENT_ENCODING_FLAG = 1 << 15, 1 << 14
EXPIRATION_FLAG, MESSAGE_ID_FLAG = 1 << 8, 1 << 7

# Name, flag and kind of each property in wire order; the header table goes between
# content_encoding and delivery_mode.
BEFORE_HEADERS = (
    ("content_type", CONTENT_TYPE_FLAG, "s"),
    ("content_encoding", CONTENT_ENCODING_FLAG, "s"),
)
AFTER_HEADERS = (
    ("delivery_mode", DELIVERY_MODE_FLAG, "B"),
    ("priority", 1 << 11, "B"),
    ("correlation_id", 1 << 10, "s"),
    ("reply_to", 1 << 9, "s"),
    ("expiration", EXPIRATION_FLAG, "s"),
    ("message_id", MESSAGE_ID_FLAG, "s"),
    ("timestamp", 1 << 6, "Q"),
    ("type", 1 << 5, "s"),
    ("user_id", USER_ID_FLAG, "s"),
    ("app_id", 1 << 3, "s"),
    ("cluster_id", 1 << 2, "s"),
)
PROPERTY_NAMES = tuple(name for name, _, _ in BEFORE_HEADERS + AFTER_HEADERS)


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
    for group in (BEFORE_HEADERS, AFTER_HEADERS):
        pieces = []
        for name, flag, kind in group:
            if (value := properties.get(name)) is not None:
                flags |= flag
                pieces.append(encode_property(name, value, kind))
        parts.append(b"".join(pieces))
    return flags, parts[0], parts[1]


def _unknown_property(name: object) -> str:
    if name == "headers":
        return "'headers' is not a property here; use the message's `headers`"
    near = nearest(name, PROPERTY_NAMES)
    hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(PROPERTY_NAMES)}"
    return f"{quoted(name)} is not an AMQP property{hint}"


def encode_property(name: str, value: Any, kind: str) -> bytes:
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
            "bad_property", "delivery_mode", f"got {quoted(value)}; 1 transient, 2 persistent"
        )
    return int(value)


def _priority(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 255:
        raise MessageError("bad_priority", "priority", f"got {quoted(value)}; give 0 to 255")
    return value


def _expiration(value: Any) -> str:
    # Only ASCII digits: int() would take other scripts' digits, signs and underscores.
    if not isinstance(value, str) or not (value.isascii() and value.isdigit()):
        raise MessageError(
            "bad_expiration",
            "expiration",
            f"got {quoted(value)}; give milliseconds as text of digits",
        )
    if len(value) > 10 or int(value) > _MAX_EXPIRATION_MS:
        raise MessageError(
            "bad_expiration", "expiration", f"got {quoted(value)}; at most {_MAX_EXPIRATION_MS} ms"
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
            f"got {quoted(value)}; give epoch seconds or an aware datetime",
        )
    return value


_CHECKS: Mapping[str, Callable[[Any], Any]] = {
    "delivery_mode": _delivery_mode,
    "priority": _priority,
    "expiration": _expiration,
    "reply_to": _reply_to,
    "timestamp": _timestamp,
}
