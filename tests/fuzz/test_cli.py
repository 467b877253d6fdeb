"""Any words after `delaybridge`: a documented exit code, one line on stderr, never a traceback."""

from __future__ import annotations

import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import click
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from delaybridge.operate import cli
from delaybridge.operate.terminal.failure import Exit

calm = settings(deadline=None, suppress_health_check=[*HealthCheck])
ENDLESS = {"scan", "ingest", "serve", "demo", "tail"}
# Tested elsewhere, would wait, or show tracebacks.
LEFT_OUT = {"--redis", "--max-unowned", "-v", "--verbose", "-i", "--interval"}
HOSTILE = (
    "", " ", "-", "--", "-5", "\0", "\x1b[2J", "\u202e", "\udcff\udcfe", "é", "٥", "a\nb",
    "1_000", "5s", "1h", "NaN", "1e999", "9" * 400, "-1", "0", "x" * 300, "{x}", "a=b", "=", "*",
    "rabbitmq:/q", "kafka:t", "kafka:..", "amqp://h", "2030-01-01T00:00:00Z", "1:a", "1:\udcff",
    "9" * 15 + ":x", "0.5:\0", "1795197600450", "dead", "parked", "a", "b",
)  # fmt: skip


def words(command: click.Command = cli.root) -> tuple[list[tuple[str, ...]], list[str]]:
    """Every command that ends by itself, and every option."""
    paths: list[tuple[str, ...]] = []
    options = {name for param in command.params for name in param.opts if name.startswith("-")}
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in set(command.list_commands(context)) - ENDLESS:
            _, inner, _ = command.resolve_command(context, [name])
            assert inner is not None
            below, more = words(inner)
            paths += [(name, *path) for path in below or [()]]
            options.update(more)
    return sorted(paths), sorted(options - LEFT_OUT)


COMMANDS, OPTIONS = words()
TEXTS = st.sampled_from(HOSTILE) | st.text(max_size=20)


def run(*args: str, stdin: bytes = b"") -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command line in this process."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2))
    before, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(stdin))
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = cli.main([*args])
    finally:
        sys.stdin = before
    texts = []
    for stream in (out, err):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode())  # type: ignore[attr-defined]
    return code, texts[0], texts[1]


@pytest.fixture(scope="module", autouse=True)
def elsewhere(tmp_path_factory: pytest.TempPathFactory, redis_url: str) -> Path:
    """A working directory without settings."""
    folder = tmp_path_factory.mktemp("cli")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder


@calm
@given(
    st.sampled_from(COMMANDS),
    st.lists(st.sampled_from(OPTIONS) | TEXTS, max_size=6),
    st.booleans(),
    st.binary(max_size=40),
)
def test_any_command_line_ends_with_a_documented_exit_code(
    redis_url: str, command: tuple[str, ...], rest: list[str], as_json: bool, stdin: bytes
) -> None:
    flags = ["--redis", redis_url, "--namespace", "fuzz-cli", *(["--json"] if as_json else [])]
    code, out, err = run(*flags, *command, *rest, stdin=stdin)
    assert code in set(Exit)
    assert "internal" not in err
    assert "Traceback" not in err
    assert "\x1b" not in err
    assert "\x1b" not in out
    if as_json and code in (Exit.REFUSED, Exit.NOT_FOUND, Exit.CONFLICT, Exit.UNREACHABLE):
        assert all(json.loads(line) for line in err.splitlines())


@calm
@given(st.sampled_from(["show", "check"]), st.dictionaries(TEXTS, TEXTS, max_size=3), st.binary())
def test_any_file_of_settings_is_read_or_refused(
    elsewhere: Path, verb: str, texts: dict[str, str], raw: bytes
) -> None:
    lines = "".join(f"{name} = {value}\n" for name, value in texts.items())
    for content in (lines.encode(errors="replace"), raw):
        (elsewhere / "fuzz.toml").write_bytes(content)
        code, _, err = run("--config", "fuzz.toml", "config", verb)
        assert code in (Exit.DONE, Exit.REFUSED)
        assert "internal" not in err


def test_a_redis_database_that_does_not_exist_is_reported(redis_url: str) -> None:
    code, out, err = run("--redis", f"{redis_url.rpartition('/')[0]}/99", "stats")
    assert (code, out) == (Exit.UNREACHABLE, "")
    assert err.startswith("error: redis: ")
