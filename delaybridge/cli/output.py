"""How results are printed: aligned text for people, one JSON object per line for programs.

Whatever came from outside is escaped before it reaches the terminal.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

import click

from delaybridge.errors import printable

if TYPE_CHECKING:
    from delaybridge.store.stored import Stored

_HEADERS_CHARS = 60
_REASON_CHARS = 80
# From how long on which digits do not matter.
_STEPS_MS = ((86_395_000, 3_600_000), (595_000, 60_000), (10_000, 1000), (1000, 100))
OK, WARN, FAIL = "ok", "WARN", "FAIL"
_LEVEL_COLORS = {OK: "green", WARN: "yellow", FAIL: "red"}
_LEVEL_WIDTH = 4


@dataclass(frozen=True, slots=True)
class Output:
    """stdout in the form that was asked for. json: programs read it. color: only on a terminal."""

    json: bool = False
    color: bool = False

    def result(self, data: Mapping[str, Any], text: str) -> None:
        """One result: the data as JSON, or the text."""
        click.echo(json.dumps(data) if self.json else self.escaped(text))

    def results(self, rows: Iterable[tuple[Mapping[str, Any], str]]) -> None:
        """Many results in one write. A reader that has gone gets no more, and stops no work."""
        lines = (json.dumps(data) if self.json else self.escaped(text) for data, text in rows)
        try:
            click.echo("\n".join(lines))
        except BrokenPipeError:
            drop_stdout()

    def verdict(self, data: Mapping[str, Any], level: str, text: str) -> None:
        """One result of a check: `ok`, `WARN` or `FAIL`, coloured, and the text."""
        if self.json:
            click.echo(json.dumps(data))
            return
        word, text = self.paint(level.ljust(_LEVEL_WIDTH), fg=_LEVEL_COLORS[level]), printable(text)
        if self.width is not None:
            from delaybridge.cli.layout import wrapped

            text = wrapped(text, self.width, " " * (_LEVEL_WIDTH + 2))
        click.echo(f"{word}  {text}", color=self.color)

    def line(self, text: str = "") -> None:
        """A line for people; programs do not get it."""
        if not self.json:
            click.echo(self.escaped(text))

    def error_line(self, text: str) -> None:
        """A line on stderr, beside the result."""
        click.echo(self.escaped(text), err=True)

    def table(
        self,
        titles: Sequence[str],
        rows: Iterable[tuple[Mapping[str, Any], Sequence[str]]],
        *,
        right: Sequence[str] = (),
        spare: Sequence[str] = (),
    ) -> int:
        """Rows, each as data and as cells; aligned without borders. Returns how many.

        On a terminal they fit it: right, spare as `layout.table`.
        """
        listed = [(data, [printable(cell) for cell in cells]) for data, cells in rows]
        if self.json:
            for data, _ in listed:
                click.echo(json.dumps(data))
        if self.json or not listed:
            return len(listed)
        from delaybridge.cli import layout

        cells = [cells for _, cells in listed]
        head, *lines = layout.table(titles, cells, right=right, spare=spare, width=self.width)
        click.echo("\n".join([self.paint(head, bold=True), *lines]), color=self.color)
        return len(listed)

    @property
    def width(self) -> int | None:
        """The terminal's columns; None where no person reads."""
        is_terminal = not self.json and sys.stdout is not None and sys.stdout.isatty()
        return shutil.get_terminal_size().columns if is_terminal else None

    def fields(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Names and values, one a line, aligned."""
        listed = [(name, printable(value)) for name, value in pairs]
        width = max((len(name) for name, _ in listed), default=0)
        for name, value in listed:
            click.echo(f"{name.ljust(width)}  {value}".rstrip())

    def paint(self, text: str, **style: Any) -> str:
        """`text` in colour, where there is colour."""
        return click.style(text, **style) if self.color else text

    def escaped(self, text: str) -> str:
        """`text` safe for a terminal, line by line."""
        return "\n".join(printable(line) for line in text.split("\n"))


def drop_stdout() -> None:
    """The reader has closed stdout: what is still printed, or flushed at exit, goes nowhere."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError, AttributeError):
        sys.stdout = None


def wants_color(*, refused: bool, stream: IO[str] | None = None) -> bool:
    """Whether to colour: on a terminal that can, unless somebody said no."""
    stream = sys.stdout if stream is None else stream
    if refused or os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb":
        return False
    return stream is not None and stream.isatty()


def in_time(wait_ms: int) -> str:
    """`in 15m`, or `41ms ago`."""
    return f"in {roughly(wait_ms)}" if wait_ms >= 0 else f"{roughly(-wait_ms)} ago"


def roughly(ms: int) -> str:
    """How long, as a person says it: 41ms, 2.3s, 42s, 4m12s, 15m, 3h05m, 6d23h."""
    from delaybridge.times import format_duration

    step_ms = next((step for least, step in _STEPS_MS if ms >= least), 1)
    return format_duration((ms + step_ms // 2) // step_ms * step_ms)


def moment(at_ms: int | None) -> str | None:
    """RFC 3339, or None."""
    from delaybridge.times import format_time

    return None if at_ms is None else format_time(at_ms)


def described(stored: Stored) -> dict[str, Any]:
    """A stored message as JSON: bytes that are no text under a name that ends in `_base64`."""
    data: dict[str, Any] = {
        "id": stored.id,
        "state": stored.state.value,
        "destination": stored.destination,
        "due": moment(stored.due_ms),
        "due_ms": stored.due_ms,
        "priority": stored.priority,
        "attempts": stored.attempts,
        "maybe_delivered": stored.maybe_delivered,
        "fired": stored.fired,
        "bucket": stored.bucket,
        "headers": [[name, _plain(value)] for name, value in stored.headers],
        "properties": {name: _plain(value) for name, value in stored.properties.items()},
        "ttl_ms": stored.ttl_ms,
        "at_most_once": stored.at_most_once,
        "body_bytes": None if stored.body is None else len(stored.body),
    }
    data |= _bytes_field("key", stored.key)
    if stored.first_due_ms is not None:
        data |= {"first_due": moment(stored.first_due_ms), "first_due_ms": stored.first_due_ms}
    if stored.last_error is not None:
        data |= {"last_error": stored.last_error, "failing_since_ms": stored.failing_ms}
    if stored.dead_ms is not None:
        data |= {"dead": moment(stored.dead_ms), "dead_ms": stored.dead_ms}
    if stored.reason is not None:
        data["reason"] = stored.reason
    return data


def body_field(body: bytes | None) -> dict[str, Any]:
    """The body as JSON."""
    return _bytes_field("body", body)


def headers_text(stored: Stored) -> str:
    """Headers in a table's cell, cut where they get long."""
    text = " ".join(f"{name}={value_text(value)}" for name, value in stored.headers)
    return text if len(text) <= _HEADERS_CHARS else text[: _HEADERS_CHARS - 3] + "..."


def cut(reason: str) -> str:
    """A reason in a table's cell."""
    return reason if len(reason) <= _REASON_CHARS else reason[: _REASON_CHARS - 3] + "..."


def value_text(value: object) -> str:
    """A header's or property's value as text; bytes as the text they are, where they are any."""
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return str(value)


def _bytes_field(name: str, value: bytes | None) -> dict[str, Any]:
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}


def _plain(value: object) -> Any:
    """What JSON can carry of an AMQP or Kafka header value."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return str(value)
