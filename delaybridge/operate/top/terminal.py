"""The terminal while `delaybridge top` has it: single keys, its other screen, all given back."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from delaybridge.operate.terminal.interrupts import interrupts
from delaybridge.operate.top.controls import keys_of

_DISABLED = b"\0"
_GONE = (OSError, ValueError, termios.error)  # the terminal was closed


class Terminal:
    """Shows pages and reads keys. Keys, a new size and `wake` end a wait."""

    def __init__(self, live: Live, wake_fd: int, woken_fd: int) -> None:
        self._live, self._wake_fd, self._woken_fd = live, wake_fd, woken_fd

    @property
    def size(self) -> tuple[int, int]:
        """The columns and lines of the terminal."""
        return self._live.console.size

    def show(self, lines: Sequence[Text]) -> None:
        """Replace the page by these lines."""
        self._live.update(Text("\n").join(lines), refresh=True)

    def wake(self) -> None:
        """End a wait; from any thread."""
        with suppress(OSError):
            os.write(self._wake_fd, b"\0")

    def wait(self, most_s: float) -> list[str]:
        """The keys that were pressed, after this time or as soon as there is something to do.

        EOFError if the terminal is gone.
        """
        ready, _, _ = select.select([sys.stdin.fileno(), self._woken_fd], [], [], most_s)
        if self._woken_fd in ready:
            os.read(self._woken_fd, 4096)
        if sys.stdin.fileno() not in ready:
            return []
        typed = os.read(sys.stdin.fileno(), 4096)
        if not typed:
            raise EOFError
        return list(keys_of(typed))


@contextmanager
def taken(*, color: bool) -> Iterator[Terminal]:
    """The terminal, given back however the block ends: by SIGTERM, SIGHUP or a bug, too."""
    # Exported COLUMNS and LINES do not change when the terminal does.
    environ = {name: os.environ[name] for name in os.environ.keys() - {"COLUMNS", "LINES"}}
    console = Console(no_color=not color, highlight=False, _environ=environ)
    with ExitStack() as stack:
        stack.enter_context(interrupts(signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
        woken_fd, wake_fd = os.pipe()
        for fd in (woken_fd, wake_fd):
            os.set_blocking(fd, False)
            stack.callback(os.close, fd)
        stack.enter_context(_keys_one_by_one())
        before = signal.signal(signal.SIGWINCH, lambda *_: None)
        stack.callback(signal.signal, signal.SIGWINCH, before)
        old_fd = signal.set_wakeup_fd(wake_fd, warn_on_full_buffer=False)
        stack.callback(signal.set_wakeup_fd, old_fd)
        live = Live(
            console=console, screen=True, auto_refresh=False,
            redirect_stdout=False, redirect_stderr=False,  # a stand-in hides the encoding
        )  # fmt: skip
        live.start()
        stack.callback(_quietly, live.stop)
        yield Terminal(live, wake_fd, woken_fd)


@contextmanager
def _keys_one_by_one() -> Iterator[None]:
    """Keys without Enter and without echo. Ctrl-Z does nothing: it would leave this screen up."""
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    try:
        tty.setcbreak(fd)
        now: list[Any] = termios.tcgetattr(fd)
        now[6][termios.VSUSP] = _DISABLED
        termios.tcsetattr(fd, termios.TCSANOW, now)
        yield
    finally:
        _quietly(lambda: termios.tcsetattr(fd, termios.TCSANOW, before))


def _quietly(do: Any) -> None:
    with suppress(*_GONE):
        do()
