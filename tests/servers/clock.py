"""A Redis whose clock a test can set: a small preloaded library shifts the time that it reads."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from tests.servers import debian
from tests.servers.folders import cache_folder, locked
from tests.servers.redis import RedisServer

SOURCE = Path(__file__).with_name("clock.c")


class ClockedRedis(RedisServer):
    """A private Redis whose wall clock is `step_ms` ahead of this machine's; see `set_clock`."""

    def __init__(self) -> None:
        super().__init__()
        self._offset = self.folder / "offset"
        self.set_clock(0)

    def environment(self) -> Mapping[str, str]:
        """The environment of `RedisServer`, with the library preloaded."""
        preload = {"LD_PRELOAD": str(library()), "TEST_CLOCK": str(self._offset)}
        return {**super().environment(), **preload}

    def set_clock(self, step_ms: int) -> None:
        """Set its clock `step_ms` milliseconds ahead of this machine's; negative: behind."""
        self.step_ms = step_ms
        us = (step_ms * 1000).to_bytes(8, sys.byteorder, signed=True)
        # In place: the server has mapped this very file.
        with self._offset.open("r+b" if self._offset.exists() else "wb") as file:
            file.write(us)


@cache
def library() -> Path:
    """The path of the library, compiled again if its source has changed."""
    built = cache_folder() / "clock.so"
    with locked(cache_folder() / "clock.lock"):
        if not built.exists() or built.stat().st_mtime < SOURCE.stat().st_mtime:
            if shutil.which("cc") is None and debian.is_debian_root():
                debian.install("gcc", "libc6-dev")
            command = ["cc", "-O1", "-Wall", "-shared", "-fPIC", "-o", str(built), str(SOURCE)]
            subprocess.run(command, check=True)
    return built


@pytest.fixture
def clocked_redis() -> Iterator[ClockedRedis]:
    """A private Redis whose clock the test can set."""
    if shutil.which("cc") is None and not debian.is_debian_root():
        pytest.skip("no C compiler to build the library that shifts a clock")
    with ClockedRedis() as server:
        yield server
