"""A publish as AMQP frames: method, content header and body, in one piece of bytes."""

from __future__ import annotations

import struct
from typing import Any

from delaybridge.amqp.header import USER_ID_FLAG, HeaderParts, content_header, header_parts
from delaybridge.message import Delivery, Destination

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
