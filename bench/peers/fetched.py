"""Fetches the peers' libraries and servers, once: from npm, Maven Central and the Go module proxy.

They are kept in the folder of the test servers, outside the checkout. What cannot be fetched raises
NotHere, and its peer gets a row that says why.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.servers import debian
from tests.servers.folders import cache_folder, locked

DRIVERS = Path(__file__).parent / "drivers"
NATS = "github.com/nats-io/nats-server/v2@v2.15.3"
DEBIAN = {"npm": ("nodejs", "npm"), "go": ("golang-go",), "mvn": ("maven",)}
DEBIAN["javac"] = ("default-jdk-headless",)
TIMEOUT_S = 900
# npm: there is no lock file, since `npm ci` requires that it name BullMQ's optional packages for
# all other platforms, and not every registry has them.
NPM = ("npm", "install", "--ignore-scripts", "--no-package-lock", "--no-audit", "--no-fund")
MVN = ("mvn", "-q", "-B", "-Dstyle.color=never", "dependency:copy-dependencies")


class NotHere(LookupError):
    """This peer cannot run on this machine; the message says why."""


def node_modules() -> Path:
    """The folder of `node_modules`."""

    def fetch(folder: Path) -> None:
        shutil.copy(DRIVERS / "package.json", folder)
        _run("npm", [*NPM, "--silent"], folder)

    return _folder("node", (DRIVERS / "package.json").read_bytes(), fetch)


def nats_server() -> Path:
    """The server's program, compiled here."""

    def fetch(folder: Path) -> None:
        _run("go", ["go", "install", NATS], folder, GOBIN=str(folder))

    return _folder("nats", NATS.encode(), fetch) / "nats-server"


def jars(name: str) -> str:
    """The class path of a peer in Java: its jars, and its driver, which is compiled here.

    name: as in `drivers/NAME.pom.xml`, and of the driver's class in `drivers/NAME.java`.
    """
    pom, sources = DRIVERS / f"{name}.pom.xml", [DRIVERS / "Lines.java", DRIVERS / f"{name}.java"]

    def fetch(folder: Path) -> None:
        _run("mvn", [*MVN, "-f", str(pom), f"-DoutputDirectory={folder}/jars"], folder)
        path = ["-cp", f"{folder}/jars/*", "-d", str(folder / "classes")]
        _run("javac", ["javac", *path, *map(str, sources)], folder)

    wanted = b"".join(file.read_bytes() for file in (pom, *sources))
    folder = _folder(name.lower(), wanted, fetch)
    return f"{folder}/classes:{folder}/jars/*"


def _folder(name: str, wanted: bytes, fetch: Callable[[Path], None]) -> Path:
    """The folder of what is wanted, always complete; it is fetched if it does not exist."""
    folder = cache_folder() / f"peers-{name}-{hashlib.sha256(wanted).hexdigest()[:12]}"
    with locked(cache_folder() / "peers.lock"):
        if not folder.exists():
            with tempfile.TemporaryDirectory(prefix="peers-", dir=cache_folder()) as unfinished:
                fetched = Path(unfinished) / "fetched"
                fetched.mkdir()
                fetch(fetched)
                fetched.rename(folder)
    return folder


def _run(program: str, command: list[str], folder: Path, **environment: str) -> None:
    if not shutil.which(program) and debian.is_debian_root():
        debian.install(*DEBIAN[program])
    try:
        subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            timeout=TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as failure:
        raise NotHere(f"not here: {program} could not fetch it") from failure
