"""A progress bar for long bulk work, on a terminal only."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)


@contextmanager
def bar(stream: IO[bytes]) -> Iterator[Callable[[int], None]]:
    """Shows how far `stream` has been read; call it with the bytes of each line."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    progress = Progress(
        *columns,
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with progress:
        task = progress.add_task("scheduling", total=_size(stream))
        yield lambda size: progress.advance(task, size)


@contextmanager
def count_bar(total: int | None) -> Iterator[Callable[[int], None]]:
    """Shows how many of how many messages are done; call it with how many more are."""
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda count: progress.advance(task, count)


def _size(stream: IO[bytes]) -> int | None:
    """Bytes of a regular file; None for a pipe, whose end nobody knows."""
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None
