"""The server: a thread that answers GET on a few paths, whatever its clients do.

It has a loop of its own, so a slow or hostile client costs the worker nothing but the interpreter's
time. Connections, header bytes and waiting are bounded; each connection carries one request. With
`http.server` all these bounds would still be ours, and it takes a thread for each connection.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from http import HTTPStatus
from typing import NamedTuple

_log = logging.getLogger("delaybridge")
CONNECTIONS = 32  # for a further one the oldest that has not asked is closed
_HEADER_BYTES = 16 * 2**10
HEADER_S = 5.0  # to send a request
ANSWER_S = 15.0  # to make the answer, and for the client to take it
_CLOSE_S = 2.0
_STEPS = 5  # of the loop: more than it takes to accept a connection


class Response(NamedTuple):
    """content_type may be empty."""

    status: HTTPStatus
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


Answer = Callable[[str, str], Awaitable[Response]]
"""Called with the path of a GET and its Accept header; any path."""


class Server:
    """Serves from `start` to `close`. The socket listens already, so its port is certain."""

    def __init__(self, listener: socket.socket, answer: Answer) -> None:
        self._listener, self._answer = listener, answer
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._open = 0
        self._silent: dict[asyncio.WriteTransport, None] = {}  # no request yet, the oldest first
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)

    def start(self) -> None:
        """Answer requests from now on."""
        self._thread.start()

    def close(self) -> None:
        """Stop answering; returns soon, whatever the clients do."""
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(
            self._connected, sock=self._listener, limit=_HEADER_BYTES
        )
        try:
            await self._stopping.wait()
        finally:
            # A connection stays open if the server is closed while it is being accepted, or if its
            # task is cancelled before its first step.
            self._loop.remove_reader(self._listener)
            for _ in range(_STEPS):
                await asyncio.sleep(0)
            server.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._open >= CONNECTIONS:
            oldest = next(iter(self._silent), writer.transport)
            self._silent.pop(oldest, None)
            oldest.abort()
            if oldest is writer.transport:
                return
        self._open += 1
        self._silent[writer.transport] = None
        try:
            # Cancelled, when the server closes: asyncio would log that as an error.
            with suppress(
                TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.CancelledError
            ):
                await self._converse(reader, writer)
        finally:
            self._open -= 1
            self._silent.pop(writer.transport, None)
            writer.transport.abort()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request, one response."""
        try:
            async with asyncio.timeout(HEADER_S):
                head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            head = b""
        self._silent.pop(writer.transport, None)
        async with asyncio.timeout(ANSWER_S):
            response = await self._response(head)
            writer.write(_encoded(response, with_body=not head.startswith(b"HEAD ")))
            await writer.drain()
            writer.close()
            await writer.wait_closed()

    async def _response(self, head: bytes) -> Response:
        request, *headers = head.decode("latin-1").split("\r\n")
        words = request.split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return _refusal(HTTPStatus.BAD_REQUEST)
        method, target, _ = words
        if method not in ("GET", "HEAD"):
            return _refusal(HTTPStatus.METHOD_NOT_ALLOWED)
        fields = (line.partition(":") for line in headers)
        accept = next((value.strip() for name, _, value in fields if name.lower() == "accept"), "")
        try:
            return await self._answer(target.partition("?")[0], accept)
        except Exception as exc:
            _log.debug("a scrape failed", exc_info=exc)
            return _refusal(HTTPStatus.INTERNAL_SERVER_ERROR, type(exc).__name__)


def not_found() -> Response:
    """The answer to other paths."""
    return _refusal(HTTPStatus.NOT_FOUND, "see /metrics, /health/live, /health/ready")


def _refusal(status: HTTPStatus, what: str = "") -> Response:
    return Response(status, f"{status.phrase}{': ' if what else ''}{what}\n".encode())


def _encoded(response: Response, *, with_body: bool) -> bytes:
    status, body, content_type = response
    allow = "Allow: GET, HEAD\r\n" if status == HTTPStatus.METHOD_NOT_ALLOWED else ""
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\n{allow}Connection: close\r\n\r\n"
    )
    return head.encode() + (body if with_body else b"")
