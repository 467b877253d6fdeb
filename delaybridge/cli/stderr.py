"""A standard error that cannot fail: what nobody reads, or finds no room on a disk, is lost.

Nothing ends for that: neither a worker whose log cannot be written, nor a command before it has
said by its exit code what went wrong. A standard stream that is closed leads to the null device.
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
    """From now on nothing is raised for what is written to standard error, nor left to flush."""
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
