"""The demo's output: lines of at most 80 cells, events with the time at which they happened."""

from __future__ import annotations

import time
from typing import Any

import click

from delaybridge.errors import printable
from delaybridge.operate.terminal.layout import wrapped

_WIDTH = 80
_LABEL_CELLS, _CLOCK_CELLS = 10, 8


class Screen:
    """Prints lines on stdout. color: whether to colour if stdout is a terminal."""

    def __init__(self, *, color: bool = False) -> None:
        self._color = color
        self.began_s = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the clock began."""
        return time.monotonic() - self.began_s

    @property
    def clock(self) -> str:
        """`01:05`: minutes and seconds since the clock began."""
        return "{:02}:{:02}".format(*divmod(int(self.elapsed_s), 60))

    def line(self, text: str = "", *, indent: int = _LABEL_CELLS, **style: Any) -> None:
        """Print a line, wrapped at 80 cells. indent: of the lines that it continues on."""
        text = printable(text)
        text = text[:indent] + wrapped(text[indent:], _WIDTH, " " * indent)
        click.echo(click.style(text, **style) if self._color else text, color=self._color)

    def event(self, text: str) -> None:
        """Print an event of the run."""
        self.line(f" {self.clock}  {text}", indent=_CLOCK_CELLS, bold=True)
