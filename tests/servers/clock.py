"""A Redis whose clock a test can set: a small preloaded library shifts the time that it reads."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.servers.preloaded import library
from tests.servers.redis import RedisServer

SOURCE = Path(__file__).with_name("clock.c")


class ClockedRedis(RedisServer):
    """A private Redis whose wall clock is `step_ms` ahead of this machine's; see `set_clock`."""

    def __init__(self) -> None:
        super().__init__()
        self._offset = self.folder / "offset"
        self.set_clock(0)

    def environment(self) -> Mapping[str, str]:
        preload = {"LD_PRELOAD": str(library(SOURCE)), "TEST_CLOCK": str(self._offset)}
        return {**super().environment(), **preload}

    def set_clock(self, step_ms: int) -> None:
        """Set its clock `step_ms` milliseconds ahead of this machine's; negative: behind."""
        self.step_ms = step_ms
        us = (step_ms * 1000).to_bytes(8, sys.byteorder, signed=True)
        # In place: the server has mapped this very file.
        with self._offset.open("r+b" if self._offset.exists() else "wb") as file:
            file.write(us)


@pytest.fixture
def clocked_redis() -> Iterator[ClockedRedis]:
    with ClockedRedis() as server:
        yield server
