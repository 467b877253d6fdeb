"""Client libraries in JavaScript, for tests: Node and the dependencies of `tests/clients`.

They are installed once, in the versions of the lock file, in the folder of the servers.
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
from tests.servers.sources import External, Source, serve

PROGRAMS = Path(__file__).parent.parent / "clients"
MANIFESTS = ("package.json", "package-lock.json")


def libraries_folder() -> Path:
    """The folder of the libraries, which may not exist yet: one for each lock file."""
    lock = (PROGRAMS / MANIFESTS[1]).read_bytes()
    return cache_folder() / f"clients-{hashlib.sha256(lock).hexdigest()[:12]}"


def install() -> None:
    """Fetch the libraries, once; the folder appears only when it is complete."""
    with locked(cache_folder() / "clients.lock"):
        if debian.is_debian_root():
            wanted = {"node": "nodejs", "npm": "npm"}
            if missing := [
                package for program, package in wanted.items() if not shutil.which(program)
            ]:
                debian.install(*missing)
        if libraries_folder().exists() or not shutil.which("npm"):
            return
        with tempfile.TemporaryDirectory(prefix="clients-", dir=cache_folder()) as unfinished:
            fetched = Path(unfinished) / "libraries"
            fetched.mkdir()
            for name in MANIFESTS:
                shutil.copy(PROGRAMS / name, fetched)
            subprocess.run(
                ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"],
                cwd=fetched,
                stdin=subprocess.DEVNULL,
                check=True,
            )
            fetched.rename(libraries_folder())


def sources() -> Iterator[Source]:
    folder = libraries_folder() / "node_modules"
    if folder.exists() and shutil.which("node"):
        wanted = json.loads((PROGRAMS / MANIFESTS[0]).read_text())["dependencies"]
        what = ", ".join(f"{name} {version}" for name, version in wanted.items())
        yield Source(what=f"node with {what}", open=lambda: nullcontext(External(str(folder))))


@pytest.fixture(scope="session")
def node_modules() -> Iterator[str]:
    """The folder of the libraries, a value for NODE_PATH."""
    yield from serve("clients", sources())
