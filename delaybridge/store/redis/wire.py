"""A wire to one Redis server: calls over connections that are kept for the next call.

redis-py opens a connection (TLS, login, database), this module sends and reads. A call of its
asyncio pipeline costs 250 us of CPU, whatever it carries, and a worker makes three in a
millisecond; packed and read with hiredis it costs 45. Its synchronous pool costs 80 us a call, as
much as a SET. The private attributes of redis-py are read here, in `async_wire.py` and `errors.py`:
a pool's recipe for connections, a connection's streams or socket, its parser's names for errors.

A wire opens at most as many connections as its pool allows (`max_connections` in the URL, 100 by
default); further calls wait for a free one. When a server says that it is the wrong one, all
connections to it are closed: the next call looks its address up again.
"""

from __future__ import annotations

import os
import re
import select
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from math import inf
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

import redis
from hiredis import Reader
from redis.exceptions import InvalidResponse

from delaybridge import late
from delaybridge.store.redis.errors import NotNow, Redirected, WrongServer

# From 128 KiB on, malloc asks the system for pages, and gives them back: 15 us for each read.
READ_BYTES = 120 * 1024
_SEND_BYTES = 4 * 1024
MORE = object()  # the parser's answer while a reply is incomplete


_NOT_NOW = {"BUSY", "MISCONF", "NOREPLICAS"}
_WRONG_SERVER = {"READONLY", "LOADING", "MASTERDOWN", "UNBLOCKED", "CLUSTERDOWN"}
# Redis 6.2 puts the line before a command's error: "...: @user_script: 12: -OOM ...".
_IN_SCRIPT = late.pattern(r"^ERR Error running script .*?: -(?=[A-Z]+ )", re.DOTALL)


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


def _host_of(connection: Any) -> str:
    return getattr(connection, "host", "")


class OpenConnection:
    """A connection, its handshake done. generation, errors: see `Connections`, `Errors`."""

    generation: int
    errors: Errors

    @property
    def is_open(self) -> bool:
        """Whether the server has not closed it, as far as is known."""
        raise NotImplementedError

    def close(self) -> None:
        """Close it at once; unsent bytes are dropped."""
        raise NotImplementedError

    def abort(self) -> None:
        """Break it, from any thread: a call that waits for an answer fails."""
        raise NotImplementedError


def _readable(of: socket.socket) -> Callable[[int], Sequence[Any]]:
    """Called with 0: what can be read at once; empty if there is nothing.

    poll and select need no descriptor of their own, unlike epoll; not every platform has poll.
    """
    if not hasattr(select, "poll"):
        return lambda wait_s: select.select([of], [], [], wait_s)[0]
    poll = select.poll()
    poll.register(of, select.POLLIN)
    return poll.poll


class SocketConnection(OpenConnection):
    """A connection of ordinary code, its handshake done."""

    def __init__(self, connection: Any, timeout_s: float, generation: int) -> None:
        self.generation, self.errors = generation, Errors(connection)
        self._socket: socket.socket = connection._sock
        self._timeout_s = timeout_s
        self._wait(timeout_s)
        connection._sock = None  # or redis-py would close it as well
        self._reply_parser = parser_for(self.errors)
        self._readable = _readable(self._socket)

    @property
    def is_open(self) -> bool:
        """Whether nothing came unasked: if the server has closed it, its end can be read."""
        return not self._readable(0)

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
        parser = self._reply_parser
        try:
            while True:
                while (reply := parser.gets()) is not MORE:
                    count -= 1
                    yield reply
                if count <= 0:
                    return
                data = self._socket.recv(READ_BYTES)
                if not data:
                    raise redis.ConnectionError("closed by the server")
                parser.feed(data)
        except TimeoutError:
            raise self._no_answer() from None

    def _no_answer(self) -> redis.TimeoutError:
        return redis.TimeoutError(f"no answer within {self._wait_s:.3g} s")

    def close(self) -> None:
        """Close the socket at once, without a farewell."""
        self._socket.close()

    def abort(self) -> None:
        """Break it, from any thread: a call that waits for an answer fails."""
        with suppress(OSError):
            # Not that of a TLS socket, which makes a read under way fail with ValueError.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def __del__(self) -> None:
        self._socket.close()  # a client need not be closed, but Python warns of an open socket


def parser_for(errors: Errors) -> Reader:
    return Reader(protocolError=InvalidResponse, replyError=errors, notEnoughData=MORE)


C = TypeVar("C", bound=OpenConnection)


class Connections(Generic[C]):
    """The connections of a wire. under_way: those that a call uses, and since when (monotonic s).

    A connection that is being opened is under way, too. failed_s: when a call last got no answer.
    """

    def __init__(self) -> None:
        self._idle: list[C] = []
        self._closed = False
        self.generation = 0  # connections of an earlier one are closed when their call ends
        self._abandoned = 0  # connections of an earlier generation must not be used any more
        self.under_way: dict[Any, float] = {}
        self.failed_s = -inf

    def take_idle(self) -> C | None:
        """An idle one that the server has not closed, as far as is known, or None."""
        while True:
            try:
                connection = self._idle.pop()  # in one step: threads take at once
            except IndexError:
                return None
            if connection.is_open:
                return connection
            connection.close()

    def give(self, connection: C) -> None:
        """Keep it for the next call, unless it is no longer to be used."""
        if connection.errors.wrong_server and connection.generation == self.generation:
            self.close_idle()
        if self._closed or connection.generation != self.generation:
            connection.close()
        else:
            self._idle.append(connection)

    def begin(self, connection: C) -> None:
        """A call uses it from now on. redis.ConnectionError if it leads to an abandoned server.

        That server may take writes and lose them: it was replaced while the connection was opened.
        """
        self.under_way[connection] = time.monotonic()  # before the look: `abandon` finds it, too
        if connection.generation < self._abandoned:
            del self.under_way[connection]
            connection.close()
            raise redis.ConnectionError("the server was replaced")

    def drop(self, connection: C, error: BaseException) -> None:
        """Close a connection whose call failed."""
        connection.close()  # its replies may still come, and belong to no other call
        self.failed(error)
        if isinstance(error, redis.TimeoutError):
            self.close_idle()  # the others probably take the same broken path

    def failed(self, error: BaseException) -> None:
        """A call got no answer."""
        if isinstance(error, redis.RedisError | OSError):
            self.failed_s = time.monotonic()

    def close_idle(self) -> None:
        """Close all that were opened so far; those under way when their call ends."""
        self.generation += 1
        while (connection := self.take_idle()) is not None:
            connection.close()

    def abandon(self) -> None:
        """Close all now, from any thread: calls under way fail."""
        self.generation += 1
        self._abandoned = self.generation
        for connection in [*self._idle, *self.under_way]:
            if isinstance(connection, OpenConnection):
                connection.abort()

    def keep_none(self) -> None:
        """From now on close each connection when its call ends."""
        self._closed = True

    def close(self) -> None:
        """As `close_idle`, and keep none from now on."""
        self.keep_none()
        self.close_idle()


class BaseWire(Generic[C]):
    """Calls over connections that are kept for the next call. A forked process opens its own."""

    def __init__(self, pool: Any, timeout_s: float) -> None:
        """pool: redis-py's. timeout_s: the longest wait for an answer or a free connection."""
        # The pool serves as a recipe only: it counts every connection it makes, and never down.
        self.pool, self._timeout_s = pool, timeout_s
        self._begin()

    def _begin(self) -> None:
        self._connections: Connections[C] = Connections()
        self._free = self._slots(self.pool.max_connections)
        self._pid = os.getpid()  # last: another thread of a forked process may look at it meanwhile

    def _slots(self, count: int) -> Any:
        """One for each connection that may be in use."""
        raise NotImplementedError

    @property
    def recipe(self) -> dict[str, Any]:
        """How redis-py's pool makes a connection to where the wire leads now."""
        return {**self.pool.connection_kwargs, "connection_class": self.pool.connection_class}

    @property
    def generation(self) -> int:
        """Grows when all connections so far are closed."""
        return self._connections.generation

    def waiting_s(self) -> float:
        """For how long the oldest call under way has been waiting."""
        since_s = min(list(self._connections.under_way.values()), default=None)
        return 0.0 if since_s is None else time.monotonic() - since_s

    def is_silent(self, lately_s: float, slow_s: float) -> bool:
        """Whether a call failed that lately, or has been waiting that long."""
        return time.monotonic() - self._connections.failed_s < lately_s or self.waiting_s() > slow_s

    def move_to(self, host: str, port: int) -> None:
        """From now on connect to this server; calls under way fail. From any thread."""
        self.pool.connection_kwargs |= {"host": host, "port": port}
        self.abandon()

    def abandon(self) -> None:
        """Close every connection; calls under way fail. From any thread."""
        self._connections.abandon()

    def retire(self) -> None:
        """As `abandon`, and keep none from now on: a call may still have been on its way here."""
        self._connections.keep_none()
        self.abandon()

    def _unopened(self) -> Any:
        """A connection of redis-py that is not open yet."""
        return self.pool.connection_class(**self.pool.connection_kwargs)

    def _none_free(self) -> Exception:
        what = "make fewer calls at once, or add ?max_connections=N to the URL"
        return redis.TimeoutError(f"no connection became free within {self._timeout_s:g} s; {what}")


AnyWire = BaseWire[Any]


class Wire(BaseWire[SocketConnection]):
    """Calls from ordinary code; thread-safe."""

    def _slots(self, count: int) -> SimpleQueue[None]:
        slots: SimpleQueue[None] = SimpleQueue()  # as a semaphore, at a tenth of its cost
        for _ in range(count):
            slots.put(None)
        return slots

    def call(self, requests: Iterable[bytes]) -> list[Any]:
        """The replies in order, as `AsyncWire.call` does."""
        return list(self.replies(requests))

    def replies(self, requests: Iterable[bytes], wait_s: float | None = None) -> Iterator[Any]:
        """Send, and return the replies, each when it comes. To be read to their end, or closed.

        Redis begins with the first while the last is being packed, and works on the last while the
        reply to the first is being read. Raises as `AsyncWire.call`.
        """
        exchange = self._exchange(requests, wait_s)
        next(exchange)
        return exchange

    def _exchange(self, requests: Iterable[bytes], wait_s: float | None) -> Iterator[Any]:
        """None once everything is sent, then the replies."""
        if self._pid != os.getpid():  # as in AsyncWire
            self._begin()
        connections, free = self._connections, self._free
        try:
            free.get(timeout=self._timeout_s)
        except Empty:
            raise self._none_free() from None
        try:
            connection = connections.take_idle() or self._connect(connections)
            connections.begin(connection)
            try:
                count = connection.send(requests, wait_s)
                yield None
                yield from connection.read(count)
            except BaseException as exc:
                connections.drop(connection, exc)
                raise
            finally:
                del connections.under_way[connection]
            connections.give(connection)
        finally:
            free.put(None)

    def _connect(self, connections: Connections[SocketConnection]) -> SocketConnection:
        connection, generation = self._unopened(), connections.generation
        connections.under_way[connection] = time.monotonic()
        try:
            connection.connect()
        except BaseException as exc:
            connections.failed(exc)
            connection.disconnect()
            if isinstance(exc, redis.ResponseError):
                raise Errors(connection).of_handshake(exc) from exc
            raise
        finally:
            del connections.under_way[connection]
        return SocketConnection(connection, self._timeout_s, generation)

    def close(self) -> None:
        """Close idle connections now, those in use later."""
        self._connections.close()
        self.pool.disconnect()
