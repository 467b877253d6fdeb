"""A progress bar on stderr for long bulk work."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO


@contextmanager
def progress(
    total: int | None, *, wanted: bool, label: str = "", in_bytes: bool = False
) -> Iterator[Callable[[int], None]]:
    """Shows the progress towards `total`, if it is known; call it with each increment.

    Shows nothing unless `wanted` and stderr is a terminal.
    """
    if not wanted or sys.stderr is None or not sys.stderr.isatty():
        yield lambda _count: None
        return
    from rich import progress as rich
    from rich.console import Console

    numbers: list[rich.ProgressColumn] = [rich.MofNCompleteColumn(), rich.TimeRemainingColumn()]
    if in_bytes:
        numbers = [rich.DownloadColumn(), rich.TransferSpeedColumn(), rich.TimeElapsedColumn()]
    columns = [rich.TextColumn(label)] if label else []
    console = Console(stderr=True)
    with rich.Progress(
        *columns, rich.BarColumn(), *numbers, console=console, transient=True
    ) as shown:
        task = shown.add_task("", total=total)
        yield lambda count: shown.advance(task, count)


def size_of(stream: IO[bytes]) -> int | None:
    """Bytes of a regular file; None for a pipe, whose end is unknown."""
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None
