"""Command lines run in the test's own process, or in one of their own."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from delaybridge.operate import cli
from tests.rigs.crew import PATIENT_PROCESS
from tests.rigs.waiting import DEADLINE_S


@dataclass
class Result:
    """What one run of the command line gave."""

    code: int
    out: str
    err: str

    @property
    def objects(self) -> list[dict[str, Any]]:
        """stdout of --json."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def error(self) -> dict[str, Any]:
        """The error on stderr of --json: its code, its field, and the wording."""
        found: dict[str, Any] = json.loads(self.err.splitlines()[-1])["error"]
        return found


Run = Callable[..., Result]


def runner(
    flags: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    *,
    environment: Mapping[str, str] = PATIENT_PROCESS,
) -> Run:
    """Runs a command line; `flags` come first. environment: what the test has not set itself."""

    def call(*args: str, stdin: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with monkeypatch.context() as only_now:
            for name in environment.keys() - os.environ.keys():
                only_now.setenv(name, environment[name])
            code = cli.main([*flags, *args])
        out, err = capsys.readouterr()
        return Result(code, out, err)

    return call


@contextmanager
def started(*args: str, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A command line in a process of its own, which does not outlive the test."""
    command = [sys.executable, "-m", "delaybridge", *args]
    environment = {**PATIENT_PROCESS, **os.environ}
    with subprocess.Popen(command, env=environment, **options) as process:
        try:
            yield process
        finally:
            process.kill()


def spawn(*args: str, env: dict[str, str] | None = None, **options: Any) -> Result:
    """Runs a command line in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "delaybridge", *args],
        env={**PATIENT_PROCESS, **os.environ, **(env or {})},
        timeout=DEADLINE_S,
        text=True,
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
    )
    return Result(done.returncode, done.stdout or "", done.stderr or "")
