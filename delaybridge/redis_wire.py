"""Connections to Redis: opened by redis-py (TLS, login, database), from then on bytes.

A call of redis-py's asyncio pipeline costs 250 us of CPU, whatever it carries, and a worker makes
three in a millisecond. Packing and reading with hiredis ourselves costs 45. What is read below
redis-py's public surface is read here and nowhere else: an open connection's two streams, and its
parser's names for errors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import redis
from hiredis import Reader, pack_command
from redis.exceptions import InvalidResponse, ResponseError

_READ_BYTES = 256 * 1024
_MORE = object()  # what the parser answers when the reply is not all there


def packed(commands: Iterable[Sequence[Any]]) -> bytes:
    """Commands as they go over the wire: each a name, of one or two words, and arguments."""
    return b"".join([pack_command((*name.split(), *args)) for name, *args in commands])


class AsyncWire:
    """As many connections as calls are under way at once; one that is idle is used again."""

    def __init__(self, pool: Any, timeout_s: float) -> None:
        """pool: redis.asyncio's, which makes connections. timeout_s: so long without an answer."""
        self._pool, self._timeout_s = pool, timeout_s
        self._idle: list[_Open] = []
        self._closed = False

    async def call(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """The replies in order; what Redis answered with an error is that error, not raised.

        redis.ConnectionError, redis.TimeoutError, OSError: no answer; whether anything was done is
        unknown.
        """
        if not commands:
            return []
        request = packed(commands)
        connection = self._take() or await _Open.make(self._pool, self._timeout_s)
        try:
            replies = await connection.call(request, len(commands))
        except BaseException:
            connection.close()  # its replies may still come, and belong to nobody else
            raise
        if self._closed:  # a call that outlived it: nobody will come for the connection
            connection.close()
        else:
            self._idle.append(connection)
        return replies

    def _take(self) -> _Open | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
            connection.close()
        return None

    async def close(self) -> None:
        """Close what is idle now, and what is under way when its call ends."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()
        await asyncio.sleep(0)  # asyncio closes a socket in its next turn


class _Open:
    """One connection, its handshake done."""

    def __init__(self, connection: Any, timeout_s: float) -> None:
        self._reader: asyncio.StreamReader = connection._reader
        self._writer: asyncio.StreamWriter = connection._writer
        connection._reader = connection._writer = None  # redis-py has no more to do with it
        self._parser = Reader(
            protocolError=InvalidResponse,
            replyError=connection._parser.parse_error,
            notEnoughData=_MORE,
        )
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
    """The same for ordinary code; thread-safe."""

    def __init__(self, pool: Any) -> None:
        """pool: redis-py's."""
        self._pool = pool

    def call(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """As `AsyncWire.call`."""
        if not commands:
            return []
        request = packed(commands)
        connection = self._pool.get_connection()
        try:
            connection.send_packed_command([request], check_health=False)
            return [_reply(connection) for _ in commands]
        except BaseException:
            connection.disconnect()  # its replies may still come, and belong to nobody else
            raise
        finally:
            self._pool.release(connection)


def _reply(connection: Any) -> Any:
    try:
        return connection.read_response(disable_decoding=True)
    except ResponseError as exc:
        return exc
