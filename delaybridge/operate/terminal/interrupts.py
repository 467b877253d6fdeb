"""Signals that end a program even where Python drops the exception of their handler."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def interrupts(*numbers: signal.Signals) -> Iterator[Callable[[], None]]:
    """Raise KeyboardInterrupt on SIGINT, SystemExit(128 + number) on the other signals.

    Yields a check that raises the exception again. Python drops an exception that is raised while
    an object is finalized, or in a callback from C: without the check a loop would go on, and a
    read would wait for ever. Does nothing outside the main thread, which receives all signals.
    """
    seen: list[BaseException] = []

    def check() -> None:
        if seen:
            raise seen[0]

    def end(number: int, _: object) -> None:
        is_ctrl_c = number == signal.SIGINT
        seen.append(KeyboardInterrupt() if is_ctrl_c else SystemExit(128 + number))
        check()

    if threading.current_thread() is not threading.main_thread():
        yield check
        return
    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield check
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
