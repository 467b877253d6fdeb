"""How results are printed: aligned text for people, one JSON object per line for programs.

Text from messages, brokers and servers is escaped before it reaches the terminal.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from delaybridge.errors import printable
from delaybridge.operate.terminal.streams import drop_stdout
from delaybridge.operate.troubles.finding import FAIL, OK, WARN
from delaybridge.operate.views.described import moment, plain

T = TypeVar("T")
Row = Mapping[str, str | int | None]
_LEVEL_COLORS = {OK: "green", WARN: "yellow", FAIL: "red"}
_LEVEL_WIDTH = 4


@dataclass(frozen=True, slots=True)
class Output:
    """Prints results on stdout. json: for programs. color: only on a terminal."""

    json: bool = False
    color: bool = False

    def result(self, data: Mapping[str, Any], text: str) -> None:
        """One result: the data as JSON, or the text."""
        click.echo(json.dumps(data) if self.json else escaped(text))

    def results(self, rows: Iterable[tuple[Mapping[str, Any], str]]) -> None:
        """Many results in one write. A reader that closed stdout does not stop the work."""
        lines = (json.dumps(data) if self.json else escaped(text) for data, text in rows)
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
            from delaybridge.operate.terminal.layout import wrapped

            text = wrapped(text, self.width, " " * (_LEVEL_WIDTH + 2))
        click.echo(f"{word}  {text}", color=self.color)

    def line(self, text: str = "") -> None:
        """A line for people; programs do not get it."""
        if not self.json:
            click.echo(escaped(text))

    def error_line(self, text: str) -> None:
        """A line on stderr, apart from the result."""
        click.echo(escaped(text), err=True)

    def table(
        self,
        items: Iterable[T],
        row: Callable[[T], Row],
        *,
        spare: tuple[str, ...] = (),
        data: Callable[[T], Any] | None = None,
    ) -> bool:
        """A row per item, fitted to the terminal, or its data as JSON. Whether there was any.

        row: cells by title; a title that begins with `>` aligns its column to the right. spare:
        titles that a narrow terminal leaves out, the least important first. Columns without any
        value are left out everywhere.
        """
        listed = list(items)
        if self.json:
            for item in listed:
                click.echo(json.dumps(plain(data(item) if data else item)))
        elif listed:
            from delaybridge.operate.terminal.layout import table

            rows = [{title: _cell(value) for title, value in row(item).items()} for item in listed]
            head, *lines = table(rows, spare, self.width)
            click.echo("\n".join([self.paint(head, bold=True), *lines]), color=self.color)
        return bool(listed)

    @property
    def is_watched(self) -> bool:
        """Whether a person reads stdout: it is a terminal, and holds no JSON."""
        return not self.json and sys.stdout is not None and sys.stdout.isatty()

    @property
    def width(self) -> int | None:
        """The terminal's columns; None if stdout is not a terminal or holds JSON."""
        return shutil.get_terminal_size().columns if self.is_watched else None

    def fields(self, pairs: Iterable[tuple[str, object]]) -> None:
        """Names and values, one pair per line, aligned; without those whose value is None."""
        listed = [(name, printable(str(value))) for name, value in pairs if value is not None]
        width = max((len(name) for name, _ in listed), default=0)
        for name, value in listed:
            click.echo(f"{name.ljust(width)}  {value}".rstrip())

    def paint(self, text: str, **style: Any) -> str:
        """`text` in colour, where there is colour."""
        return click.style(text, **style) if self.color else text


def _cell(value: str | int | None) -> str:
    return "" if value is None else printable(str(value))


def escaped(text: str) -> str:
    """`text` safe for a terminal, line by line."""
    return "\n".join(printable(line) for line in text.split("\n"))


def rate_text(per_s: float) -> str:
    """`1,902`, `0.2`, `<0.1`; `0` for nothing at all."""
    if 0 < per_s < 0.05:
        return "<0.1"
    return f"{per_s:,.0f}" if per_s >= 9.95 or not per_s else f"{per_s:.1f}"


def moment_and_wait(at_ms: int | None, now_ms: int) -> str | None:
    """`2030-01-31T09:00:00.000Z  in 15m`, or None."""
    from delaybridge.times import in_time

    return None if at_ms is None else f"{moment(at_ms)}  {in_time(at_ms - now_ms)}"
