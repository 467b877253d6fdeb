"""An AMQP 0-9-1 client in raw frames: cheap, and free to do what no library would.

It decodes nothing that it was not asked for, answers no heartbeat by itself, and closes nothing:
who uses it decides.
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Self

from delaybridge.amqp.encoding import encode_table
from delaybridge.amqp.frames import BODY, FRAME, FRAME_OVERHEAD, HEADER, METHOD
from tests.rigs.waiting import DEADLINE_S

LOOPBACK = "127.0.0.1"
PROTOCOL = b"AMQP\x00\x00\x09\x01"
HEARTBEAT = b"\x08\x00\x00\x00\x00\x00\x00\xce"
START, START_OK = (10, 10), (10, 11)
TUNE, TUNE_OK = (10, 30), (10, 31)
OPEN, OPEN_OK = (10, 40), (10, 41)
CLOSE, CLOSE_OK = (10, 50), (10, 51)
CHANNEL_OPEN, CHANNEL_CLOSE = (20, 10), (20, 40)
DECLARE, DECLARE_OK = (40, 10), (40, 11)
QUEUE_DECLARE, QUEUE_BIND = (50, 10), (50, 20)
QOS, CONSUME, PUBLISH = (60, 10), (60, 20), (60, 40)
RETURN, DELIVER, ACK = (60, 50), (60, 60), (60, 80)
CONFIRM = (85, 10)


class Frame(NamedTuple):
    """One frame. id: class and method; (0, 0) of other frames. arguments: what follows, or all."""

    kind: int
    channel: int
    id: tuple[int, int]
    arguments: bytes

    @property
    def code(self) -> int:
        """The reply code of a close or a return."""
        return int.from_bytes(self.arguments[:2], "big")

    @property
    def text(self) -> str:
        """Its reply text."""
        return self.arguments[3 : 3 + self.arguments[2]].decode()


class Ended(ConnectionError):
    """The other side closed the connection."""


def short(text: str) -> bytes:
    data = text.encode()
    return bytes([len(data)]) + data


def long(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def table(**pairs: Any) -> bytes:
    """A field table; `_` in a name stands for `-`."""
    return long(encode_table((name.replace("_", "-"), value) for name, value in pairs.items()))


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return FRAME.pack(kind, channel, len(payload)) + payload + b"\xce"


def method(channel: int, id: tuple[int, int], arguments: bytes = b"") -> bytes:
    return frame(METHOD, channel, struct.pack(">HH", *id) + arguments)


def declare(exchange: str, type: str, arguments: bytes = table(), flags: int = 0b10) -> bytes:
    """The arguments of exchange.declare. flags: passive 1, durable 2, internal 8, no-wait 16."""
    return b"\0\0" + short(exchange) + short(type) + bytes([flags]) + arguments


def queue(name: str, arguments: bytes = table(), flags: int = 0b10) -> bytes:
    """The arguments of queue.declare."""
    return b"\0\0" + short(name) + bytes([flags]) + arguments


def bind(name: str, exchange: str, key: str = "", flags: int = 0) -> bytes:
    """The arguments of queue.bind."""
    return b"\0\0" + short(name) + short(exchange) + short(key) + bytes([flags]) + table()


def publish(
    channel: int,
    exchange: str,
    key: str,
    body: bytes,
    headers: bytes = table(),
    *,
    flags: int = 0,
    frame_max: int = 131_072,
) -> bytes:
    """The frames of one persistent message. flags: mandatory 1."""
    start = method(channel, PUBLISH, b"\0\0" + short(exchange) + short(key) + bytes([flags]))
    content = struct.pack(">HHQH", 60, 0, len(body), 0x3000) + headers + b"\x02"
    pieces, size = [start, frame(HEADER, channel, content)], frame_max - FRAME_OVERHEAD
    for at in range(0, len(body), size):
        pieces.append(frame(BODY, channel, body[at : at + size]))
    return b"".join(pieces)


def ack(channel: int, tag: int, *, multiple: bool = False) -> bytes:
    return method(channel, ACK, struct.pack(">QB", tag, multiple))


class RawClient:
    """One connection. frame_max, heartbeat: what it tells the broker; None: what it was offered."""

    def __init__(
        self, port: int, host: str = LOOPBACK, *, tls: ssl.SSLContext | None = None, name: str = ""
    ) -> None:
        self.sock: socket.socket = socket.create_connection((host, port), timeout=DEADLINE_S)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self.sock = tls.wrap_socket(self.sock, server_hostname=name or host)
        self._unread = bytearray()
        self.frame_max = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.sock.close()

    def open(
        self,
        user: str = "guest",
        password: str = "guest",
        *,
        vhost: str = "/",
        frame_max: int | None = None,
        heartbeat: int | None = 0,
    ) -> Self:
        """Shake hands; raises Ended with the broker's reason if it refuses."""
        self.sock.sendall(PROTOCOL)
        self.wait(START)
        client = table(
            capabilities={"authentication_failure_close": True, "consumer_cancel_notify": True}
        )
        login = short("PLAIN") + long(f"\0{user}\0{password}".encode()) + short("en_US")
        self.send(0, START_OK, client + login)
        channels, frames, beat = struct.unpack(">HIH", self.wait(TUNE).arguments)
        self.frame_max = frames if frame_max is None else frame_max
        beat = beat if heartbeat is None else heartbeat
        self.send(0, TUNE_OK, struct.pack(">HIH", channels, self.frame_max, beat))
        self.send(0, OPEN, short(vhost) + b"\0\0")
        self.wait(OPEN_OK)
        return self

    def send(self, channel: int, id: tuple[int, int], arguments: bytes = b"") -> None:
        """Send one method."""
        self.sock.sendall(method(channel, id, arguments))

    def call(self, channel: int, id: tuple[int, int], arguments: bytes = b"") -> Frame:
        """Send a method, and wait for its answer, or the close of its channel or connection."""
        self.send(channel, id, arguments)
        answers = {(id[0], id[1] + 1), CHANNEL_CLOSE, CLOSE}
        return next(each for each in self.frames() if each.id in answers)

    def open_channel(self, channel: int = 1, *, confirms: bool = False) -> int:
        """Open this channel, in confirm mode if asked; its number."""
        self.call(channel, CHANNEL_OPEN, b"\0")
        if confirms:
            self.call(channel, CONFIRM, b"\0")
        return channel

    def consume(self, channel: int, queue: str, *, prefetch: int, tag: str = "") -> None:
        """Subscribe; deliveries are acknowledged by the caller."""
        self.call(channel, QOS, struct.pack(">IHB", 0, prefetch, 0))
        self.call(channel, CONSUME, b"\0\0" + short(queue) + short(tag) + b"\0" + table())

    def wait(self, *ids: tuple[int, int]) -> Frame:
        """The next method of these ids. Raises Ended if the connection is closed before."""
        for each in self.frames():
            if each.id in ids:
                return each
            if each.id == CLOSE:
                raise Ended(f"{each.code} {each.text}")
        raise AssertionError("unreachable")

    def take_unread(self) -> bytes:
        """What was read and not yet asked for; the caller reads the socket from here on."""
        unread, self._unread = bytes(self._unread), bytearray()
        return unread

    def frames(self) -> Iterator[Frame]:
        """Frames as they come; raises Ended at the end of the stream, TimeoutError after 60 s."""
        while True:
            unread = self._unread
            while len(unread) >= FRAME_OVERHEAD:
                kind, channel, size = FRAME.unpack_from(unread)
                if len(unread) < size + FRAME_OVERHEAD:
                    break
                payload = bytes(unread[FRAME.size : FRAME.size + size])
                assert unread[FRAME.size + size] == 0xCE, unread[:64]
                del unread[: size + FRAME_OVERHEAD]
                is_method = kind == METHOD
                id = struct.unpack(">HH", payload[:4]) if is_method else (0, 0)
                yield Frame(kind, channel, id, payload[4:] if is_method else payload)
            if not (data := self.sock.recv(131_072)):
                raise Ended("the stream ended")
            unread += data


@contextmanager
def opened(port: int, **options: Any) -> Iterator[RawClient]:
    """An open connection with channel 1 open."""
    with RawClient(port) as client:
        client.open(**options)
        client.open_channel()
        yield client
