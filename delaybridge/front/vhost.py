"""The delayed exchanges of one vhost: which are the front's, and how one is made and removed.

A client declares D; the front makes of it:

- D, which diverts what has a delay header into the intake queue, and passes all else to D.due;
- D.due, by the client's own declare, with the type and the bindings that the client means;
- the intake queue D.due.intake, and for what expires in it the exchange and queue
  D.due.intake.expired. That exchange is made before D.due: it marks D as one that a front makes.

The broker is asked whether D is the front's, and only a yes is kept: so several fronts need not
know of each other. Redis is not needed here.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from itertools import product
from typing import Any, Protocol, TypeVar
from weakref import WeakValueDictionary

from pika.connection import Parameters
from pika.exceptions import AMQPError

from delaybridge.amqp.connection import WireConnection, close_channel, close_code
from delaybridge.errors import ConfigError
from delaybridge.front.link import Link, Refused
from delaybridge.ingest.rabbitmq.deaths import expired
from delaybridge.ingest.rabbitmq.topology import (
    ALTERNATE,
    Step,
    declarations,
    exists,
    holding_exchange,
    take_steps,
)
from delaybridge.ingest.routes import Route, fronted

T = TypeVar("T")
ASK_S, MAKE_S = 5.0, 10.0
NAME_S, STRANGE_S = 1.0, 5.0  # how long a delivery waits for its exchange's name; a no is kept
_STRANGE_LIMIT = 10_000
_LOOKS, _AGAIN_S = 5, 0.2  # before an exchange is called foreign: a marker may be on its way
_LOCK_AGAIN_S, _UNLOCK_S = 0.05, 1.0
_REFUSED, _NOT_FOUND, _LOCKED, _PRECONDITION_FAILED = 403, 404, 405, 406
_FLAG_DIFFERS = re.compile(r"PRECONDITION_FAILED - inequivalent arg '(durable|internal)' for exch")
_TYPE_IS = re.compile(r"'type' for exchange.* but current is '+([^']+)'")
_NO_TYPES = {  # of a new D, as the plugin says it
    None: "'x-delayed-type' must be an existing exchange type",
    b"x-delayed-message": "'x-delayed-message' can't be used for 'x-delayed-type'",
}
_TYPE_DIFFERS = "inequivalent arg 'type' for exchange"
_TOO_OLD = re.compile("Invalid x-match|invalid arg 'x-")


class Naming(Protocol):
    """The settings that this needs."""

    @property
    def suffix(self) -> str:
        """What D.due has after D."""

    @property
    def adopt(self) -> bool:
        """Whether a D.due that no front made may be taken."""


class Vhost:
    """One vhost. names: D.due -> D of all that are known to be the front's.

    Every method is safe to repeat and to cancel, and raises Refused when the client's method cannot
    be done. Of calls that come at once each gets the result of an operation that began after it.
    """

    def __init__(
        self,
        broker: str,
        parameters: Parameters,
        settings: Naming,
        enlist: Callable[[Route], None],
    ) -> None:
        self.names: dict[bytes, bytes] = {}
        self._broker, self._settings, self._enlist = broker, settings, enlist
        self._link = Link(broker, parameters)
        self._running: dict[Hashable, asyncio.Task[Any]] = {}
        self._locks = WeakValueDictionary[str, asyncio.Lock]()
        self._strange: dict[bytes, float] = {}
        self._left: set[bytes] = set()  # D.due was deleted, D not yet

    # questions

    async def is_ours(self, exchange: str) -> bool:
        """Whether a front made this exchange, and it was not deleted."""
        try:
            route = self._route(exchange)
        except Refused:
            return False  # nor can there be a D.due of that name
        if route.target.encode() in self.names:
            return True
        return await self._shared(("ask", exchange), lambda: self._find(route))

    def is_known(self, due: bytes) -> bool:
        """Whether `name_of` has nothing to ask."""
        is_strange = self._strange.get(due, 0.0) > asyncio.get_running_loop().time()
        return due in self.names or is_strange or not due.endswith(self._settings.suffix.encode())

    async def name_of(self, due: bytes) -> bytes:
        """The name that a client knows: D of a D.due of the front's, else the name itself.

        If it cannot be asked within a second, the name itself, too.
        """
        if not self.is_known(due):
            with suppress(Refused, TimeoutError, UnicodeDecodeError):
                async with asyncio.timeout(NAME_S):
                    await self.is_ours(due.decode().removesuffix(self._settings.suffix))
            if len(self._strange) >= _STRANGE_LIMIT:
                self._strange.clear()
            self._strange[due] = asyncio.get_running_loop().time() + STRANGE_S
        return self.names.get(due, due)

    # what a client's declare and delete need

    async def prepare(self, exchange: str, type: bytes | None) -> bytes:
        """Before the client's declare goes out as one of D.due: the type that it is to have.

        Refused with 406 if D or D.due exists and no front made it, or a new D has no type. Of one
        that exists it is the type that it has: the plugin compares no types either.
        """
        route = self._route(exchange)
        return await self._change(
            ("prepare", type), route, lambda at: _prepare(at, route, self._settings, type)
        )

    async def stand(self, exchange: str, durable: bool, internal: bool) -> None:
        """After D.due was declared: make the queues, then D with these flags and its binding.

        Equal ones are left as they are; Refused with the broker's code and text if one differs.
        """
        route = self._route(exchange)

        async def make(connection: WireConnection) -> None:
            async with _locked(connection, route):
                await take_steps(connection, *_steps(route, durable, internal))
            self._learn(route)

        await self._change(("stand", durable, internal), route, make)

    async def withdraw(self, exchange: str) -> None:
        """After the client's declare of D.due was refused: take the marker away if it marks
        nothing. Raises nothing: a marker that is left does no harm."""
        route = self._route(exchange)

        async def clear(connection: WireConnection) -> None:
            async with _locked(connection, route):
                if not any(await _there(connection, route)):
                    about = {"exchange": expired(route), "if_unused": True}
                    await connection.call_alone("exchange_delete", **about)

        with suppress(Refused):
            await self._change("withdraw", route, clear)

    async def delete(self, exchange: str) -> None:
        """After D.due was deleted: delete D. The intake stays, and so do its messages."""
        route = self._route(exchange)
        self.forget(exchange)
        self._left.add(route.target.encode())
        await self._change("sweep", route, lambda connection: _sweep(connection, route))
        self._left.discard(route.target.encode())

    def forget(self, exchange: str) -> None:
        """Ask the broker the next time."""
        self.names.pop(f"{exchange}{self._settings.suffix}".encode(), None)

    async def remove_orphans(self) -> None:
        """Remove each known D whose D.due is gone: the broker deletes one that is auto-delete."""
        known = [due.decode() for due in {*self.names, *self._left}]
        if not known:
            return
        for due in await self._link.ask(lambda at: _missing(at, known), MAKE_S, "looking"):
            with suppress(Refused):  # looked at the next time
                await self.delete(due.removesuffix(self._settings.suffix))

    async def close(self) -> None:
        """Close the connection. What is under way ends first, or is given up."""
        for task in self._running.values():
            task.cancel()
        if self._running:
            await asyncio.wait(self._running.values())
        await self._link.close()

    # inside

    def _route(self, exchange: str) -> Route:
        try:
            return fronted(self._broker, exchange, self._settings.suffix)
        except ConfigError as exc:
            raise Refused(_PRECONDITION_FAILED, f"PRECONDITION_FAILED - {exc}") from None

    def _learn(self, route: Route) -> None:
        self.names[route.target.encode()] = route.source.encode()
        self._enlist(route)

    async def _find(self, route: Route) -> bool:
        async def ask(connection: WireConnection) -> tuple[bool, bool]:
            # Most exchanges are not the front's: that is known after the first question.
            is_there = await _has_queue(connection, route.queue)
            return is_there, is_there and await exists(connection, route.target)

        intake, target = await self._asked(route, ask, ASK_S)
        if intake and target:
            self._learn(route)
        elif intake:  # D was deleted; if D.due was by the broker, D is still to go
            await self.delete(route.source)
        return target

    async def _change(
        self,
        kind: Hashable,
        route: Route,
        operation: Callable[[WireConnection], Awaitable[T]],
    ) -> T:
        """One change of D at a time."""

        async def change() -> T:
            async with self._locks.setdefault(route.source, asyncio.Lock()):
                return await self._asked(route, operation, MAKE_S)

        return await self._shared((kind, route.source), change)

    async def _asked(
        self, route: Route, operation: Callable[[WireConnection], Awaitable[T]], limit_s: float
    ) -> T:
        try:
            return await self._link.ask(operation, limit_s, f"exchange '{route.source}':")
        except AMQPError as exc:
            raise _refusal(route, exc) from None

    async def _shared(self, key: Hashable, make: Callable[[], Awaitable[T]]) -> T:
        """The result of an operation that began after this call; others may share it."""
        if (earlier := self._running.get(key)) is not None:
            await asyncio.wait([earlier])  # what it saw may be older than this call
        if (running := self._running.get(key)) is None:
            running = self._running[key] = asyncio.ensure_future(make())
            running.add_done_callback(lambda _: self._running.pop(key))
        return await asyncio.shield(running)


async def _prepare(
    connection: WireConnection, route: Route, settings: Naming, type: bytes | None
) -> bytes:
    """Put the marker, unless D or D.due is foreign. The type for D.due."""
    for _ in range(_LOOKS):
        is_source, is_marked, (is_read, is_target) = await asyncio.gather(
            exists(connection, route.source),
            exists(connection, expired(route)),
            _there(connection, route),
        )
        if is_marked or is_read or not is_target or settings.adopt:
            break
        await asyncio.sleep(_AGAIN_S)
    else:
        raise Refused(
            _PRECONDITION_FAILED,
            f"PRECONDITION_FAILED - exchange '{route.target}' exists and was not made by a front",
            "; set another front.suffix, or front.adopt (--adopt) to take it",
        )
    if is_source and not (is_read and is_target) and (text := await _differs(connection, route)):
        raise Refused(_PRECONDITION_FAILED, _as_declared(text))
    if not (is_source and is_target) and (fault := _NO_TYPES.get(type)):
        raise Refused(_PRECONDITION_FAILED, f"PRECONDITION_FAILED - Invalid argument, {fault}")
    method, about = next(_steps(route, True, False))
    await connection.call_alone(method, **about)
    has = await _type_of(connection, route.target) if is_target else b""
    return has or type or b"direct"


async def _type_of(connection: WireConnection, exchange: str) -> bytes:
    """The type of an exchange that exists; b"" if it is gone.

    The broker compares the type first. It cannot make an exchange with such an argument.
    """
    about = {"exchange": exchange, "arguments": {ALTERNATE: 0}}
    try:
        await connection.call_alone("exchange_declare", exchange_type="direct", **about)
    except AMQPError as exc:
        if not _is(exc, _PRECONDITION_FAILED):
            raise
        _, text = close_code(exc) or (0, "")
        if (found := _TYPE_IS.search(text)) is not None:
            return found[1].encode()
        return b"direct" if "invalid type" not in text else b""
    return b""  # not reached


async def _sweep(connection: WireConnection, route: Route) -> None:
    """Delete a D whose D.due is gone, unless it is another exchange of that name."""
    if not await exists(connection, route.source):
        return
    async with _locked(connection, route):
        if await exists(connection, route.target):
            return
        if await exists(connection, route.source) and not await _differs(connection, route):
            await connection.call_alone("exchange_delete", exchange=route.source)


async def _missing(connection: WireConnection, exchanges: Iterable[str]) -> list[str]:
    """Those that do not exist; on few channels, since there may be many."""
    found, left = list[str](), list(exchanges)
    while left:
        channel = await connection.open_channel(lambda *_: None)
        try:
            while left:
                await connection.look_up(channel, left[-1])
                left.pop()
        except AMQPError as exc:
            if not _is(exc, _NOT_FOUND):
                raise
            found.append(left.pop())
        finally:
            close_channel(channel)
    return found


async def _there(connection: WireConnection, route: Route) -> tuple[bool, bool]:
    """Whether the intake queue and D.due exist."""
    return await _has_queue(connection, route.queue), await exists(connection, route.target)


async def _has_queue(connection: WireConnection, queue: str) -> bool:
    """Whether there is such a queue; raises if the broker cannot say, as when its node is down."""
    try:
        await connection.call_alone("queue_declare", queue=queue, passive=True)
    except AMQPError as exc:
        if not _is(exc, _NOT_FOUND, "no queue "):
            raise
        return False
    return True


async def _differs(connection: WireConnection, route: Route) -> str:
    """Why an exchange D that exists is not one that a front made, whatever its flags; else ''."""
    text = ""
    for durable, internal in product((True, False), repeat=2):
        (about,) = (
            about
            for method, about in _steps(route, durable, internal)
            if method == "exchange_declare" and about["exchange"] == route.source
        )
        try:
            await connection.call_alone("exchange_declare", **about)
            return ""
        except AMQPError as exc:
            if not _is(exc, _PRECONDITION_FAILED):
                raise
            _, text = close_code(exc) or (0, "")
        if not _FLAG_DIFFERS.match(text):
            break
    return text


def _steps(route: Route, durable: bool, internal: bool) -> Iterator[Step]:
    """`declarations`, with these flags of D."""
    for method, about in declarations(route):
        if method == "exchange_declare" and about["exchange"] == route.source:
            about = {**about, "durable": durable, "internal": internal}
        yield method, about


@asynccontextmanager
async def _locked(connection: WireConnection, route: Route) -> AsyncIterator[None]:
    """Alone with D among all fronts and ingest processes: while the connection has this queue."""
    about = {"queue": holding_exchange(route)}
    while True:
        try:
            await connection.call_alone("queue_declare", exclusive=True, **about)
            break
        except AMQPError as exc:
            if not _is(exc, _LOCKED):
                raise
        await asyncio.sleep(_LOCK_AGAIN_S)
    try:
        yield
    finally:
        try:
            async with asyncio.timeout(_UNLOCK_S):
                await connection.call_alone("queue_delete", **about)
        except (AMQPError, TimeoutError):
            connection.abort("a lock could not be given back")


def _refusal(route: Route, exc: AMQPError) -> Refused:
    """The broker's refusal, with what to do about it if that is known."""
    code, text = close_code(exc) or (0, "")
    if code == _REFUSED:
        # The expression is the operator's to set: the client did nothing wrong.
        right = f"^{re.escape(route.source)}"
        return Refused(code, text, f"; let the front's user configure, write and read '{right}'")
    if code == _PRECONDITION_FAILED and _TOO_OLD.search(text):
        return Refused(code, f"PRECONDITION_FAILED - RabbitMQ 3.10 or later is needed: {text}")
    return Refused(code, _as_declared(text))


def _as_declared(text: str) -> str:
    """The broker's text with the type that the client sent, quoted as the plugin's."""
    if _TYPE_DIFFERS not in text:
        return text
    return text.replace("received 'headers' but", "received ''x-delayed-message'' but")


def _is(exc: AMQPError, code: int, text: str = "") -> bool:
    """Whether the broker closed the channel with this code, and with this in its text."""
    closed = close_code(exc)
    return closed is not None and closed[0] == code and text in closed[1]
