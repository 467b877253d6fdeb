"""Command lines run in the test's own process, in a namespace of the test's own."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from delaybridge import cli


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


Run = Callable[..., Result]


def runner(
    flags: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Run:
    """Runs a command line; `flags` come first."""

    def call(*args: str, stdin: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = cli.main([*flags, *args])
        out, err = capsys.readouterr()
        return Result(code, out, err)

    return call
