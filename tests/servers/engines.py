"""Newer Redis and Valkey for the slow tier, from later releases of Debian; others by their URL.

Each is unpacked with the libraries it needs and run by its own loader: nothing is installed.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.servers import debian
from tests.servers.folders import cache_folder, locked
from tests.servers.redis import RedisServer
from tests.servers.sources import Source, from_environment, serve

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


class Engine(NamedTuple):
    """A package, the releases of Debian it comes from, the last one first, and its binary."""

    package: str
    suites: Sequence[str]
    binary: str  # it is the server, if it is called by that name


ENGINES = {
    "redis8.0": Engine("redis-tools", ("forky",), "redis-check-rdb"),
    "redis8.6": Engine("redis-tools", ("experimental", "sid"), "redis-check-rdb"),
    "valkey8.1": Engine("valkey-tools", ("trixie",), "valkey-check-rdb"),
}


def engine_binary(name: str) -> Path | None:
    """What starts the engine, if it was unpacked."""
    script = cache_folder() / "engines" / name / "server"
    return script if script.exists() else None


def install() -> None:
    """Unpack every engine that is missing."""
    for name, engine in ENGINES.items():
        with locked(cache_folder() / "engines.lock"):
            if engine_binary(name) is None and debian.is_debian_root():
                _unpack(engine, cache_folder() / "engines" / name)


def _unpack(engine: Engine, root: Path) -> None:
    root.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root.parent) as folder:
        made = Path(folder) / "root"
        made.mkdir()
        for package in _downloaded(engine, Path(folder)):
            subprocess.run(["dpkg-deb", "--extract", package, made], check=True)
        shutil.move(made, root)
    loader = next(root.glob("usr/lib*/ld-linux*.so*"))
    libraries = next(root.glob("usr/lib/*-linux-gnu"))
    run = [loader, "--argv0", "redis-server", "--library-path", libraries]
    script = root / "server"
    words = " ".join(map(str, [*run, root / "usr/bin" / engine.binary]))
    script.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    script.chmod(0o755)


def _downloaded(engine: Engine, folder: Path) -> Iterator[Path]:
    """The package and all that it needs, as if nothing were installed here."""
    lines = [f"deb [signed-by={KEYRING}] {debian.mirror()} {each} main" for each in engine.suites]
    (folder / "sources.list").write_text("\n".join(lines) + "\n")
    (folder / "status").touch()
    for each in ("lists/partial", "cache/archives/partial"):
        (folder / each).mkdir(parents=True)
    places = {
        "Dir::Etc::sourcelist": folder / "sources.list", "Dir::Etc::sourceparts": "/dev/null",
        "Dir::State::lists": folder / "lists", "Dir::State::status": folder / "status",
        "Dir::Cache": folder / "cache", "APT::Sandbox::User": "root",
        "APT::Install-Recommends": "0",
    }  # fmt: skip
    apt = ["apt-get", "-qq", *(w for name, of in places.items() for w in ("-o", f"{name}={of}"))]
    wanted = ["install", "-y", "--download-only", "-t", engine.suites[0], engine.package]
    for words in (["update"], wanted):
        subprocess.run([*apt, *words], stdout=subprocess.DEVNULL, check=True)
    yield from (folder / "cache" / "archives").glob("*.deb")


def sources() -> Iterator[Source]:
    """The engine at DELAYBRIDGE_TEST_ENGINE_URL, then each that was unpacked."""
    yield from from_environment("engine")
    for name in ENGINES:
        yield from _unpacked(name)


def _unpacked(name: str) -> Iterator[Source]:
    if (binary := engine_binary(name)) is not None:
        yield Source(what=f"{name} (Debian)", open=lambda: RedisServer(binary=binary))


@pytest.fixture(scope="session")
def redis80_url() -> Iterator[str]:
    yield from serve("redis 8.0", _unpacked("redis8.0"))


@pytest.fixture(scope="session")
def redis86_url() -> Iterator[str]:
    yield from serve("redis 8.6", _unpacked("redis8.6"))


@pytest.fixture(scope="session")
def valkey81_url() -> Iterator[str]:
    yield from serve("valkey 8.1", _unpacked("valkey8.1"))


@pytest.fixture(scope="session")
def given_engine_url() -> Iterator[str]:
    """What is at DELAYBRIDGE_TEST_ENGINE_URL, such as a KeyDB, Kvrocks or Dragonfly."""
    yield from serve("engine", from_environment("engine"))
