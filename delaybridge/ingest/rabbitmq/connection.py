"""A connection for consumers that delivers messages as bytes, without decoding them.

pika would decode every header table, which changes values (a double becomes an integer) and costs
ten times the CPU. Handshake, heartbeats, channels and everything else are pika's.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Sequence
from typing import Any

from pika.connection import Parameters

from delaybridge.amqp.connection import WireConnection
from delaybridge.amqp.walker import BODY_ID, HEADER_ID
from delaybridge.ingest.rabbitmq.forms import Shape
from delaybridge.ingest.rabbitmq.messages import RawMessage

_METHOD = 1
_DELIVER = b"\x00\x3c\x00\x3c"
_CONTENTS = frozenset([_DELIVER, HEADER_ID, BODY_ID])
_TAG = struct.Struct(">QB")
_BODY_SIZE = struct.Struct(">Q")
_FRAME = struct.Struct(">BHI")
_ACK = struct.Struct(">BHIHHQBB")
# Of a delivery in frames: up to the size of the consumer's tag; delivery tag, flag and size of the
# exchange's name; from the header frame's length to the body's size; a frame's length.
_DELIVER_START, _DELIVER_REST = struct.Struct(">BHI4sB"), struct.Struct(">QBB")
_HEADER_START, _LENGTH = struct.Struct(">I4xQ"), struct.Struct(">I")
_SMALL_BYTES = 64 * 1024  # an incomplete message larger than this goes frame by frame
_READ_BYTES = 64 * 1024
_SHARES = 8  # of the window: one for each channel's messages that are set aside
OVERHEAD = 256  # bytes of memory per message in addition to its own


class Deliveries:
    """Messages of one channel that were not taken yet. size: bytes of all unacknowledged ones.

    are_dropped: those that arrive now are; they will be returned. returned: how many were, and did
    not come again yet. largest: bytes of the largest of them.
    """

    def __init__(self, arrived: Callable[[], None]) -> None:
        self.messages: list[RawMessage] = []
        self.size = 0
        self.are_dropped = False
        self.returned = self.largest = 0
        self._arrived = arrived
        self._partial: tuple[int, bool, bytes] = (0, False, b"")
        self._header = b""
        self._left = 0
        self._body: list[bytes] = []

    def method(self, data: bytes) -> None:
        """Take tag, flag and routing key of the arguments of a basic.deliver."""
        at = 1 + data[0]
        tag, redelivered = _TAG.unpack_from(data, at)
        at += _TAG.size
        at += 1 + data[at]  # the exchange
        self._partial = tag, redelivered == 1, data[at + 1 : at + 1 + data[at]]

    def header(self, payload: bytes) -> int:
        """Take the content header. Returns the message's size if it is complete, else 0."""
        self._header = payload
        (self._left,) = _BODY_SIZE.unpack_from(payload, 4)
        return 0 if self._left else self._done(b"")

    def body(self, payload: bytes) -> int:
        """Take a piece of the body. Returns the same as `header`."""
        self._left -= len(payload)
        if self._left > 0 or self._body:
            self._body.append(payload)
            if self._left > 0:
                return 0
            payload, self._body = b"".join(self._body), []
        return self._done(payload)

    def _done(self, body: bytes) -> int:
        return self.add(RawMessage(*self._partial, self._header, body))

    def add(self, message: RawMessage) -> int:
        """Take a complete message. Returns its size; 0 if it is dropped."""
        size = len(message.header) + len(message.body) + OVERHEAD  # `size_of`, without its call
        if self.are_dropped:
            self.returned += 1
            self.largest = max(size, self.largest)
            return 0
        return self.add_all([message], size)

    def add_all(self, messages: Sequence[RawMessage], size: int) -> int:
        """The same of more that have this size together, while none is dropped."""
        if not self.messages:
            self._arrived()
        self.messages += messages
        self.size += size
        return size


def size_of(message: RawMessage) -> int:
    """Bytes that a message counts in the window."""
    return len(message.header) + len(message.body) + OVERHEAD


class IntakeConnection(WireConnection):
    """A connection for consumers. It reads nothing while more than `window_bytes` are held.

    held_bytes: of all messages that were delivered and not acknowledged. aside_bytes: of those
    among them that are set aside.
    """

    WATCHED = WireConnection.WATCHED | _CONTENTS
    LEARN_MESSAGES = 16  # that are cut by themselves, before one is the shape of the next
    _alike: Shape | None = None  # what the next message probably looks like
    _since_alike = 0  # messages since one did not

    def __init__(
        self, parameters: Parameters, loop: asyncio.AbstractEventLoop, window_bytes: int
    ) -> None:
        self._deliveries: dict[int, Deliveries] = {}
        self._window_bytes = window_bytes
        self.held_bytes = self.aside_bytes = 0
        self._is_paused = False
        self._unread = b""
        super().__init__(parameters, loop)

    def _proto_connection_made(self, transport: Any) -> None:
        super()._proto_connection_made(transport)
        if not self._is_plain:
            # Under TLS pika keeps reading by itself while there is something to decrypt.
            read = transport._on_socket_readable
            transport._on_socket_readable = lambda: None if self._is_paused else read()

    def read_much(self) -> None:
        """Read more bytes at a time than pika does, which expects answers, not a message stream."""
        transport: Any = self._transport
        transport._MAX_RECV_BYTES = _READ_BYTES

    def take_deliveries(self, channel: int, deliveries: Deliveries | None) -> None:
        """Send the channel's deliveries there from now on; None: to pika."""
        self._alike = None  # it is known to who reads the channel
        if deliveries is None:
            self._deliveries.pop(channel, None)
        else:
            self._deliveries[channel] = deliveries

    def release(self, size: int) -> None:
        """Hold this number of bytes fewer."""
        self.held_bytes -= size
        # What is set aside may stay for long: it is read again once half of the rest is free.
        if self._is_paused and self.held_bytes <= (self._window_bytes + self.aside_bytes) // 2:
            self._is_paused = False
            self.watch(True)

    def share(self, own: int) -> int:
        """Bytes that a channel may set aside: a part of what others leave. own: what it does."""
        return max(self._window_bytes - self.aside_bytes + own, 0) // _SHARES

    def ack(self, channel: int, tag: int, *, multiple: bool) -> None:
        """Acknowledge the message with this tag, or all up to it."""
        self.write([_ACK.pack(_METHOD, channel, 13, 60, 80, tag, multiple, 0xCE)])

    def return_all(self, channel: int) -> None:
        """Return all messages of a channel that are not acknowledged, in their order."""
        self.write([_ACK.pack(_METHOD, channel, 13, 60, 120, 0, 3, 0xCE)])

    def _on_data_available(self, data_in: bytes) -> None:
        """Take the complete deliveries at the start of the data; the rest goes frame by frame."""
        if self._reader.has_part or not self._reader.is_at_boundary:
            super()._on_data_available(data_in)
            return
        data = self._unread + data_in if self._unread else data_in
        position, in_pieces = self._take_whole(data)
        rest = data[position:] if position else data
        self._unread = b""
        if not in_pieces and len(rest) < _SMALL_BYTES and self._may_be_delivery(rest):
            self._unread = rest  # more of it is on its way
        elif rest:
            super()._on_data_available(rest)

    def _may_be_delivery(self, data: bytes) -> bool:
        if len(data) < _FRAME.size + len(_DELIVER):
            return data[:1] == b"\x01"  # every method has as many bytes
        kind, channel, _ = _FRAME.unpack_from(data)
        method = data[_FRAME.size : _FRAME.size + len(_DELIVER)]
        return kind == _METHOD and method == _DELIVER and channel in self._deliveries

    def _take_whole(self, data: bytes) -> tuple[int, bool]:
        """Take messages of two or three frames from the start of the data.

        Returns where the first other frame starts, and whether that is a message with its body in
        several frames. Does the same as the reader, `Deliveries.method`, `header` and `body`,
        without a call for each frame: half the CPU.
        """
        position, held, in_pieces = 0, 0, False
        try:
            while True:
                if self._alike is not None:
                    position = self._take_alike(self._alike, data, position)
                kind, channel, length, method, skip = _DELIVER_START.unpack_from(data, position)
                if kind != _METHOD or method != _DELIVER:
                    break
                deliveries = self._deliveries[channel]
                at = position + 12 + skip  # after the consumer's tag
                tag, redelivered, skip = _DELIVER_REST.unpack_from(data, at)
                at += 10 + skip  # after the exchange
                key = data[at + 1 : at + 1 + data[at]]
                head = position + length + 15
                length, size = _HEADER_START.unpack_from(data, head - 4)
                header = data[head : head + length]
                end = head + length + 1
                body = b""
                if size:
                    (length,) = _LENGTH.unpack_from(data, end + 3)
                    if in_pieces := length != size:
                        break
                    body = data[end + 7 : end + 7 + length]
                    end += length + 8
                data[end - 1]  # if the last byte is there, so are all before it
                held += deliveries.add(RawMessage(tag, redelivered == 1, key, header, body))
                self._since_alike += 1
                if self._since_alike >= self.LEARN_MESSAGES and not redelivered:
                    self._alike = Shape(channel, key, header, data[position:head])
                position = end
        except (struct.error, IndexError, KeyError):
            pass  # the next message is incomplete, or is not for a consumer
        self.bytes_received += position  # pika's heartbeat reads it
        self.hold(held)
        return position, in_pieces

    def _take_alike(self, shape: Shape, data: bytes, position: int) -> int:
        """Take messages of this shape, as many as there are. Returns where the next one starts."""
        unpack, start, middle, form, head, channel, key = shape.parts
        deliveries, messages, size = self._deliveries[channel], list[RawMessage](), 0
        take, length_at = messages.append, _LENGTH.unpack_from
        try:
            while not deliveries.are_dropped:
                begun, tag, between, length, body_size, begins = unpack(data, position)
                if begins != form or between != middle or begun != start:
                    break
                at = position + head
                end = at + length + 1
                header, body = data[at : end - 1], b""
                if body_size:
                    (piece,) = length_at(data, end + 3)
                    if piece != body_size:
                        break
                    body = data[end + 7 : end + 7 + piece]
                    end += piece + 8
                data[end - 1]  # as above
                take(RawMessage(tag, False, key, header, body, shape))
                size += length + body_size + OVERHEAD
                position = end
        except (struct.error, IndexError):
            pass
        if messages:
            self.hold(deliveries.add_all(messages, size))
        else:
            self._alike, self._since_alike = None, 0
        return position

    def _take(self, channel: int, id: bytes, data: bytes, start: int, end: int) -> None:
        deliveries = self._deliveries.get(channel)
        if deliveries is None and id == _DELIVER:
            self._pass_to_pika(data[start:end])
        elif deliveries is None or id not in _CONTENTS:
            super()._take(channel, id, data, start, end)
        else:
            self.bytes_received += end - start
            if id == _DELIVER:
                deliveries.method(data[start + 11 : end])
            elif id == HEADER_ID:
                self.hold(deliveries.header(data[start + 7 : end - 1]))
            else:
                self.hold(deliveries.body(data[start + 7 : end - 1]))

    def hold(self, size: int) -> None:
        """Hold this number of bytes more."""
        self.held_bytes += size
        if self.held_bytes > self._window_bytes and not self._is_paused:
            self._is_paused = True
            self.watch(False)

    def watch(self, reading: bool) -> None:
        """Read the socket, or stop: the broker keeps the rest."""
        transport: Any = self._transport
        if transport is None or self.is_closed or transport._state != transport._STATE_ACTIVE:
            return
        number = transport._sock.fileno()
        if not reading:
            self._loop.remove_reader(number)
        elif self._is_plain:
            self._loop.add_reader(number, self._on_readable, transport)
        else:
            self._loop.add_reader(number, transport._on_socket_readable)
            # TLS may have decrypted more than was taken.
            self._loop.call_soon(transport._on_socket_readable)
