"""Connections to Redis: opened by redis-py (TLS, login, database), from then on bytes.

A call of redis-py's asyncio pipeline costs 250 us of CPU, whatever it carries, and a worker makes
three in a millisecond. Packing and reading with hiredis ourselves costs 45. What is read below
redis-py's public surface is read here and nowhere else: a pool's recipe for connections, an open
connection's streams or socket, and its parser's names for errors.

Each wire opens at most as many connections as its pool allows (`max_connections` in the URL, 100 by
default); further calls wait for a free one. A server that says it is the wrong one loses all of
them: the next call looks its address up again.
"""

from __future__ import annotations

import asyncio
import os
import re
import selectors
import socket
from collections.abc import Iterable, Sequence
from queue import Empty, SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

import redis
from hiredis import Reader
from redis.exceptions import InvalidResponse

_READ_BYTES = 256 * 1024
_SEND_BYTES = 16 * 1024
# Without a descriptor of its own; not every platform has poll.
_Selector = getattr(selectors, "PollSelector", selectors.SelectSelector)
_MORE = object()  # what the parser answers when the reply is not all there


class NotNow(redis.RedisError):
    """The server refuses for now; the same command may succeed later."""


class WrongServer(NotNow):
    """The server is not, or not yet, the one to ask; another may answer under its address."""


_NOT_NOW = {"BUSY", "MISCONF", "NOREPLICAS"}
_WRONG_SERVER = {"READONLY", "LOADING", "MASTERDOWN", "UNBLOCKED", "CLUSTERDOWN"}
# Redis 6.2 puts what a command in a script met behind the place: "...: @user_script: 12: -OOM ...".
_IN_SCRIPT = re.compile(r"^ERR Error running script .*?: -(?=[A-Z]+ )", re.DOTALL)


class _Errors:
    """Makes exceptions of a connection's error replies; notes when one says: wrong server."""

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
        """The same for an error that redis-py met; it leaves out a code that it knows."""
        return self(f"{error.status_code} {error}" if error.status_code else str(error))


class _Connection(Protocol):
    turn: int
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
        self.turn = 0  # connections of an earlier turn are given up

    def take(self) -> C | None:
        """One that is open, as far as is known."""
        while True:
            try:
                connection = self._connections.pop()  # in one step: threads take at once
            except IndexError:
                return None
            if connection.is_open:
                return connection
            connection.close()

    def give(self, connection: C) -> None:
        """Keep it for the next call, unless nobody may use it any more."""
        if connection.errors.wrong_server and connection.turn == self.turn:
            self.give_up()
        if self._closed or connection.turn != self.turn:
            connection.close()
        else:
            self._connections.append(connection)

    def give_up(self) -> None:
        """Close all that were opened so far; those under way when their call ends."""
        self.turn += 1
        while (connection := self.take()) is not None:
            connection.close()

    def close(self) -> None:
        """As `give_up`, and keep none from now on."""
        self._closed = True
        self.give_up()


class AsyncWire:
    """Connections for calls on an event loop; one that is idle is used again."""

    def __init__(self, pool: Any, timeout_s: float) -> None:
        """pool: redis.asyncio's. timeout_s: longest wait for an answer or a free connection."""
        self._pool, self._timeout_s = pool, timeout_s
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._idle: _Idle[_Open] = _Idle()
        self._free = asyncio.Semaphore(self._pool.max_connections)

    @property
    def turn(self) -> int:
        """Grows when all connections so far are given up."""
        return self._idle.turn

    async def call(self, requests: Sequence[bytes]) -> list[Any]:
        """The replies in order; what Redis answered with an error is that error, not raised.

        redis.ConnectionError, redis.TimeoutError, OSError: no answer; whether anything was done is
        unknown. NotNow: refused before it was asked.
        """
        if not requests:
            return []
        if self._pid != os.getpid():  # forked: the parent goes on using its connections
            self._begin()
        await self._enter()
        idle, free = self._idle, self._free
        try:
            connection = idle.take() or await _Open.make(self._pool, self._timeout_s, idle.turn)
            try:
                replies = await connection.call(b"".join(requests), len(requests))
            except BaseException as exc:
                connection.close()  # its replies may still come, and belong to no other call
                if isinstance(exc, redis.TimeoutError):
                    idle.give_up()  # their way is likely the same
                raise
            idle.give(connection)
            return replies
        finally:
            free.release()

    async def _enter(self) -> None:
        if not self._free.locked():
            await self._free.acquire()  # without a pause
            return
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._free.acquire()
        except TimeoutError:
            raise _none_free(self._timeout_s) from None

    async def close(self) -> None:
        """Close what is idle now, and what is under way when its call ends."""
        self._idle.close()
        await asyncio.sleep(0)  # asyncio closes a socket in its next turn


class _Open:
    """One connection, its handshake done."""

    def __init__(self, connection: Any, timeout_s: float, turn: int) -> None:
        self.turn, self.errors = turn, _Errors(connection)
        self._reader: asyncio.StreamReader = connection._reader
        self._writer: asyncio.StreamWriter = connection._writer
        connection._reader = connection._writer = None  # redis-py has no more to do with it
        self._parser = _parser(self.errors)
        self._timeout_s = timeout_s

    @classmethod
    async def make(cls, pool: Any, timeout_s: float, turn: int) -> _Open:
        """A connection of its own. Raises as `AsyncWire.call`, and leaves nothing behind."""
        connection = _made(pool)
        try:
            await connection.connect()
        except BaseException as exc:
            await connection.disconnect(nowait=True)
            if isinstance(exc, redis.ResponseError):
                raise _Errors(connection).of_handshake(exc) from exc
            raise
        return cls(connection, timeout_s, turn)

    @property
    def is_open(self) -> bool:
        """Whether the server has not closed it, as far as is known."""
        return not (self._reader.at_eof() or self._writer.is_closing())

    async def call(self, request: bytes, count: int) -> list[Any]:
        """Send it, and read so many replies."""
        loop, parser, replies = asyncio.get_running_loop(), self._parser, []
        self._writer.write(request)
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

    def close(self) -> None:
        """Without a word."""
        self._writer.transport.abort()


class Wire:
    """The same for ordinary code; thread-safe, and a process that is forked opens its own."""

    def __init__(self, pool: Any, timeout_s: float) -> None:
        """pool: redis-py's, with its own time-outs. timeout_s: longest wait for a connection."""
        self._pool, self._timeout_s = pool, timeout_s
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._idle: _Idle[_OpenSocket] = _Idle()
        # As a semaphore, at a tenth of its cost: one entry for each connection that may be used.
        self._free: SimpleQueue[None] = SimpleQueue()
        for _ in range(self._pool.max_connections):
            self._free.put(None)

    def call(self, requests: Iterable[bytes]) -> list[Any]:
        """As `AsyncWire.call`; Redis begins with the first while the last is being packed."""
        if self._pid != os.getpid():
            self._begin()
        idle, free = self._idle, self._free
        try:
            free.get(timeout=self._timeout_s)
        except Empty:
            raise _none_free(self._timeout_s) from None
        try:
            connection = idle.take() or _OpenSocket.make(self._pool, idle.turn)
            try:
                replies = connection.call(requests)
            except BaseException as exc:
                connection.close()  # its replies may still come, and belong to no other call
                if isinstance(exc, redis.TimeoutError):
                    idle.give_up()
                raise
            idle.give(connection)
            return replies
        finally:
            free.put(None)

    def close(self) -> None:
        """As `AsyncWire.close`."""
        self._idle.close()


class _OpenSocket:
    """One connection of ordinary code, its handshake done."""

    def __init__(self, connection: Any, turn: int) -> None:
        self.turn, self.errors = turn, _Errors(connection)
        self._socket: socket.socket = connection._sock
        connection._sock = None  # redis-py has no more to do with it
        self._parser = _parser(self.errors)
        self._unasked = _Selector()
        self._unasked.register(self._socket, selectors.EVENT_READ)

    @classmethod
    def make(cls, pool: Any, turn: int) -> _OpenSocket:
        """As `_Open.make`."""
        connection = _made(pool)
        try:
            connection.connect()
        except BaseException as exc:
            connection.disconnect()
            if isinstance(exc, redis.ResponseError):
                raise _Errors(connection).of_handshake(exc) from exc
            raise
        return cls(connection, turn)

    @property
    def is_open(self) -> bool:
        """Whether nothing came unasked: the server's end of the connection would."""
        return not self._unasked.select(0)

    def call(self, requests: Iterable[bytes]) -> list[Any]:
        """Send them, and read as many replies."""
        parser, replies = self._parser, list[Any]()
        try:
            count, some = 0, b""
            for request in requests:
                count, some = count + 1, some + request if some else request
                if len(some) >= _SEND_BYTES:
                    self._socket.sendall(some)
                    some = b""
            self._socket.sendall(some)
            while True:
                while (reply := parser.gets()) is not _MORE:
                    replies.append(reply)
                if len(replies) >= count:
                    return replies
                data = self._socket.recv(_READ_BYTES)
                if not data:
                    raise redis.ConnectionError("closed by the server")
                parser.feed(data)
        except TimeoutError:
            raise redis.TimeoutError(f"no answer within {self._socket.gettimeout():g} s") from None

    def close(self) -> None:
        """Without a word."""
        self._socket.close()

    def __del__(self) -> None:
        self._socket.close()  # a client need not be closed; a socket would complain


def _made(pool: Any) -> Any:
    """A connection, not open yet. Not by the pool itself: it counts them, and never down."""
    return pool.connection_class(**pool.connection_kwargs)


def _none_free(timeout_s: float) -> Exception:
    return redis.TimeoutError(f"no connection became free within {timeout_s:g} s")


def _parser(errors: _Errors) -> Reader:
    return Reader(protocolError=InvalidResponse, replyError=errors, notEnoughData=_MORE)
