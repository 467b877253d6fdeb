"""The two sockets of a relay. Each passes on what arrives, but for the methods that are watched.

Back-pressure works in both directions: while the peer's socket takes no more, this one is not
read. Nothing waits in memory but one write buffer a socket, and what follows a method that is asked
about.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from delaybridge.amqp.walker import EVERY_METHOD, EVERYTHING, FrameTooLarge, Method, Piece, Walker
from delaybridge.front.methods import HEARTBEAT

if TYPE_CHECKING:
    from delaybridge.front.relay import Relay

_BEAT_S = 1.0  # while a side is held, its peer hears from the front this often
_FLUSH_S = 10.0  # that a socket has to take the rest after its peer has gone


class Side(asyncio.Protocol):
    """One socket of a relay.

    peer: the other one. on_method: takes a watched method and returns what is written to the peer
    in its place; None: this side is held from here on. received: bytes.
    """

    __slots__ = (
        "_beat", "_injected", "_is_full", "_is_lost", "_owner", "_unread", "is_held", "on_method",
        "peer", "received", "transport", "walker",
    )  # fmt: skip

    def __init__(self, owner: Relay, on_method: Callable[[Method], bytes | None]) -> None:
        self._owner, self.on_method = owner, on_method
        self.peer: Side
        self.transport: Any = None
        self.walker = Walker(())
        self.received = 0
        self.is_held = self._is_full = self._is_lost = False
        self._unread: list[bytes] = []  # while it is held: how it is read may have changed then
        self._injected = b""
        self._beat: asyncio.TimerHandle | None = None

    # what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        if self.is_held:
            self._unread.append(data)
        else:
            self._feed(data)

    def pause_writing(self) -> None:
        self.peer.full(True)

    def resume_writing(self) -> None:
        self.peer.full(False)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        if not self.is_held:
            self._owner.lost(self)

    # what the relay calls

    def write(self, data: bytes | memoryview) -> None:
        """Send these bytes; they are dropped if the socket is closed."""
        transport = self.transport
        if data and transport is not None and not transport.is_closing():
            transport.write(data)

    def inject(self, data: bytes) -> None:
        """Send the peer something of the front's own, between two frames."""
        self._injected += data
        if not self.is_held:
            self._inject()

    def hold(self) -> None:
        """Pass on nothing until `release`; nothing more is read meanwhile."""
        self.is_held = True
        self._read()
        self._beat = asyncio.get_running_loop().call_later(_BEAT_S, self._keep_alive)

    def release(self) -> None:
        """Pass on what arrived meanwhile, and read again."""
        if not self.is_held:
            return
        self.is_held = False
        if self._beat is not None:
            self._beat.cancel()
        data, self._unread = b"".join(self._unread), []
        if not self.peer.transport.is_closing():  # else what it would ask is never answered
            self._feed(data)
        if not self.is_held:
            self._read()
            if self._is_lost:
                self._owner.lost(self)

    def full(self, is_full: bool) -> None:
        """The peer takes no more, or takes more again."""
        self._is_full = is_full
        self._read()

    def close(self) -> None:
        """Close the socket once it has taken what was written, or after a while."""
        transport = self.transport
        if transport is not None and not transport.is_closing():
            transport.close()
            asyncio.get_running_loop().call_later(_FLUSH_S, transport.abort)

    def _read(self) -> None:
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        if self.is_held or self._is_full:
            transport.pause_reading()
        else:
            transport.resume_reading()

    def _feed(self, data: bytes) -> None:
        walker = self.walker
        walker.watched = EVERYTHING if self._injected else self._owner.watched(self, data)
        try:
            pieces = walker.feed(data)
        except FrameTooLarge as exc:
            self._owner.broke(self, str(exc))
            return
        if len(pieces) == 1 and pieces[0] is data:
            self.peer.write(data)
        else:
            self._pass_on(pieces)
        if self._injected and not self.is_held:
            self._inject()

    def _inject(self) -> None:
        if self.walker.is_between_messages:
            self.peer.write(self._injected)
            self._injected = b""

    def _pass_on(self, pieces: Sequence[Piece]) -> None:
        out: list[bytes | memoryview] = []
        for number, piece in enumerate(pieces):
            if not isinstance(piece, Method):
                out.append(piece)
                continue
            if self._injected and piece.id in EVERY_METHOD:
                out.append(self._injected)
                self._injected = b""
            instead = self.on_method(piece)
            if instead is None:
                self._unread = [*map(_bytes_of, pieces[number + 1 :]), self.walker.rewind()]
                self.hold()
                break
            out.append(instead)
        self.peer.write(out[0] if len(out) == 1 else b"".join(out))

    def _keep_alive(self) -> None:
        """A held side passes no heartbeat on: the peer would take the connection for dead."""
        self.peer.write(HEARTBEAT)
        self._beat = asyncio.get_running_loop().call_later(_BEAT_S, self._keep_alive)


def _bytes_of(piece: Piece) -> bytes:
    return piece.frame if isinstance(piece, Method) else bytes(piece)
