"""Fixtures that several files here ask for."""

from __future__ import annotations

from pathlib import Path

import pytest

from delaybridge.scan.leases.session import Session
from tests.rigs.board import Board
from tests.rigs.bucket_session import new_session
from tests.rigs.command_line import Run, runner


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Runs a command line in this process, in a folder without settings."""
    monkeypatch.chdir(tmp_path)
    for name in ("NO_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    return runner([], capsys, monkeypatch, environment={})


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory without a settings file."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def session() -> Session:
    return new_session()


@pytest.fixture
def board() -> Board:
    return Board()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Redis is not waited for."""
    monkeypatch.setenv("DELAYBRIDGE_REDIS__TIMEOUT_S", "0.05")
