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
from collections.abc import Awaitable, Callable, Hashable, Iterable
from contextlib import suppress
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from pika.connection import Parameters
from pika.exceptions import AMQPError

from delaybridge.amqp.connection import WireConnection
from delaybridge.errors import ConfigError
from delaybridge.front import making
from delaybridge.front.link import Link, Operation, Refused
from delaybridge.ingest.rabbitmq.emptiness import has_queue
from delaybridge.ingest.rabbitmq.topology import exists
from delaybridge.ingest.routes import Route, fronted
from delaybridge.settings.entrances import FrontSettings

T = TypeVar("T")
ASK_S, MAKE_S = 5.0, 10.0
NAME_S, STRANGE_S = 1.0, 5.0  # how long a delivery waits for its exchange's name; a no is kept
_STRANGE_LIMIT = 10_000
# RabbitMQ cuts the texts of refusals at 255 bytes: within a character, it ends the connection.
_WIDE_BYTES = 100
_AT_ONCE = 32  # exchanges that are changed: each has all of its time


class Vhost:
    """One vhost. names: D.due -> D of all that are known to be the front's.

    Every method is safe to repeat and to cancel, and raises Refused when the client's method cannot
    be done. Of calls that come at once each gets the result of an operation that began after it.
    """

    def __init__(
        self,
        broker: str,
        parameters: Parameters,
        settings: FrontSettings,
        enlist: Callable[[Route], None],
        nodes: Iterable[tuple[str, int]] = (),
    ) -> None:
        self.names: dict[bytes, bytes] = {}
        self._broker, self._settings, self._enlist = broker, settings, enlist
        self._link = Link(broker, parameters, nodes)
        self._running: dict[Hashable, asyncio.Task[Any]] = {}
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._locks = WeakValueDictionary[str, asyncio.Lock]()
        self._strange: dict[bytes, float] = {}
        self._left: set[bytes] = set()  # D.due was deleted, D not yet

    # questions

    async def is_ours(self, exchange: str, or_begun: bool = False) -> bool:
        """Whether a front made this exchange, and it was not deleted.

        or_begun: also if one makes it now, or its intake is left, and D is no other exchange.
        """
        try:
            route = self._route(exchange)
        except Refused:
            return False  # nor can there be a D.due of that name
        if route.target.encode() in self.names:
            return True
        if await self._shared(("ask", exchange), lambda: self._find(route)):
            return True
        return or_begun and await self._change("begun", route, lambda at: making.begun(at, route))

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

    async def prepare(self, exchange: str, type: bytes | None) -> bytes | None:
        """Before the client's declare goes out as one of D.due: the type that it is to have.

        None: D is an exchange of the plugin itself, and the declare is for that.

        Refused with 406 if D or D.due exists and no front made it, or a new D has no type. Of one
        that exists it is the type that it has: the plugin compares no types either.
        """
        route = self._route(exchange)
        return await self._change(
            ("mark", type), route, lambda at: making.mark(at, route, type, self._settings.adopt)
        )

    async def stand(self, exchange: str, durable: bool, internal: bool) -> None:
        """After D.due was declared: make the queues, then D with these flags and its binding.

        Equal ones are left as they are; Refused with the broker's code and text if one differs.
        """
        route = self._route(exchange)

        async def make(connection: WireConnection) -> None:
            await making.make(connection, route, durable, internal)
            self._learn(route)

        await self._change(("make", durable, internal), route, make)

    async def withdraw(self, exchange: str) -> None:
        """After the client's declare of D.due was refused: take the marker away if it marks
        nothing. Raises nothing: a marker that is left does no harm."""
        route = self._route(exchange)

        with suppress(Refused):
            await self._change("unmark", route, lambda at: making.unmark(at, route))

    async def delete(self, exchange: str) -> None:
        """After D.due was deleted: delete D. The intake stays, and so do its messages."""
        route = self._route(exchange)
        due = route.target.encode()
        self.names.pop(due, None)
        self._left.add(due)
        await self._change("sweep", route, lambda at: making.sweep(at, route))
        self._left.discard(due)

    async def remove_orphans(self) -> None:
        """Remove each known D whose D.due is gone: the broker deletes one that is auto-delete."""
        for due in {*self.names, *self._left}:
            route = self._route(due.decode().removesuffix(self._settings.suffix))
            with suppress(Refused):  # the next look will do
                if not await self._is_there(route):
                    await self.delete(route.source)

    async def close(self) -> None:
        """Close the connection. What is under way ends first, or is given up."""
        for task in self._running.values():
            task.cancel()
        if self._running:
            await asyncio.wait(self._running.values())
        await self._link.close()

    # inside

    def _route(self, exchange: str) -> Route:
        if not exchange.isascii() and len(exchange.encode()) > _WIDE_BYTES:
            raise Refused(
                making.PRECONDITION_FAILED,
                f"PRECONDITION_FAILED - a delayed exchange's name that is not ASCII has at most "
                f"{_WIDE_BYTES} bytes here",
            )
        exchange = exchange.translate({10: None, 13: None})  # as RabbitMQ reads names
        try:
            return fronted(self._broker, exchange, self._settings.suffix)
        except ConfigError as exc:
            raise Refused(making.PRECONDITION_FAILED, f"PRECONDITION_FAILED - {exc}") from None

    def _learn(self, route: Route) -> None:
        self.names[route.target.encode()] = route.source.encode()
        self._enlist(route)

    async def _find(self, route: Route) -> bool:
        if not await self._asked(route, lambda at: has_queue(at, route.queue), ASK_S):
            return False
        if await self._is_there(route):
            self._learn(route)
            return True
        await self.delete(route.source)  # D, too, is to go, if the broker deleted D.due
        return False

    async def _is_there(self, route: Route) -> bool:
        return await self._asked(route, lambda at: exists(at, route.target), ASK_S)

    async def _change(self, kind: Hashable, route: Route, operation: Operation[T]) -> T:
        """One change of D at a time."""

        async def change() -> T:
            async with self._locks.setdefault(route.source, asyncio.Lock()), self._slots:
                return await self._asked(route, operation, MAKE_S)

        return await self._shared((kind, route.source), change)

    async def _asked(self, route: Route, operation: Operation[T], limit_s: float) -> T:
        try:
            return await self._link.ask(operation, limit_s, f"exchange '{route.source}':")
        except AMQPError as exc:
            raise making.refusal_of(route, exc) from None

    async def _shared(self, key: Hashable, make: Callable[[], Awaitable[T]]) -> T:
        """The result of an operation that began after this call; others may share it."""
        if (earlier := self._running.get(key)) is not None:
            await asyncio.wait([earlier])  # what it saw may be older than this call
        if (running := self._running.get(key)) is None:
            running = self._running[key] = asyncio.ensure_future(make())
            running.add_done_callback(lambda _: self._running.pop(key))
        return await asyncio.shield(running)
