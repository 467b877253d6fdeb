"""How command lines are read: groups, commands, types, and options of several commands."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import click

from delaybridge import late
from delaybridge.errors import nearest, printable
from delaybridge.operate.terminal.failure import refused
from delaybridge.operate.terminal.invocation import Invocation

Function = Callable[..., Any]
Decorator = Callable[[Function], Function]

HELP_NAMES = ["-h", "--help"]
CONTEXT = {"help_option_names": HELP_NAMES, "max_content_width": 100}
COMPLETE_VARIABLE = "_DELAYBRIDGE_COMPLETE"  # set by a shell that asks for completions
PAGE_LIMIT = 500
_MOST_MEANT = 4  # commands that are offered for an unknown one
_MEANT = dict.fromkeys(("delete", "remove", "rm"), {"cancel", "discard", "rm"}) | {
    "list": {"ls"}, "publish": {"schedule", "publish-now"}, "send": {"schedule"},
    "start": {"scan"}, "status": {"health", "stats"}, "get": {"show"}, "unpause": {"resume"},
}  # fmt: skip
NAME_BYTES = 200
_CURSOR = late.pattern(r"([0-9]{1,15}(?:\.[0-9]{1,17})?):(.+)", re.DOTALL)
pass_call: Decorator = click.make_pass_decorator(Invocation)


class Command(click.Command):
    """A command that also accepts `--json`, and refuses an option given twice."""

    def get_short_help_str(self, limit: int = 0) -> str:
        """Its first sentence, whole: a list of commands wraps it."""
        return super().get_short_help_str(1000)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Its own, and a `--json` that --help does not show."""
        own = super().get_params(ctx)
        known = any("--json" in param.opts for param in own)
        return own if known else [*own, _JSON]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does. Failure if an option that takes one value is given twice."""
        if args and not ctx.resilient_parsing:  # not when a shell asks for completions
            _, _, order = self.make_parser(ctx).parse_args(args=[*args])
            for param, count in Counter(order).items():
                is_single = isinstance(param, click.Option) and not (
                    param.multiple or param.is_flag
                )
                if is_single and count > 1:
                    name = max(param.opts, key=len)
                    raise refused(name, f"given {count} times; give it once")
        return super().parse_args(ctx, args)


class Group(Command, click.Group):
    """A noun: without a verb it shows its help."""

    command_class = Command

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order in which they are defined."""
        return [*self.commands]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does; an unknown command is refused with those that may be meant."""
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as exc:
            what, meant = exc.message, ", ".join(self._meant(ctx, args[0]))
            hint = f"{what} Did you mean: {meant}?" if meant else what
            raise click.NoSuchCommand(args[0], hint, ctx=ctx) from None

    def _meant(self, ctx: click.Context, typed: str) -> list[str]:
        """The commands whose last word is the one typed, or means it, or is like it."""
        paths = [*self.paths(ctx, ctx.command_path)]
        known = {path[-1] for path in paths}
        last = {typed, *_MEANT.get(typed, ())} & known or nearest(typed, known, 2)
        return [" ".join(path) for path in paths if path[-1] in last][:_MOST_MEANT]

    def paths(self, ctx: click.Context, *words: str) -> Iterator[tuple[str, ...]]:
        """Every command of this group and of its groups, as words."""
        for name in self.list_commands(ctx):
            yield (*words, name)
            _, command, _ = self.resolve_command(ctx, [name])
            if isinstance(command, Group):
                yield from command.paths(ctx, *words, name)


def _ask_for_json(ctx: click.Context, _param: click.Parameter, asked: bool) -> None:
    call = ctx.find_object(Invocation)
    if asked and call is not None:
        call.output = replace(call.output, json=True)


_JSON = click.Option(
    ["--json"], is_flag=True, expose_value=False, hidden=True, callback=_ask_for_json
)


class Value(click.ParamType[Any]):
    """A type of argument that a function reads.

    name: its metavar. read: called with the text and the name of the option; returns the value.
    """

    def __init__(self, name: str, read: Callable[[str, str], Any]) -> None:
        self.name, self._read = name, read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The value; errors are those of the function."""
        flag = self.name if param is None else param.opts[0]
        return self._read(value, flag) if isinstance(value, str) else value


def _time(reader: str) -> Callable[[str, str], int]:
    """Reads with this function of `times`, which is imported when it is called."""

    def read(text: str, flag: str) -> int:
        from delaybridge import times

        found: int = getattr(times, reader)(text, field=flag)
        return found

    return read


def _name(text: str, flag: str) -> str:
    """Printable UTF-8, since it is shown in lists and stored in Redis."""
    if not text.isprintable() or not 0 < len(text.encode()) <= NAME_BYTES:
        what = f"got {printable(text[:80])!r}; allowed: 1 to {NAME_BYTES} bytes, printable UTF-8"
        raise refused(flag, what, "config")
    return text


def cursor_of(text: str, flag: str = "--cursor") -> tuple[float, str]:
    """`1795197600450.99:ID` as lists print it."""
    found = _CURSOR.fullmatch(text)
    if found is None or not found[2].isprintable():
        raise refused(flag, f"got {text[:80]!r}; copy it from the list", "bad_cursor")
    return float(found[1]), found[2]


DURATION = Value("DURATION", _time("delay_ms"))  # `15m`, in ms
OFFSET = Value("OFFSET", _time("offset_ms"))  # `+10m` or `-1h`, in ms
TIME = Value("TIME", _time("at_ms"))  # RFC 3339, in epoch ms
KEY = Value("KEY", lambda text, _: os.fsencode(text))
NAME = Value("W", _name)
CURSOR = Value("CURSOR", cursor_of)


def option(spec: str, help: str, *, to: str | None = None, **how: Any) -> Decorator:
    """An option given as `-k --key KEY`; without a metavar or a type it is a flag.

    to: the parameter of the command that receives it, if its name is another.
    """
    words = spec.split()
    names = [word for word in words if word.startswith("-")]
    if len(words) > len(names):
        how["metavar"] = words[-1]
    elif "type" not in how:
        how["is_flag"] = True
    how = {"show_default": "default" in how, **how}
    return click.option(*names, *([to] if to else []), help=help, **how)


def options(*each: Decorator) -> Decorator:
    """Several options as one decorator, in this order."""

    def decorate(function: Function) -> Function:
        for one in reversed(each):
            function = one(function)
        return function

    return decorate


in_option = option("--in DURATION", "How long from now, as 15m or 1h30m.", to="delay")
at_option = option("--at TIME", "When, as 2030-01-31T09:00:00Z.")
gathering_options = options(
    option("--debounce KEY", "Once KEY is quiet: the last message of it, whose id is KEY."),
    option("--quiet DURATION", "With --debounce: for how long. [default: 5m]"),
    option("--longest DURATION", "With --debounce: but no later than this. [default: 1h]"),
    option("--throttle KEY", "At once; of those that follow only the last, whose id is KEY."),
    option("--every DURATION", "With --throttle: how long later. [default: 1m]"),
)
by_option = option(
    "--by", "How much later or earlier than now due, as +10m or -1h.", to="by_ms", type=OFFSET
)
_KEY_HELP = "Search only the bucket of this key. [default: all buckets]"
key_option = option("-k --key", _KEY_HELP, type=KEY)
_PLACE_HELP = "Only to this broker, exchange or topic, or destination: as ls prints it."
destination_option = option("--destination D", _PLACE_HELP)
due_options = options(
    option("--due-from", "Only messages due at this time or later.", to="due_from_ms", type=TIME),
    option("--due-to", "Only messages due at this time or earlier.", to="due_to_ms", type=TIME),
)
_COUNT = click.IntRange(min=1)
reason_option = option("--reason R", "Only messages that failed for this reason, as unroutable.")
id_prefix_option = option("--id-prefix TEXT", "Only messages whose id begins with this.")
record_options = options(
    option("--header NAME[=VALUE]", "Only messages with this header."),
    option("--attempts N", "Only messages that failed at least this often.", type=_COUNT),
)
page_options = options(
    option("--limit N", f"How many to list, {PAGE_LIMIT} at most.", type=_COUNT, default=50),
    option("--cursor", "Continue a list: the cursor printed at its end.", type=CURSOR),
)
_FORMS = click.Choice(["text", "json", "hex", "raw"])
_BODY_HELP = "How the body is printed; raw: only its bytes."
body_option = option("--body", _BODY_HELP, to="form", type=_FORMS, default="text")


plan_options = options(
    option("--max-attempts N", "Give up after this many failed publishes.", type=int),
    option("--backoff", "How long to wait after the first.", to="base_ms", type=DURATION),
    option("--dead-letter D", "Where it goes when given up. [default: the dead set]"),
)
further_plan_options = options(
    option("--factor F", "Each further wait is longer by this factor.", type=float),
    option("--max-backoff DURATION", "The longest wait.", to="max_ms", type=DURATION),
    option("--jitter J", "The share by which each wait varies, 0 to 1.", type=float),
)
PLAN = ("max_attempts", "base_ms", "dead_letter")  # fields of a plan that `plan_options` give


def text_or_bytes(text: str) -> str | bytes:
    """A command line argument: text if it is UTF-8, else bytes."""
    raw = os.fsencode(text)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw
