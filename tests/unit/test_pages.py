"""Each block of code on a page is run by a test, read by one, or marked as output."""

from __future__ import annotations

import ast
import configparser
import contextlib
import io
import json
import re
import shlex
import tomllib
from collections import Counter
from pathlib import Path

import click
import pytest
import yaml

from delaybridge.operate.cli import root
from delaybridge.settings.settings import Settings
from tests.rigs.fleet import ROOT
from tests.rigs.pages import (
    NOT_RUN,
    PAGES,
    READ,
    RUN_BY,
    SHOWN,
    Block,
    calls,
    commands_in_sentences,
    every_block,
    indented,
)

BLOCKS = [block for page in PAGES for block in every_block(page)]
RUN_BY_PAGE = {"console", "python", "sh"}  # by tests/acceptance/test_pages.py


def test_each_block_is_run_by_a_test_or_says_that_it_is_output() -> None:
    for block in BLOCKS:
        known = SHOWN | READ | RUN_BY_PAGE
        place = block.page, block.language
        assert block.language in known or place in RUN_BY or place in NOT_RUN, (
            f"{block}: it needs a test in RUN_BY (tests/rigs/pages.py), or ```text for output"
        )


def test_each_block_is_fenced() -> None:
    assert {page: found for page in PAGES if (found := indented(page))} == {}


def test_who_adds_a_block_looks_whether_its_page_s_test_runs_it() -> None:
    """Then counts it in tests/rigs/pages.py. A page without a row there runs as a whole."""
    found = Counter((block.page, block.language) for block in BLOCKS)
    told = {place: number for place, (number, _) in (RUN_BY | NOT_RUN).items()}
    assert {place: found[place] for place in told} == told
    for (page, _), (_, test) in RUN_BY.items():
        assert page.rpartition("/")[2] in (ROOT / test).read_text(), f"{test}: {page}"


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language in READ], ids=str)
def test_a_file_on_a_page_can_be_read(block: Block, tmp_path: Path) -> None:
    if block.language == "json":
        assert [json.loads(line) for line in block.code.splitlines()]
    elif block.language == "yaml":
        assert all(yaml.safe_load_all(block.code))
    elif block.language == "toml":
        if "project" not in tomllib.loads(block.code):  # of another package
            (tmp_path / "delaybridge.toml").write_text(block.code)
            Settings.load(tmp_path / "delaybridge.toml", environ={})
    else:
        configparser.ConfigParser(strict=False).read_string(block.code)


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language == "python"], ids=str)
def test_a_program_on_a_page_is_python(block: Block) -> None:
    assert ast.parse(block.code).body


def check(args: list[str]) -> None:
    """Let each group and command read its arguments, without a call."""
    context = root.make_context("delaybridge", [*args])
    while isinstance(context.command, click.Group) and (
        rest := [*context._protected_args, *context.args]
    ):
        name, command, rest = context.command.resolve_command(context, rest)
        assert command is not None
        context = command.make_context(name, rest, parent=context)


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_are_understood(page: str) -> None:
    for block in every_block(page):
        if block.language in ("sh", "console"):
            for call in calls(block.code):
                with contextlib.suppress(click.exceptions.Exit):  # after --help
                    with contextlib.redirect_stdout(io.StringIO()):
                        check(call)


# A command in a sentence may lack what it would need to run.
IN_PART = (
    click.exceptions.Exit, click.exceptions.NoArgsIsHelpError,
    click.MissingParameter, click.BadParameter, click.BadOptionUsage,
)  # fmt: skip


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_in_the_sentences_of_a_page_exist(page: str) -> None:
    for command in commands_in_sentences(page):
        with contextlib.suppress(*IN_PART), contextlib.redirect_stdout(io.StringIO()):
            check(shlex.split(command))


def test_the_pages_name_extras_that_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for page in PAGES:
        named = re.findall(r"delaybridge\[([\w,-]+)\]", (ROOT / page).read_text())
        extras = {extra for names in named for extra in names.split(",")}
        assert extras <= project["optional-dependencies"].keys(), page
