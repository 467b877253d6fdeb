"""The help, the version, completion, and where options go."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest

from delaybridge import __version__
from delaybridge.operate import cli
from tests.rigs.command_line import Run
from tools.reference import reference


def imported_by(code: str, **environment: str) -> tuple[str, set[str]]:
    """What a program prints that uses the command line `c`, and the modules that it imports."""
    program = f"import sys, delaybridge.operate.cli as c; {code}; print('\\n', *sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    printed, _, modules = done.stdout.rpartition("\n ")
    return printed, set(modules.split())


def test_importing_the_command_line_imports_nothing_heavy() -> None:
    heavy = {*"redis pika confluent_kafka pydantic rich msgspec asyncio".split()}
    assert not imported_by("0")[1] & {*heavy, "delaybridge.settings.settings"}


def test_help_of_the_whole_imports_no_command() -> None:
    _, used = imported_by("c.main(['--help'])")
    assert not [name for name in used if name.startswith("delaybridge.operate.cli.messages.")]
    assert "delaybridge.operate.terminal.output" in used


def test_the_list_of_commands_repeats_each_command_s_own_help() -> None:
    context = click.Context(cli.root)
    for name, (_, about) in cli.COMMANDS.items():
        _, command, _ = cli.root.resolve_command(context, [name])
        assert command is not None
        if isinstance(command, click.Group):
            assert (command.help or "").splitlines()[0] == about


def test_the_earlier_words_of_the_ledger_work_and_nothing_lists_them(run: Run) -> None:
    for word in ("restore", "purge"):
        earlier, now = run(word, "--help"), run("ledger", word, "--help")
        assert earlier.code == 0
        assert earlier.out.splitlines()[1:] == now.out.splitlines()[1:]
        assert not re.search(rf"^  {word} ", run("--help").out, re.MULTILINE)


def test_the_reference_has_every_command_and_its_help() -> None:
    page = reference()
    titles = [f"## {' '.join(['delaybridge', *path])}" for path in every_command()]
    assert [line for line in page.splitlines() if line.startswith("## ")] == titles
    assert "  --redis URL " in page


def every_command(
    command: click.Command = cli.root, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, ...]]:
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
    assert run("--version").out == f"delaybridge {__version__}\n"


@pytest.mark.parametrize("path", [(), ("message",), ("dead",), ("worker",), ("config",)])
def test_a_noun_alone_shows_its_help(run: Run, path: tuple[str, ...]) -> None:
    result = run(*path)
    assert (result.code, result.out) == (2, "")
    assert ("Commands:" if path else "Steer:") in result.err


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
        (("res",), ()),
        (("pu",), ()),
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
        script = run("completion", shell)
        assert (script.code, script.err) == (0, "")
        assert f"_DELAYBRIDGE_COMPLETE={shell}_complete" in script.out


def test_completing_a_command_imports_no_command() -> None:
    asked = {"_DELAYBRIDGE_COMPLETE": "bash_complete", "COMP_WORDS": "delaybridge m"}
    printed, used = imported_by("c.main([])", **asked, COMP_CWORD="1")
    assert "plain,message" in printed
    assert "delaybridge.operate.cli.messages.messages" not in used


@pytest.mark.parametrize(
    "name", [n for p in cli.root.params for n in p.opts if p.name != "version"]
)
def test_a_global_option_behind_the_command_is_named_with_its_place(run: Run, name: str) -> None:
    refused = run("message", "show", "a", name)
    if name != "--json":
        assert refused.err.splitlines()[-1].startswith(f"error: {name}: ")
        assert f"before the command: delaybridge {name} ..." in refused.err
