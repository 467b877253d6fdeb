"""A connection to Redis: redis-py opens it (TLS, login, database), this module sends and reads.

A call of redis-py's asyncio pipeline costs 250 us of CPU, whatever it carries, and a worker makes
three in a millisecond; packed and read with hiredis it costs 45. Its synchronous pool costs 80 us a
call, as much as a SET. The private attributes of redis-py are read here and in `wire.py`: a pool's
recipe for connections, an open connection's streams or socket, its parser's names for errors.
"""

from __future__ import annotations

import asyncio
import re
import selectors
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

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


class NotAsked(NotNow):
    """Who the masters are is not known yet; it will be in a moment."""


class WrongServer(NotNow):
    """The server is not, or not yet, the one to ask; another may answer under its address."""


class Misnamed(redis.RedisError):
    """The URL does not fit the servers behind it; says what to give instead."""


class Redirected(NotNow):
    """Another server of the Cluster has the key: host and port. asking: only for this once."""

    def __init__(self, text: str, asked: str) -> None:
        super().__init__(text)
        word, _, address = text.split()[:3]
        host, _, port = address.rpartition(":")
        self.asking, self.address = word == "ASK", (host.strip("[]") or asked, int(port))


_NOT_NOW = {"BUSY", "MISCONF", "NOREPLICAS"}
_WRONG_SERVER = {"READONLY", "LOADING", "MASTERDOWN", "UNBLOCKED", "CLUSTERDOWN"}
# Redis 6.2 puts the line before a command's error: "...: @user_script: 12: -OOM ...".
_IN_SCRIPT = re.compile(r"^ERR Error running script .*?: -(?=[A-Z]+ )", re.DOTALL)


class Errors:
    """Makes exceptions of a connection's error replies; remembers if one says "wrong server"."""

    def __init__(self, connection: Any) -> None:
        self._parse_error, self._host = connection._parser.parse_error, _host_of(connection)
        self.wrong_server = False

    def __call__(self, text: str) -> Exception:
        text = _IN_SCRIPT.sub("", text)
        code = text.partition(" ")[0]
        if code in _WRONG_SERVER:
            self.wrong_server = True
            return WrongServer(text)
        if code in ("MOVED", "ASK"):
            return Redirected(text, self._host)
        error: Exception = NotNow(text) if code in _NOT_NOW else self._parse_error(text)
        return error

    def of_handshake(self, error: redis.ResponseError) -> Exception:
        """The same for an error that redis-py read; it strips the codes that it knows."""
        return self(f"{error.status_code} {error}" if error.status_code else str(error))


@contextmanager
def lost_if_closed() -> Iterator[None]:
    """Writing to a closed connection raises redis.ConnectionError, on any event loop."""
    try:
        yield
    except RuntimeError as exc:  # uvloop's, where asyncio only loses the bytes
        raise redis.ConnectionError("closed while it was written to") from exc


class StreamConnection:
    """A connection on an event loop, its handshake done."""

    def __init__(self, connection: Any, timeout_s: float, generation: int) -> None:
        self.generation, self.errors = generation, Errors(connection)
        self._reader: asyncio.StreamReader = connection._reader
        self._writer: asyncio.StreamWriter = connection._writer
        connection._reader = connection._writer = None  # or redis-py would close them as well
        self._parser = _parser(self.errors)
        self._timeout_s, self._loop = timeout_s, asyncio.get_running_loop()

    @property
    def is_open(self) -> bool:
        """Whether the server has not closed it, as far as is known."""
        return not (self._reader.at_eof() or self._writer.is_closing())

    async def call(self, requests: Iterable[bytes], wait_s: float | None = None) -> list[Any]:
        """Send them, and read as many replies. wait_s: the longest wait for the next bytes."""
        wait_s = self._timeout_s if wait_s is None else wait_s
        loop, parser, replies = self._loop, self._parser, list[Any]()
        with lost_if_closed():
            count = await self._send(requests)
        try:
            async with asyncio.timeout(wait_s) as patience:
                while True:
                    while (reply := parser.gets()) is not _MORE:
                        replies.append(reply)
                    if len(replies) >= count:
                        return replies
                    data = await self._reader.read(_READ_BYTES)
                    if not data:
                        raise redis.ConnectionError("closed by the server")
                    parser.feed(data)
                    patience.reschedule(loop.time() + wait_s)
        except TimeoutError:
            raise redis.TimeoutError(f"no answer within {wait_s:.3g} s") from None

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

    def abort(self) -> None:
        """As `close`, from any thread: a call that waits for an answer fails."""
        with suppress(RuntimeError):  # its loop has ended
            self._loop.call_soon_threadsafe(self.close)


class SocketConnection:
    """A connection of ordinary code, its handshake done."""

    def __init__(self, connection: Any, timeout_s: float, generation: int) -> None:
        self.generation, self.errors = generation, Errors(connection)
        self._socket: socket.socket = connection._sock
        self._timeout_s = timeout_s
        self._wait(timeout_s)
        connection._sock = None  # or redis-py would close it as well
        self._parser = _parser(self.errors)
        self._readable = _Selector()
        self._readable.register(self._socket, selectors.EVENT_READ)

    @property
    def is_open(self) -> bool:
        """Whether nothing came unasked: if the server has closed it, its end can be read."""
        return not self._readable.select(0)

    def _wait(self, wait_s: float) -> None:
        self._wait_s = wait_s
        self._socket.settimeout(wait_s)

    def send(self, requests: Iterable[bytes], wait_s: float | None = None) -> int:
        """Send them, and return their number. wait_s: the longest wait for the next bytes."""
        wait_s = self._timeout_s if wait_s is None else wait_s
        if wait_s != self._wait_s:
            self._wait(wait_s)
        try:
            count, unsent = 0, b""
            for request in requests:
                count, unsent = count + 1, unsent + request if unsent else request
                if len(unsent) >= _SEND_BYTES:
                    self._socket.sendall(unsent)
                    unsent = b""
            if unsent:
                self._socket.sendall(unsent)
            return count
        except TimeoutError:
            raise self._no_answer() from None

    def read(self, count: int) -> Iterator[Any]:
        """Read that many replies, each when it comes."""
        parser = self._parser
        try:
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
            raise self._no_answer() from None

    def _no_answer(self) -> redis.TimeoutError:
        return redis.TimeoutError(f"no answer within {self._wait_s:.3g} s")

    def close(self) -> None:
        """Close it at once."""
        self._socket.close()

    def abort(self) -> None:
        """Break it, from any thread: a call that waits for an answer fails."""
        with suppress(OSError):
            # Not that of a TLS socket, which makes a read under way fail with ValueError.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def __del__(self) -> None:
        self._socket.close()  # a client need not be closed, but Python warns of an open socket


def _parser(errors: Errors) -> Reader:
    return Reader(protocolError=InvalidResponse, replyError=errors, notEnoughData=_MORE)


def _host_of(connection: Any) -> str:
    return getattr(connection, "host", "")
