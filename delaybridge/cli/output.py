"""How results are printed: aligned text for people, one JSON object per line for programs.

Text from messages, brokers and servers is escaped before it reaches the terminal.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import click

from delaybridge.errors import printable

if TYPE_CHECKING:
    from delaybridge.store.stored import Stored

T = TypeVar("T")
_HEADERS_CHARS = 60
_REASON_CHARS = 80
# Durations of at least the first are rounded to the second.
_STEPS_MS = ((86_395_000, 3_600_000), (595_000, 60_000), (10_000, 1000), (1000, 100))
OK, WARN, FAIL = "ok", "WARN", "FAIL"
_LEVEL_COLORS = {OK: "green", WARN: "yellow", FAIL: "red"}
_LEVEL_WIDTH = 4


class Column(NamedTuple, Generic[T]):
    """A column of a table, and how an item's cell in it reads.

    right: numbers, aligned to the right and never cut. spare: a narrow terminal leaves out column 1
    first, then 2, and so on; 0 is always shown.
    """

    title: str
    cell: Callable[[T], str]
    right: bool = False
    spare: int = 0


@dataclass(frozen=True, slots=True)
class Output:
    """Prints results on stdout. json: for programs. color: only on a terminal."""

    json: bool = False
    color: bool = False

    def result(self, data: Mapping[str, Any], text: str) -> None:
        """One result: the data as JSON, or the text."""
        click.echo(json.dumps(data) if self.json else self.escaped(text))

    def results(self, rows: Iterable[tuple[Mapping[str, Any], str]]) -> None:
        """Many results in one write. A reader that closed stdout does not stop the work."""
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
        """A line on stderr, apart from the result."""
        click.echo(self.escaped(text), err=True)

    def table(
        self,
        columns: Sequence[Column[T]],
        items: Iterable[T],
        data: Callable[[T], Mapping[str, Any]],
    ) -> bool:
        """A row per item, fitted to the terminal, or its data as JSON. Whether there was any."""
        listed = list(items)
        if self.json:
            for item in listed:
                click.echo(json.dumps(data(item)))
        elif listed:
            from delaybridge.cli import layout

            rows = [[printable(column.cell(item)) for column in columns] for item in listed]
            head, *lines = layout.table(columns, rows, self.width)
            click.echo("\n".join([self.paint(head, bold=True), *lines]), color=self.color)
        return bool(listed)

    @property
    def width(self) -> int | None:
        """The terminal's columns; None if stdout is not a terminal or holds JSON."""
        is_terminal = not self.json and sys.stdout is not None and sys.stdout.isatty()
        return shutil.get_terminal_size().columns if is_terminal else None

    def fields(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Names and values, one pair per line, aligned."""
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
    """The reader has closed stdout: discard later output, also that flushed at exit."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError, AttributeError):
        sys.stdout = None


def wants_color(*, refused: bool, stream: IO[str] | None = None) -> bool:
    """Whether to colour: only on a terminal that can, unless `refused` or NO_COLOR."""
    stream = sys.stdout if stream is None else stream
    if refused or os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb":
        return False
    return stream is not None and stream.isatty()


def in_time(wait_ms: int) -> str:
    """`in 15m`, or `41ms ago`."""
    return f"in {roughly(wait_ms)}" if wait_ms >= 0 else f"{roughly(-wait_ms)} ago"


def roughly(ms: int) -> str:
    """A rounded duration: 41ms, 2.3s, 42s, 4m12s, 15m, 3h05m, 6d23h."""
    from delaybridge.times import format_duration

    step_ms = next((step for least, step in _STEPS_MS if ms >= least), 1)
    return format_duration((ms + step_ms // 2) // step_ms * step_ms)


def moment(at_ms: int | None) -> str | None:
    """RFC 3339, or None."""
    from delaybridge.times import format_time

    return None if at_ms is None else format_time(at_ms)


def described(stored: Stored) -> dict[str, Any]:
    """A stored message as JSON; the names of fields that hold encoded bytes end in `_base64`."""
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
    """Headers in a table's cell."""
    text = " ".join(f"{name}={value_text(value)}" for name, value in stored.headers)
    return shortened(text, _HEADERS_CHARS)


def shortened(text: str | None, chars: int = _REASON_CHARS) -> str:
    """A long text, such as a reason, in a table's cell; "" for None."""
    text = text or ""
    return text if len(text) <= chars else text[: chars - 3] + "..."


def value_text(value: object) -> str:
    """A header's or property's value as text; bytes are decoded as UTF-8."""
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
    """The value of an AMQP or Kafka header as far as JSON can hold it."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return str(value)
