"""How command lines are read: groups, commands and the options that several commands share."""

from __future__ import annotations

import difflib
import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import click

from delaybridge.cli.failure import Exit, Failure
from delaybridge.cli.session import Session
from delaybridge.errors import printable

F = TypeVar("F", bound=Callable[..., Any])

HELP_NAMES = ["-h", "--help"]
CONTEXT = {"help_option_names": HELP_NAMES, "max_content_width": 100}
COMPLETE_VARIABLE = "_DELAYBRIDGE_COMPLETE"  # set by a shell that asks for completions
PAGE_LIMIT = 500
NAME_BYTES = 200
_CURSOR = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,17})?):(.+)", re.DOTALL)
pass_session = click.make_pass_decorator(Session)


class JsonAnywhere(click.Command):
    """A command that also accepts `--json` after its name."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Its own, and a `--json` that --help does not show."""
        own = super().get_params(ctx)
        known = any("--json" in param.opts for param in own)
        return own if known else [*own, _JSON]


def _ask_for_json(ctx: click.Context, _param: click.Parameter, asked: bool) -> None:
    session = ctx.find_object(Session)
    if asked and session is not None:
        session.output = replace(session.output, json=True)


_JSON = click.Option(
    ["--json"], is_flag=True, expose_value=False, hidden=True, callback=_ask_for_json
)


class Command(JsonAnywhere):
    """A command that refuses an option given twice instead of dropping one of the two values."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does, after the check."""
        if not ctx.resilient_parsing:
            refuse_twice(self, ctx, args)
        return super().parse_args(ctx, args)


class Group(JsonAnywhere, click.Group):
    """A noun: without a verb it shows its help; an unknown verb is answered with similar ones."""

    command_class = Command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does; without arguments it shows the help."""
        if ctx.resilient_parsing:  # a shell asks for completions
            return super().parse_args(ctx, args)
        if not args:
            click.echo(ctx.get_help(), err=True)
            ctx.exit(Exit.REFUSED)
        verb = refuse_twice(self, ctx, args)
        rest = super().parse_args(ctx, args)
        if not verb:
            what = f"missing; one of {', '.join(self.list_commands(ctx))}"
            raise Failure(Exit.REFUSED, "usage", "command", what)
        return rest

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order in which they are defined."""
        return [*self.commands]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The verb that the first argument names."""
        name = args[0]
        command = self.get_command(ctx, name)
        if command is None and not ctx.resilient_parsing:
            known = self.list_commands(ctx)
            near = difflib.get_close_matches(name, known, n=2)
            hint = f"did you mean {' or '.join(near)}?" if near else f"one of {', '.join(known)}"
            raise Failure(Exit.REFUSED, "usage", name, f"no such command; {hint}")
        return name, command, args[1:]


def refuse_twice(command: click.Command, ctx: click.Context, args: Sequence[str]) -> list[str]:
    """The arguments after the options. Failure if an option that takes one value is given twice."""
    _, left, order = command.make_parser(ctx).parse_args(args=list(args))
    for param, count in Counter(order).items():
        single = isinstance(param, click.Option) and not (param.multiple or param.is_flag)
        if single and count > 1:
            name = max(param.opts, key=len)
            raise Failure(Exit.REFUSED, "usage", name, f"given {count} times; give it once")
    return left


def as_duration_ms(_ctx: click.Context, param: click.Parameter, text: str | None) -> int | None:
    """An option's callback: `15m` in ms."""
    from delaybridge.times import delay_ms

    return None if text is None else delay_ms(text, field=param.opts[0])


def as_time_ms(_ctx: click.Context, param: click.Parameter, text: str | None) -> int | None:
    """An option's callback: an RFC 3339 time in epoch ms."""
    from delaybridge.times import at_ms

    return None if text is None else at_ms(text, field=param.opts[0])


def as_bytes(_ctx: click.Context, _param: click.Parameter, text: str | None) -> bytes | None:
    """An option's callback: the bytes that were given."""
    return None if text is None else os.fsencode(text)


key_option = click.option(
    "-k",
    "--key",
    metavar="KEY",
    callback=as_bytes,
    help="Search only the bucket of this key. [default: all buckets]",
)
destination_option = click.option(
    "--destination", metavar="D", help="Only messages to exactly this destination."
)
due_from_option = click.option(
    "--due-from",
    metavar="TIME",
    callback=as_time_ms,
    help="Only messages due at this time or later.",
)
due_to_option = click.option(
    "--due-to",
    metavar="TIME",
    callback=as_time_ms,
    help="Only messages due at this time or earlier.",
)
body_option = click.option(
    "--body",
    "form",
    type=click.Choice(["text", "json", "hex", "raw"]),
    default="text",
    show_default=True,
    help="How the body is printed; raw: only its bytes.",
)


def page_options(function: F) -> F:
    """`--limit` and `--cursor` of every list."""
    limit = click.option(
        "--limit",
        metavar="N",
        type=click.IntRange(min=1),
        default=50,
        show_default=True,
        help=f"How many to list, {PAGE_LIMIT} at most.",
    )
    cursor = click.option(
        "--cursor",
        metavar="CURSOR",
        callback=lambda _ctx, _param, text: None if text is None else parse_cursor(text),
        help="Continue a list: the cursor printed at its end.",
    )
    return limit(cursor(function))


def name_option(help: str) -> Callable[[F], F]:
    """`--name` of a process: printable UTF-8, since it is shown in lists and stored in Redis."""

    def check(ctx: click.Context, param: click.Parameter, name: str | None) -> str | None:
        if name is not None and not (name.isprintable() and 0 < len(name.encode()) <= NAME_BYTES):
            what = (
                f"got {printable(name[:80])!r}; allowed: 1 to {NAME_BYTES} bytes, printable UTF-8"
            )
            raise Failure(Exit.REFUSED, "config", "--name", what)
        return name

    return click.option("--name", metavar="W", callback=check, help=help)


def parse_cursor(text: str) -> tuple[float, str]:
    """`1795197600450.99:ID` as lists print it."""
    found = _CURSOR.fullmatch(text)
    if found is None or not found[2].isprintable():
        raise Failure(
            Exit.REFUSED, "bad_cursor", "--cursor", f"got {text[:80]!r}; copy it from the list"
        )
    return float(found[1]), found[2]


def text_or_bytes(text: str) -> str | bytes:
    """A command line argument: text if it is UTF-8, else bytes."""
    raw = os.fsencode(text)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw
