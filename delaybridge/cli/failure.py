"""How a command ends: its exit code, and the line (or JSON object) that names the fault."""

from __future__ import annotations

import json
import traceback
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Self

import click

from delaybridge.errors import (
    ConfigError,
    DelayBridgeError,
    MessageConflict,
    MessageError,
    NotDrained,
    PublishError,
    PublishUnavailable,
    StoreError,
    StoreFull,
    StoreUnavailable,
    StoreWiped,
    printable,
)

# fmt: off
GLOBAL_OPTIONS = (
    "--redis", "--namespace", "--broker", "--config",
    "--json", "--no-color", "--verbose", "-v",
)
# fmt: on
_LINE_CHARS = 600
_FLAG_OF_FIELD = {"delay": "--in", "at": "--at", "ttl": "--ttl"}


class Exit(IntEnum):
    """The exit codes; docs/cli.md lists them with what they mean."""

    means: str

    def __new__(cls, code: int, means: str) -> Self:
        exit = int.__new__(cls, code)
        exit._value_, exit.means = code, means
        return exit

    DONE = 0, "done; also a drained `scan`, and a reader that closed stdout"
    FAILED = (
        1,
        "failed: `demo`, `health` or `doctor` found a fault; `scan` could not give its leases "
        "back; or a bug in delaybridge",
    )
    REFUSED = 2, "usage, settings or input refused: nothing was done"
    NOT_FOUND = 3, "not found"
    CONFLICT = 4, "conflict: in flight, same id with other content, name taken"
    UNREACHABLE = 5, "Redis or broker unreachable, full, or refusing us"
    PARTLY = 6, "partly done (bulk): the output names what was not done"
    INTERRUPTED = 130, "interrupted"


# The first match counts.
_ERRORS: tuple[tuple[type[DelayBridgeError], str, Exit], ...] = (
    (ConfigError, "config", Exit.REFUSED),
    (NotDrained, "not_drained", Exit.FAILED),
    (StoreUnavailable, "store_unavailable", Exit.UNREACHABLE),
    (StoreFull, "store_full", Exit.UNREACHABLE),
    (StoreWiped, "store_wiped", Exit.UNREACHABLE),
    (StoreError, "store_error", Exit.UNREACHABLE),
    (PublishUnavailable, "publish_unavailable", Exit.UNREACHABLE),
    (PublishError, "publish_error", Exit.UNREACHABLE),
    (DelayBridgeError, "failed", Exit.UNREACHABLE),
)


class Failure(Exception):
    """A command that cannot do its work. what: the fault and the remedy, shown behind the field."""

    def __init__(self, exit: Exit, code: str, field: str, what: str) -> None:
        self.exit = exit
        self.code = code
        self.field = field
        self.what = what
        super().__init__(f"{field}: {what}")


@dataclass(frozen=True, slots=True)
class Report:
    """A failure as it is shown. lines: one for each fault, beginning with the field."""

    exit: Exit
    code: str
    lines: list[str]
    field: str | None = None

    def show(self, *, as_json: bool) -> Exit:
        """Print it on stderr, as `error: ...` lines or one JSON object; returns the exit code."""
        lines = [_clean(line) for line in self.lines]
        if not as_json:
            for line in lines:
                click.echo(f"error: {line}", err=True)
            return self.exit
        error: dict[str, Any] = {"code": self.code, "message": "; ".join(lines)}
        if self.field is not None:
            error["field"] = _clean(self.field)
        if len(lines) > 1:
            error["messages"] = lines
        click.echo(json.dumps({"error": error}), err=True)
        return self.exit


INTERRUPTED = Report(Exit.INTERRUPTED, "interrupted", ["interrupted"])


def report_of(exc: Exception) -> Report:
    """Exit code and words for any error that a command raised."""
    if isinstance(exc, Failure):
        return Report(exc.exit, exc.code, [f"{exc.field}: {exc.what}"], exc.field)
    if isinstance(exc, click.UsageError):
        name, what = _usage(exc)
        return Report(Exit.REFUSED, "usage", [f"{name}: {what}"], name)
    if isinstance(exc, click.ClickException):
        return Report(Exit.REFUSED, "usage", [exc.format_message()])
    if isinstance(exc, MessageError):
        exit = Exit.CONFLICT if isinstance(exc, MessageConflict) else Exit.REFUSED
        name = _FLAG_OF_FIELD.get(exc.field, exc.field)
        return Report(exit, exc.code, [f"{name}: {exc.detail} ({exc.code})"], name)
    for kind, code, exit in _ERRORS:
        if isinstance(exc, kind):
            return Report(exit, code, str(exc).splitlines() or [code])
    return _unexpected(exc)


def show_origin(exc: Exception) -> None:
    """For -v: the causes of an error, or the traceback of a bug; escaped, without secrets."""
    if report_of(exc).code == "internal":
        lines = [line for part in traceback.format_exception(exc) for line in part.splitlines()]
    else:
        lines = []
        cause = exc.__cause__ or exc.__context__
        while cause is not None:
            lines.append(f"caused by: {type(cause).__name__}: {cause}")
            cause = cause.__cause__ or cause.__context__
    for line in lines:
        click.echo(_clean(line), err=True)


def _unexpected(exc: Exception) -> Report:
    if isinstance(exc, OSError) and exc.strerror:
        name = f"{exc.filename}: " if exc.filename else "input/output: "
        return Report(Exit.FAILED, "os_error", [f"{name}{exc.strerror}"])
    text = f"internal: {type(exc).__name__}: {exc}; a bug in delaybridge, -v shows where"
    return Report(Exit.FAILED, "internal", [text])


def _usage(exc: click.UsageError) -> tuple[str, str]:
    """The field that click refuses, and click's sentence with the remedy."""
    see = f"see: {exc.ctx.command_path if exc.ctx else 'delaybridge'} --help"
    name, what = "usage", exc.message.rstrip(".")
    if isinstance(exc, click.NoSuchOption):
        return exc.option_name, _no_such_option(exc, see)
    if isinstance(exc, click.BadOptionUsage):
        name = exc.option_name
        what = what.removeprefix(f"Option {name!r} ")
    elif isinstance(exc, click.BadParameter) and exc.param is not None:
        is_option = isinstance(exc.param, click.Option)
        name = exc.param.opts[0] if is_option else exc.param.human_readable_name.strip("[].")
        what = what or "missing"
    return name, f"{what[:1].lower()}{what[1:]}; {see}"


def _no_such_option(exc: click.NoSuchOption, see: str) -> str:
    if exc.option_name in GLOBAL_OPTIONS:
        return f"goes before the command, as in: delaybridge {exc.option_name} ... stats"
    if exc.possibilities:
        return f"no such option; did you mean {' or '.join(exc.possibilities)}?"
    return f"no such option; {see}, or write -- before an argument that begins with '-'"


def _clean(text: str) -> str:
    from delaybridge.settings.urls import redact_text

    shown = printable(redact_text(text))
    return shown if len(shown) <= _LINE_CHARS else shown[:_LINE_CHARS] + "..."


def json_asked(args: list[str]) -> bool:
    """Whether --json is among the arguments, which need not be valid."""
    return "--json" in args
