"""The store's clock as a worker knows it, and the alarm that wakes the scanner at an instant of it.

A reading taken between `sent` and `received` bounds the offset (store minus monotonic): it is at
least reading - received, and at most reading - sent. The clock uses the largest of the recent lower
bounds. So it is never ahead of the store's clock, nothing judged due by it is early, and it is
behind by at most the fastest recent round trip.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from math import inf
from typing import Protocol

STEP_MS = 100  # a reading that contradicts an earlier one by this much is a step, not drift
_READINGS = 8
_MICROSECOND_S = 1e-6  # the resolution of a reading
NS_PER_S = 1_000_000_000


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


class Timer(Protocol):
    """Calls back at about the instant it is armed for; may be a little early, is never lost."""

    def arm(self, at_s: float | None) -> None:
        """Wait for this instant of `time.monotonic` instead of the last one. None: for none."""

    def close(self) -> None: ...


TimerFactory = Callable[[Callable[[], None]], Timer]


class Alarm:
    """Wakes one task at the instant that was set, never before it, or as soon as it is rung.

    Rings are not counted: however many came while no task waited, the next `wait` returns once.
    Made, used and closed on one running event loop, from its thread only.
    """

    def __init__(self, timer: TimerFactory | None = None) -> None:
        self._at_s: float | None = None
        self._rang = asyncio.Event()
        self._closed = False
        self._timer = (timer or best_timer)(self._went_off)

    def set(self, at_s: float | None) -> None:
        """Ring at that instant of `time.monotonic`, instead of the one set before.

        An instant that has passed rings at once. None: ring at no instant. To set the same instant
        again costs nothing. A ring that no task has waited for is kept.
        """
        if self._closed:
            raise RuntimeError("the alarm is closed")
        if at_s is not None and at_s <= time.monotonic():
            self.ring()
            at_s = None
        if at_s != self._at_s:
            self._at_s = at_s
            self._timer.arm(at_s)

    def ring(self) -> None:
        """Ring now. The instant that is set stays set."""
        self._rang.set()

    async def wait(self) -> None:
        """Return when it rings, or at once if it rang since the last return. For one task only.

        A cancelled wait takes no ring away.
        """
        await self._rang.wait()
        self._rang.clear()

    def close(self) -> None:
        """Release the timer. Wakes no task; closing again does nothing."""
        if not self._closed:
            self._closed = True
            self._at_s = None
            self._timer.close()

    def _went_off(self) -> None:
        if self._at_s is None:
            return
        if time.monotonic() < self._at_s:
            # The event loop's timers round, some of them down.
            self._timer.arm(self._at_s)
            return
        self._at_s = None
        self.ring()


class TimerDescriptor:
    """A Linux timer descriptor: exact to some ten microseconds, at no cost while it waits.

    The event loop's own timers wait in whole milliseconds.
    """

    def __init__(self, went_off: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._went_off = went_off
        self._descriptor = _create()
        self._loop.add_reader(self._descriptor, self._readable)

    def arm(self, at_s: float | None) -> None:
        # To the kernel, 0 means none and an instant in the past means at once.
        _arm(self._descriptor, 0 if at_s is None else math.ceil(at_s * NS_PER_S))

    def close(self) -> None:
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)

    def _readable(self) -> None:
        try:
            os.read(self._descriptor, _EXPIRATIONS_BYTES)
        except BlockingIOError:
            return  # armed again after the loop saw it go off
        self._went_off()


class LoopTimer:
    """The event loop's own timer: everywhere, exact to about a millisecond."""

    def __init__(self, went_off: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._went_off = went_off
        self._handle: asyncio.TimerHandle | None = None

    def arm(self, at_s: float | None) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if at_s is not None:
            # Not call_at: the loop's clock need not be time.monotonic (uvloop's is not).
            wait_s = max(0.0, at_s - time.monotonic())
            self._handle = self._loop.call_later(wait_s, self._went_off)

    def close(self) -> None:
        self.arm(None)


def best_timer(went_off: Callable[[], None]) -> Timer:
    """A timer descriptor if the system has any, else the event loop's timer."""
    if sys.platform != "linux":
        return LoopTimer(went_off)
    try:
        return TimerDescriptor(went_off)
    except AttributeError:  # not in this C library
        return LoopTimer(went_off)
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EPERM):  # not in this kernel or sandbox
            raise
        return LoopTimer(went_off)


_EXPIRATIONS_BYTES = 8

if sys.version_info >= (3, 13):

    def _create() -> int:
        return os.timerfd_create(time.CLOCK_MONOTONIC, flags=os.TFD_NONBLOCK | os.TFD_CLOEXEC)

    def _arm(descriptor: int, at_ns: int) -> None:
        os.timerfd_settime_ns(descriptor, flags=os.TFD_TIMER_ABSTIME, initial=at_ns)

else:
    _TFD_TIMER_ABSTIME = 1

    def _create() -> int:
        # TFD_NONBLOCK and TFD_CLOEXEC are O_NONBLOCK and O_CLOEXEC by definition.
        return _libc("timerfd_create", time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)

    def _arm(descriptor: int, at_ns: int) -> None:
        # struct itimerspec: interval and first expiry, each in seconds and nanoseconds.
        spec = (ctypes.c_long * 4)(0, 0, *divmod(at_ns, NS_PER_S))
        _libc("timerfd_settime", descriptor, _TFD_TIMER_ABSTIME, spec, None)

    def _libc(name: str, *arguments: object) -> int:
        result: int = getattr(_LIBC, name)(*arguments)
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"{name}: {os.strerror(number)}")
        return result

    _LIBC = ctypes.CDLL(None, use_errno=True)
