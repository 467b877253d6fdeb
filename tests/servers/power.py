"""A Redis whose machine can lose power: what its AOF had not synced to disk is then gone."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.servers.preloaded import library
from tests.servers.redis import RedisServer

SOURCE = Path(__file__).with_name("power.c")


class PoweredRedis(RedisServer):
    """A private Redis with an AOF, synced every second, or as `appendfsync` says."""

    def __init__(
        self,
        args: Sequence[str] = (),
        *,
        appendfsync: str = "everysec",
        binary: Path | str | None = None,
    ) -> None:
        aof = ["--appendonly", "yes", "--appendfsync", appendfsync]
        super().__init__([*aof, *args], binary=binary)
        self._notes = self.folder / "synced"
        self._notes.mkdir()

    def environment(self) -> Mapping[str, str]:
        preload = {"LD_PRELOAD": str(library(SOURCE)), "TEST_POWER": str(self._notes)}
        return {**super().environment(), **preload}

    def lose_power(self) -> int:
        """Kill it and cut each file of the AOF to what was synced; how many bytes are gone."""
        self.kill()
        return sum(map(self._cut, self._files()))

    def _files(self) -> Iterator[Path]:
        # Redis 7 has a folder of them, 6.2 has one.
        return (path for path in self.folder.glob("appendonly*/*") if path.is_file())

    def _cut(self, path: Path) -> int:
        state = path.stat()
        note = self._notes / str(state.st_ino)
        synced = int.from_bytes(note.read_bytes(), sys.byteorder) if note.exists() else 0
        os.truncate(path, min(synced, state.st_size))
        return max(state.st_size - synced, 0)
