"""Small C libraries that are preloaded into a server: what its kernel says and is told."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from tests.servers import debian
from tests.servers.folders import cache_folder, locked


@cache
def library(source: Path) -> Path:
    """The path of the library, compiled again if its source has changed; skips without `cc`."""
    if shutil.which("cc") is None and not debian.is_debian_root():
        pytest.skip(f"no C compiler to build {source.name}")
    built = cache_folder() / source.with_suffix(".so").name
    with locked(built.with_suffix(".lock")):
        if not built.exists() or built.stat().st_mtime < source.stat().st_mtime:
            if shutil.which("cc") is None:
                debian.install("gcc", "libc6-dev")
            command = ["cc", "-O1", "-Wall", "-shared", "-fPIC", "-o", str(built), str(source)]
            subprocess.run(command, check=True)
    return built
