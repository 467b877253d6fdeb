"""How a command ends: exit codes, defects, interruptions, closed streams."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import delaybridge
from delaybridge.errors import (
    ConfigError,
    LedgerUnavailable,
    MessageConflict,
    MessageError,
    NotDurable,
    PublishUnavailable,
    StoreError,
    StoreFull,
    StoreUnavailable,
    StoreWiped,
)
from delaybridge.operate.terminal.failure import Failure, failure_of
from delaybridge.operate.terminal.invocation import Invocation
from delaybridge.operate.terminal.output import Output
from delaybridge.settings.settings import Settings
from tests.rigs.command_line import Run, spawn
from tests.rigs.waiting import DEADLINE_S

CANARY = "S3CR3T-CANARY-88"
HOSTILE = "\x1b[31m\u202e\r\n\x07\x9b"


@pytest.mark.parametrize(
    ("error", "code", "word"),
    [
        (ConfigError("x: y"), 2, "config"),
        (MessageError("bad_id", "id", "x"), 2, "bad_id"),
        (MessageConflict("conflict", "id", "x"), 4, "conflict"),
        (StoreUnavailable("redis: x"), 5, "store_unavailable"),
        (LedgerUnavailable("ledger: x"), 5, "ledger_unavailable"),
        (NotDurable(), 5, "not_durable"),
        (StoreFull(), 5, "store_full"),
        (StoreWiped(), 5, "store_wiped"),
        (StoreError("redis: x"), 5, "store_error"),
        (PublishUnavailable("x"), 5, "publish_unavailable"),
        (ZeroDivisionError("x"), 1, "internal"),
        (FileNotFoundError(2, "No such file", "x"), 2, "os_error"),
    ],
)
def test_exit_code_by_error(error: Exception, code: int, word: str) -> None:
    report = failure_of(error)
    assert (report.exit, report.code) == (code, word)


@pytest.mark.parametrize(
    ("said", "hint"), [("nothing was written to it", ""), ("it may be stored", "; repeat it")]
)
def test_a_ledger_that_is_away_is_not_taken_for_redis(
    run: Run, monkeypatch: pytest.MonkeyPatch, said: str, hint: str
) -> None:
    def away(*_: object) -> None:
        raise LedgerUnavailable(f"ledger: {said}")

    monkeypatch.setattr(delaybridge.Client, "from_settings", away)
    assert run("--json", "stats").error["message"] == f"ledger: {said}; see: delaybridge doctor"
    client = Invocation(Output()).client_of(Settings(), remedy="repeat it")
    with pytest.raises(Failure, match=f"doctor{hint}$"), client:
        pass


def test_all_faults_of_the_settings_are_shown(run: Run) -> None:
    Path("delaybridge.toml").write_text("bukets = 1\n[scan]\nprocesses = 0\n")
    result = run("stats")
    assert result.code == 2
    assert len(result.err.splitlines()) == 2
    assert len(run("--json", "stats").error["messages"]) == 2


def test_a_defect_is_one_line_and_a_traceback_on_demand(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError(f"redis://:{CANARY}@h {HOSTILE}")

    monkeypatch.setattr(Invocation, "load", broken)
    result = run("stats")
    assert result.code == 1
    (line,) = result.err.splitlines()
    assert line.startswith("error: internal: RuntimeError: ")
    assert CANARY not in line
    loud = run("-v", "stats")
    assert "Traceback" in loud.err
    assert CANARY not in loud.err


def test_interrupted(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Invocation, "load", interrupted)
    result = run("stats")
    assert (result.code, result.err) == (130, "error: interrupted\n")


def test_a_reader_that_closes_stdout_is_not_an_error() -> None:
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m delaybridge config show; echo $? >&2"],
        stdout=closed_pipe(),
        stderr=subprocess.PIPE,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.stderr == "0\n"


def closed_pipe() -> int:
    """The writing end of a pipe without a reader."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    return write_end


def test_stdout_closed() -> None:
    assert spawn("config", "show", preexec_fn=lambda: os.close(1)).code == 0


def test_no_socket_gets_the_number_of_a_closed_standard_stream() -> None:
    """uvloop would end the process when it closes that socket, and C code would write into it."""
    script = "import os, sys; from delaybridge.operate import cli; cli.main(['--version'])"
    script += "; sys.exit(os.get_inheritable(2) and os.dup(2))"
    closed = ["sh", "-c", 'exec "$@" 0<&- 1>&- 2>&-', "sh", sys.executable, "-c", script]
    assert subprocess.run(closed, timeout=DEADLINE_S, check=False).returncode == 3


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_stdout_full(unbuffered: str) -> None:
    with open("/dev/full", "wb") as full:
        environment = {"PYTHONUNBUFFERED": unbuffered}
        done = spawn("--json", "config", "show", stdout=full, env=environment)
    assert (done.code, done.error["code"]) == (1, "os_error")


def test_c_locale(tmp_path: Path) -> None:
    (tmp_path / "delaybridge.toml").write_text('namespace = "é"\n')
    plain = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONCOERCECLOCALE": "0"}
    result = spawn("stats", env=plain, cwd=tmp_path)
    assert (result.code, "got 'é'" in result.err) == (2, True)
