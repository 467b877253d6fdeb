"""One connection of HTTP: limits that hold before the application sees a request.

uvicorn's protocol for httptools reads headers of any size for any time. This one bounds both, the
requests that wait, and the number of connections. Headers after a body are refused. Each server has
a class of its own, whose attributes are its limits.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, ClassVar

import httptools
import msgspec
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from delaybridge.serve.http.disconnect import Ending
from delaybridge.serve.http.problems import MEDIA, Problem
from delaybridge.worker.eventlog import say

_URL_BYTES = 8 * 1024
_HEADERS = 100
_HEADERS_BYTES = 16 * 1024
_HEAD_BYTES = _URL_BYTES + _HEADERS_BYTES + 1024
_SWEEP_S = 0.5
_OF_UPGRADE = (b"connection", b"upgrade", b"http2-settings")
_LINGER_S = 1.0
_STOPPING_S = 5.0
_WAITING = 250  # requests of one connection, behind the one that is being answered


class Cycle(RequestResponseCycle):
    """A request that can be answered by one write.

    uvloop refuses to write on a connection that is closed, and tells only later that it is lost.
    """

    async def send(self, message: Any) -> None:
        """Send a part of the answer, as ASGI has it; nothing if the connection is closed."""
        if self.transport.is_closing():
            self.disconnected = True
        await super().send(message)

    async def answer(self, status: int, headers: bytes, content: bytes) -> None:
        """Send a whole answer. headers: lines without what could end one, each with its end."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected or self.transport.is_closing():
            self.disconnected = True
            return
        self.waiting_for_100_continue = False
        self.response_started = self.response_complete = True
        own = [b"%b: %b\r\n" % pair for pair in self.default_headers]
        if not self.keep_alive:
            own.append(b"connection: close\r\n")
        self.transport.write(b"".join([STATUS_LINE[status], *own, headers, b"\r\n", content]))
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()


class BoundedProtocol(HttpToolsProtocol):
    """A connection with limits.

    connections: the most of them. request_s: how long a request may take to arrive, from its first
    byte, or from the connect, to its end; of a body that is answered while it arrives, each piece.
    write_s: how long a client may read nothing of an answer.
    An application that waits finds its end in `scope["extensions"]["connection"]["ending"]`.
    """

    connections_limit: ClassVar[int] = 10_000
    request_s: ClassVar[float] = 10.0
    write_s = 30.0
    _is_full: ClassVar[bool] = False  # said in the log once
    _idle: ClassVar[dict[BoundedProtocol, None]]  # waiting for the client, the longest first

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._ending = Ending()
        self._ending.break_off = self._break_off
        self._extensions = {"connection": {"ending": self._ending}}
        self._began_s: float | None = None  # the request that is not complete; None: there is none
        self._unread, self._unread_s = 0, 0.0  # bytes of answers, and since when as many
        self._waits_since_s: float | None = None  # for another request
        self._head_bytes = 0  # of a head or a trailer, or between two pieces of a body
        self._is_in_head = True
        self._is_over = False
        self._running: RequestResponseCycle | None = None  # the last that began to be answered
        self._is_upgrade = False
        self._refusal: Problem | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.connections_limit and not self._close_an_idle_one():
            self._refuse(Problem(503, "too_many_connections", "too many connections; try again"))
            del self._idle[self]  # one above the limit leaves no room
            return
        self._began_s = self.loop.time()
        self._idle[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._idle.pop(self, None)
        self._began_s = self._ending.break_off = None
        self._end_cycles()
        super().connection_lost(exc)
        self._ending.end()

    def shutdown(self) -> None:
        """The server is told to stop: wait for no lines that may never come, nor for a client that
        reads nothing."""
        self.write_s = min(self.write_s, _STOPPING_S)
        if self._ending.is_read:
            self._refuse(Problem(503, "draining", "this server is told to stop; send it again"))
        else:
            super().shutdown()

    def data_received(self, data: bytes) -> None:
        if self._is_over or self.parser is None or self.transport.is_closing():
            return
        self._waits_since_s = None
        self._head_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as exc:
            self._begin_without_upgrade(data[exc.args[0] :])
            return
        except httptools.HttpParserError:
            self._refuse(self._refusal or Problem(400, "bad_request", "this is not HTTP/1.1"))
            return
        if self._head_bytes > _HEAD_BYTES:
            self._refuse(_TOO_MANY_HEADERS if self._is_in_head else _TRAILERS)

    def _begin_without_upgrade(self, rest: bytes) -> None:
        """Read the request again as if it had not asked for another protocol.

        Java's client asks for HTTP/2 in each first request; the parser then skips the body.
        """
        lines = [b"%s %s HTTP/1.1" % (self.parser.get_method(), self.url)]
        lines += [b"%s: %s" % pair for pair in self.headers if pair[0] not in _OF_UPGRADE]
        self.parser = httptools.HttpRequestParser(self)
        self._is_upgrade, self._is_in_head = False, True
        self.data_received(b"\r\n".join([*lines, b"", b""]) + rest)

    # what the parser finds; an exception ends the connection

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= _WAITING:
            self._end_after_those_that_wait()
        super().on_message_begin()
        self._began_s = self.loop.time()
        self.scope["extensions"] = self._extensions  # type: ignore[typeddict-item]

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._is_in_head:
            self._fail(_TRAILERS)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if len(self.url) > _URL_BYTES:
            self._fail(Problem(414, "url_too_long", f"at most {_URL_BYTES} bytes"))
        if len(self.headers) > _HEADERS or (
            self._head_bytes > _HEADERS_BYTES  # with what came of the body
            and sum(len(name) + len(value) for name, value in self.headers) > _HEADERS_BYTES
        ):
            self._fail(_TOO_MANY_HEADERS)
        if self.parser.get_method() == b"CONNECT":
            self._fail(Problem(405, "method_not_allowed", "this is no proxy"))
        if not self.url.startswith(b"/"):
            self._fail(Problem(400, "bad_path", "a path begins with /"))
        self._is_in_head, self._head_bytes = False, 0
        self._is_upgrade = self.parser.should_upgrade()
        if not self._is_upgrade:
            super().on_headers_complete()
            self.cycle.__class__ = Cycle

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        if self._ending.is_read is not None:  # its time begins again
            self._began_s = self.loop.time()
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._is_upgrade:
            return
        self._began_s, self._is_in_head, self._head_bytes = None, True, 0
        super().on_message_complete()
        self._see_who_waits()

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if not self.transport.is_closing():
            self.flow.resume_reading()
            if self.pipeline:
                self._start_asgi_task(*self.pipeline.pop())
            else:
                self._waits_since_s = self.loop.time()  # a timer for each would take longer
        if self.cycle.response_complete:  # the last one that was sent
            self._idle.pop(self, None)
        self._see_who_waits()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._see_who_waits()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._see_who_waits()

    def _see_who_waits(self) -> None:
        """An answer that is being made holds its connection; one that is not read does not."""
        is_answering = self.cycle is not None and not self.cycle.response_complete
        is_whole = self._began_s is None or self._ending.is_read is not None
        if is_answering and is_whole and not self.flow.write_paused:
            self._idle.pop(self, None)
        else:
            self._idle.setdefault(self)

    def check_time(self, now_s: float) -> None:
        """End the connection if its time is up. Called every half second, until it has ended."""
        if self._ending.is_read is not None:
            self._see_who_waits()
            if self._began_s is not None and not self._ending.is_read:
                self._began_s = now_s
        unread = self.transport.get_write_buffer_size()
        if unread != self._unread:
            self._unread, self._unread_s = unread, now_s
        if self._began_s is not None and now_s - self._began_s > self.request_s:
            what = f"the request did not arrive within {self.request_s:g} s"
            self._refuse(Problem(408, "request_timeout", what))
        elif self._waits_since_s is not None and not unread:
            if now_s - self._waits_since_s > self.timeout_keep_alive:
                self.transport.close()
        elif unread and now_s - self._unread_s > self.write_s:  # to close it would wait for them
            self.transport.abort()

    def _close_an_idle_one(self) -> bool:
        """Close the connection that has been idle for the longest; False if none is idle."""
        if (oldest := next(iter(self._idle), None)) is None:
            return False
        del self._idle[oldest]
        if oldest.transport.get_write_buffer_size():
            oldest.transport.abort()
        else:
            oldest.transport.close()
        if not self._is_full:
            type(self)._is_full = True
            say(logging.WARNING, "connections_full", connections=self.connections_limit)
        return True

    def _end_after_those_that_wait(self) -> None:
        """From within the parser: answer what was sent so far, close, and read nothing more."""
        self._is_over, self._began_s = True, None
        self.cycle.keep_alive = False  # the last one
        raise ValueError("too many requests wait")

    def _fail(self, problem: Problem) -> None:
        """From within the parser: refuse the request."""
        self._refusal = problem
        raise ValueError(problem.code)

    def _refuse(self, problem: Problem) -> None:
        """Answer what the application never sees, and close. An answer under way ends there."""
        if self._is_over:
            return
        self._idle.setdefault(self)
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if not is_answering or not (
            self.pipeline or self.cycle.response_started or self._is_in_head
        ):
            content = msgspec.json.encode(problem.content)
            head = [
                STATUS_LINE[problem.status],
                b"content-type: %s\r\n" % MEDIA.encode(),
                b"content-length: %d\r\n" % len(content),
                b"connection: close\r\n\r\n",
            ]
            self.transport.write(b"".join([*head, content]))
        self._break_off()

    def _break_off(self) -> None:
        """Read and answer nothing more; close once what was written is sent."""
        self._is_over, self._began_s = True, None
        self._end_cycles()
        # If it were closed while the client still sends, that would throw the answer away.
        self.flow.resume_reading()
        if self.transport.can_write_eof() and not self.transport.is_closing():
            self.transport.write_eof()
        self.loop.call_later(_LINGER_S, self.transport.close)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def _end_cycles(self) -> None:
        """The application must not answer, nor use half a body: of the request that arrives, and
        of that which is answered, behind which others may wait."""
        for cycle in (self.cycle, self._running):
            if cycle is not None:
                cycle.disconnected = True
                cycle.message_event.set()


_TRAILERS = Problem(400, "trailers", "send no headers after the body; all of them come before it")
_TOO_MANY_HEADERS = Problem(
    431, "headers_too_large", f"at most {_HEADERS} headers, {_HEADERS_BYTES} bytes of them"
)


def bounded(connections: int, **limits: float) -> type[BoundedProtocol]:
    """A class for the connections of one server. limits: `request_s`, `write_s`."""
    own = {"connections_limit": connections, "_idle": {}, **limits}
    return type("Connection", (BoundedProtocol,), own)


async def sweep(connections: set[Any]) -> None:
    """Look at all connections every half second, until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(_SWEEP_S)
        now_s = loop.time()
        for connection in list(connections):
            connection.check_time(now_s)
