"""A wire to one Redis server on an event loop, and its connections."""

from __future__ import annotations

import asyncio
import os
import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, cast

import redis

from delaybridge.store.redis.wire import (
    MORE,
    BaseWire,
    Connections,
    Errors,
    OpenConnection,
    parser_for,
)

_TURN_BYTES = 64 * 1024  # sent before other tasks of the loop have their turn
# Of the process that this one was forked from: to close them would end how that one waits for them.
_INHERITED = list[Any]()


@contextmanager
def lost_if_closed() -> Iterator[None]:
    """Writing to a closed connection raises redis.ConnectionError, on any event loop."""
    try:
        yield
    except RuntimeError as exc:  # uvloop's, where asyncio only loses the bytes
        raise redis.ConnectionError("closed while it was written to") from exc


@contextmanager
def cancels_told() -> Iterator[None]:
    """Raise CancelledError at the end of the block if the task was cancelled within it.

    redis-py sends with Python 3.11's `wait_for`, which drops a cancellation that arrives in the
    moment it completes (python/cpython#81839).
    """
    task = cast(asyncio.Task[Any], asyncio.current_task())
    before = task.cancelling()
    try:
        yield
    finally:
        if task.cancelling() > before:
            raise asyncio.CancelledError


class _Receiver(asyncio.Protocol):
    """Tells a connection what happens to it.

    The loop holds this one, and this one the connection only weakly: a connection that nothing else
    holds ends, and its writer closes the socket. waiting: itself, while a call waits for it, or a
    task that nothing else holds would end in the middle of its call.
    """

    def __init__(self, connection: StreamConnection) -> None:
        self._connection = weakref.ref(connection)
        self.waiting: StreamConnection | None = None

    def data_received(self, data: bytes) -> None:
        if (connection := self._connection()) is not None:
            connection.take_bytes(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if (connection := self._connection()) is not None:
            connection.note_loss(exc)

    def check_time(self) -> None:
        """The time of the call under way may be up."""
        if (connection := self._connection()) is not None:
            connection.check_time()


class StreamConnection(OpenConnection):
    """A connection on an event loop, its handshake done.

    It takes the place of redis-py's streams: a call waits for one future, and for no timer of its
    own.
    """

    def __init__(self, connection: Any, timeout_s: float, generation: int) -> None:
        self.generation, self.errors = generation, Errors(connection)
        self._reader, self._writer = connection._reader, connection._writer  # or they would close
        self._transport: Any = self._writer.transport
        self._is_over: bool = self._reader.at_eof()  # or something came unasked
        connection._reader = connection._writer = None  # or redis-py would close them as well
        self._receiver = _Receiver(self)
        self._transport.set_protocol(self._receiver)
        self._reply_parser = parser_for(self.errors)
        self._timeout_s, self._loop = timeout_s, asyncio.get_running_loop()
        self._replies: list[Any] | None = None  # those of the call under way so far
        self._waiter: asyncio.Future[None] | None = None
        self._count, self._wait_s, self._until_s = 0, timeout_s, 0.0
        self._timer: asyncio.Handle | None = None  # it may be early
        self._timer_s = 0.0  # when it looks; of one that is due at once uvloop's does not tell

    @property
    def is_open(self) -> bool:
        """Whether the server has not closed it, as far as is known, and nothing came unasked."""
        return not (self._is_over or self._transport.is_closing())

    async def call(self, requests: Iterable[bytes], wait_s: float | None = None) -> list[Any]:
        """Send them, and read as many replies. wait_s: the longest wait for the next bytes."""
        self._wait_s = self._timeout_s if wait_s is None else wait_s
        replies = self._replies = list[Any]()
        try:
            with lost_if_closed():
                self._count = count = await self._send(requests)
            if len(replies) < count:
                self._expect_by(self._loop.time() + self._wait_s)
                await self._wait()
            return replies
        finally:
            self._replies = None

    async def _wait(self) -> None:
        """Until the replies are there, or it is over."""
        if self._is_over:
            raise _closed()
        self._waiter, self._receiver.waiting = self._loop.create_future(), self
        try:
            await self._waiter
        finally:
            self._waiter = self._receiver.waiting = None

    def take_bytes(self, data: bytes) -> None:
        """Read the replies in it; the last one ends the call."""
        replies, waiter, parser = self._replies, self._waiter, self._reply_parser
        if replies is None:
            self._end(_closed())
            return
        try:
            parser.feed(data)
            while (reply := parser.gets()) is not MORE:
                replies.append(reply)
        except redis.RedisError as exc:
            self._end(exc)
            return
        if waiter is None:
            return
        if len(replies) < self._count:
            self._until_s = self._loop.time() + self._wait_s
        elif not waiter.done():
            waiter.set_result(None)

    def note_loss(self, exc: Exception | None) -> None:
        """The call under way fails, and no other begins."""
        self._end(exc or _closed())
        if self._timer is not None:
            self._timer.cancel()

    def _end(self, error: Exception) -> None:
        self._is_over = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)

    def _expect_by(self, until_s: float) -> None:
        """A call that still waits then has failed, unless bytes come meanwhile."""
        self._until_s = until_s
        if self._timer is not None:
            if self._timer_s <= until_s:
                return  # it looks again then
            self._timer.cancel()
        self._timer_s = until_s
        self._timer = self._loop.call_at(until_s, self._receiver.check_time)

    def check_time(self) -> None:
        """End the call under way if its time is up."""
        self._timer = None
        if self._waiter is None or self._replies is None:
            return
        if self._loop.time() < self._until_s:
            self._expect_by(self._until_s)
        else:
            self._end(redis.TimeoutError(f"no answer within {self._wait_s:.3g} s"))

    async def _send(self, requests: Iterable[bytes]) -> int:
        """Send them, and return their number."""
        unsent = list[bytes]()
        count = size = 0
        for request in requests:
            if size >= _TURN_BYTES:
                self._transport.write(b"".join(unsent))
                unsent.clear()
                size = 0
                await asyncio.sleep(0)
            unsent.append(request)
            count, size = count + 1, size + len(request)
        self._transport.write(b"".join(unsent))
        return count

    async def ends(self, within_s: float) -> bool:
        """Wait so long for the server to close it, while no call is made."""
        try:
            async with asyncio.timeout(within_s):
                await self._wait()  # also for what comes unasked: it belongs to no call
        except TimeoutError:
            return False
        except redis.ConnectionError:
            pass
        return True

    def close(self) -> None:
        """Close it at once; unsent bytes are dropped."""
        with suppress(RuntimeError):  # its loop has ended
            self._transport.abort()

    def abort(self) -> None:
        """As `close`, from any thread: a call that waits for an answer fails."""
        with suppress(RuntimeError):  # its loop has ended
            self._loop.call_soon_threadsafe(self.close)


def _closed() -> redis.ConnectionError:
    return redis.ConnectionError("closed by the server")


class AsyncWire(BaseWire[StreamConnection]):
    """Calls on an event loop."""

    _loop: asyncio.AbstractEventLoop | None = None

    def _slots(self, count: int) -> asyncio.Semaphore:
        return asyncio.Semaphore(count)

    def _begin_anew(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._pid != os.getpid():  # forked: the parent goes on using its connections
            _INHERITED.append(self._connections)
        if self._loop is not None:
            self._begin()
        self._loop = loop

    async def call(self, requests: Iterable[bytes], wait_s: float | None = None) -> list[Any]:
        """The replies in order; an error that Redis answered is its reply, and not raised.

        Redis begins with the first requests while the last are being packed, and other tasks run.
        wait_s: the longest wait for an answer, if not the wire's own.

        Raises redis.ConnectionError, redis.TimeoutError or OSError if no answer came: the commands
        may have run. NotNow: refused during the handshake, so nothing was sent.
        """
        loop = asyncio.get_running_loop()
        if loop is not self._loop or self._pid != os.getpid():
            self._begin_anew(loop)  # `asyncio.run` makes a loop for each time
        await self._enter()
        connections, free = self._connections, self._free
        try:
            connection = connections.take_idle() or await self._connect(connections)
            connections.begin(connection)
            try:
                replies = await connection.call(requests, wait_s)
            except BaseException as exc:
                connections.drop(connection, exc)
                raise
            finally:
                del connections.under_way[connection]
            connections.give(connection)
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

    async def _connect(self, connections: Connections[StreamConnection]) -> StreamConnection:
        connection, generation = self._unopened(), connections.generation
        connections.under_way[connection] = time.monotonic()
        try:
            with lost_if_closed(), cancels_told():
                await connection.connect()
        except BaseException as exc:
            connections.failed(exc)
            await connection.disconnect(nowait=True)
            if isinstance(exc, redis.ResponseError):
                raise Errors(connection).of_handshake(exc) from exc
            raise
        finally:
            del connections.under_way[connection]
        return StreamConnection(connection, self._timeout_s, generation)

    async def connect_apart(self) -> StreamConnection:
        """A connection that no call uses; whoever asked for it closes it. Raises as `call`."""
        return await self._connect(self._connections)

    async def close(self) -> None:
        """Close idle connections now, and those in use when their calls end."""
        self._connections.close()
        await self.pool.disconnect()
        await asyncio.sleep(0)  # asyncio closes a socket in its next turn
