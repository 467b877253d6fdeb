"""A progress bar for long bulk work, on a terminal only."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO

from rich import progress
from rich.console import Console


@contextmanager
def bar(
    total: int | None, *, label: str = "", bytes: bool = False
) -> Iterator[Callable[[int], None]]:
    """Shows the progress towards `total`, if it is known; call it with each increment."""
    columns: list[progress.ProgressColumn] = [progress.BarColumn()]
    if label:
        columns.insert(0, progress.TextColumn(label))
    if bytes:
        columns += [progress.DownloadColumn(), progress.TransferSpeedColumn()]
        columns.append(progress.TimeElapsedColumn())
    else:
        columns += [progress.MofNCompleteColumn(), progress.TimeRemainingColumn()]
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("", total=total)
        yield lambda count: shown.advance(task, count)


def size_of(stream: IO[bytes]) -> int | None:
    """Bytes of a regular file; None for a pipe, whose end is unknown."""
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None
