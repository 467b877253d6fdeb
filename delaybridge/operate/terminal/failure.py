"""How a command ends: its exit code, and the line (or JSON object) that names the fault."""

from __future__ import annotations

import json
import traceback
from enum import IntEnum
from typing import Any, Self

import click

from delaybridge import errors
from delaybridge.errors import printable

_LINE_CHARS = 600
_FLAG_OF_FIELD = {
    "delay": "--in", "at": "--at", "ttl": "--ttl", "retry.max_attempts": "--max-attempts",
    "retry.base_ms": "--backoff", "retry.factor": "--factor", "retry.max_ms": "--max-backoff",
    "retry.jitter": "--jitter", "retry.dead_letter": "--dead-letter", "span": "--for",
    "step": "--step", "quiet": "--quiet", "longest": "--longest",
}  # fmt: skip


class Exit(IntEnum):
    """The exit codes; `delaybridge --help` lists them with their meaning."""

    means: str

    def __new__(cls, code: int, means: str) -> Self:
        exit = int.__new__(cls, code)
        exit._value_, exit.means = code, means
        return exit

    DONE = 0, "done; also a drained worker, and a reader that closed stdout"
    FAILED = 1, "a check found a fault, a worker did not drain, or a bug"
    REFUSED = 2, "usage, settings or input refused: nothing was done"
    NOT_FOUND = 3, "not found; also no message and no rule at a destination"
    CONFLICT = 4, "conflict: in flight, same id with other content, name taken"
    UNREACHABLE = 5, "Redis or broker unreachable, full, or refusing access"
    PARTLY = 6, "partly done: the output names what was not done"
    INTERRUPTED = 130, "interrupted"


_NOT_FOUND = ("unknown_worker", "unknown_broker")
# The first match counts.
_ERRORS: dict[type[Exception], tuple[str, Exit]] = {
    errors.ConfigError: ("config", Exit.REFUSED),
    errors.NotDrained: ("not_drained", Exit.FAILED),
    errors.NotDurable: ("not_durable", Exit.UNREACHABLE),
    errors.LedgerUnavailable: ("ledger_unavailable", Exit.UNREACHABLE),
    errors.StoreUnavailable: ("store_unavailable", Exit.UNREACHABLE),
    errors.StoreNewer: ("store_newer", Exit.REFUSED),
    errors.StoreFull: ("store_full", Exit.UNREACHABLE),
    errors.StoreWiped: ("store_wiped", Exit.UNREACHABLE),
    errors.StoreError: ("store_error", Exit.UNREACHABLE),
    errors.PublishUnavailable: ("publish_unavailable", Exit.UNREACHABLE),
    errors.PublishError: ("publish_error", Exit.UNREACHABLE),
    errors.DelayBridgeError: ("failed", Exit.UNREACHABLE),
}


class Failure(Exception):
    """The end of a command that cannot do its work.

    faults: each becomes one line; it names the fault and the remedy. field: shown before them.
    """

    def __init__(self, exit: Exit, code: str, field: str | None, *faults: str) -> None:
        self.exit, self.code, self.field = exit, code, field
        self.lines = [f"{field}: {fault}" if field else fault for fault in faults]
        super().__init__("; ".join(self.lines))

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
        if self.exit is Exit.UNREACHABLE:
            error["see"] = f"{errors.TROUBLESHOOTING}#{self.code}"
        click.echo(json.dumps({"error": error}), err=True)
        return self.exit


_EXIT_OF_FILES: dict[type[OSError], Exit] = {FileNotFoundError: Exit.REFUSED}
INTERRUPTED = Failure(Exit.INTERRUPTED, "interrupted", None, "interrupted")


def refused(field: str, what: str, code: str = "usage") -> Failure:
    """Wrong input: nothing was done."""
    return Failure(Exit.REFUSED, code, field, what)


def failure_of(exc: Exception) -> Failure:
    """Exit code and words for any error that a command raised."""
    if isinstance(exc, Failure):
        return exc
    if isinstance(exc, click.ClickException):
        return _usage(exc)
    if isinstance(exc, errors.MessageError):
        is_taken = isinstance(exc, errors.MessageConflict | errors.MessageInFlight)
        exit = Exit.CONFLICT if is_taken else Exit.REFUSED
        exit = Exit.NOT_FOUND if exc.code in _NOT_FOUND else exit
        field = _FLAG_OF_FIELD.get(exc.field, exc.field)
        return Failure(exit, exc.code, field, f"{exc.detail} ({exc.code})")
    for kind, (code, exit) in _ERRORS.items():
        if isinstance(exc, kind):
            return Failure(exit, code, None, *(str(exc).splitlines() or [code]))
    if isinstance(exc, ModuleNotFoundError) and (remedy := _remedy_of(exc)):
        return Failure(Exit.REFUSED, "config", None, remedy)
    if isinstance(exc, OSError) and exc.strerror:
        text = f"{exc.filename or 'input/output'}: {exc.strerror}"
        return Failure(_EXIT_OF_FILES.get(type(exc), Exit.FAILED), "os_error", None, text)
    text = f"internal: {type(exc).__name__}: {exc}; a bug in delaybridge, -v shows where"
    return Failure(Exit.FAILED, "internal", None, text)


def _remedy_of(exc: ModuleNotFoundError) -> str | None:
    from delaybridge.settings.extras import remedy_of

    return remedy_of(exc)


def _usage(exc: click.ClickException) -> Failure:
    """click's own message, the option or argument that it refuses, and a remedy."""
    field = getattr(exc, "option_name", getattr(exc, "command_name", "usage"))
    message, ctx = exc.format_message().replace("\n\t", " "), getattr(exc, "ctx", None)
    if isinstance(exc, click.BadParameter) and exc.param is not None:
        name = exc.param.opts[0]
        field = name if name.startswith("-") else exc.param.human_readable_name.strip("[].")
        message = (exc.message or message).replace("a valid integer range", "a whole number")
    remedy = f"See: {ctx.command_path if ctx else 'delaybridge'} --help"
    if isinstance(exc, click.NoSuchOption) and ctx is not None:
        if any(field in param.opts for param in ctx.find_root().command.params):
            remedy = f"It goes before the command: delaybridge {field} ..."
        elif not exc.possibilities:
            remedy += "; put -- before an argument that begins with '-'"
    return refused(field, f"{message}{'' if message[-1] in '.?' else '.'} {remedy}")


def show_origin(exc: Exception) -> None:
    """For -v: the causes of an error, or the traceback of a bug; escaped, without secrets."""
    lines = []
    if failure_of(exc).code == "internal":
        lines = "".join(traceback.format_exception(exc)).splitlines()
    else:
        cause = exc.__cause__ or exc.__context__
        while cause is not None:
            lines.append(f"caused by: {type(cause).__name__}: {cause}")
            cause = cause.__cause__ or cause.__context__
    for line in lines:
        click.echo(_clean(line), err=True)


def _clean(text: str) -> str:
    from delaybridge.settings.urls import redact_text

    shown = printable(redact_text(text))
    return shown if len(shown) <= _LINE_CHARS else shown[:_LINE_CHARS] + "..."
