"""The command line without a server: parsing, refusals, output and exit codes."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import runpy
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any

import click
import pytest
from rich.cells import cell_len

from delaybridge import cli
from delaybridge.cli import bulk, health, layout, lines, output
from delaybridge.cli import stored as stored_page
from delaybridge.cli.failure import Exit, Failure, failure_of
from delaybridge.cli.grammar import cursor_of
from delaybridge.cli.invocation import Invocation
from delaybridge.cli.logs import FIELD_CHARS, LINE_CHARS, JsonFormatter, TextFormatter, shown
from delaybridge.doctor import findings, servers, sources
from delaybridge.doctor.checks import problems
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
from delaybridge.message import Answer, Message, State
from delaybridge.settings.settings import Settings
from delaybridge.store.announcements import IngestInfo, SourceInfo
from delaybridge.store.scheduling import Receipt
from delaybridge.store.selection import Selected, Selection
from delaybridge.store.stats import BucketStats, Stats
from delaybridge.store.stored import Stored
from delaybridge.times import in_time
from delaybridge.worker.interrupts import interrupts
from tests.rigs.waiting import DEADLINE_S

DOCS = Path(__file__).parents[2] / "docs"
NOWHERE = ("--redis", "redis://127.0.0.1:1/0")
CANARY = "S3CR3T-CANARY-88"
WHEN = ("--in", "5m")


@dataclass
class Result:
    """What one run of the command line gave."""

    code: int
    out: str
    err: str


Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory without settings, a terminal without wishes."""
    monkeypatch.chdir(tmp_path)
    for name in ("NO_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Redis is not waited for."""
    monkeypatch.setenv("DELAYBRIDGE_REDIS__TIMEOUT_S", "0.05")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command line in this process, with these bytes on stdin."""

    def call(*args: str, stdin: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = cli.main(list(args))
        out, err = capsys.readouterr()
        return Result(code, out, err)

    return call


def spawn(*args: str | bytes, env: dict[str, str] | None = None, **options: Any) -> Result:
    """Runs a command line in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "delaybridge", *args],
        env={**os.environ, **(env or {})},
        capture_output=True,
        timeout=DEADLINE_S,
        **options,
    )
    return Result(done.returncode, done.stdout.decode(), done.stderr.decode())


# quick


def test_importing_the_command_line_imports_nothing_heavy() -> None:
    heavy = "redis pika confluent_kafka pydantic rich msgspec asyncio".split()
    heavy.append("delaybridge.settings.settings")
    code = f"import sys, delaybridge.cli; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_help_of_the_whole_imports_no_command() -> None:
    code = (
        "import sys, delaybridge.cli as c; c.main(['--help']);"
        "print([m for m in sys.modules if m.startswith('delaybridge.cli.')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    used = done.stdout.splitlines()[-1]
    assert "schedule" not in used
    assert "output" in used


def test_the_list_of_commands_repeats_each_command_s_own_help() -> None:
    context = click.Context(cli.root)
    for name, (_, about) in cli.COMMANDS.items():
        _, command, _ = cli.root.resolve_command(context, [name])
        assert command is not None
        if isinstance(command, click.Group):
            assert (command.help or "").splitlines()[0] == about


def test_docs_are_the_help() -> None:
    reference = runpy.run_path(str(DOCS / "reference.py"))["reference"]
    assert (DOCS / "cli.md").read_text() == reference(), "python docs/reference.py > docs/cli.md"


def every_command(
    command: click.Command = cli.root, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, ...]]:
    """The words of every command."""
    yield path
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            _, inner, _ = command.resolve_command(context, [name])
            assert inner is not None
            yield from every_command(inner, (*path, name))


@pytest.mark.parametrize("path", [*every_command()], ids=" ".join)
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_at_every_level(run: Run, path: tuple[str, ...], flag: str) -> None:
    result = run(*path, flag)
    assert result.code == 0
    assert result.out.startswith(f"Usage: {' '.join(['delaybridge', *path])} ")
    assert max(map(len, result.out.splitlines())) <= 80
    assert result.err == ""


@pytest.mark.parametrize("path", [*every_command()], ids=" ".join)
def test_json_is_understood_behind_every_command(run: Run, path: tuple[str, ...]) -> None:
    refused = run(*path, "--json", "--frobnicate")
    assert refused.code == 2
    assert json.loads(refused.err)["error"]["field"] == "--frobnicate"


def test_json_behind_a_command_is_json(run: Run) -> None:
    before, behind = run("--json", "config", "show"), run("config", "show", "--json")
    assert behind.out == before.out
    assert run("config", "--json", "show").out == before.out


@pytest.mark.parametrize("columns", ["1", "20", "300", "x"])
def test_help_on_any_terminal(run: Run, monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert run("schedule", "--help").code == 0


def test_version(run: Run) -> None:
    assert run("--version").out == "delaybridge 0.1.0\n"


@pytest.mark.parametrize("path", [(), ("message",), ("dead",), ("worker",), ("config",)])
def test_a_noun_alone_shows_its_help(run: Run, path: tuple[str, ...]) -> None:
    result = run(*path)
    assert (result.code, result.out) == (2, "")
    assert "Commands:" in result.err


# completion


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_the_shell_s_script(run: Run, shell: str) -> None:
    script = run("completion", shell)
    assert (script.code, script.err) == (0, "")
    assert f"_DELAYBRIDGE_COMPLETE={shell}_complete" in script.out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("",), ("schedule", "message", "completion")),
        (("me",), ("message",)),
        (("--red",), ("--redis",)),
        (("message", ""), ("ls", "cancel", "publish-now")),
        (("message", "cancel", "--de"), ("--destination",)),
        (("--redis", "redis://h", "worker", "l"), ("ls",)),
        (("completion", ""), ("bash", "zsh", "fish")),
        (("message", "ls", "--state", "p"), ("parked",)),
        (("message", "nonsense", "x"), ()),
        (("--redis",), ("--redis",)),
    ],
    ids=str,
)
def test_completion_offers_commands_options_and_values(
    run: Run, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    monkeypatch.setenv("_DELAYBRIDGE_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", " ".join(["delaybridge", *words]))
    monkeypatch.setenv("COMP_CWORD", str(len(words)))
    offered = run()
    assert (offered.code, offered.err) == (0, "")
    found = {line.removeprefix("plain,") for line in offered.out.split()}
    assert {*expected} <= found
    assert expected or not found


def test_each_shell_is_told_to_run_its_own_script(run: Run) -> None:
    text = run("completion", "--help").out
    files = re.findall(r"~/\S*?(bash|zsh|fish)\S* .*delaybridge completion (\w+)", text)
    assert files == [("bash", "bash"), ("zsh", "zsh"), ("fish", "fish")]
    for shell in ("bash", "zsh", "fish"):
        script = run("completion", shell).out
        assert f"_DELAYBRIDGE_COMPLETE={shell}_complete" in script


def test_completing_a_command_imports_no_command() -> None:
    asked = {"_DELAYBRIDGE_COMPLETE": "bash_complete", "COMP_WORDS": "delaybridge m"}
    code = "import sys, delaybridge.cli as c; c.main([]); print('\\n', *sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **asked, "COMP_CWORD": "1"},
        capture_output=True,
        text=True,
    )
    assert "plain,message" in done.stdout
    assert "delaybridge.cli.messages" not in done.stdout


# refusals: exit code 2, one line, the field first


def shortened(value: object) -> str:
    """A test id from arguments."""
    return (" ".join(value) if isinstance(value, tuple) else str(value))[:50]


REFUSED: list[tuple[tuple[str, ...], str, str]] = [
    (("statz",), "statz", "No such command 'statz'. Did you mean 'stats'?"),
    (("x",), "x", "No such command 'x'. See: delaybridge --help"),
    (("message", "lst"), "lst", "Did you mean 'ls'?"),
    (("message", "frobnicate"), "frobnicate", "See: delaybridge message --help"),
    (("--namespace", "x"), "usage", "Missing command. See: delaybridge --help"),
    (("--jsn", "stats"), "--jsn", "Did you mean '--json'?"),
    (("stats", "--frobnicate"), "--frobnicate", "No such option"),
    (("stats", "--json", "--frobnicate"), "--frobnicate", "No such option"),
    (("stats", "--redis", "redis://x"), "--redis", "goes before the command"),
    (("stats", "extra"), "usage", "Got unexpected extra argument (extra). See:"),
    (("--redis",), "--redis", "requires an argument"),
    (("--redis", "redis://a", "--redis", "redis://b", "stats"), "--redis", "given 2 times"),
    (("schedule",), "DESTINATION", "See: delaybridge schedule --help"),
    (("schedule", "kafka:t", "x"), "--in", "missing; say when"),
    (("schedule", "kafka:t", *WHEN), "BODY", "missing; give it as an argument, or -"),
    (("schedule", "kafka:t", "x", *WHEN, *WHEN), "--in", "given 2 times"),
    (("schedule", "kafka:t", "x", "y", *WHEN), "usage", "Got unexpected extra argument (y)"),
    (
        ("schedule", "kafka:t", "x", *WHEN, "--at", "2030-01-31T09:00:00Z"),
        "--in",
        "given together with --at",
    ),
    (("schedule", "kafka:t", "x", *WHEN, "--lines"), "BODY", "given together with --lines"),
    (("schedule", "kafka:t", "-", *WHEN, "--lines"), "BODY", "given together with --lines"),
    (("schedule", "kafka:t", *WHEN, "--lines", "--id", "a"), "--id", "one id, many messages"),
    (("schedule", "kafka:t", "x", *WHEN, "--keep-going"), "--keep-going", "only together with"),
    (
        ("schedule", "kafka:t", *WHEN, "-5"),
        "-5",
        "before an argument that begins with '-'",
    ),
    (("schedule", "kafka:t", "x", *WHEN, "-H", "a"), "-H", "got 'a'; write NAME=VALUE"),
    (("schedule", "kafka:t", "x", *WHEN, "-P", "a"), "-P", "got 'a'; write NAME=VALUE"),
    (("schedule", "kafka:t", "x", *WHEN, "-P", "a=1", "-P", "a=2"), "-P", "a is given twice"),
    (("schedule", "rabbitmq:/q", "x", *WHEN, "-P", "priority=high"), "-P", "give a whole number"),
    (("schedule", "rabbitmq:/q", "x", *WHEN, "-P", "priority=٥"), "-P", "give a whole number"),
    (
        ("schedule", "rabbitmq:/q", "x", *WHEN, "-P", f"timestamp={'9' * 5000}"),
        "-P",
        "give a whole number",
    ),
    (("schedule", "kafka:t", "x", *WHEN, "--priority", "1.5"), "--priority", "is not a valid int"),
    (("schedule", "kafka:t", "x", *WHEN, "--on-conflict", "x"), "--on-conflict", "is not one of"),
    (("message", "show"), "ID", "Missing argument"),
    (("message", "cancel"), "ID", "missing"),
    (("message", "cancel", "a", "b"), "--yes", "missing; needed to cancel 2 messages"),
    (("dead", "discard", "a", "b"), "--yes", "missing; needed to discard 2 messages"),
    (("message", "cancel", "a", "--exchange", "x"), "ID", "given together with a filter"),
    (("message", "cancel", "-k", "a", "--exchange", "x"), "--key", "given together with a filter"),
    (("message", "cancel", "--id-prefix", ""), "ID", "missing; give ids, or choose messages"),
    (("message", "cancel", "a", "--dry-run"), "--dry-run", "only together with a filter"),
    (("message", "cancel", "--exchange", "x", "--due-to", "5"), "--due-to", "looks_like_seconds"),
    (("message", "publish-now", "--exchange", "x", "--over", "5"), "--over", "with a unit"),
    (("message", "publish-now", "a", "--over", "-5s"), "--over", "below zero"),
    (("destination", "purge", "a", "--confirm", "b"), "--confirm", "nothing was done"),
    (("message", "reschedule", "a"), "--in", "give one of --in DURATION, --at TIME and"),
    (("message", "reschedule", "a", *WHEN, "--at", "x"), "--in", "give one of"),
    (("message", "reschedule", "a", *WHEN, "--by", "+1h"), "--in", "give one of"),
    (("message", "reschedule", "a", "--by", "-"), "--by", "write +10m or -1h"),
    (("message", "reschedule", "a", "--by", "+1h", "--over", "1m"), "--over", "together with --by"),
    (("message", "ls", "--attempts", "0"), "--attempts", "not in the range"),
    (("message", "ls", "--limit", "-1"), "--limit", "not in the range"),
    (("message", "ls", "--limit", "0"), "--limit", "not in the range"),
    (("message", "ls", "--limit", "x"), "--limit", "not a valid integer"),
    (("message", "ls", "--cursor", "x"), "--cursor", "copy it from the list"),
    (("message", "ls", "--cursor", "nan:a"), "--cursor", "copy it from the list"),
    (("message", "ls", "--state", "published"), "--state", "is not one of"),
    (("message", "ls", "--due-from", "tomorrow"), "--due-from", "write RFC 3339"),
    (("message", "ls", "--due-to", "2030-01-01T00:00:00"), "--due-to", "has no zone"),
    (("message", "show", "x", "--body", "html"), "--body", "is not one of"),
    (("scan", "--processes", "0"), "--processes", "not in the range"),
    (("scan", "--processes", "-1"), "--processes", "not in the range"),
    (("scan", "--processes", "1.5"), "--processes", "not a valid integer"),
    (("scan", "--processes", "abc"), "--processes", "not a valid integer"),
    (("scan", "--processes", "1000000000"), "--processes", "not in the range"),
    (("health", "--max-overdue", "5"), "--max-overdue", "write a number with a unit"),
    (("health", "--max-unowned", "-1s"), "--max-unowned", "below zero"),
    (("demo", "--messages", "0"), "--messages", "not in the range"),
    (("--redis", "http://h", "stats"), "--redis", "redis.url: got 'http://h'; allowed: redis://"),
    (("--redis", "redis://", "stats"), "--redis", "allowed: redis://HOST"),
    (("--redis", "redis://h:0", "stats"), "--redis", "a port is 1 to 65535"),
    (("--redis", "redis://h:70000", "stats"), "--redis", "a port is 1 to 65535"),
    (("--redis", f"redis://:a@{CANARY}@h", "stats"), "--redis", "write @ as %40"),
    (("--broker", "foo", "stats"), "--broker", "give [NAME=]URL"),
    (("--broker", "ftp://h", "stats"), "--broker", "a URL whose scheme is one of amqp"),
    (("--broker", "eu=ftp://h", "stats"), "--broker", "brokers.eu: got 'ftp://h'"),
    (("--broker", "amqp://", "stats"), "--broker", "allowed: amqp[s]://HOST"),
    (("--broker", "amqp://h:70000", "stats"), "--broker", "a port is 1 to 65535"),
    (("--broker", f"amqp://u:{CANARY}/a@h", "stats"), "--broker", "write @ as %40"),
    (("--broker", f"u:{CANARY}@h", "stats"), "--broker", "give [NAME=]URL"),
    (("--broker", "a/b=amqp://h", "stats"), "--broker", "the name 'a/b'"),
    (
        ("--broker", "amqp://a", "--broker", "amqp://b", "stats"),
        "--broker",
        "two brokers are named",
    ),
    (("--namespace", "a b", "stats"), "--namespace", "allowed: 1 to 64 letters"),
    (("--config", "none.toml", "stats"), "none.toml", "there is no such file"),
    (("--config", ".", "stats"), ".", "is a directory"),
]


@pytest.mark.parametrize(("args", "field", "says"), REFUSED, ids=shortened)
def test_refused(run: Run, args: tuple[str, ...], field: str, says: str) -> None:
    result = run(*args)
    assert result.code == 2
    assert result.out == ""
    (line,) = result.err.splitlines()
    if "--json" not in args:
        assert line.startswith(f"error: {field}: ")
    assert says in line
    assert CANARY not in line


@pytest.mark.parametrize(
    ("args", "code", "field"),
    [
        (("schedule", "kafka:t", "x", *WHEN, "-P", "partition=x"), "bad_property", "-P"),
        (("completion", "tcsh"), "usage", "SHELL"),
        (("completion",), "usage", "SHELL"),
    ],
)
def test_a_refusal_has_a_code_and_a_field(
    run: Run, args: tuple[str, ...], code: str, field: str
) -> None:
    error = json.loads(run("--json", *args).err)["error"]
    assert (error["code"], error["field"]) == (code, field)
    assert "\\x" not in error["message"]


@pytest.mark.parametrize(("args", "field", "says"), REFUSED, ids=shortened)
def test_refused_in_json(run: Run, args: tuple[str, ...], field: str, says: str) -> None:
    result = run("--json", *args)
    error = json.loads(result.err)["error"]
    assert result.code == 2
    assert error["code"]
    assert says in error["message"]
    assert CANARY not in result.err


TIMES: list[tuple[str, str]] = [
    *(("--in", bad) for bad in ("", "5", "5 s", " 5s", "5s\n", "1_000s", "٥s", "0x10s", "+5s")),
    *(("--in", bad) for bad in ("1e3s", "NaN", "Infinity", "-1s", "9" * 10_000, "tomorrow")),
    *(("--in", bad) for bad in ("* * * * *", "5x", "1.0001ms", "20000d", "true", "PT", "5S")),
    *(("--at", bad) for bad in ("", "5", "2030-01-01T00:00:00", "2024-02-30T00:00:00Z")),
    *(("--at", bad) for bad in ("2030-01-01T24:00:00Z", "2030-01-01T00:00:60Z", "tomorrow")),
    *(("--at", bad) for bad in ("2030-W01-1", "20300101T000000Z", "9999-12-31T23:59:59-14:00")),
    *(("--at", bad) for bad in ("3000-01-01T00:00:00Z", "1970-01-01T00:00:00Z", "1795197600450")),
    ("--ttl", "5"),
]


@pytest.mark.parametrize(("flag", "value"), TIMES, ids=lambda v: v[:30])
def test_times_refused(run: Run, flag: str, value: str) -> None:
    when = (flag, value) if flag != "--ttl" else (*WHEN, flag, value)
    result = run(*NOWHERE, "schedule", "kafka:t", "x", *when)
    assert (result.code, result.out) == (2, "")
    (line,) = result.err.splitlines()
    assert line.startswith(f"error: {flag}: ")
    assert len(line) < 400


@pytest.mark.parametrize(
    ("args", "field"),
    [
        (("nope:t", "x"), "destination"),
        (("", "x"), "destination"),
        (("kafka", "x"), "destination"),
        (("https://evil/", "x"), "destination"),
        (("kafka:..", "x"), "destination"),
        (("rabbitmq:x", "x"), "destination"),
        (("kafka:t", "x", "--id", ""), "id"),
        (("kafka:t", "x", "--id", "a\x1b[31m"), "id"),
        (("kafka:t", "x", "--id", "x" * 256), "id"),
        (("kafka:t", "x", "--id", "\udcff\udcfe"), "id"),
        (("kafka:t", "x", "--priority", "-1"), "priority"),
        (("kafka:t", "x", "--priority", "256"), "priority"),
        (("kafka:t", "x", "-H", "=v"), "headers"),
        (("kafka:t", "x", "-H", "delaybridge-foo=v"), "headers"),
        (("kafka:t", "x", *["-H", "a=b"] * 65), "headers"),
        (("rabbitmq:/q", "x", "-P", "nonsense=1"), "properties"),
        (("rabbitmq:/q", "x", "-P", "delivery_mode=7"), "delivery_mode"),
        (("rabbitmq:/q", "x", "-P", "expiration=abc"), "expiration"),
        (("kafka:t", "x", "-P", "partition=-5"), "partition"),
        (("kafka:t", "x" * 262_145), "body"),
    ],
)
def test_messages_refused(run: Run, args: tuple[str, ...], field: str) -> None:
    result = run(*NOWHERE, "schedule", *WHEN, "--", *args)
    if "--" in args or any(arg.startswith("-") for arg in args):
        result = run(*NOWHERE, "schedule", *WHEN, *args)
    assert (result.code, result.out) == (2, "")
    (line,) = result.err.splitlines()
    assert line.startswith("error: ")
    assert field in line
    assert "\x1b" not in line
    line.encode()


@pytest.mark.usefixtures("impatient")
def test_all_ids_are_checked_before_anything_is_done(run: Run) -> None:
    result = run(*NOWHERE, "message", "cancel", "--yes", "good", "b\x07d")
    assert (result.code, result.out) == (2, "")
    assert "\\x07" in result.err


# Redis unreachable


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    "args",
    [
        ("schedule", "kafka:t", "x", *WHEN),
        ("message", "ls"),
        ("message", "show", "x"),
        ("message", "cancel", "x"),
        ("dead", "kick", "x"),
        ("stats",),
        ("worker", "ls"),
        ("bucket", "ls"),
        ("health",),
    ],
    ids=" ".join,
)
def test_an_unreachable_redis_is_named_without_its_password(
    run: Run, args: tuple[str, ...]
) -> None:
    result = run("--redis", f"redis://:{CANARY}@127.0.0.1:1/0", *args)
    assert (result.code, result.out) == (5, "")
    (line,) = result.err.splitlines()
    assert line.startswith("error: redis: no answer")
    assert "redis://:***@127.0.0.1:1/0" in line
    assert "--redis URL" in line
    assert CANARY not in line


@pytest.mark.usefixtures("impatient")
def test_lines_are_not_scheduled_if_redis_is_unreachable(run: Run) -> None:
    result = run(*NOWHERE, "schedule", "kafka:t", *WHEN, "--lines", stdin=b"a\nb\n")
    assert (result.code, result.out) == (5, "")
    assert "lines 1 to 2: not scheduled" in result.err
    assert "0 scheduled" in result.err


@pytest.mark.usefixtures("impatient")
def test_doctor_reports_an_unreachable_redis(run: Run) -> None:
    result = run(*NOWHERE, "doctor")
    assert result.code == 1
    assert result.out.startswith("FAIL  redis: no answer")
    assert result.err == ""


@pytest.mark.usefixtures("impatient")
def test_verbose_names_the_causes_and_keeps_the_secret(run: Run) -> None:
    result = run("-v", "--redis", f"redis://:{CANARY}@127.0.0.1:1/0", "stats")
    assert "caused by: ConnectionRefusedError" in result.err
    assert CANARY not in result.err


# reading stdin


def test_stdin_closed() -> None:
    result = spawn(*NOWHERE, "schedule", "kafka:t", "-", *WHEN, preexec_fn=lambda: os.close(0))
    assert result.code == 2
    assert result.err == "error: BODY: stdin is closed; pipe the input into it\n"


def test_stdin_endless_is_read_to_the_limit() -> None:
    with open("/dev/zero", "rb") as zero:
        result = spawn(*NOWHERE, "schedule", "kafka:t", "-", *WHEN, stdin=zero)
    assert result.code == 2
    assert "BODY: longer than 262144 bytes" in result.err


class Keyboard(io.TextIOWrapper):
    """A terminal on which nothing is typed."""

    def isatty(self) -> bool:
        """It is one."""
        return True


@pytest.mark.usefixtures("impatient")
def test_stdin_is_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", Keyboard(io.BytesIO()))
    assert cli.main([*NOWHERE, "schedule", "kafka:t", "-", *WHEN]) == 5
    assert "reading the body from the terminal; Ctrl-D ends it" in capsys.readouterr().err


class Trickle(io.RawIOBase):
    """A stream that hands out what it is told to, and counts."""

    def __init__(self, *chunks: bytes) -> None:
        self.chunks = list(chunks)
        self.read_bytes = 0

    def read1(self, size: int = -1) -> bytes:
        """The next chunk."""
        chunk = self.chunks.pop(0) if self.chunks else b""
        self.read_bytes += len(chunk)
        return chunk


def bodies(*chunks: bytes, limit: int = 10) -> list[tuple[int, bytes | None]]:
    """Number and body of each line."""
    stream: Any = Trickle(*chunks)
    found = lines.read_lines(stream, limit)
    return [(line.number, line.body) for line in found if line is not None]


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ((), []),
        ((b"a",), [(1, b"a")]),
        ((b"a\nb\n",), [(1, b"a"), (2, b"b")]),
        ((b"a\r\nb\r\n",), [(1, b"a"), (2, b"b")]),
        ((b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n",), [(1, b"a"), (2, b"\xef\xbb\xbfb")]),
        ((b"\n\r\n\na\n\n",), [(4, b"a")]),
        ((b"a", b"b\nc", b"\n", b"d"), [(1, b"ab"), (2, b"c"), (3, b"d")]),
        (
            (
                b"\xef",
                b"\xbb\xbfa",
            ),
            [(1, b"a")],
        ),
        ((b"x" * 10 + b"\r\n",), [(1, b"x" * 10)]),
        ((b"x" * 11 + b"\nb",), [(1, None), (2, b"b")]),
        ((b"x" * 11,), [(1, None)]),
        ((b"x" * 100, b"x" * 100, b"\nb\n"), [(1, None), (2, b"b")]),
        ((b"a\n" + b"x" * 30 + b"\n", b"c"), [(1, b"a"), (2, None), (3, b"c")]),
        ((b"a\x00\xff\n",), [(1, b"a\x00\xff")]),
        ((b" a \n",), [(1, b" a ")]),
    ],
)
def test_lines(chunks: tuple[bytes, ...], expected: list[tuple[int, bytes | None]]) -> None:
    assert bodies(*chunks) == expected


def test_a_line_without_end_is_refused_before_it_ends() -> None:
    stream: Any = Trickle(*[b"x" * 1000] * 1000)
    first = next(lines.read_lines(stream, 1500))
    assert first is not None
    assert (first.number, first.body) == (1, None)
    assert stream.read_bytes == 2000


def test_lines_pause_when_the_input_does() -> None:
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, "rb") as stream, os.fdopen(write_end, "wb", 0) as sink:
        found = lines.read_lines(stream, 10)
        sink.write(b"a\nb")
        first = next(found)
        assert first is not None
        assert first.body == b"a"
        assert next(found) is None
        sink.write(b"c\n")
        second = next(found)
        assert second is not None
        assert second.body == b"bc"


class FakeClient:
    """Counts scheduled messages."""

    def __init__(self) -> None:
        self.batches: list[list[Message]] = []

    def schedule_many(self, messages: list[Message], *, on_conflict: str) -> list[str]:
        """One answer each."""
        self.batches.append(messages)
        return ["created"] * len(messages)


def drain(
    data: bytes, *, keep_going: bool, limit: int = 10
) -> tuple[int, FakeClient, lines.LineBatches]:
    """Run --lines over the data without a store."""
    client: Any = FakeClient()
    call: Any = Invocation(output.Output())
    arguments = {"destination": "kafka:t", "delay": "1m"}
    bulk = lines.LineBatches(call, client, arguments, "fail", quiet=True)
    stream: IO[bytes] = io.BytesIO(data)
    found = lines.read_lines(stream, limit)
    code = bulk.drain(found, limit, lambda size: None, keep_going=keep_going)
    return code, client, bulk


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_while_an_object_is_finalized_is_not_lost() -> None:
    class Finalized:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with interrupts(signal.SIGINT) as check:
        check()
        Finalized()  # Python says that it ignores this one
        with pytest.raises(KeyboardInterrupt):
            check()
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(
    ("data", "keep_going", "code", "scheduled"),
    [
        (b"", False, Exit.DONE, 0),
        (b"\n\n", False, Exit.DONE, 0),
        (b"a\nb\n", False, Exit.DONE, 2),
        (b"a\n" + b"x" * 11 + b"\nb\n", False, Exit.PARTLY, 1),
        (b"a\n" + b"x" * 11 + b"\nb\n", True, Exit.PARTLY, 2),
        (b"x" * 11 + b"\nb\n", False, Exit.REFUSED, 0),
        (b"x" * 11 + b"\n", True, Exit.REFUSED, 0),
    ],
)
def test_lines_exit_codes(data: bytes, keep_going: bool, code: int, scheduled: int) -> None:
    found, _, bulk = drain(data, keep_going=keep_going)
    assert (found, bulk.scheduled) == (code, scheduled)


def test_lines_that_were_not_read_are_counted() -> None:
    data = b"a\n" + b"x" * 11 + b"\nb\n\nc\n"
    stream: IO[bytes] = io.BytesIO(data)
    found = lines.read_lines(stream, 10)
    assert [line.number for line in islice(found, 2) if line] == [1, 2]
    assert lines.unread(found, stream) == (2, True)


def test_lines_of_an_endless_stream_are_counted_for_a_limited_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lines, "_COUNTING_S", 0.01)
    stream: Any = Trickle(*[b"x\n" * 1000] * 10_000)
    count, is_all = lines.unread(lines.read_lines(stream, 10), stream)
    assert (count > 0, is_all) == (True, False)
    monkeypatch.setattr(lines, "_PATIENCE_S", 0)
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, "rb") as pipe, os.fdopen(write_end, "wb", 0) as sink:
        sink.write(b"a\nb\n")
        assert lines.unread(lines.read_lines(pipe, 10), pipe) == (2, False)


def test_a_refused_line_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    drain(b"a\n\n" + b"x" * 11 + b"\n", keep_going=True)
    assert capsys.readouterr().err.startswith("error: line 3: longer than 10 bytes, the limit")


def test_lines_travel_in_batches() -> None:
    _, client, _ = drain(b"a\n" * 1201, keep_going=False)
    assert [len(batch) for batch in client.batches] == [500, 500, 201]
    _, client, _ = drain((b"x" * 2**20 + b"\n") * 9, keep_going=False, limit=2**20)
    assert max(len(batch) for batch in client.batches) <= 4


# by filter


class FakePages:
    """Finds pages of ten messages, without a store."""

    def select(self, _: Selection) -> Iterator[list[Selected]]:
        """Three pages."""
        for page in range(3):
            yield [Selected(f"{page}-{n}", n % 2, State.DELAYED) for n in range(10)]


def swept(stop: BaseException | None) -> tuple[Callable[[], int], list[int]]:
    """A sweep that is stopped before its third batch; what it spreads the messages over."""
    spread: list[int] = []

    def verb(
        _client: object, some: Sequence[object], *, key: None, spread_ms: list[int]
    ) -> list[Answer]:
        if stop is not None and len(spread) == 20:
            raise stop
        spread.extend(spread_ms)
        return [Answer.CANCELLED] * len(some)

    client: Any = FakePages()
    counted: Counter[int | None] = Counter({0: 15, 1: 15})
    sweep = bulk.Sweep(Invocation(output.Output()), client, verb, over_ms=1500, counted=counted)

    def run() -> int:
        try:
            return sweep.run(client.select(Selection()))
        finally:
            sweep.show_summary()

    return run, spread


def test_a_sweep_spreads_each_bucket_s_messages_evenly(capsys: pytest.CaptureFixture[str]) -> None:
    run, spread = swept(None)
    assert run() == Exit.DONE
    assert spread[::2] == spread[1::2] == [*range(0, 1500, 100)]
    printed = capsys.readouterr()
    assert printed.err == "30 cancelled\n"
    assert printed.out.splitlines()[::29] == ["0-0  cancelled", "2-9  cancelled"]


def test_a_sweep_clears_its_bar_before_it_prints_the_sum(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = swept(None)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert run() == Exit.DONE
    printed = capsys.readouterr().err
    assert "30/30" in printed
    assert printed.endswith("\x1b[2K30 cancelled\n")


def test_a_sweep_that_is_stopped_prints_its_answers(capsys: pytest.CaptureFixture[str]) -> None:
    run, _ = swept(KeyboardInterrupt())
    assert run() == Exit.INTERRUPTED
    assert capsys.readouterr().err == "error: interrupted\n20 cancelled\n"
    run, _ = swept(StoreUnavailable("redis: x"))
    with pytest.raises(StoreUnavailable):
        run()
    assert capsys.readouterr().err == "20 cancelled\n"


@pytest.mark.parametrize(
    ("answers", "code"),
    [
        ({}, 0),
        ({"cancelled": 3, "cancelled_maybe_delivered": 1}, 0),
        ({"cancelled": 3, "in_flight": 1}, 6),
        ({"in_flight": 3}, 4),
        ({"unknown": 3}, 3),
        ({"unknown": 3, "in_flight": 1}, 4),
    ],
    ids=str,
)
def test_the_exit_code_of_many_answers(answers: dict[str, int], code: int) -> None:
    assert bulk.exit_code(Counter(answers)) == code


# printing


def stored(**more: Any) -> Stored:
    """A message as it is stored."""
    fields = {"state": State.DELAYED, "due_ms": 1_900_000_000_000, "priority": 0, "bucket": 3}
    return Stored(**{"id": "x", "destination": "kafka:t", "body": b"", **fields, **more})


HOSTILE = "\x1b[31m\u202e\r\n\x07\x9b"


def test_hostile_bytes_are_escaped_in_text_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    message = stored(
        id=HOSTILE,
        destination=HOSTILE,
        body=HOSTILE.encode(),
        headers=[(HOSTILE, HOSTILE), ("b", b"\xff\x1b")],
        properties={"app_id": HOSTILE},
        reason=HOSTILE,
        key=HOSTILE.encode(),
    )
    call = Invocation(output.Output())
    stored_page.show_stored(call, message, "text", 0)
    call.output.table(
        [message], lambda item: stored_page.cells_of(item, 0), data=stored_page.described
    )
    call.note(HOSTILE)
    stored_page.show_stored(Invocation(output.Output(json=True)), message, "text", 0)
    failure_of(StoreError(HOSTILE)).show(as_json=False)
    failure_of(StoreError(HOSTILE)).show(as_json=True)
    out, err = capsys.readouterr()
    for char in ("\x1b", "\u202e", "\x07", "\x9b", "\r"):
        assert char not in out + err
    assert "\\x1b[31m\\u202e" in out
    assert shown(f"log {HOSTILE}").count("\n") == 0


@pytest.mark.parametrize(
    ("body", "form", "expected"),
    [
        (b"a\tb\nc", "text", ["a\\x09b", "c"]),
        (b"\xff", "text", ["\\xff"]),
        (b'{"a":[1]}', "json", ["{", '  "a": [', "    1", "  ]", "}"]),
        (b"A\x00", "hex", ["00000000  41 00" + " " * 44 + "A."]),
    ],
)
def test_bodies(
    capsys: pytest.CaptureFixture[str], body: bytes, form: str, expected: list[str]
) -> None:
    stored_page.show_stored(Invocation(output.Output()), stored(body=body), form, 0)
    assert capsys.readouterr().out.splitlines()[-len(expected) :] == expected


@pytest.mark.parametrize("body", [b"{", b"\xff", b"[" * 100_000])
def test_a_body_that_is_not_json_is_refused(body: bytes) -> None:
    with pytest.raises(Failure, match="not JSON"):
        stored_page.show_stored(Invocation(output.Output()), stored(body=body), "json", 0)


def test_a_raw_body_is_only_its_bytes(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    stored_page.show_stored(Invocation(output.Output()), stored(body=b"\xff\x1b\n"), "raw", 0)
    assert capfdbinary.readouterr().out == b"\xff\x1b\n"


def test_a_raw_body_is_not_printed_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    with pytest.raises(Failure, match="control this terminal"):
        stored_page.show_stored(Invocation(output.Output()), stored(body=b"x"), "raw", 0)


def test_a_null_body_is_not_shown_as_an_empty_one(capsys: pytest.CaptureFixture[str]) -> None:
    for body in (None, b""):
        stored_page.show_stored(Invocation(output.Output()), stored(body=body), "text", 0)
    out = capsys.readouterr().out
    assert out.count("body is null") == 1


@pytest.mark.parametrize(
    ("env", "tty", "refused", "colored"),
    [
        ({"TERM": "xterm"}, True, False, True),
        ({"TERM": "xterm"}, False, False, False),
        ({"TERM": "xterm"}, True, True, False),
        ({"TERM": "xterm", "NO_COLOR": "1"}, True, False, False),
        ({"TERM": "xterm", "NO_COLOR": ""}, True, False, True),
        ({"TERM": "dumb"}, True, False, False),
        ({}, True, False, False),
    ],
)
def test_colour(
    monkeypatch: pytest.MonkeyPatch, env: dict[str, str], tty: bool, refused: bool, colored: bool
) -> None:
    monkeypatch.delenv("TERM", raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: tty)
    assert output.wants_color(refused=refused, stream=stream) is colored


def test_a_verdict_is_coloured_and_its_text_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    output.Output(color=True).verdict({}, output.FAIL, HOSTILE)
    out = capsys.readouterr().out
    assert out.startswith("\x1b[31mFAIL\x1b[0m  \\x1b[31m")
    assert out.count("\x1b") == 2


def show_table(rows: list[tuple[str, str]], *, number: str = "N") -> bool:
    """Print names and numbers as a table."""
    return output.Output().table(rows, lambda row: {"NAME": row[0], number: row[1]})


def test_tables_are_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    assert show_table([("a", "1"), ("long", "1000")], number=">N")
    assert capsys.readouterr().out == "NAME     N\na        1\nlong  1000\n"


def test_a_receipt_is_its_answer_and_shows_its_message() -> None:
    receipt = Receipt(Answer.CREATED, "a", 1_900_000_000_000, 3)
    assert receipt == "created"
    assert str(receipt) == f"{receipt}" == "created a due 2030-03-17T17:46:40.000Z"


TITLES = ("IN", "ID", "DESTINATION", ">TRY", "HEADERS", "REASON")
ROWS = [
    (
        "in 15m",
        "06ca3gjv7pui370b9dt0o79e7s",
        "rabbitmq:orders/close",
        "3",
        "order=42 shop=北京",
        "",
    ),
    ("2h ago", "order-" + "7" * 60, "kafka:t", "12", "", ""),
]


def fitted(width: int | None) -> list[str]:
    """A table on a terminal of that width."""
    rows = [dict(zip(TITLES, row, strict=True)) for row in ROWS]
    return layout.table(rows, ("HEADERS", ">TRY"), width)


@pytest.mark.parametrize(
    ("width", "left"),
    [
        *((width, []) for width in (32, 40, 60)),
        *((width, ["TRY"]) for width in (66, 80)),
        *((width, ["TRY", "HEADERS"]) for width in (100, 120, 200)),
    ],
)
def test_tables_fit_the_terminal_and_leave_out_the_least_important_columns(
    width: int, left: list[str]
) -> None:
    lines = fitted(width)
    assert max(map(cell_len, lines)) <= width
    assert len(lines) == 3
    assert lines[0].startswith("IN      ID")
    assert [title for title in ("TRY", "HEADERS") if title in lines[0]] == left


def test_tables_are_complete_in_a_pipe_or_if_they_fit() -> None:
    whole = fitted(None)
    assert fitted(200) == whole
    assert "order-" + "7" * 60 in whole[2]
    assert whole[1].endswith("shop=北京")


def test_ids_lose_their_middle_and_prose_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fitted(66)[1].split()[2] == "06ca3gjv7pui370b9dt0o79e7s"
    assert layout.shortened("06ca3gjv7pui370b9dt0o79e7s", 11) == "06ca3…9dt0"[:5] + "…" + "79e7s"
    assert layout.shortened("unroutable: 312 NO_ROUTE", 12) == "unroutable:…"
    assert layout.shortened("北京北京北京", 8) == "北京…京"
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), "ascii"))
    assert layout.shortened("06ca3gjv7pui370b9dt0o79e7s", 11) == "06ca...9e7s"


def test_wide_characters_are_two_cells(capsys: pytest.CaptureFixture[str]) -> None:
    show_table([("北京", "1"), ("abc", "2")])
    assert capsys.readouterr().out == "NAME  N\n北京  1\nabc   2\n"


def test_a_verdict_is_wrapped_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "redis: appendonly no: a restart loses delayed messages. Set: appendonly yes"
    output.Output().verdict({}, output.WARN, text)
    assert capsys.readouterr().out == f"WARN  {text}\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "50")
    output.Output().verdict({}, output.WARN, text)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert lines[1].startswith("      delayed")
    assert max(map(len, lines)) <= 50


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "in 0ms"),
        (41, "in 41ms"),
        (2345, "in 2.3s"),
        (41_600, "in 42s"),
        (59_970, "in 1m"),
        (251_600, "in 4m12s"),
        (899_001, "in 15m"),
        (5_399_000, "in 1h30m"),
        (86_399_000, "in 1d"),
        (604_799_000, "in 7d"),
        (-7_000, "7s ago"),
    ],
)
def test_times_are_rounded_as_people_round_them(ms: int, text: str) -> None:
    assert in_time(ms) == text


def test_an_empty_table_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert not show_table([])
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "cursor", [(1795197600450.9961, "a:b c"), (5.0, "é"), (1795197600450.0, "x")]
)
def test_cursors_survive_a_shell(cursor: tuple[float, str]) -> None:
    assert cursor_of(stored_page.cursor_text(cursor)) == cursor


def record(text: str, **extra: Any) -> logging.LogRecord:
    """A log record of a fixed time."""
    found = logging.makeLogRecord({"levelno": 30, "levelname": "WARNING", "msg": text, **extra})
    found.created = 1_900_000_000.25
    return found


def test_a_line_of_the_log_is_bounded_and_without_secrets() -> None:
    line = shown(f"lost url=redis://:{CANARY}@h reason={'x' * 1000}\nnext")
    assert CANARY not in line
    assert max(map(len, line.split(" "))) <= FIELD_CHARS + 3
    assert "\n" not in line
    assert len(shown("word " * 10_000)) <= LINE_CHARS + 3


def test_a_log_in_text_has_a_date() -> None:
    line = TextFormatter().format(record("lease_lost buckets=0-15"))
    assert line == "2030-03-17T17:46:40.250Z WARNING: lease_lost buckets=0-15"


def test_a_log_in_json_has_fields_bounded_and_without_secrets() -> None:
    fields = {"n": 3, "reason": f"redis://:{CANARY}@h " + "x" * 1000, "buckets": [1, 2]}
    line = JsonFormatter().format(record("retried n=3", event="retried", fields=fields))
    logged = json.loads(line)
    assert (logged["event"], logged["n"], logged["buckets"]) == ("retried", 3, [1, 2])
    assert (logged["ts"], logged["ts_ms"]) == ("2030-03-17T17:46:40.250Z", 1_900_000_000_250)
    assert len(logged["reason"]) <= FIELD_CHARS + 3
    assert CANARY not in line
    long = json.loads(JsonFormatter().format(record("word " * 10_000)))
    assert len(long["message"]) <= LINE_CHARS + 3


def test_a_traceback_in_the_log_is_bounded() -> None:
    def deep(left: int) -> None:
        if not left:
            raise ValueError("x" * 10_000)
        deep(left - 1) if left % 2 else deep(left - 1)

    try:
        deep(200)
    except ValueError:
        logged = json.loads(JsonFormatter().format(record("broken", exc_info=sys.exc_info())))
    assert len(logged["traceback"]) <= 60
    assert max(map(len, logged["traceback"])) <= FIELD_CHARS + 3
    assert logged["traceback"][-1].startswith("ValueError: xxx")


# exit codes


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
        (FileNotFoundError(2, "No such file", "x"), 1, "os_error"),
    ],
)
def test_exit_code_by_error(error: Exception, code: int, word: str) -> None:
    report = failure_of(error)
    assert (report.exit, report.code) == (code, word)


def test_all_faults_of_the_settings_are_shown(run: Run) -> None:
    Path("delaybridge.toml").write_text("bukets = 1\n[scan]\nprocesses = 0\n")
    result = run("stats")
    assert result.code == 2
    assert len(result.err.splitlines()) == 2
    error = json.loads(run("--json", "stats").err)["error"]
    assert len(error["messages"]) == 2


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
    assert "Traceback (most recent call last)" in loud.err
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
    script = "import os, sys; from delaybridge import cli; cli.main(['--version'])"
    script += "; sys.exit(os.get_inheritable(2) and os.dup(2))"
    closed = ["sh", "-c", 'exec "$@" 0<&- 1>&- 2>&-', "sh", sys.executable, "-c", script]
    assert subprocess.run(closed, timeout=DEADLINE_S, check=False).returncode == 3


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_stdout_full(unbuffered: str) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "delaybridge", "config", "show"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=DEADLINE_S,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )
    assert done.stderr == "error: input/output: No space left on device\n"
    assert done.returncode == 1


def test_argv_that_is_not_utf8() -> None:
    result = spawn(*NOWHERE, "message", "show", b"\xff\xfe")
    assert result.code == 2
    assert result.err == "error: id: not valid UTF-8 (bad_id)\n"


def test_a_cursor_that_is_not_utf8() -> None:
    result = spawn(*NOWHERE, "message", "ls", "--cursor", b"1:\xff")
    assert result.code == 2
    assert result.err.startswith("error: --cursor: got '1:\\udcff'")


def test_c_locale() -> None:
    Path("delaybridge.toml").write_text('namespace = "é"\n')
    plain = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONCOERCECLOCALE": "0"}
    result = spawn("stats", env=plain)
    assert result.code == 2
    assert "namespace: got 'é'; allowed" in result.err


# settings


def test_the_output_of_config_show_is_a_settings_file_with_the_same_values(run: Run) -> None:
    flags = ("--namespace", "n", "--broker", "amqp://h/%2F", "--broker", "eu=kafka://h:9092")
    text = run(*flags, "config", "show").out
    Path("shown.toml").write_text(text)
    assert run("--config", "shown.toml", "config", "show").out == text
    assert 'rabbitmq = "amqp://h/%2F"' in text
    assert 'eu = "kafka://h:9092"' in text


def test_config_show_sources(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELAYBRIDGE_LEASE__RENEW_MS", "3000")
    monkeypatch.setenv("DELAYBRIDGE_REDIS_URL", f"redis://:{CANARY}@h")
    out = run("--namespace", "n", "config", "show", "--sources").out
    assert 'namespace = "n"  # --namespace' in out
    assert "renew_ms = 3000  # DELAYBRIDGE_LEASE__RENEW_MS" in out
    assert 'url = "redis://:***@h"  # DELAYBRIDGE_REDIS_URL' in out
    assert "ttl_ms = 10000  # default" in out
    listed = [json.loads(line) for line in run("--json", "config", "show").out.splitlines()]
    assert {"key": "buckets", "value": 16, "source": "default"} in listed
    assert CANARY not in json.dumps(listed)


def test_config_check(run: Run) -> None:
    fine = run("config", "check")
    assert (fine.code, fine.out) == (0, "ok    from defaults only\n")
    risky = run("--redis", f"redis://:{CANARY}@10.1.2.3", "config", "check")
    assert risky.code == 0
    assert "WARN  redis.url: redis://:***@10.1.2.3: not encrypted" in risky.out
    assert json.loads(run("--json", "config", "check").out)["ok"] is True
    assert run("--namespace", "a b", "config", "check").code == 2


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("kafka://u:{}@h?acks=1", "acks is fixed, because confirms depend on it; leave it out"),
        (
            "kafka://u:{}@h?linger=1",
            "'linger' is not an option of a Kafka URL; did you mean linger.ms",
        ),
        ("kafka://u:{}@h?linger.ms=x", "Invalid value"),
        (
            "amqp://u:{}@h/?foo=1",
            "'foo' is not an option of a RabbitMQ URL; leave it out; known are",
        ),
        ("amqp://u:{}@h/?hartbeat=1", "did you mean heartbeat?"),
        ("amqp://u:{}@h/?heartbeat=x", "does not take the value of heartbeat; correct it"),
        ("kombu+nope://u:{}@h", "kombu has no transport 'nope'; use a scheme of kombu's own URLs"),
        ("kombu+reddis://u:{}@h", "did you mean kombu+redis://?"),
        ("redis://u:{}@h?maxlen=0", "maxlen"),
    ],
)
def test_a_broker_url_that_a_worker_could_not_use_is_refused_by_the_check_and_at_the_start(
    run: Run, monkeypatch: pytest.MonkeyPatch, url: str, says: str
) -> None:
    monkeypatch.setenv("DELAYBRIDGE_BROKERS__EU", url.format(CANARY))
    nowhere = ("--redis", "redis://127.0.0.1:1")  # asked for nothing
    refused = run("config", "check")
    assert refused.code == 2
    assert "brokers.eu: " in refused.err
    assert says in refused.err
    assert CANARY not in refused.err
    assert run(*nowhere, "scan").err == refused.err
    assert run(*nowhere, "scan").code == 2


# health and doctor


def stats(*, owners: list[str | None], overdue_ms: int = 0, delayed: int = 0) -> Stats:
    """Stats with these owners of the buckets."""
    buckets = [
        BucketStats(i, delayed, 0, 0, 0, None, overdue_ms, owner, 1000)
        for i, owner in enumerate(owners)
    ]
    return Stats(0, delayed, 0, 0, 0, None, overdue_ms, buckets, [])


class FakeStats:
    """A client whose stats come from a list, the last one repeated."""

    def __init__(self, *answers: Stats) -> None:
        self.answers = list(answers)
        self.recurring = self  # without definitions

    def list(self) -> list[Any]:
        """No recurring definition."""
        return []

    def stats(self) -> Stats:
        """The next one."""
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def run(self, call: object) -> list[Any]:
        """Nothing that durability lacks."""
        return []

    def __enter__(self) -> FakeStats:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(
    ("answers", "args", "code", "says"),
    [
        ([stats(owners=["w", "w"])], (), 0, "ok    every bucket has its worker"),
        ([stats(owners=["w", None])], (), 1, "1 of 2 buckets have no worker"),
        ([stats(owners=["w"], overdue_ms=6000)], (), 1, "6s overdue, over 5s"),
        ([stats(owners=["w"], overdue_ms=6000)], ("--max-overdue", "10s"), 0, "ok"),
        ([stats(owners=[None]), stats(owners=["w"])], ("--max-unowned", "2s"), 0, "ok"),
        ([stats(owners=[None])], ("--max-unowned", "20ms"), 1, "1 of 1 buckets"),
    ],
)
def test_health(
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    answers: list[Stats],
    args: tuple[str, ...],
    code: int,
    says: str,
) -> None:
    monkeypatch.setattr(health, "_LOOK_AGAIN_S", 0.001)
    monkeypatch.setattr(Invocation, "client", lambda self, reads: FakeStats(*answers))
    result = run("health", *args)
    assert result.code == code
    assert says in result.out
    as_json = run("--json", "health", *args)
    assert json.loads(as_json.out)["healthy"] is (code == 0)


def ingesting(
    state: str, *, age_ms: int = 100_000, name: str = "orders.delay", **counts: int
) -> Stats:
    """Stats with one source of one ingest process."""
    source = SourceInfo(f"rabbitmq:{name}", "rabbitmq:orders", state, 9, 0, 0, None, 0.0, **counts)
    process = IngestInfo("i", "host", 1, "0", -age_ms, [source], 1000)
    return stats(owners=["w"])._replace(ingests=[process])


UNREAD = "no ingest process reads rabbitmq:orders.delay"


@pytest.mark.parametrize(
    ("found", "fault"),
    [
        (ingesting("reading"), ""),
        (ingesting("idle: other processes read it"), ""),
        (ingesting("starting", age_ms=1000), ""),
        (ingesting("starting"), "rabbitmq:orders.delay is not read: starting"),
        (ingesting("403 ACCESS_REFUSED"), "rabbitmq:orders.delay is not read: 403 ACCESS_REFUSED"),
        (stats(owners=["w"]), UNREAD),
        (ingesting("reading", name="pay.delay"), UNREAD),
    ],
)
def test_health_and_doctor_check_that_sources_are_read(
    run: Run, monkeypatch: pytest.MonkeyPatch, found: Stats, fault: str
) -> None:
    monkeypatch.setenv("DELAYBRIDGE_INGEST__EXCHANGES", "orders.delay")
    monkeypatch.setenv("DELAYBRIDGE_BROKERS__RABBITMQ", "amqp://127.0.0.1:1")
    monkeypatch.setattr(Invocation, "client", lambda self, reads: FakeStats(found))
    result = run("--json", "health")
    assert json.loads(result.out)["faults"] == ([fault] if fault else [])
    assert result.code == bool(fault)
    listed = problems(found, Settings.load(), alone=(), max_overdue_ms=0)
    levels = {finding.level for finding in [*listed, *sources.reading(found)]}
    assert ("FAIL" in levels) is ("is not read" in fault)
    assert ("WARN" in levels) is (fault == UNREAD)


def test_doctor_names_the_changes_that_producers_should_make() -> None:
    found = ingesting("reading", without_id=3, refused=2)
    told = [finding.text for finding in sources.reading(found) if finding.level == "WARN"]
    assert "3 messages without an id" in told[0]
    assert "2 cancels or reschedules" in told[1]


class FakeStore:
    """Replies by name of the command."""

    def __init__(self, *, version: str = "7.0.15", policy: str = "noeviction", aof: str = "1"):
        self.ahead_us = 0
        self.info = {
            "server": {"redis_version": version},
            "memory": {"maxmemory_policy": policy},
            "persistence": {"aof_enabled": aof},
            "replication": {},
        }

    def run(self, asked: Any) -> list[Any]:
        """INFO and TIME."""
        return [
            time.time_ns() // 1000 + self.ahead_us if c.name == "TIME" else self.info[c.args[0]]
            for c in asked
        ]

    run_each = run

    def nodes(self) -> list[str]:
        """One server."""
        return [""]


@pytest.mark.parametrize(
    ("server", "level", "says"),
    [
        ({}, "ok", "redis 7.0.15"),
        ({"version": "6.2.0"}, "ok", "redis 6.2.0"),
        ({"version": "6.0.16"}, "FAIL", "too old; 6.2 or newer"),
        ({"version": "2.8"}, "FAIL", "too old"),
        ({"version": "7.2.4"}, "WARN", "Upgrade: redis 7.2.11 or newer"),
        ({"policy": "allkeys-lru"}, "FAIL", "maxmemory-policy allkeys-lru"),
        ({"aof": "0"}, "WARN", "appendonly no"),
    ],
)
def test_doctor_looks_at_the_server(server: dict[str, str], level: str, says: str) -> None:
    store: Any = FakeStore(**server)
    found = [f.level for f in servers.servers(store, Settings.load()) if says in f.text]
    assert found == [level]


@pytest.mark.parametrize(
    ("ahead_ms", "level"), [(0, "ok"), (1500, "ok"), (2500, "WARN"), (-2500, "WARN")]
)
def test_doctor_looks_at_the_clock(ahead_ms: int, level: str) -> None:
    store: Any = FakeStore()
    store.ahead_us = ahead_ms * 1000
    (found,) = [f for f in findings._clock(store) if f.about == "clock"]
    assert found.level == level
    assert ("behind" if ahead_ms > 0 else "ahead of") in found.text or ahead_ms == 0


@pytest.mark.parametrize(
    "name", [n for p in cli.root.params for n in p.opts if p.name != "version"]
)
def test_a_global_option_behind_the_command_is_named_with_its_place(run: Run, name: str) -> None:
    refused = run("message", "show", "a", name)
    if name != "--json":
        assert refused.err.splitlines()[-1].startswith(f"error: {name}: ")
        assert f"It goes before the command: delaybridge {name} ..." in refused.err


@pytest.mark.parametrize(
    ("args", "field"),
    [
        (["ingest", "kafka", "--topic", b"\xff.delay"], "--topic: ingest.topics"),
        (
            ["ingest", "rabbitmq", "--exchange", "x" * 300 + ".delay"],
            "--exchange: ingest.exchanges",
        ),
        (["ingest", "rabbitmq", "--exchange", b"\xff.delay"], "--exchange: ingest.exchanges"),
        (["ingest", "rabbitmq", "--exchange", "a.delay", "--name", b"\xff"], "--name"),
        (["scan", "--name", b"\xff"], "--name"),
    ],
    ids=["topic", "long exchange", "exchange", "name of ingest", "name of a worker"],
)
def test_invalid_names_are_refused_before_anything_starts(
    args: list[str | bytes], field: str
) -> None:
    brokers = ["--broker", "amqp://127.0.0.1:1", "--broker", "kafka://127.0.0.1:1"]
    result = spawn(*NOWHERE, *brokers, *args)
    assert (result.code, result.out) == (2, "")
    assert field in result.err


@pytest.mark.parametrize(
    ("name", "fixed"),
    [
        ("redis 6.2.19", "redis 6.2.20 or newer"),
        ("redis 6.2.20", None),
        ("redis 7.0.15", "redis 7.2.11 or newer"),
        ("redis 8.2.1", "redis 8.2.2 or newer"),
        ("redis 8.4.0", None),
        ("valkey 8.1.3", "valkey 8.1.4 or newer"),
        ("valkey 9.1.2", None),
        ("KeyDB 6.3.4", None),
        ("redis ?", None),
    ],
)
def test_doctor_knows_which_servers_have_holes_in_lua(name: str, fixed: str | None) -> None:
    from delaybridge.doctor.servers import lua_fixed_in

    assert lua_fixed_in(name) == fixed
