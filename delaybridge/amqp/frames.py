"""A publish as AMQP frames: method, content header and body, in one piece of bytes.

The stored bytes of a message are joined with delaybridge's own headers; nothing is decoded.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from delaybridge.amqp.decoding import spans_of
from delaybridge.amqp.encoding import (
    AFTER_HEADERS,
    DELIVERY_MODE_FLAG,
    HEADER_START,
    HEADERS_FLAG,
    LONG,
    USER_ID_FLAG,
)
from delaybridge.message import Delivery, Destination

BASIC_CLASS = 60
OWN_ID = "delaybridge-id"


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
    if not flags & DELIVERY_MODE_FLAG:
        flags |= DELIVERY_MODE_FLAG
        after = _PERSISTENT + after
    if flags & USER_ID_FLAG:
        flags, after = _without_foreign_user_id(flags, after, login)
    size = len(id)
    return b"".join(
        (
            HEADER_START.pack(BASIC_CLASS, 0, body_size, flags | HEADERS_FLAG),
            before,
            LONG.pack(len(table) + _OWN_SIZE + size),
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
    if not flags & DELIVERY_MODE_FLAG:
        flags |= DELIVERY_MODE_FLAG
        end += _PERSISTENT
    own_size = len(_ID_START) + LONG.size + id_size + len(_DUE_START) + 8
    table_size += own_size + _OWN_END_ATTEMPT.size
    parts = HeaderParts(
        struct.pack(">HH", BASIC_CLASS, 0),
        struct.pack(">H", flags | HEADERS_FLAG) + before + LONG.pack(table_size),
        _OWN_START.pack(_ID_START, id_size),
        _DUE_START,
        end,
    )
    extra = after_size + len(end) - _OWN_END_ATTEMPT.size
    return parts, HEADER_START.size + len(before) + LONG.size + table_size + extra


def _without_foreign_user_id(flags: int, after: bytes, login: bytes) -> tuple[int, bytes]:
    for name, start, end in spans_of(flags, after, AFTER_HEADERS):
        if name == "user_id" and after[start + 1 : end] != login:
            return flags & ~USER_ID_FLAG, after[:start] + after[end:]
    return flags, after


MAX_BODY_BYTES = 16 * 1024 * 1024  # RabbitMQ's default max_message_size
METHOD, HEADER, BODY = 1, 2, 3
FRAME = struct.Struct(">BHI")
FRAME_OVERHEAD = FRAME.size + 1

_END = b"\xce"
_NEXT_FRAME = struct.Struct(">cBHI")  # preceded by the end of the frame before
_PUBLISH = b"\x00\x3c\x00\x28\x00\x00"  # class 60, method 40, reserved
MANDATORY = b"\x01"
_KEPT = 10_000  # routing keys, shapes and sizes; each of them is unbounded
_NO_PROPERTIES = (0, b"", b"")
_Shape = tuple[int, bytes, int, int, int, int]  # as `header_parts` takes it
_pack_size = struct.Struct(">Q").pack
_pack_due = struct.Struct(">q").pack


class Encoder:
    """Encodes publishes on one channel to one exchange as frames.

    Most publishes differ from an earlier one only in body, id and due time, or in headers and
    properties of the same length. All other bytes are kept, and joined with those.
    """

    def __init__(self, channel: int, frame_max: int, login: bytes) -> None:
        self._channel = channel
        self._payload_max = frame_max - FRAME_OVERHEAD
        self._login = login
        self._methods: dict[str, bytes] = {}  # by routing key
        self._shapes: dict[_Shape, HeaderParts] = {}
        self._sizes: dict[int, tuple[bytes, bytes]] = {}  # in the header, and the frame's start

    def frames(self, delivery: Delivery) -> bytes:
        """The frames of one publish; ValueError with a reason if no broker would accept it."""
        record, id = delivery.record, delivery.given_id.encode()
        body, headers = record.body or b"", record.headers or b""
        properties: Any = record.properties  # cut in three for this kind of broker
        flags, before, after = properties or _NO_PROPERTIES
        shape = flags, before, len(after), len(headers), len(id), delivery.attempt
        method = self._methods.get(delivery.destination.routing_key)
        parts, size = self._shapes.get(shape), self._sizes.get(len(body))
        if method is None or parts is None or size is None:
            data = self.new_frames(delivery)
            self._keep(shape, len(body))
            return data
        start, before, own_id, due, attempt = parts
        field, frame = size
        due_ms = _pack_due(delivery.due_ms)
        return b"".join(
            (
                method, start, field, before, headers,  # type: ignore[arg-type]  # bytes
                own_id, id, due, due_ms, attempt, after, frame, body, _END,
            )
        )  # fmt: skip

    def new_frames(self, delivery: Delivery) -> bytes:
        """As `frames`, of a publish unlike any before."""
        record = delivery.record
        body = record.body or b""
        size = len(body)
        header = content_header(
            record.headers or b"",  # type: ignore[arg-type]  # bytes for this kind of broker
            record.properties,  # type: ignore[arg-type]  # cut in three for this kind, too
            size,
            delivery.given_id.encode(),
            delivery.due_ms,
            delivery.attempt,
            self._login,
        )
        if size > MAX_BODY_BYTES:
            raise ValueError(f"message_too_large: {size} bytes; RabbitMQ takes {MAX_BODY_BYTES}")
        if len(header) > self._payload_max:
            raise ValueError(
                f"headers_too_large: {len(header)} bytes; a frame takes {self._payload_max}"
            )
        start = FRAME.pack(HEADER, self._channel, len(header))
        pieces = [self._method(delivery.destination), start, header, _END]
        for at in range(0, size, self._payload_max):
            part = body[at : at + self._payload_max]
            pieces += (FRAME.pack(BODY, self._channel, len(part)), part, _END)
        return b"".join(pieces)

    def _keep(self, shape: _Shape, size: int) -> None:
        """Keep what the next publish of this shape shares; `new_frames` has accepted this one."""
        for kept in (self._methods, self._shapes, self._sizes):
            if len(kept) >= _KEPT:
                kept.clear()
        if not shape[0] & USER_ID_FLAG:  # a foreign user is left out
            parts, length = header_parts(*shape)
            start = FRAME.pack(HEADER, self._channel, length) + parts.start
            self._shapes[shape] = parts._replace(start=start)
        if 0 < size <= self._payload_max:  # else it has no body frame, or several
            self._sizes[size] = (
                _pack_size(size),
                _NEXT_FRAME.pack(_END, BODY, self._channel, size),
            )

    def _method(self, destination: Destination) -> bytes:
        frame = self._methods.get(destination.routing_key)
        if frame is None:
            exchange, key = destination.address.encode(), destination.routing_key.encode()
            payload = b"".join(
                (_PUBLISH, bytes([len(exchange)]), exchange, bytes([len(key)]), key, MANDATORY)
            )
            frame = FRAME.pack(METHOD, self._channel, len(payload)) + payload + _END
            self._methods[destination.routing_key] = frame
        return frame
