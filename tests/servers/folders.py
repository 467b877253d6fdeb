"""Folders of the test servers: a cache of downloads, and a private folder for each server."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


def cache_folder() -> Path:
    """The folder of downloaded servers, outside the checkout; $DELAYBRIDGE_CACHE overrides it."""
    if chosen := os.environ.get("DELAYBRIDGE_CACHE"):
        return Path(chosen).absolute()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "delaybridge"


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the file's lock against other processes; the kernel releases it if this one dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class PrivateFolder:
    """A server's folder. Its owner holds a lock in it; folders of dead runs are removed."""

    def __init__(self, name: str) -> None:
        run = cache_folder() / "run"
        with locked(run / "lock"):
            for folder in filter(Path.is_dir, run.iterdir()):
                _remove_if_abandoned(folder)
            self.path = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=run))
            self._owned = (self.path / "owned").open("a")
            fcntl.flock(self._owned, fcntl.LOCK_EX)

    def remove(self) -> None:
        with locked(self.path.parent / "lock"):
            shutil.rmtree(self.path, ignore_errors=True)
            self._owned.close()


def _remove_if_abandoned(folder: Path) -> None:
    with (folder / "owned").open("a") as owned, contextlib.suppress(BlockingIOError):
        fcntl.flock(owned, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
