"""The store's clock as a worker knows it: an offset to its own monotonic clock, never too early.

A reading taken between `sent` and `received` bounds the offset (store minus monotonic): it is at
least reading - received, and at most reading - sent. The clock uses the largest of the recent lower
bounds. So it is never ahead of the store's clock, nothing judged due by it is early, and it is
behind by at most the fastest recent round trip.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from math import inf

STEP_MS = 100  # a reading that contradicts an earlier one by this much is a step, not drift
_READINGS = 8
_MICROSECOND_S = 1e-6  # the resolution of a reading


class StoreClock:
    """The store's time, read from a monotonic clock (seconds; passed in for tests)."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.monotonic = monotonic
        self._bounds_s: deque[tuple[float, float]] = deque(maxlen=_READINGS)
        self._offset_s: float | None = None
        self._back_ms, self._back_s = 0, -inf  # how far it was set back last; when that was seen

    @property
    def is_set(self) -> bool:
        """Whether a reading was taken; before that the other methods raise RuntimeError."""
        return self._offset_s is not None

    def observe(self, store_us: int, sent_s: float, received_s: float) -> int:
        """Take a reading; returns the step in ms if it contradicts earlier readings, else 0.

        It contradicts an earlier one if no offset satisfies both; a slow reading seldom does.
        """
        lower_s, upper_s = store_us / 1e6 - received_s, store_us / 1e6 - sent_s
        highest_s = max((lower for lower, _ in self._bounds_s), default=lower_s)
        lowest_s = min((upper for _, upper in self._bounds_s), default=upper_s)
        step_s = min(0.0, upper_s - highest_s) + max(0.0, lower_s - lowest_s)
        if step_s:
            self._bounds_s.clear()  # the store's clock was set: earlier readings are void
        self._bounds_s.append((lower_s, upper_s))
        self._offset_s = max(lower for lower, _ in self._bounds_s)
        step_ms = round(step_s * 1000)
        if step_ms < -STEP_MS:
            self._back_ms, self._back_s = -step_ms, received_s
        return step_ms if abs(step_ms) > STEP_MS else 0

    def set_back_ms(self, within_s: float) -> int:
        """How far it was set back last, at least, if that was seen within this time; else 0."""
        return self._back_ms if self._back_s >= self.monotonic() - within_s else 0

    def glance(self, store_us: int, sent_s: float, received_s: float) -> int:
        """As `observe`, for a reading that came with another answer: used only if it is tighter."""
        if self._offset_s is not None:
            lower_s, upper_s = store_us / 1e6 - received_s, store_us / 1e6 - sent_s
            if lower_s <= self._offset_s <= upper_s + _MICROSECOND_S:
                return 0
        return self.observe(store_us, sent_s, received_s)

    def now_ms(self) -> int:
        """The store's time in ms, rounded down; at most a round trip behind."""
        return int((self.monotonic() + self._offset()) * 1000)

    def ahead_ms(self, wall_s: float) -> int:
        """How far this clock (s since the epoch) is ahead of the store's, at least; < 0: behind.

        0 if no reading contradicts it.
        """
        store_s = self.monotonic() + self._offset()
        unsure_s = max(0.0, min(upper for _, upper in self._bounds_s) - self._offset())
        ahead_s = min(0.0, wall_s - store_s) + max(0.0, wall_s - store_s - unsure_s)
        return round(ahead_s * 1000)

    def monotonic_at(self, store_ms: int) -> float:
        """The first monotonic instant at which `now_ms` is at least `store_ms`."""
        return store_ms / 1000 - self._offset() + 1e-6

    def _offset(self) -> float:
        if self._offset_s is None:
            raise RuntimeError("the store's clock was never read")
        return self._offset_s
