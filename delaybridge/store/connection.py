"""Connections to Redis: redis-py opens them (TLS, login, database), this module sends and reads.

A call of redis-py's asyncio pipeline costs 250 us of CPU, whatever it carries, and a worker makes
three in a millisecond; packed and read with hiredis it costs 45. Its synchronous pool costs 80 us a
call, as much as a SET. The private attributes of redis-py are read here and nowhere else: a pool's
recipe for connections, an open connection's streams or socket, its parser's names for errors.

A wire opens at most as many connections as its pool allows (`max_connections` in the URL, 100 by
default); further calls wait for a free one. When a server says that it is the wrong one, all
connections to it are closed: the next call looks its address up again.
"""

from __future__ import annotations

import asyncio
import os
import re
import selectors
import socket
from collections.abc import Iterable, Iterator
from queue import Empty, SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

import redis
from hiredis import Reader
from redis.exceptions import InvalidResponse

_READ_BYTES = 256 * 1024
_SEND_BYTES = 4 * 1024
_TURN_BYTES = 64 * 1024  # sent before other tasks of the loop have their turn
# poll and select need no descriptor of their own, unlike epoll; not every platform has poll.
_Selector = getattr(selectors, "PollSelector", selectors.SelectSelector)
_MORE = object()  # the parser's answer while a reply is incomplete


class NotNow(redis.RedisError):
    """The server refuses for now; the same command may succeed later."""


class WrongServer(NotNow):
    """The server is not, or not yet, the one to ask; another may answer under its address."""


_NOT_NOW = {"BUSY", "MISCONF", "NOREPLICAS"}
_WRONG_SERVER = {"READONLY", "LOADING", "MASTERDOWN", "UNBLOCKED", "CLUSTERDOWN"}
# Redis 6.2 puts the line before a command's error: "...: @user_script: 12: -OOM ...".
_IN_SCRIPT = re.compile(r"^ERR Error running script .*?: -(?=[A-Z]+ )", re.DOTALL)


class _Errors:
    """Makes exceptions of a connection's error replies; remembers if one says "wrong server"."""

    def __init__(self, connection: Any) -> None:
        self._parse_error = connection._parser.parse_error
        self.wrong_server = False

    def __call__(self, text: str) -> Exception:
        text = _IN_SCRIPT.sub("", text)
        code = text.partition(" ")[0]
        if code in _WRONG_SERVER:
            self.wrong_server = True
            return WrongServer(text)
        error: Exception = NotNow(text) if code in _NOT_NOW else self._parse_error(text)
        return error

    def of_handshake(self, error: redis.ResponseError) -> Exception:
        """The same for an error that redis-py read; it strips the codes that it knows."""
        return self(f"{error.status_code} {error}" if error.status_code else str(error))


class _Connection(Protocol):
    generation: int
    errors: _Errors

    @property
    def is_open(self) -> bool: ...

    def close(self) -> None: ...


C = TypeVar("C", bound=_Connection)


class _Idle(Generic[C]):
    """Connections that no call uses."""

    def __init__(self) -> None:
        self._connections: list[C] = []
        self._closed = False
        self.generation = 0  # connections of an earlier one are closed when their call ends

    def take(self) -> C | None:
        """One that the server has not closed, as far as is known, or None."""
        while True:
            try:
                connection = self._connections.pop()  # in one step: threads take at once
            except IndexError:
                return None
            if connection.is_open:
                return connection
            connection.close()

    def give(self, connection: C) -> None:
        """Keep it for the next call, unless it is no longer to be used."""
        if connection.errors.wrong_server and connection.generation == self.generation:
            self.close_all()
        if self._closed or connection.generation != self.generation:
            connection.close()
        else:
            self._connections.append(connection)

    def drop(self, connection: C, error: BaseException) -> None:
        """Close a connection whose call failed."""
        connection.close()  # its replies may still come, and belong to no other call
        if isinstance(error, redis.TimeoutError):
            self.close_all()  # the others probably take the same broken path

    def close_all(self) -> None:
        """Close all that were opened so far; those in use when their call ends."""
        self.generation += 1
        while (connection := self.take()) is not None:
            connection.close()

    def close(self) -> None:
        """As `close_all`, and keep none from now on."""
        self._closed = True
        self.close_all()


class _Wire(Generic[C]):
    """Calls over connections that are kept for the next call. A forked process opens its own."""

    def __init__(self, pool: Any, timeout_s: float) -> None:
        """pool: redis-py's. timeout_s: the longest wait for an answer or a free connection."""
        # The pool serves as a recipe only: it counts every connection it makes, and never down.
        self._pool, self._timeout_s = pool, timeout_s
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._idle: _Idle[C] = _Idle()
        self._free = self._slots(self._pool.max_connections)

    def _slots(self, count: int) -> Any:
        """One for each connection that may be in use."""
        raise NotImplementedError

    @property
    def generation(self) -> int:
        """Grows when all connections so far are closed."""
        return self._idle.generation

    def _unopened(self) -> Any:
        """A connection of redis-py that is not open yet."""
        return self._pool.connection_class(**self._pool.connection_kwargs)

    def _none_free(self) -> Exception:
        what = "make fewer calls at once, or add ?max_connections=N to the URL"
        return redis.TimeoutError(f"no connection became free within {self._timeout_s:g} s; {what}")


class AsyncWire(_Wire["_StreamConnection"]):
    """Calls on an event loop."""

    def _slots(self, count: int) -> asyncio.Semaphore:
        return asyncio.Semaphore(count)

    async def call(self, requests: Iterable[bytes]) -> list[Any]:
        """The replies in order; an error that Redis answered is its reply, and not raised.

        Redis begins with the first requests while the last are being packed, and other tasks run.

        Raises redis.ConnectionError, redis.TimeoutError or OSError if no answer came: the commands
        may have run. NotNow: refused during the handshake, so nothing was sent.
        """
        if self._pid != os.getpid():  # forked: the parent goes on using its connections
            self._begin()
        await self._enter()
        idle, free = self._idle, self._free
        try:
            connection = idle.take() or await self._connect(idle.generation)
            try:
                replies = await connection.call(requests)
            except BaseException as exc:
                idle.drop(connection, exc)
                raise
            idle.give(connection)
            return replies
        finally:
            free.release()

    async def _enter(self) -> None:
        if not self._free.locked():
            await self._free.acquire()  # at once, without the cost of a time-out
            return
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._free.acquire()
        except TimeoutError:
            raise self._none_free() from None

    async def _connect(self, generation: int) -> _StreamConnection:
        connection = self._unopened()
        try:
            await connection.connect()
        except BaseException as exc:
            await connection.disconnect(nowait=True)
            if isinstance(exc, redis.ResponseError):
                raise _Errors(connection).of_handshake(exc) from exc
            raise
        return _StreamConnection(connection, self._timeout_s, generation)

    async def close(self) -> None:
        """Close idle connections now, and those in use when their calls end."""
        self._idle.close()
        await asyncio.sleep(0)  # asyncio closes a socket in its next turn


class _StreamConnection:
    """A connection on an event loop, its handshake done."""

    def __init__(self, connection: Any, timeout_s: float, generation: int) -> None:
        self.generation, self.errors = generation, _Errors(connection)
        self._reader: asyncio.StreamReader = connection._reader
        self._writer: asyncio.StreamWriter = connection._writer
        connection._reader = connection._writer = None  # or redis-py would close them as well
        self._parser = _parser(self.errors)
        self._timeout_s = timeout_s

    @property
    def is_open(self) -> bool:
        """Whether the server has not closed it, as far as is known."""
        return not (self._reader.at_eof() or self._writer.is_closing())

    async def call(self, requests: Iterable[bytes]) -> list[Any]:
        """Send them, and read as many replies."""
        loop, parser, replies = asyncio.get_running_loop(), self._parser, list[Any]()
        count = await self._send(requests)
        try:
            async with asyncio.timeout(self._timeout_s) as patience:
                while True:
                    while (reply := parser.gets()) is not _MORE:
                        replies.append(reply)
                    if len(replies) >= count:
                        return replies
                    data = await self._reader.read(_READ_BYTES)
                    if not data:
                        raise redis.ConnectionError("closed by the server")
                    parser.feed(data)
                    patience.reschedule(loop.time() + self._timeout_s)
        except TimeoutError:
            raise redis.TimeoutError(f"no answer within {self._timeout_s:g} s") from None

    async def _send(self, requests: Iterable[bytes]) -> int:
        """Send them, and return their number."""
        unsent = list[bytes]()
        count = size = 0
        for request in requests:
            if size >= _TURN_BYTES:
                self._writer.write(b"".join(unsent))
                unsent.clear()
                size = 0
                await asyncio.sleep(0)
            unsent.append(request)
            count, size = count + 1, size + len(request)
        self._writer.write(b"".join(unsent))
        return count

    def close(self) -> None:
        """Close it at once; unsent bytes are dropped."""
        self._writer.transport.abort()


class Wire(_Wire["_SocketConnection"]):
    """Calls from ordinary code; thread-safe. The pool's own time-outs hold for each answer."""

    def _slots(self, count: int) -> SimpleQueue[None]:
        slots: SimpleQueue[None] = SimpleQueue()  # as a semaphore, at a tenth of its cost
        for _ in range(count):
            slots.put(None)
        return slots

    def call(self, requests: Iterable[bytes]) -> list[Any]:
        """As `AsyncWire.call`."""
        return list(self.replies(requests))

    def replies(self, requests: Iterable[bytes]) -> Iterator[Any]:
        """As `call`, each reply when it comes. To be read to its end.

        Redis begins with the first while the last is being packed, and works on the last while the
        reply to the first is being read.
        """
        if self._pid != os.getpid():  # as in AsyncWire
            self._begin()
        idle, free = self._idle, self._free
        try:
            free.get(timeout=self._timeout_s)
        except Empty:
            raise self._none_free() from None
        try:
            connection = idle.take() or self._connect(idle.generation)
            try:
                yield from connection.replies(requests)
            except BaseException as exc:
                idle.drop(connection, exc)
                raise
            idle.give(connection)
        finally:
            free.put(None)

    def _connect(self, generation: int) -> _SocketConnection:
        connection = self._unopened()
        try:
            connection.connect()
        except BaseException as exc:
            connection.disconnect()
            if isinstance(exc, redis.ResponseError):
                raise _Errors(connection).of_handshake(exc) from exc
            raise
        return _SocketConnection(connection, generation)

    def close(self) -> None:
        """As `AsyncWire.close`."""
        self._idle.close()


class _SocketConnection:
    """A connection of ordinary code, its handshake done."""

    def __init__(self, connection: Any, generation: int) -> None:
        self.generation, self.errors = generation, _Errors(connection)
        self._socket: socket.socket = connection._sock
        connection._sock = None  # or redis-py would close it as well
        self._parser = _parser(self.errors)
        self._readable = _Selector()
        self._readable.register(self._socket, selectors.EVENT_READ)

    @property
    def is_open(self) -> bool:
        """Whether nothing came unasked: if the server has closed it, its end can be read."""
        return not self._readable.select(0)

    def replies(self, requests: Iterable[bytes]) -> Iterator[Any]:
        """Send them, and read as many replies."""
        parser = self._parser
        try:
            count, unsent = 0, b""
            for request in requests:
                count, unsent = count + 1, unsent + request if unsent else request
                if len(unsent) >= _SEND_BYTES:
                    self._socket.sendall(unsent)
                    unsent = b""
            if unsent:
                self._socket.sendall(unsent)
            while True:
                while (reply := parser.gets()) is not _MORE:
                    count -= 1
                    yield reply
                if count <= 0:
                    return
                data = self._socket.recv(_READ_BYTES)
                if not data:
                    raise redis.ConnectionError("closed by the server")
                parser.feed(data)
        except TimeoutError:
            raise redis.TimeoutError(f"no answer within {self._socket.gettimeout():g} s") from None

    def close(self) -> None:
        """Close it at once."""
        self._socket.close()

    def __del__(self) -> None:
        self._socket.close()  # a client need not be closed, but Python warns of an open socket


def _parser(errors: _Errors) -> Reader:
    return Reader(protocolError=InvalidResponse, replyError=errors, notEnoughData=_MORE)
