"""A thread that keeps asking which servers are the masters, so that no call has to."""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Protocol

_log = logging.getLogger("delaybridge")
_GLANCE_S = 0.25
SLOW_S = 0.3  # a call that has waited for this long may wait for a server that was replaced
_REST_S = 0.05  # between two looks, however often it is woken


class Watched(Protocol):
    """What a lookout serves. Its methods run on the lookout's thread."""

    every_s: float  # between two looks if none is asked for

    def refresh(self) -> None:
        """Ask who the masters are, and follow them. Raises nothing."""

    def waiting_s(self) -> float:
        """For how long the oldest call under way has been waiting."""


class Lookout:
    """Looks when it is woken, while a call takes long, and from time to time.

    It ends with the object that it serves.
    """

    def __init__(self, watched: Watched, close: Callable[[], None]) -> None:
        """close: of the connections that looks use; does not hold `watched`."""
        self._watched, self._close = weakref.ref(watched), close
        self._woken = threading.Event()
        self._pid, self._ended = 0, False
        self._lock = threading.Lock()

    def keep(self) -> None:
        """Start the thread unless it runs: a forked process has none."""
        if self._pid != os.getpid():
            self.wake()

    def wake(self) -> None:
        """Look soon. Starts the thread, also after a fork."""
        if self._pid != os.getpid():
            with self._lock:
                if self._pid != os.getpid():
                    self._pid, self._woken = os.getpid(), threading.Event()
                    threading.Thread(target=self._run, name="redis-lookout", daemon=True).start()
        self._woken.set()

    def end(self) -> None:
        """End the thread, once its look is over."""
        self._ended = True
        self._woken.set()

    def _run(self) -> None:
        looked_s = -_REST_S
        while True:
            woken = self._woken.wait(_GLANCE_S)
            watched = self._watched()
            if watched is None or self._ended:
                self._close()
                return
            since_s = time.monotonic() - looked_s
            if woken or since_s > watched.every_s or watched.waiting_s() > SLOW_S:
                time.sleep(max(0.0, _REST_S - since_s))
                self._woken.clear()
                try:
                    watched.refresh()
                except Exception as exc:  # the next look may succeed, and there must be one
                    _log.warning("redis: asking for the masters failed: %r", exc)
                looked_s = time.monotonic()
            del watched  # so that it can be collected while this thread waits
