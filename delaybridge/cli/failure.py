"""How a command ends: exit codes, and the one line (or JSON object) that says what went wrong.

0    done; also a drained `scan`, and a reader that closed stdout
1    failed: the verdict of `demo`, `health` or `doctor` is no; `scan` could not give its leases
     back; or a bug in delaybridge
2    usage, settings or input refused: nothing was done
3    not found
4    conflict: in flight, same id with other content, name taken
5    Redis or broker unreachable, refused us, or full
6    partly done (bulk): the output says which
130  interrupted
"""

from __future__ import annotations

import json
import traceback
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

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

GLOBAL_OPTIONS = (
    *("--redis", "--namespace", "--broker", "--config"),
    *("--json", "--no-color", "--verbose", "-v"),
)
_LINE_CHARS = 600
_FLAG_OF_FIELD = {"delay": "--in", "at": "--at", "ttl": "--ttl"}
_CODES: tuple[tuple[type[DelayBridgeError], str], ...] = (
    (ConfigError, "config"),
    (NotDrained, "not_drained"),
    (StoreUnavailable, "store_unavailable"),
    (StoreFull, "store_full"),
    (StoreWiped, "store_wiped"),
    (StoreError, "store_error"),
    (PublishUnavailable, "publish_unavailable"),
    (PublishError, "publish_error"),
)


class Exit(IntEnum):
    """The exit codes."""

    DONE = 0
    FAILED = 1
    REFUSED = 2
    NOT_FOUND = 3
    CONFLICT = 4
    UNREACHABLE = 5
    PARTLY = 6
    INTERRUPTED = 130


class Failure(Exception):
    """A command cannot do what it was asked: exit code, code word, field, what and remedy."""

    def __init__(self, exit: Exit, code: str, field: str, what: str) -> None:
        self.exit = exit
        self.code = code
        self.field = field
        self.what = what
        super().__init__(f"{field}: {what}")


@dataclass(frozen=True, slots=True)
class Report:
    """What is shown of one failure. lines: one for each fault, the field first."""

    exit: Exit
    code: str
    lines: list[str]
    field: str | None = None

    def show(self, *, as_json: bool) -> None:
        """On stderr: `error: ...` lines, or one JSON object with `error.code`."""
        lines = [_clean(line) for line in self.lines]
        if not as_json:
            for line in lines:
                click.echo(f"error: {line}", err=True)
            return
        error: dict[str, Any] = {"code": self.code, "message": "; ".join(lines)}
        if self.field is not None:
            error["field"] = _clean(self.field)
        if len(lines) > 1:
            error["messages"] = lines
        click.echo(json.dumps({"error": error}), err=True)


def report_of(exc: Exception) -> Report:
    """Exit code and words for whatever a command raised."""
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
    if isinstance(exc, DelayBridgeError):
        code = next((code for kind, code in _CODES if isinstance(exc, kind)), "failed")
        exit = Exit.REFUSED if isinstance(exc, ConfigError) else Exit.UNREACHABLE
        exit = Exit.FAILED if isinstance(exc, NotDrained) else exit
        return Report(exit, code, str(exc).splitlines() or [code])
    return _unexpected(exc)


def show_origin(exc: Exception) -> None:
    """For -v: what the error came from; of a defect the whole traceback. Escaped, no secrets."""
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
    text = f"internal: {type(exc).__name__}: {exc}; a defect of ours, -v shows where"
    return Report(Exit.FAILED, "internal", [text])


def _usage(exc: click.UsageError) -> tuple[str, str]:
    """Field and words of what click refuses, with the remedy."""
    path = exc.ctx.command_path if exc.ctx else "delaybridge"
    see = f"see: {path} --help"
    if isinstance(exc, click.NoSuchOption):
        return exc.option_name, _no_such_option(exc, see)
    if isinstance(exc, click.MissingParameter):
        name = exc.param.make_metavar(exc.ctx) if exc.param and exc.ctx else "argument"
        if isinstance(exc.param, click.Option):
            name = exc.param.opts[0]
        return name.strip("[].").removesuffix("..."), f"missing; {see}"
    if isinstance(exc, click.BadOptionUsage):
        return exc.option_name, f"{_lower(exc.message, exc.option_name)}; {see}"
    if isinstance(exc, click.BadParameter):
        return _parameter(exc), f"{_lower(exc.message)}; {see}"
    return "usage", f"{_lower(exc.message)}; {see}"


def _no_such_option(exc: click.NoSuchOption, see: str) -> str:
    if exc.option_name in GLOBAL_OPTIONS:
        return f"goes before the command, as in: delaybridge {exc.option_name} ... stats"
    if exc.possibilities:
        return f"no such option{_alike(exc.possibilities)}"
    return f"no such option; {see}, or write -- before what begins with '-'"


def _alike(possibilities: object) -> str:
    names = list(possibilities) if isinstance(possibilities, list | tuple) else []
    return f"; did you mean {' or '.join(names)}?" if names else ""


def _parameter(exc: click.BadParameter) -> str:
    if isinstance(exc.param, click.Option):
        return exc.param.opts[0]
    if exc.param is not None and exc.param.name:
        return exc.param.human_readable_name
    return "argument"


def _lower(message: str, name: str = "") -> str:
    """click's sentence as the second half of ours."""
    text = message.rstrip(".").removeprefix(f"Option {name!r} ")
    return text[:1].lower() + text[1:]


def _clean(text: str) -> str:
    from delaybridge.settings.urls import redact_text

    shown = printable(redact_text(text))
    return shown if len(shown) <= _LINE_CHARS else shown[:_LINE_CHARS] + "..."


def json_asked(args: list[str]) -> bool:
    """Whether --json is among the arguments, also where they could not be parsed."""
    return "--json" in args
