"""A TCP proxy in front of Redis that loses replies, as a broken or stalled connection does."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

LOOPBACK = "127.0.0.1"


class LossyProxy(contextlib.AbstractContextManager):
    """Passes everything on to `port` of this machine, except the replies that it is told to lose.

    dropped: the number of replies lost so far. on_drop: called before each loss. swallowing: drop
    every reply and keep the connection open. target: the port that new connections lead to.
    """

    def __init__(self, port: int) -> None:
        self.target = port
        self._listener = socket.create_server((LOOPBACK, 0))
        self.port: int = self._listener.getsockname()[1]
        self._to_drop = 0
        self.dropped = 0
        self.swallowing = False
        self.on_drop: Callable[[], object] = lambda: None
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    @property
    def url(self) -> str:
        return f"redis://{LOOPBACK}:{self.port}/0"

    def drop_next_replies(self, count: int) -> None:
        """Lose the next replies: each is read from the server, then its connection is cut."""
        self._to_drop = count

    def close(self) -> None:
        # Only when no connection is accepted any more are all of them known: one that was missed
        # would be waited for as long as its client lives.
        self._close(self._listener)
        self._threads[0].join()
        for each in self._sockets:
            self._close(each)
        for thread in self._threads:
            thread.join()

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _start(self, work: object, *args: object) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection((LOOPBACK, self.target))
                except ConnectionRefusedError:  # the server is away
                    client.close()
                    continue
                self._sockets += [client, server]
                self._start(self._pass_requests, client, server)
                self._start(self._pass_replies, server, client)

    def _pass_requests(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65_536):
                server.sendall(data)
        self._cut(client, server)

    def _pass_replies(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(65_536):
                if self._to_drop:
                    self._to_drop -= 1
                    self.on_drop()
                    self.dropped += 1
                    break
                if not self.swallowing:
                    client.sendall(data)
        self._cut(client, server)

    def _close(self, one: socket.socket) -> None:
        self._cut(one)
        one.close()

    def _cut(self, *both: socket.socket) -> None:
        for each in both:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
