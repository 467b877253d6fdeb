"""docs/cli.md, made of every --help: `python -m delaybridge.cli.reference > docs/cli.md`."""

from __future__ import annotations

from collections.abc import Iterator

import click

from delaybridge.cli import root
from delaybridge.cli.grammar import HELP_NAMES

_WIDTH = 88
_HEAD = """\
# The command line

Generated from `--help`: `python -m delaybridge.cli.reference > docs/cli.md`. A test compares them.

| exit code | means |
|---|---|
| 0 | done; also a drained `scan`, and a reader that closed stdout |
| 1 | failed: the verdict of `demo`, `health` or `doctor` is no; `scan` could not give its leases \
back; or a bug in delaybridge |
| 2 | usage, settings or input refused: nothing was done |
| 3 | not found |
| 4 | conflict: in flight, same id with other content, name taken |
| 5 | Redis or broker unreachable, refused us, or full |
| 6 | partly done (bulk): the output says which |
| 130 | interrupted |

An error is one line on stderr, `error: FIELD: WHAT; REMEDY`. With `--json` it is
`{"error": {"code": ..., "message": ..., "field": ...}}`, also on stderr, and every result is one
object per line on stdout; `next` (the cursor of a list that goes on) and `summary` (of `--lines`,
and of a verb by filter) are objects on stderr.

The log of `scan` and `ingest` is on stderr, one line an event: its time, its name and `key=value`;
with `--json` an object with `ts`, `ts_ms`, `level`, `event` and the event's fields (`n`,
`destination`, `reason`, `lateness_ms`, `buckets`, ...). What comes in masses is summed up once a
second.

On a terminal, tables fit its width: long cells are cut (ids in the middle), and the columns that
matter least are left out. In a pipe or a file they are whole; times (`in 15m`) are rounded in both,
`--json` has them in ms.
"""


def reference() -> str:
    """The whole page."""
    context = click.Context(
        root, info_name="delaybridge", terminal_width=_WIDTH, help_option_names=HELP_NAMES
    )
    return "\n".join([_HEAD, *_pages(context)])


def _pages(context: click.Context) -> Iterator[str]:
    yield f"## {context.command_path}\n\n```text\n{context.command.get_help(context)}\n```\n"
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            command = context.command.get_command(context, name)
            if command is not None:
                yield from _pages(
                    click.Context(command, info_name=name, parent=context, terminal_width=_WIDTH)
                )


if __name__ == "__main__":
    click.echo(reference(), nl=False)
