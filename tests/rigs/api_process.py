"""`delaybridge serve` as processes of their own, which a starved machine does not trouble."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

import psutil

from tests.rigs.bridge import PROGRAMS
from tests.rigs.crew import PATIENT_PROCESS
from tests.rigs.waiting import DEADLINE_S, until

_SERVING = re.compile(r"serving url=(\S+?)/? ")


class ApiProcess:
    """One `delaybridge serve`, with its log in a file."""

    def __init__(
        self,
        folder: Path,
        redis_url: str,
        namespace: str,
        *args: str,
        broker: str = "",
        open_files: int = 0,
    ) -> None:
        """open_files: how many it may have; 0: as many as this process."""
        self.log = folder / "serve.log"
        program = str(PROGRAMS / "serve_patiently.py")
        options = ["--redis", redis_url, "--namespace", namespace]
        options += ["--broker", broker] if broker else []
        self._command = [sys.executable, program, *options, "serve", *args]
        if open_files:
            self._command = ["prlimit", f"--nofile={open_files}", *self._command]
        self.process: subprocess.Popen[bytes] | None = None
        self.url = ""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start it, and wait until it listens."""
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                self._command, stderr=log, stdout=log, env={**os.environ, **PATIENT_PROCESS}
            )
        try:
            found = until(lambda: _SERVING.search(self.log.read_text()), self.log.read_text)
        except BaseException:
            self.kill()
            raise
        assert found is not None
        self.url = found.group(1)

    @property
    def children(self) -> list[psutil.Process]:
        """The processes that answer, if there are several."""
        assert self.process is not None
        found = []
        for child in psutil.Process(self.process.pid).children():
            with contextlib.suppress(psutil.Error):  # it is just ending
                if "resource_tracker" not in " ".join(child.cmdline()):
                    found.append(child)
        return found

    def kill(self) -> None:
        """SIGKILL; its children end by themselves."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self, *, signals: int = 1) -> int:
        """SIGTERM; the exit code."""
        assert self.process is not None
        for _ in range(signals):
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(DEADLINE_S)
