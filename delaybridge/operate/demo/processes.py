"""The demo's processes: any command as a child.

Every process ends with the demo. On Linux the kernel kills it even if the demo itself is killed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

_STOP_S = 2.0
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

    def news(self) -> list[dict[str, Any]]:
        """The records of the complete lines printed since the last call."""
        text, newline, _ = self._output(self._read_bytes).rpartition(b"\n")
        self._read_bytes += len(text) + len(newline)
        return (
            [parsed(line) for line in text.decode(errors="replace").split("\n")] if newline else []
        )

    def last_words(self) -> str:
        """The last line printed, or the message in it if it is JSON."""
        record = self._last()
        return str(record.get("error", record).get("message"))

    def is_unanswered(self) -> bool:
        """Whether it has ended because Redis did not answer it."""
        error = self._last().get("error", {}) if self.poll() is not None else {}
        return bool(error.get("code") == "store_unavailable")

    def _last(self) -> dict[str, Any]:
        text = self._output(0).decode(errors="replace").strip() or "no output"
        return parsed(text.splitlines()[-1])

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


class Failed(Exception):
    """The demo cannot go on; its text is the reason."""


def check_alive(*processes: Process) -> None:
    """Failed if one of them has ended."""
    for process in processes:
        if process.poll() is not None:
            raise Failed(f"{process.name} ended by itself: {process.last_words()}")


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
    return ours | settings_of(**settings)


def settings_of(**settings: object) -> dict[str, str]:
    """Settings as environment variables: `BUCKETS=8` is DELAYBRIDGE_BUCKETS."""
    return {f"DELAYBRIDGE_{name}": str(value) for name, value in settings.items()}


def parsed(line: str) -> dict[str, Any]:
    """The object that a line of JSON holds; other lines, as of a traceback, are its message."""
    with suppress(ValueError):
        if isinstance(found := json.loads(line), dict):
            return found
    return {"message": line}


def now_ms() -> int:
    """The time of this machine, and so of the private Redis."""
    return time.time_ns() // 1_000_000
