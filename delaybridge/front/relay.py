"""One client's connection, and the connection to the broker that belongs to it.

Everything passes unseen but a few methods. A declare of type x-delayed-message becomes one of
`D.due`; then the front makes D (`vhost.py`), while what follows from this client waits. Binds from
D become binds from `D.due`; deliveries from `D.due` come from D.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Container, Coroutine
from typing import Any, NamedTuple, Protocol

from delaybridge.amqp.walker import Method
from delaybridge.errors import DecodeError
from delaybridge.front import handshake, methods
from delaybridge.front.counts import FrontCounts
from delaybridge.front.link import Refused
from delaybridge.front.sides import Side
from delaybridge.front.vhost import Vhost
from delaybridge.settings.sections import FrontSettings

_log = logging.getLogger("delaybridge")
_GOODBYES = frozenset((methods.CONNECTION_CLOSE, methods.CONNECTION_CLOSE_OK))
_FROM_CLIENT = frozenset(
    (
        *(methods.START_OK, methods.OPEN, *_GOODBYES),
        *(methods.CHANNEL_OPEN, methods.CHANNEL_CLOSE, methods.CHANNEL_CLOSE_OK),
        *(methods.DECLARE, methods.DELETE, *methods.BINDS),
    )
)
_FROM_BROKER = frozenset(
    (
        *(methods.START, methods.TUNE, methods.CONNECTION_CLOSE_OK),
        *(methods.DECLARE_OK, methods.DELETE_OK),
        *(methods.CHANNEL_CLOSE, methods.CHANNEL_CLOSE_OK),
    )
)
_WITH_CONTENTS = _FROM_BROKER | methods.CONTENTS
_ANSWERS = {methods.DECLARE: methods.DECLARE_OK, methods.DELETE: methods.DELETE_OK}
_SHUTDOWN, _FORBIDDEN, _DIFFERS = 320, 403, 406
_NOTHING = b""


class Front(Protocol):
    """What a relay is given by the service."""

    settings: FrontSettings
    counts: FrontCounts

    def vhost(self, name: str) -> Vhost | None:
        """The front's own side of a vhost; None if no configured broker has it."""

    def begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run it beside the connections."""

    def began(self, relay: Relay) -> None:
        """A relay passes on from now on."""

    def ended(self, relay: Relay) -> None:
        """Both sockets of a relay are closed, or closing. Safe to call twice."""


class _Awaited(NamedTuple):
    """The answer to a method of the client's that went out changed."""

    channel: int
    id: bytes
    answer: asyncio.Future[Method]


class Relay:
    """What passes between a client and its broker. shown: what operators see of it."""

    __slots__ = (
        "_awaited", "_closing", "_front", "_host", "_owed", "_suffix", "_vhost", "broker", "client",
        "shown",
    )  # fmt: skip

    def __init__(self, front: Front, peer: tuple[Any, ...]) -> None:
        """peer: the client's address and port."""
        self._front, self._suffix = front, front.settings.suffix.encode()
        self.client = Side(self, self._from_client)
        self.broker = Side(self, self._from_broker)
        self.client.peer, self.broker.peer = self.broker, self.client
        self._host = str(peer[0])
        self.shown = front.counts.opened(f"{peer[0]}:{peer[1]}")
        self._vhost: Vhost | None = None
        self._awaited: _Awaited | None = None
        self._owed: dict[tuple[int, bytes], int] = {}  # answers that the broker owes the client
        self._closing: dict[int, bytes] = {}  # channel -> the close that the client gets

    @property
    def is_blind(self) -> bool:
        """Whether everything passes unread: the client speaks another protocol."""
        return self.client.walker.is_blind

    @is_blind.setter
    def is_blind(self, is_blind: bool) -> None:
        self.client.walker.is_blind = self.broker.walker.is_blind = is_blind

    def begin(self, client: Any, node: str, head: bytes) -> None:
        """The broker's socket is there. client: the other one; head: what it has sent already."""
        if client.is_closing():
            self.abort()
            return
        self.shown.node = node
        self._front.began(self)
        client.set_protocol(self.client)
        self.client.connection_made(client)
        self.broker.write(head[: len(handshake.PROTOCOL)])
        if len(head) > len(handshake.PROTOCOL):
            self.client.data_received(head[len(handshake.PROTOCOL) :])
        self.client.full(False)

    # what its sides tell

    def watched(self, side: Side, data: bytes) -> Container[bytes]:
        """The methods to look into: names of deliveries only where one may have to be changed."""
        if side is self.client:
            return _FROM_CLIENT
        if self._vhost is not None and (self._suffix in data or side.walker.has_part):
            return _WITH_CONTENTS
        return _FROM_BROKER

    def broke(self, side: Side, reason: str) -> None:
        """End the connection: what cannot be looked into is not passed on."""
        self._front.counts.client_refused("frame", f"{self.shown.client}: {reason}")
        self.abort()

    def lost(self, side: Side) -> None:
        """One socket is closed: close the other, once it has taken what was passed on."""
        awaited, self._awaited = self._awaited, None
        if awaited is not None and not awaited.answer.done():
            awaited.answer.cancel()
        side.peer.close()
        self._front.ended(self)

    def abort(self) -> None:
        """Close both sockets at once."""
        for side in (self.client, self.broker):
            if side.transport is not None:
                side.transport.abort()
        self._front.ended(self)

    def shut_down(self) -> None:
        """Ask client and broker to close the connection, as a broker that is being stopped does."""
        self.shown.state = "draining"
        text = "CONNECTION_FORCED - the front is being stopped; connect again"
        self.client.inject(methods.connection_close(200, "Goodbye"))
        self.broker.inject(methods.connection_close(_SHUTDOWN, text))

    # from the client

    def _from_client(self, method: Method) -> bytes | None:
        try:
            return self._passed(method)
        except DecodeError:  # the broker says what is wrong with it
            return method.frame

    def _passed(self, method: Method) -> bytes | None:
        id, channel = method.id, method.channel
        if channel in self.client.walker.muted:
            return self._muted(method)
        if self.shown.state == "draining" and id in _GOODBYES:
            return self._left(method)
        if id == methods.DECLARE and self._is_delayed(method):
            return self._work("declare", self._declare(method, methods.read_declare(method)))
        if id in methods.BINDS:
            return self._bind(method)
        if id == methods.DELETE and self._may_be_ours(methods.read_delete(method)[0]):
            return self._work("delete", self._delete(method, *methods.read_delete(method)))
        if id in _ANSWERS:
            self._owe(method)
        elif id == methods.CHANNEL_OPEN:
            self.shown.channels += 1
        elif id == methods.CHANNEL_CLOSE:
            self.shown.channels -= 1
        elif id == methods.START_OK:
            return self._logs_in(method)
        elif id == methods.OPEN:
            self.shown.state, self.shown.vhost = "running", handshake.vhost_of(method)
            self._vhost = self._front.vhost(self.shown.vhost)
        return method.frame

    def _logs_in(self, method: Method) -> bytes:
        settings = self._front.settings
        who = self.shown
        who.user, who.product, who.name = handshake.client_of(method)
        if settings.allow_guest or settings.proxy_protocol:
            return method.frame
        if handshake.is_foreign_guest(who.user, self._host):
            text = (
                "ACCESS_REFUSED - guest may log in from the broker's own host only: use another "
                "user, or set front.allow_guest, or front.proxy_protocol"
            )
            self._front.counts.client_refused("guest", f"{who.client}: {text}")
            self.client.write(methods.connection_close(_FORBIDDEN, text, methods.START_OK))
            self.client.close()
            self.broker.close()
            return _NOTHING
        return method.frame

    def _muted(self, method: Method) -> bytes:
        """On a channel that the front closes: what the client sends before it has heard of that."""
        channel, muted = method.channel, self.client.walker.muted
        if method.id == methods.CHANNEL_OPEN:
            muted.discard(channel)
            self.shown.channels += 1
            return method.frame
        if method.id == methods.CHANNEL_CLOSE_OK:
            muted.discard(channel)
        elif method.id == methods.CHANNEL_CLOSE:  # both close it at the same time
            answer = methods.frame(channel, methods.CHANNEL_CLOSE_OK, b"")
            if channel in self._closing:
                self._closing[channel] = answer
            else:
                self.broker.inject(answer)
        return _NOTHING

    def _left(self, method: Method) -> bytes:
        """It has answered the front's connection.close, or closes at the same time."""
        if method.id == methods.CONNECTION_CLOSE:
            self.client.write(methods.frame(0, methods.CONNECTION_CLOSE_OK, b""))
        self.client.close()
        return _NOTHING

    @staticmethod
    def _is_delayed(method: Method) -> bool:
        asked = methods.read_declare(method)
        return asked.type == methods.DELAYED_TYPE and not asked.passive

    def _may_be_ours(self, exchange: bytes) -> bool:
        return self._vhost is not None and exchange != b"" and not exchange.startswith(b"amq.")

    def _bind(self, method: Method) -> bytes | None:
        source, at = methods.source_of(method)
        if not self._may_be_ours(source):
            return method.frame
        if source + self._suffix in self._vhost.names:  # type: ignore[union-attr]
            self._front.counts.rewrote("bind")
            return methods.renamed(method, at, source + self._suffix)
        return self._work("bind", self._ask_and_bind(method, source, at))

    # what takes a while; the client is held meanwhile

    def _work(self, what: str, work: Coroutine[Any, Any, None]) -> bytes | None:
        """Begin it; None: the client is held until it ends."""
        self._front.counts.held(self.shown, what)
        self._front.begin(self._finish(work))
        return None

    async def _finish(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except asyncio.CancelledError:  # the connection is lost, or the process ends
            self.abort()
        except Exception as exc:
            _log.error("connection %s ended: %r", self.shown.client, exc, exc_info=exc)
            self.abort()
        finally:
            self._front.counts.released(self.shown)
            self.client.release()

    async def _ask_and_bind(self, method: Method, source: bytes, at: int) -> None:
        try:
            is_ours = await self._is_ours(source)
        except Refused as exc:
            self._refuse(method, source, exc)
            return
        if is_ours:
            self._front.counts.rewrote("bind")
            self.broker.write(methods.renamed(method, at, source + self._suffix))
        else:
            self.broker.write(method.frame)

    async def _is_ours(self, exchange: bytes) -> bool:
        if self._vhost is None:
            return False
        try:
            return await self._vhost.is_ours(exchange.decode())
        except UnicodeDecodeError:
            return False

    async def _declare(self, method: Method, asked: methods.Declare) -> None:
        try:
            vhost, name = self._serving(asked.exchange)
            type, table = methods.without_type(asked.arguments)
            type = await vhost.prepare(name, type)
            due = asked.exchange + self._suffix
            sent = methods.declare(method.channel, due, type, asked.flags, table)
            answer = await self._asked(method, sent)
            if answer.id == methods.CHANNEL_CLOSE:
                await vhost.withdraw(name)
            else:
                await vhost.stand(name, asked.durable, asked.internal)
        except Refused as exc:
            self.broker.release()
            self._refuse(method, asked.exchange, exc)
        else:
            self._front.counts.rewrote("declare")
            self._answer(answer, asked.exchange, asked.no_wait)

    def _serving(self, exchange: bytes) -> tuple[Vhost, str]:
        """The vhost in which a delayed exchange can be made, and its name; Refused if it cannot."""
        vhost, name = self._vhost, exchange.decode(errors="replace")
        if vhost is None:
            raise Refused(
                _DIFFERS,
                f"PRECONDITION_FAILED - no configured broker has vhost '{self.shown.vhost}', so "
                f"exchange '{name}' cannot delay: add one to [brokers]",
            )
        if not self._may_be_ours(exchange) or name.encode() != exchange:
            raise Refused(
                _FORBIDDEN, f"ACCESS_REFUSED - no delayed exchange can have the name '{name}'"
            )
        return vhost, name

    async def _delete(self, method: Method, exchange: bytes, flags: int) -> None:
        try:
            if not await self._is_ours(exchange):
                self._owe(method)
                self.broker.write(method.frame)
                return
            sent = methods.delete(method.channel, exchange + self._suffix, flags)
            answer = await self._asked(method, sent)
            if answer.id == methods.DELETE_OK and self._vhost is not None:
                await self._vhost.delete(exchange.decode())
        except Refused as exc:
            self.broker.release()
            self._refuse(method, exchange, exc)
        else:
            self._front.counts.rewrote("delete")
            self._answer(answer, exchange, not methods.is_answered(method))

    def _owe(self, method: Method) -> None:
        """The broker will answer this method as it stands."""
        if methods.is_answered(method):
            due = method.channel, _ANSWERS[method.id]
            self._owed[due] = self._owed.get(due, 0) + 1

    async def _asked(self, method: Method, sent: bytes) -> Method:
        """Send it to the broker; its answer, with which the broker's side is held."""
        answer: asyncio.Future[Method] = asyncio.get_running_loop().create_future()
        self._awaited = _Awaited(method.channel, _ANSWERS[method.id], answer)
        self.broker.write(sent)
        return await answer

    def _answer(self, answer: Method, exchange: bytes, is_silent: bool) -> None:
        """Pass the broker's answer on, unless the client expects none; read the broker again."""
        if answer.id == methods.CHANNEL_CLOSE:
            self.client.write(self._explained(answer, exchange))
        elif not is_silent:
            self.client.write(answer.frame)
        self.broker.release()

    def _explained(self, close: Method, exchange: bytes) -> bytes:
        """The broker's refusal; where rights on `D.due` are missing, with those to set."""
        code, text, about = methods.read_close(close)
        name, due = (each.decode(errors="replace") for each in (exchange, exchange + self._suffix))
        if code != _FORBIDDEN:
            text = text.replace(f"'{due}'", f"'{name}'")
            return methods.channel_close(close.channel, code, text, about)
        pattern = f"^{name}({due.removeprefix(name)})?$".replace(".", "\\.")
        more = f"; a user of '{name}' needs the rights for '{due}', too: {pattern}"
        text = text[: methods.TEXT_BYTES - len(more.encode())] + more
        return methods.channel_close(close.channel, code, text, about)

    def _refuse(self, method: Method, exchange: bytes, refusal: Refused) -> None:
        """Close the client's channel. The broker closes it first, so that all that it has sent on
        it comes before."""
        channel = method.channel
        name = exchange.decode(errors="replace")
        self._front.counts.method_refused(name, refusal.code, refusal.text)
        self._closing[channel] = methods.channel_close(
            channel, refusal.code, refusal.text, method.id
        )
        self.client.walker.muted.add(channel)
        self.broker.write(methods.channel_close(channel, 200, "refused by the front"))

    # from the broker

    def _from_broker(self, method: Method) -> bytes | None:
        try:
            return self._returned(method)
        except DecodeError:
            return method.frame

    def _returned(self, method: Method) -> bytes | None:
        id, channel = method.id, method.channel
        if id in methods.CONTENTS:
            return self._content(method)
        if id in (methods.DECLARE_OK, methods.DELETE_OK):
            return self._answered(method)
        if id == methods.CHANNEL_CLOSE:
            return self._closed(method)
        if id == methods.CHANNEL_CLOSE_OK:
            if channel in self._closing:
                self.shown.channels -= 1
            return self._closing.pop(channel, method.frame)
        if id == methods.CONNECTION_CLOSE_OK and self.shown.state == "draining":
            return _NOTHING  # the client hears 320
        if id == methods.START and self._front.settings.tls_cert_file:
            return handshake.without_external(method)
        if id == methods.TUNE:
            return handshake.with_fewer_channels(method, self._front.settings.channels)
        return method.frame

    def _answered(self, method: Method) -> bytes | None:
        awaited = self._awaited
        due = method.channel, method.id
        if awaited is not None and due == awaited[:2] and self._owed.get(due, 0) == 0:
            self._awaited = None
            awaited.answer.set_result(method)
            return None
        if due in self._owed:
            self._owed[due] -= 1
            if not self._owed[due]:
                del self._owed[due]
        return method.frame

    def _closed(self, method: Method) -> bytes | None:
        channel, awaited = method.channel, self._awaited
        for id in _ANSWERS.values():
            self._owed.pop((channel, id), None)
        if channel in self._closing:
            return _NOTHING  # it answers the front's close, too
        self.shown.channels -= 1
        if awaited is not None and awaited.channel == channel:
            self._awaited = None
            awaited.answer.set_result(method)
            return None
        return method.frame

    def _content(self, method: Method) -> bytes | None:
        exchange, at = methods.exchange_of(method)
        if not exchange.endswith(self._suffix) or self._vhost is None:
            return method.frame
        name = self._vhost.names.get(exchange)
        if name is not None:
            return methods.renamed(method, at, name)
        if self._vhost.is_known(exchange):
            return method.frame
        self._front.begin(self._name(method, exchange, at, self._vhost))
        return None

    async def _name(self, method: Method, exchange: bytes, at: int, vhost: Vhost) -> None:
        """Ask what the client calls this exchange; its deliveries wait."""
        name = exchange
        try:
            name = await vhost.name_of(exchange)
        finally:
            self.client.write(methods.renamed(method, at, name))
            self.broker.release()
