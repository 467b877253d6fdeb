"""Client libraries of another language, for tests: Node and what `tests/clients` asks for.

The libraries are installed once, of the versions in the lock file, beside the servers.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.servers import debian
from tests.servers.folders import cache_folder, locked
from tests.servers.sources import Given, Source, serve

PROGRAMS = Path(__file__).parent.parent / "clients"
LISTS = ("package.json", "package-lock.json")


def installed() -> Path:
    """Where the libraries lie, or would: a folder for each state of the lock file."""
    lock = (PROGRAMS / LISTS[1]).read_bytes()
    return cache_folder() / f"clients-{hashlib.sha256(lock).hexdigest()[:12]}"


def install() -> None:
    """Fetch the libraries, once; a half-fetched set is never seen."""
    with locked(cache_folder() / "clients.lock"):
        if debian.is_debian_root():
            wanted = {"node": "nodejs", "npm": "npm"}
            if missing := [
                package for program, package in wanted.items() if not shutil.which(program)
            ]:
                debian.install(*missing)
        if installed().exists() or not shutil.which("npm"):
            return
        with tempfile.TemporaryDirectory(prefix="clients-", dir=cache_folder()) as unfinished:
            fetched = Path(unfinished) / "libraries"
            fetched.mkdir()
            for name in LISTS:
                shutil.copy(PROGRAMS / name, fetched)
            subprocess.run(
                ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"],
                cwd=fetched,
                stdin=subprocess.DEVNULL,
                check=True,
            )
            fetched.rename(installed())


def sources() -> Iterator[Source]:
    """Node with the libraries, where both are there."""
    folder = installed() / "node_modules"
    if folder.exists() and shutil.which("node"):
        wanted = json.loads((PROGRAMS / LISTS[0]).read_text())["dependencies"]
        what = ", ".join(f"{name} {version}" for name, version in wanted.items())
        yield Source(what=f"node with {what}", open=lambda: nullcontext(Given(str(folder))))


@pytest.fixture(scope="session")
def node_modules() -> Iterator[str]:
    """The folder of the libraries, as NODE_PATH names it."""
    yield from serve("clients", sources())
