"""Fetches the peers' JavaScript libraries, once, as tests/servers/clients.py does for the tests.

package.json has their versions; they are kept in the folder of the test servers, outside the
checkout. There is no lock file: `npm ci` requires that it name BullMQ's optional packages for all
other platforms, and not every registry has them.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.servers import debian
from tests.servers.folders import cache_folder, locked

WANTED = Path(__file__).parent / "package.json"
QUIET = ("--no-package-lock", "--no-audit", "--no-fund", "--silent")


def libraries() -> Path:
    """Fetch the libraries if need be; returns the folder of `node_modules`, always complete."""
    wanted = hashlib.sha256(WANTED.read_bytes()).hexdigest()[:12]
    folder = cache_folder() / f"peers-{wanted}"
    with locked(cache_folder() / "peers.lock"):
        if not folder.exists():
            _fetch(folder)
    return folder


def _fetch(folder: Path) -> None:
    wanted = {"node": "nodejs", "npm": "npm"}
    missing = [package for program, package in wanted.items() if not shutil.which(program)]
    if missing and debian.is_debian_root():
        debian.install(*missing)
    with tempfile.TemporaryDirectory(prefix="peers-", dir=cache_folder()) as unfinished:
        fetched = Path(unfinished) / "libraries"
        fetched.mkdir()
        shutil.copy(WANTED, fetched)
        subprocess.run(
            ["npm", "install", "--ignore-scripts", *QUIET],
            cwd=fetched,
            stdin=subprocess.DEVNULL,
            check=True,
        )
        fetched.rename(folder)
