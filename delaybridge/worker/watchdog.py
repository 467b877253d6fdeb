"""A watchdog that reports an event loop that stands still."""

from __future__ import annotations

import faulthandler
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from delaybridge.worker.eventlog import say


class Watchdog:
    """A thread that logs `loop_stuck` and prints every stack while the event loop stands still.

    beat_s: when the loop last ran, on the monotonic clock. limit_s: how old that may get.
    """

    def __init__(self, beat_s: Callable[[], float], limit_s: float) -> None:
        self._beat_s, self._limit_s = beat_s, limit_s
        self._stopped = threading.Event()
        threading.Thread(target=self._look, name="watchdog", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def _look(self) -> None:
        while not self._stopped.wait(self._limit_s / 3):
            still_s = time.monotonic() - self._beat_s()
            if still_s > self._limit_s:
                say(logging.ERROR, "loop_stuck", still_s=round(still_s))
                # Without a usable stderr there are no stacks, but the thread must go on.
                with suppress(AttributeError, OSError, RuntimeError, ValueError):
                    faulthandler.dump_traceback(all_threads=True)
