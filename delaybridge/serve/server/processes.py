"""Several processes on one port: a parent that starts them, and replaces those that die."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess

from delaybridge.worker.eventlog import say

_STEADY_S = 5.0  # a child that ran for longer is replaced at once
_PAUSE_S = 1.0
Serve = Callable[[socket.socket], None]


def serve_together(sock: socket.socket, count: int, serve: Serve) -> None:
    """Run `serve` in this many processes until SIGTERM or Ctrl-C; a second signal kills them.

    serve: answers on the socket until SIGTERM; it is pickled. The kernel gives each new connection
    to one of the processes.
    """
    parent = _Parent(sock, serve)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, parent.stop)
    for _ in range(count):
        parent.start()
    parent.run()


class _Parent:
    def __init__(self, sock: socket.socket, serve: Serve) -> None:
        self._listener, self._serve = sock, serve
        self._context = multiprocessing.get_context("spawn")
        self._children: dict[int, tuple[BaseProcess, float]] = {}  # by sentinel, when it began
        self._signals = 0

    def start(self) -> None:
        child = self._context.Process(target=_child, args=(self._serve, self._listener))
        child.start()
        self._children[child.sentinel] = child, time.monotonic()
        if self._signals:  # it came while the child was starting
            child.terminate()

    def stop(self, *_: object) -> None:
        self._signals += 1
        for child, _began_s in self._children.values():
            child.terminate() if self._signals == 1 else child.kill()

    def run(self) -> None:
        while self._children:
            for sentinel in wait([*self._children]):
                child, began_s = self._children.pop(sentinel)  # type: ignore[arg-type]
                child.join()
                if self._signals:
                    continue
                say(logging.WARNING, "process_died", pid=child.pid, exit=child.exitcode)
                if time.monotonic() - began_s < _STEADY_S:
                    time.sleep(_PAUSE_S)  # it would die again at once
                if not self._signals:
                    self.start()


def _child(serve: Serve, sock: socket.socket) -> None:
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    serve(sock)


def _end_with_the_parent() -> None:
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)
