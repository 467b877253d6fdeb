"""Connections to Redis: opened by redis-py (TLS, login, database), from then on bytes.

A call of redis-py's asyncio pipeline costs 250 us of CPU, whatever it carries, and a worker makes
three in a millisecond. Packing and reading with hiredis ourselves costs 45. What is read below
redis-py's public surface is read here and nowhere else: an open connection's streams or socket, and
its parser's names for errors.
"""

from __future__ import annotations

import asyncio
import os
import selectors
import socket
from collections.abc import Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar

import redis
from hiredis import Reader, pack_command
from redis.exceptions import InvalidResponse

_READ_BYTES = 256 * 1024
_SEND_BYTES = 16 * 1024
# Without a descriptor of its own; not every platform has poll.
_Selector = getattr(selectors, "PollSelector", selectors.SelectSelector)
_MORE = object()  # what the parser answers when the reply is not all there


def packed(*words: Any) -> bytes:
    """A command as it goes over the wire."""
    return pack_command(words)  # type: ignore[no-any-return]


def packed_after(head: bytes, count: int, words: Sequence[Any]) -> bytes:
    """A command whose first `count` words were packed before, by `head_of`."""
    return b"*%d\r\n%b%b" % (count + len(words), head, head_of(words))


def head_of(words: Sequence[Any]) -> bytes:
    """Words without the line that says how many they are."""
    command: bytes = pack_command(tuple(words))
    return command[command.index(b"\n") + 1 :]


class _Connection(Protocol):
    @property
    def is_open(self) -> bool: ...

    def close(self) -> None: ...


C = TypeVar("C", bound=_Connection)


class _Idle(Generic[C]):
    """Connections that no call uses; a process that is forked has none of its parent's."""

    def __init__(self) -> None:
        self._connections: list[C] = []
        self._closed = False
        self._pid = os.getpid()

    def take(self) -> C | None:
        """One that is open, as far as is known."""
        if self._pid != os.getpid():  # the parent goes on using them
            self._pid, self._connections = os.getpid(), []
        while True:
            try:
                connection = self._connections.pop()  # in one step: threads take at once
            except IndexError:
                return None
            if connection.is_open:
                return connection
            connection.close()

    def give(self, connection: C) -> None:
        """Its call has ended; if that outlived `close`, nobody will come for it."""
        if self._closed:
            connection.close()
        else:
            self._connections.append(connection)

    def close(self) -> None:
        """Close them, and what is under way when its call ends."""
        self._closed = True
        while (connection := self.take()) is not None:
            connection.close()


class AsyncWire:
    """As many connections as calls are under way at once; one that is idle is used again."""

    def __init__(self, pool: Any, timeout_s: float) -> None:
        """pool: redis.asyncio's, which makes connections. timeout_s: so long without an answer."""
        self._pool, self._timeout_s = pool, timeout_s
        self._idle: _Idle[_Open] = _Idle()

    async def call(self, requests: Sequence[bytes]) -> list[Any]:
        """The replies in order; what Redis answered with an error is that error, not raised.

        redis.ConnectionError, redis.TimeoutError, OSError: no answer; whether anything was done is
        unknown.
        """
        if not requests:
            return []
        connection = self._idle.take() or await _Open.make(self._pool, self._timeout_s)
        try:
            replies = await connection.call(b"".join(requests), len(requests))
        except BaseException:
            connection.close()  # its replies may still come, and belong to nobody else
            raise
        self._idle.give(connection)
        return replies

    async def close(self) -> None:
        """Close what is idle now, and what is under way when its call ends."""
        self._idle.close()
        await asyncio.sleep(0)  # asyncio closes a socket in its next turn


class _Open:
    """One connection, its handshake done."""

    def __init__(self, connection: Any, timeout_s: float) -> None:
        self._reader: asyncio.StreamReader = connection._reader
        self._writer: asyncio.StreamWriter = connection._writer
        connection._reader = connection._writer = None  # redis-py has no more to do with it
        self._parser = _parser(connection)
        self._timeout_s = timeout_s

    @classmethod
    async def make(cls, pool: Any, timeout_s: float) -> _Open:
        """A connection of its own. Raises what redis-py raises, and leaves nothing behind."""
        connection = pool.make_connection()
        try:
            await connection.connect()
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        return cls(connection, timeout_s)

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

    def __init__(self, pool: Any) -> None:
        """pool: redis-py's, which makes connections."""
        self._pool = pool
        self._idle: _Idle[_OpenSocket] = _Idle()

    def call(self, requests: Iterable[bytes]) -> list[Any]:
        """As `AsyncWire.call`; Redis begins with the first while the last is being packed."""
        connection = self._idle.take() or _OpenSocket.make(self._pool)
        try:
            replies = connection.call(requests)
        except BaseException:
            connection.close()  # its replies may still come, and belong to nobody else
            raise
        self._idle.give(connection)
        return replies

    def close(self) -> None:
        """As `AsyncWire.close`."""
        self._idle.close()


class _OpenSocket:
    """One connection of ordinary code, its handshake done."""

    def __init__(self, connection: Any) -> None:
        self._socket: socket.socket = connection._sock
        connection._sock = None  # redis-py has no more to do with it
        self._parser = _parser(connection)
        self._unasked = _Selector()
        self._unasked.register(self._socket, selectors.EVENT_READ)

    @classmethod
    def make(cls, pool: Any) -> _OpenSocket:
        """As `_Open.make`."""
        connection = pool.make_connection()
        try:
            connection.connect()
        except BaseException:
            connection.disconnect()
            raise
        return cls(connection)

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


def _parser(connection: Any) -> Reader:
    return Reader(
        protocolError=InvalidResponse,
        replyError=connection._parser.parse_error,
        notEnoughData=_MORE,
    )
