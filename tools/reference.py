"""The page of every command, which the site has, made of every --help."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click

from delaybridge.operate.cli import root
from delaybridge.operate.terminal.grammar import HELP_NAMES

_WIDTH = 88
_ITSELF = re.compile(r"^  -h, --help +Show this message and exit\.\n?", re.MULTILINE)
_HEAD = """\
# Commands

Every command with its options, as `--help` prints them. `-h` and `--help` work with each.

An error is one line on stderr, `error: FIELD: FAULT AND REMEDY`. With `--json` it is
`{"error": {"code": ..., "message": ..., "field": ...}}`, also on stderr, and every result is one
object per line on stdout. Two objects go to stderr: `next`, the cursor of a list that continues,
and `summary`, the counts of `--lines` or of a command with filters.

The log of `scan` and `ingest` is on stderr, one line per event: its time, its name and `key=value`.
With `--json` it is an object with `ts`, `ts_ms`, `level`, `event` and the event's fields (`n`,
`destination`, `reason`, `lateness_ms`, `buckets`, ...). Frequent events are summed up once a
second.

On a terminal, tables fit its width: long cells are cut (ids in the middle), and the least important
columns are left out. In a pipe or a file, tables are complete. Times (`in 15m`) are rounded in
both; `--json` has them in ms.
"""


def reference() -> str:
    """The whole page."""
    context = click.Context(
        root, info_name="delaybridge", terminal_width=_WIDTH, help_option_names=HELP_NAMES
    )
    return "\n".join([_HEAD, *_pages(context)])


def _pages(context: click.Context) -> Iterator[str]:
    yield f"## {context.command_path}\n\n```text\n{_help(context)}\n```\n"
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            _, command, _ = context.command.resolve_command(context, [name])
            if command is not None:
                yield from _pages(
                    click.Context(command, info_name=name, parent=context, terminal_width=_WIDTH)
                )


def _help(context: click.Context) -> str:
    """What `--help` prints, without what each says, and lists of commands that follow anyway."""
    text = _ITSELF.sub("", context.command.get_help(context))
    whole = text if context.parent is None else text.partition("\n\nCommands:\n")[0]
    return whole.rstrip().removesuffix("Options:").rstrip()


if __name__ == "__main__":
    click.echo(reference(), nl=False)
