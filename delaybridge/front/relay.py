"""One client's connection, and the connection to the broker that belongs to it.

Everything passes unseen but the first frames (`handshake.py`), methods about exchanges
(`exchanges.py`), and what opens and closes channels (`channels.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Container, Coroutine
from typing import TYPE_CHECKING, Any

from delaybridge.amqp.walker import EVERYTHING, Method
from delaybridge.errors import DecodeError
from delaybridge.front import handshake, methods
from delaybridge.front.channels import Channels
from delaybridge.front.exchanges import ABOUT, Exchanges
from delaybridge.front.sides import Side

if TYPE_CHECKING:
    from delaybridge.front.front import FrontProcess

_log = logging.getLogger("delaybridge")
_GOODBYES = frozenset((methods.CONNECTION_CLOSE, methods.CONNECTION_CLOSE_OK))
_CHANNELS = frozenset((methods.CHANNEL_CLOSE, methods.CHANNEL_CLOSE_OK))
_OPENING = frozenset((methods.START, methods.TUNE, methods.OPEN_OK))
_ANSWERS = frozenset((methods.DECLARE_OK, methods.DELETE_OK))
_FROM_CLIENT = frozenset(
    (methods.START_OK, methods.OPEN, *_GOODBYES, methods.CHANNEL_OPEN, *_CHANNELS, *ABOUT)
)
_FROM_BROKER = frozenset((*_OPENING, *_GOODBYES, *_ANSWERS, *_CHANNELS))
_WITH_CONTENTS = _FROM_BROKER | methods.CONTENTS
_SHUTDOWN, _FORBIDDEN, _FRAME_ERROR = 320, 403, 501
_NOTHING = b""


class Relay:
    """What passes between a client and its broker. shown: what operators see of it."""

    __slots__ = (
        "_host", "_suffix", "broker", "channels", "client", "counts", "exchanges", "front",
        "shown",
    )  # fmt: skip

    def __init__(self, front: FrontProcess, peer: tuple[Any, ...]) -> None:
        """peer: the client's address and port."""
        self.front, self._suffix = front, front.settings.suffix.encode()
        self.client = Side(self, self._from_client)
        self.broker = Side(self, self._from_broker)
        self.client.peer, self.broker.peer = self.broker, self.client
        self._host = str(peer[0])
        self.counts, self.shown = front.counts, front.counts.opened(f"{peer[0]}:{peer[1]}")
        self.channels = Channels(self.client, self.broker, self.shown)
        self.exchanges = Exchanges(self, self._suffix)

    def open(self, client: Any, node: str, head: bytes) -> None:
        """The broker's socket is there. client: the other one; head: what it has sent already."""
        if client.is_closing():
            self.abort()
            return
        self.shown.node = node
        self.front.began(self)
        client.set_protocol(self.client)
        self.client.connection_made(client)
        self.broker.write(head[: len(handshake.PROTOCOL)])
        if len(head) > len(handshake.PROTOCOL):
            self.client.data_received(head[len(handshake.PROTOCOL) :])
        self.client.full(False)

    @property
    def is_trusted(self) -> bool:
        """Whether the client may be guest."""
        return handshake.is_trusted(self.front.settings, self._host)

    # what its sides tell

    def watched(self, side: Side, data: bytes) -> Container[bytes]:
        """The methods to look into: names of deliveries only where one may have to be changed."""
        if side is self.client:
            return EVERYTHING if self.channels.muted else _FROM_CLIENT
        if self.exchanges.vhost is not None and (self._suffix in data or side.walker.has_part):
            return _WITH_CONTENTS
        return _FROM_BROKER

    def broke(self, side: Side, reason: str) -> None:
        """End the connection: what cannot be looked into is not passed on."""
        self.counts.client_refused("frame", f"{self.shown.client}: {reason}")
        if side is self.client:
            side.write(methods.close(0, _FRAME_ERROR, f"FRAME_ERROR - {reason}"))
        self.client.close()
        self.broker.close()

    def lost(self, side: Side) -> None:
        """One socket is closed: close the other, once it has taken what was passed on."""
        self.exchanges.lost()
        side.peer.close()
        self.front.ended(self)

    def abort(self) -> None:
        """Close both sockets at once."""
        for side in (self.client, self.broker):
            if side.transport is not None:
                side.transport.abort()
        self.front.ended(self)

    def shut_down(self) -> None:
        """Ask client and broker to close the connection, as a broker that is being stopped does."""
        self.shown.state = "draining"
        text = "CONNECTION_FORCED - the front is being stopped; connect again"
        self.client.inject(methods.close(0, 200, "Goodbye"))
        self.broker.inject(methods.close(0, _SHUTDOWN, text))

    # what its exchanges ask

    def hold(self, what: str, work: Coroutine[Any, Any, None]) -> None:
        """Pass on nothing of the client's until this work is done."""
        self.counts.held(self.shown, what)
        self.front.begin(self._finish(work))

    async def _finish(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except asyncio.CancelledError:  # the connection is lost, or the process ends
            self.client.close()
            self.broker.close()
        except Exception as exc:
            _log.error("connection %s ended: %r", self.shown.client, exc, exc_info=exc)
            self.abort()
        finally:
            self.counts.released(self.shown)
            self.client.release()

    # what passes

    def _from_client(self, method: Method) -> bytes | None:
        dropped = self.channels.from_client(method)
        if dropped is not None:
            return dropped
        try:
            if method.id in ABOUT:
                if self.shown.state == "opening":  # the front acts for those only who may log in
                    self.broke(self.client, "exchanges come after connection.open-ok")
                    return _NOTHING
                return self.exchanges.from_client(method)
            if method.id == methods.START_OK:
                return self._logs_in(method)
            if method.id == methods.OPEN and not self.shown.vhost:
                self.shown.vhost = handshake.vhost_of(method)
        except DecodeError:  # the broker says what is wrong with it
            return method.frame
        if method.id in _GOODBYES and self.shown.state == "draining":
            return self._leaves(method)
        return method.frame

    def _logs_in(self, method: Method) -> bytes:
        shown = self.shown
        shown.user, shown.product, shown.name = handshake.client_of(method)
        if shown.user != handshake.GUEST or self.is_trusted:
            return method.frame
        text = (
            "ACCESS_REFUSED - guest may log in from the broker's own host only: use another user, "
            "or set front.allow_guest, or front.proxy_protocol"
        )
        self.counts.client_refused("guest", f"{shown.client}: {text}")
        self.client.write(methods.close(0, _FORBIDDEN, text, methods.START_OK))
        self.client.close()
        self.broker.close()
        return _NOTHING

    def _leaves(self, method: Method) -> bytes:
        """It has answered the front's connection.close, or closes at the same time."""
        if method.id == methods.CONNECTION_CLOSE:
            self.client.write(methods.frame(0, methods.CONNECTION_CLOSE_OK, b""))
        self.client.close()
        return _NOTHING

    def _from_broker(self, method: Method) -> bytes | None:
        id = method.id
        try:
            if id in methods.CONTENTS:
                return self.exchanges.content(method)
            if id == methods.START and self.front.settings.tls_cert_file:
                return handshake.without_external(method)
            if id == methods.OPEN_OK:
                self.shown.state = "running"
                self.exchanges.vhost = self.front.vhosts.get(self.shown.vhost)
            if id == methods.TUNE:
                return handshake.with_fewer_channels(method, self.front.settings.channels)
            if id in _CHANNELS:
                frame = self.channels.from_broker(method)
                is_close = id == methods.CHANNEL_CLOSE and frame
                return self.exchanges.closed(method) if is_close else frame
        except DecodeError:
            return method.frame
        if id in _ANSWERS:
            return self.exchanges.answered(method)
        if id == methods.CONNECTION_CLOSE:
            self.exchanges.lost()
        if id == methods.CONNECTION_CLOSE_OK and self.shown.state == "draining":
            return _NOTHING  # the client hears 320
        return method.frame
