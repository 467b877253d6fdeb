"""A private server process: own folder, own ports, loopback only; it ends with the tests."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import os
import random
import shutil
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Self, TypeVar

from tests.rigs.waiting import DEADLINE_S, DeadlineExceeded, until
from tests.servers.folders import PrivateFolder, cache_folder
from tests.servers.sources import NoServer

T = TypeVar("T")
LOOPBACK = "127.0.0.1"
FIRST_PORT = 10_000
PORT_ATTEMPTS = 200
LOG_TAIL_CHARACTERS = 2_000

# The kernel sends the death signal when the *thread* that forked ends. This one forks every server,
# and lives as long as the interpreter.
_launcher = ThreadPoolExecutor(max_workers=1, thread_name_prefix="server-launcher")
_open: set[ServerProcess] = set()
_given: set[int] = set()  # ports
_owner_pid = os.getpid()


class ServerFailed(RuntimeError):
    """A server process ended, or did not answer in time; the message has the end of its log."""


class ServerProcess:
    """One server process with a folder and a port that survive `restart`.

    A subclass defines the command (`command`) and when it is up (`is_ready`). The process leads its
    own process group, and the kernel kills it when this interpreter ends, for whatever reason.
    """

    name = "server"

    def __init__(self) -> None:
        self.port = free_port()
        self._private = PrivateFolder(self.name)
        self._process: subprocess.Popen[bytes] | None = None
        _open.add(self)

    def found(self, installed: T | None, name: str) -> T:
        """The installation, or NoServer if there is none. name: as in `--require`."""
        if installed is None:
            self.close()
            raise NoServer(name)
        return installed

    def command(self) -> Sequence[str]:
        """The command line that runs the server in the foreground."""
        raise NotImplementedError

    def is_ready(self) -> bool:
        """Whether the server answers; called repeatedly until it does."""
        raise NotImplementedError

    def environment(self) -> Mapping[str, str]:
        """The whole environment of the server process."""
        return {"PATH": os.environ["PATH"], "HOME": str(self.folder), "LC_ALL": "C.UTF-8"}

    @property
    def folder(self) -> Path:
        """Configuration, data and log of this server; removed by `close`."""
        return self._private.path

    @property
    def log(self) -> Path:
        """The file with the server's standard output and error."""
        return self.folder / "log"

    @property
    def pid(self) -> int:
        """The process id, which is also the process group's."""
        if self._process is None:
            raise ServerFailed(f"{self.name} is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process was started and has not ended."""
        if self._process is None:
            return False
        # WNOWAIT: reaping the leader would free its id, which is also the group's.
        ended = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return ended is None

    def start(self) -> Self:
        """Start the server, if it is not running, and return when it answers."""
        if self.running:
            return self
        self.kill()  # reaps a process that ended by itself
        self._process = _launcher.submit(self._spawn).result()
        try:
            until(self._ready_or_dead, f"{self.name} is up")
        except (ServerFailed, DeadlineExceeded) as failure:
            self.kill()
            raise ServerFailed(f"{failure}\n{self._log_end()}") from failure
        return self

    def stop(self) -> None:
        """Ask the server to end (SIGTERM), wait for it, then kill the rest of its group."""
        if self.running:
            self.resume()  # a paused process would not see the next signal
            self._signal(signal.SIGTERM)
            with contextlib.suppress(DeadlineExceeded):
                until(lambda: not self.running)
        self.kill()

    def kill(self) -> None:
        """Kill the whole process group; returns when its processes and ports are gone."""
        if self._process is not None:
            self._signal(signal.SIGKILL)
            until(lambda: not members(self.pid), f"{self.name} is dead")
            self._process.wait(DEADLINE_S)
            self._process = None

    def restart(self) -> Self:
        """Stop the server if it is running, and start it with the same data and port."""
        self.stop()
        return self.start()

    def pause(self) -> None:
        """Stop it with SIGSTOP: connections stay open, nothing answers, as when a machine hangs."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it continue after `pause`."""
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        """Stop the server and remove its folder; a second call does nothing."""
        self.stop()
        self._private.remove()
        _open.discard(self)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _spawn(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [*_death_signal(), *self.command()],
                cwd=self.folder,
                env=dict(self.environment()),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _ready_or_dead(self) -> bool:
        if not self.running:
            raise ServerFailed(f"{self.name} ended before it was up")
        return self.is_ready()

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def _log_end(self) -> str:
        return self.log.read_text(errors="replace")[-LOG_TAIL_CHARACTERS:]


def free_port() -> int:
    """A port that is not in use, below the range of outgoing connections.

    From inside that range, a client that reconnects to a stopped server could get the server's own
    port and connect to itself.
    """
    last_port = _first_outgoing_port() - 1
    for _ in range(PORT_ATTEMPTS):
        # The seedable generator would give two runs with one seed the same ports.
        port = random.SystemRandom().randint(min(FIRST_PORT, last_port), last_port)
        if take_port(port):
            return port
    raise ServerFailed(f"no free port between {FIRST_PORT} and {last_port}")


def take_port(port: int) -> bool:
    """Take a port for a server of this process; False if it is in use, or was given before.

    Also to another process of the tests: a server binds its own long after it was given.
    """
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.bind((LOOPBACK, port))
        is_new = port not in _given
        # Its byte of one file; the kernel lets go of it when this process ends.
        fcntl.lockf(_ports(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
        _given.add(port)
        return is_new
    return False


@functools.cache
def _ports() -> IO[bytes]:
    """Never closed, and opened once: closing any of it would release all locks of the process."""
    folder = cache_folder() / "run"
    folder.mkdir(parents=True, exist_ok=True)
    return (folder / "ports").open("ab")


def accepts(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((LOOPBACK, port), timeout=1.0):
        return True
    return False


def members(group: int) -> list[int]:
    """The ids of a group's processes that have not ended; empty on systems other than Linux."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            # The name before the last parenthesis may itself contain spaces and parentheses.
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[2]) == group and not _has_ended(state=fields[0], threads=fields[17]):
                found.append(int(stat.parent.name))
    return found


def _has_ended(*, state: str, threads: str) -> bool:
    # A zombie keeps its ports open until its other threads have ended.
    return state in "ZX" and int(threads) <= 1


def _first_outgoing_port() -> int:
    setting = Path("/proc/sys/net/ipv4/ip_local_port_range")
    return int(setting.read_text().split()[0]) if setting.exists() else 32_768


def _death_signal() -> Sequence[str]:
    # `setpriv` execs, so the process id stays. A preexec_fn could deadlock with other threads.
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL"] if setpriv else []


@atexit.register
def _close_all() -> None:
    if os.getpid() == _owner_pid:  # a forked child must not stop its parent's servers
        for server in list(_open):
            server.close()
