"""A disk of its own that can be full: a file system in memory. It needs the right to mount."""

from __future__ import annotations

import contextlib
import os
import subprocess

from tests.servers.folders import PrivateFolder


class SmallDisk(contextlib.AbstractContextManager):
    """A disk of so many MiB. path: where it is; anybody may write to it."""

    def __init__(self, mib: int) -> None:
        self._private = PrivateFolder("disk")
        self.path = self._private.path / "disk"
        self.path.mkdir()
        options = f"size={mib}m,mode=777"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "disk", self.path], check=True)

    def fill(self) -> None:
        """Leave nothing free."""
        descriptor = os.open(self.path / "filler", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        with contextlib.suppress(OSError):
            while True:
                os.write(descriptor, b"x" * 512)
        os.close(descriptor)

    def free(self) -> None:
        """Delete what has filled it."""
        (self.path / "filler").unlink()

    def __exit__(self, *exc: object) -> None:
        subprocess.run(["umount", "--lazy", self.path], check=True)
        self._private.remove()
