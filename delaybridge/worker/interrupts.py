"""Signals that end a program, also where Python drops what their handler raises."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def interrupts(*numbers: signal.Signals) -> Iterator[Callable[[], None]]:
    """Have these signals raised: SIGINT as KeyboardInterrupt, others as SystemExit(128 + number).

    Gives a check that raises it again. Python drops an exception that comes while an object is
    finalized, or in a callback from C: without the check a loop would go on, and a read wait for
    ever. Does nothing outside the main thread, where no signals arrive.
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
