"""Standard output and standard error: a closed stdout, and a stderr that cannot fail.

A full disk or a closed pipe ends neither a worker nor a command, which keeps its exit code: what
cannot be written to stderr is lost. Closed standard streams are opened on the null device.
"""

from __future__ import annotations

import io
import os
import select
import sys
from typing import IO, Any


class _Lossy(io.FileIO):
    def write(self, data: Any) -> int:
        try:
            written = super().write(data)
        except OSError:
            written = None
        return len(data) if written is None else written


def never_fail() -> None:
    """Make writes to standard error unbuffered, and never raise."""
    _fill_closed()
    stream = sys.__stderr__
    if stream is not None and sys.stderr is stream:
        sys.stderr = io.TextIOWrapper(
            io.BufferedWriter(_Lossy(stream.fileno(), "w", closefd=False)),
            encoding=stream.encoding,
            errors="backslashreplace",
            write_through=True,
        )


def _fill_closed() -> None:
    """Keep sockets away from the numbers 0 to 2: libuv ends a process that closes one of them."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)


def drop_stdout() -> None:
    """Discard later output, also that flushed at exit: the reader has closed stdout."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError, AttributeError):
        sys.stdout = None


def stdout_is_closed() -> bool:
    """Whether the reader of stdout is gone: a write would fail, but none may be needed."""
    try:
        watch = select.poll()
        watch.register(sys.stdout.fileno(), 0)
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in watch.poll(0))
    except (OSError, ValueError, AttributeError):
        return False


def is_utf() -> bool:
    """Whether stdout can show bars and an ellipsis."""
    return "utf" in str(getattr(sys.stdout, "encoding", "")).lower()


def wants_color(*, refused: bool, stream: IO[str] | None = None) -> bool:
    """Whether to colour: only on a terminal that can, unless `refused` or NO_COLOR."""
    stream = sys.stdout if stream is None else stream
    if refused or os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb":
        return False
    return stream is not None and stream.isatty()
