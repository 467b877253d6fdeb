"""A standard error that cannot fail: output that cannot be written is lost.

A full disk or a closed pipe ends neither a worker nor a command, which keeps its exit code. Closed
standard streams are opened on the null device.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Any


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
