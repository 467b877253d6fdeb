"""Finds a scanner that hangs: the same overdue message is next to be fired for too long."""

from __future__ import annotations

from delaybridge.events import Stuck
from delaybridge.scan.lanes.lane import Copy, Window
from delaybridge.scan.leases.bucket_calls import BucketCalls
from delaybridge.scan.wheel.wheel import WaitingCopies


class HangDetector:
    """Compares the first ripe copy with the one seen before."""

    def __init__(self, waiting: WaitingCopies, window: Window, calls: BucketCalls) -> None:
        self._waiting, self._window, self._calls = waiting, window, calls
        self._first: Copy | None = None
        self._since_ms = 0

    def check(self, now_ms: int, limit_ms: int) -> RuntimeError | None:
        """An error if the same copy has been first for `limit_ms`, else None.

        A copy is not stuck while its lane is full and its broker answers, or while the store is
        silent.
        """
        ripe = self._waiting.ripe
        first, since_ms = ripe[0] if ripe else None, max(self._since_ms, self._calls.silent_at_ms)
        if first is None or first is not self._first:
            self._first, self._since_ms = first, now_ms
        elif now_ms - since_ms > limit_ms:
            if self._window.is_full(first.lane) and first.lane.flow.moved_ms > since_ms:
                self._since_ms = now_ms
                return None
            self._calls.emit(Stuck(overdue_ms=now_ms - int(first.score)))
            return RuntimeError(f"stuck: nothing was fired for {now_ms - since_ms} ms")
        return None

    def clock_stepped(self, step_ms: int) -> None:
        """The store's clock was set."""
        self._since_ms += step_ms
