"""A client's methods about exchanges, and what the broker answers.

A declare of type x-delayed-message becomes one of `D.due`; then the front makes D (`vhost.py`),
while what follows from this client waits. Binds from D become binds from `D.due`; deliveries from
`D.due` come from D. All other methods pass as they are.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable
from typing import TYPE_CHECKING, NamedTuple

from delaybridge.amqp.walker import Method
from delaybridge.front import methods
from delaybridge.front.link import Refused
from delaybridge.front.vhost import Vhost

if TYPE_CHECKING:
    from delaybridge.front.relay import Relay

_ANSWERS = {methods.DECLARE: methods.DECLARE_OK, methods.DELETE: methods.DELETE_OK}
_FORBIDDEN, _DIFFERS = 403, 406
_NAMED = re.compile("exchange '([^']+)'")
ABOUT = frozenset((methods.DECLARE, methods.DELETE, *methods.BINDS))
"""The methods of a client that are about exchanges."""


class _Awaited(NamedTuple):
    """The answer to a method of the client's for which it is held: of this id, or a channel.close,
    which may come before the method goes out."""

    channel: int
    id: bytes
    answer: asyncio.Future[Method]


class Exchanges:
    """The exchanges of one connection. vhost: the front's own side of its vhost, if it has one."""

    __slots__ = ("_at", "_awaited", "_begun", "_owed", "_suffix", "vhost")

    def __init__(self, connection: Relay, suffix: bytes) -> None:
        self._at, self._suffix = connection, suffix
        self.vhost: Vhost | None = None
        self._awaited: _Awaited | None = None
        self._begun: dict[bytes, bytes] = {}  # D.due -> D, of those it asked to bind
        self._owed: dict[tuple[int, bytes], int] = {}  # answers that the broker owes the client

    # what the client asks

    def from_client(self, method: Method) -> bytes | None:
        """What the broker gets of a method in `ABOUT`; None: that is not known yet.

        DecodeError if it is broken.
        """
        if method.id in methods.BINDS:
            return self._bind(method)
        if method.id == methods.DECLARE:
            asked = methods.read_declare(method)
            if asked.type == methods.DELAYED_TYPE and not asked.has(methods.PASSIVE):
                type, table = methods.without_type(asked.arguments)
                work = self._declare(method, asked, type, table)
                self._hold("declare", asked.exchange, method, work)
                return None
        elif self._may_be_ours(exchange := methods.read_delete(method)[0]):
            work = self._delete(method, *methods.read_delete(method))
            self._hold("delete", exchange, method, work)
            return None
        self._owe(method)
        return method.frame

    def _may_be_ours(self, exchange: bytes) -> bool:
        return self.vhost is not None and exchange != b"" and not exchange.startswith(b"amq.")

    def _bind(self, method: Method) -> bytes | None:
        source, at = methods.source_of(method)
        if not self._may_be_ours(source):
            return method.frame
        renamed = methods.renamed(method, at, source + self._suffix)
        if source + self._suffix in self.vhost.names:  # type: ignore[union-attr]  # see above
            return renamed
        self._hold("bind", source, method, self._asked(method, source, renamed))
        return None

    async def _asked(self, method: Method, source: bytes, renamed: bytes) -> bytes:
        if not await self._is_ours(source):
            return method.frame
        self._begun[source + self._suffix] = source
        return renamed

    def _hold(
        self, what: str, exchange: bytes, method: Method, work: Awaitable[Method | bytes]
    ) -> None:
        """work: gives the broker's answer, or what the broker gets and then answers as it does."""
        answer: asyncio.Future[Method] = asyncio.get_running_loop().create_future()
        self._awaited = _Awaited(method.channel, _ANSWERS.get(method.id, b""), answer)
        what = f"{what} {exchange.decode(errors='replace')}"
        self._at.hold(what, self._end(method, exchange, work))

    async def _end(self, method: Method, exchange: bytes, work: Awaitable[Method | bytes]) -> None:
        found: Method | bytes | Refused
        try:
            found = await work
        except Refused as exc:
            found = exc
        holds_broker = self._awaited is not None and self._awaited.answer.done()
        found, self._awaited = self._closed() or found, None
        if isinstance(found, Refused):
            name = exchange.decode(errors="replace")
            self._at.counts.method_refused(name, found.code, found.text)
            if holds_broker:  # else it is not held, or until a name is known
                self._at.broker.release()
            self._at.channels.refuse(method, found)
        elif isinstance(found, Method):
            if found.id == methods.CHANNEL_CLOSE:
                self._at.client.write(self._explained(found, exchange))
            elif methods.is_answered(method):
                self._at.client.write(found.frame)
            self._at.broker.release()
        else:
            if method.id in _ANSWERS:
                self._owe(method)
            self._at.broker.write(found)

    async def _is_ours(self, exchange: bytes) -> bool:
        """Also of one that is just being made: neither a bind nor a delete may go out for D."""
        try:
            return self.vhost is not None and await self.vhost.is_ours(exchange.decode(), True)
        except UnicodeDecodeError:
            return False

    async def _declare(
        self, method: Method, asked: methods.Declare, type: bytes | None, table: bytes
    ) -> Method | bytes:
        vhost, name = self._serving(asked.exchange)
        type = await vhost.prepare(name, type)
        if type is None:
            return method.frame
        due = asked.exchange + self._suffix
        answer = await self._ask(methods.declare(method.channel, due, type, asked.flags, table))
        if answer.id == methods.CHANNEL_CLOSE:
            await vhost.withdraw(name)
        else:
            durable, internal = asked.has(methods.DURABLE), asked.has(methods.INTERNAL)
            await vhost.stand(name, durable, internal)
        return answer

    def _serving(self, exchange: bytes) -> tuple[Vhost, str]:
        """The vhost in which a delayed exchange can be made, and its name; Refused if it cannot."""
        vhost, name = self.vhost, exchange.decode(errors="replace")
        if vhost is None:
            raise Refused(
                _DIFFERS,
                f"PRECONDITION_FAILED - no configured broker has vhost '{self._at.shown.vhost}', "
                f"so exchange '{name}' cannot delay",
                ": add one to [brokers] of the front",
            )
        if not self._may_be_ours(exchange) or name.encode() != exchange:
            raise Refused(
                _FORBIDDEN, f"ACCESS_REFUSED - no delayed exchange can have the name '{name}'"
            )
        return vhost, name

    async def _delete(self, method: Method, exchange: bytes, flags: int) -> Method | bytes:
        if self.vhost is not None:  # another front may have deleted it, and D be a plain one now
            self.vhost.names.pop(exchange + self._suffix, None)
        if not await self._is_ours(exchange):
            return method.frame
        answer = await self._ask(methods.delete(method.channel, exchange + self._suffix, flags))
        if answer.id == methods.DELETE_OK and self.vhost is not None:
            await self.vhost.delete(exchange.decode())
        return answer

    # what the broker answers

    def lost(self) -> None:
        """The broker will answer nothing more."""
        self.vhost = None  # so nothing waits for it again
        if self._awaited is not None and not self._awaited.answer.done():
            self._awaited.answer.cancel()

    def answered(self, method: Method) -> bytes | None:
        """What the client gets of a declare-ok or delete-ok; None: that is not known yet."""
        due = method.channel, method.id
        if due in self._owed:
            self._owed[due] -= 1
            if not self._owed[due]:
                del self._owed[due]
        elif self._awaited is not None and self._awaited[:2] == due:
            self._take(method)
            return None
        return method.frame

    def closed(self, method: Method) -> bytes | None:
        """What the client gets of a channel.close; None: that is not known yet."""
        for id in _ANSWERS.values():
            self._owed.pop((method.channel, id), None)
        if self._awaited is not None and self._awaited.channel == method.channel:
            self._take(method)
            return None
        return self._explained(method, None)

    def content(self, method: Method) -> bytes | None:
        """What the client gets of a deliver, get-ok or return; None: that is not known yet."""
        exchange, at = methods.exchange_of(method)
        vhost = self.vhost
        if vhost is None or not exchange.endswith(self._suffix):
            return method.frame
        if (name := vhost.names.get(exchange)) is not None:
            return methods.renamed(method, at, name)
        if vhost.is_known(exchange):
            return method.frame
        self._at.front.begin(self._name(method, exchange, at, vhost))
        return None

    async def _name(self, method: Method, exchange: bytes, at: int, vhost: Vhost) -> None:
        """Ask what the client calls this exchange; its deliveries wait."""
        name = exchange
        try:
            name = await vhost.name_of(exchange)
        finally:
            self._at.client.write(methods.renamed(method, at, name))
            self._at.broker.release()

    def _owe(self, method: Method) -> None:
        """The broker will answer this method as it stands."""
        if methods.is_answered(method):
            due = method.channel, _ANSWERS[method.id]
            self._owed[due] = self._owed.get(due, 0) + 1

    async def _ask(self, sent: bytes) -> Method:
        """Send it, unless the channel was closed meanwhile; the broker's answer, which holds the
        broker's side."""
        awaited = self._awaited
        if awaited is None:
            raise asyncio.CancelledError  # not reached: it is there until the work is done
        if not awaited.answer.done():
            self._at.broker.write(sent)
        return await awaited.answer

    def _take(self, answer: Method) -> None:
        if self._awaited is not None and not self._awaited.answer.done():
            self._awaited.answer.set_result(answer)

    def _closed(self) -> Method | None:
        """The channel.close with which the broker answered what was sent before."""
        if self._awaited is None or not self._awaited.answer.done():
            return None
        answer = self._awaited.answer.result()
        return answer if answer.id == methods.CHANNEL_CLOSE else None

    def _explained(self, close: Method, exchange: bytes | None) -> bytes:
        """The broker's refusal; where rights on `D.due` are missing, with those to set.

        exchange: of the method that waits, if one does; what is refused may be a bind before it.
        """
        code, text, about = methods.read_close(close)
        if about in methods.BINDS and (named := _NAMED.search(text)) is not None:
            due = named[1].encode()
            known = None if self.vhost is None else self.vhost.names.get(due)
            exchange = known or self._begun.get(due) or exchange
        if exchange is None:
            return close.frame
        name, shown = (
            each.decode(errors="replace") for each in (exchange, exchange + self._suffix)
        )
        if code != _FORBIDDEN or about not in ABOUT:
            text = text.replace(f"'{shown}'", f"'{name}'")
            return methods.close(close.channel, code, text, about)
        pattern = f"^{re.escape(name)}({re.escape(shown.removeprefix(name))})?$"
        explained = Refused(code, text, f"; whoever declares '{name}' needs '{pattern}'")
        self._at.counts.method_refused(name, code, explained.text)
        return methods.close(close.channel, code, explained.text, about)
