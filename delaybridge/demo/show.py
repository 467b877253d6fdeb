"""What the demo prints: one row per second, events between the rows, and the verdict.

On a terminal the latest row and the histogram change in place; a pipe gets only finished lines.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self, TextIO

import click

from delaybridge.cli.layout import wrapped
from delaybridge.demo.verdict import Verdict, percentile
from delaybridge.errors import printable

_WIDTH = 80
_EVENT_INDENT = " " * 8
_LABEL_INDENT = " " * 10
_EIGHTHS = "▏▎▍▌▋▊▉█"
_BAR_CELLS = 4
_BINS = 4
TITLES = "  time  delayed  in flight  published   dead  lateness p50 / p99   next due"


class Screen:
    """Prints lines, and on a terminal a footer below them that changes in place."""

    def __init__(self, stream: TextIO, *, color: bool) -> None:
        """color: whether to colour if the stream is a terminal."""
        self._stream = stream
        self.is_live = stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._color = color and self.is_live and not os.environ.get("NO_COLOR")
        self._footer: list[str] = []

    @property
    def encoding(self) -> str:
        """The stream's encoding."""
        return self._stream.encoding or "ascii"

    def line(self, text: str = "", *, color: str | None = None, bold: bool = False) -> None:
        """Print a line. It is wrapped at 80 cells, with its label (10 cells) as the indent."""
        text, label = printable(text), len(_LABEL_INDENT)
        shown = text[:label] + wrapped(text[label:], _WIDTH, _LABEL_INDENT)
        if self._color and (color or bold):
            shown = click.style(shown, fg=color, bold=bold)
        self._write(self._cleared() + shown + "\n" + "\n".join(self._footer))

    def event(self, clock: str, text: str) -> None:
        """Print an event of the run. clock: when it happened."""
        shown = wrapped(printable(text), _WIDTH, _EVENT_INDENT)
        for number, line in enumerate(shown.split("\n")):
            self.line(line if number else f" {clock}  {line}", bold=True)

    def footer(self, lines: Iterable[str]) -> None:
        """Replace the footer; does nothing if the stream is not a terminal."""
        if not self.is_live:
            return
        cleared = self._cleared()
        width = shutil.get_terminal_size().columns - 1
        self._footer = [printable(line)[:width] for line in lines]
        self._write(cleared + "\n".join(self._footer))

    def _cleared(self) -> str:
        """Terminal codes that erase the footer."""
        if not self._footer:
            return ""
        up = len(self._footer) - 1
        return "\r" + (f"\x1b[{up}A" if up else "") + "\x1b[J"

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not isinstance(error, BrokenPipeError):
            self.footer(())


def row(
    clock: str,
    *,
    delayed: int,
    in_flight: int,
    published: int,
    dead: int,
    lateness_ms: Sequence[float],
    next_due_ms: int | None,
) -> str:
    """A line of the table, under TITLES. lateness_ms: of the latest deliveries, sorted."""
    p50 = p99 = due = "-"
    if lateness_ms:
        p50, p99 = (duration(percentile(lateness_ms, share)) for share in (0.5, 0.99))
    if next_due_ms is not None:
        due = duration(next_due_ms)
    counts = f"{delayed:>8}{in_flight:>11}{published:>11}{dead:>7}"
    return f" {clock}{counts}{p50:>11} / {p99:<9}{due:>9}".rstrip()


def histogram(waiting: Mapping[int, int], bin_ms: int, encoding: str) -> str:
    """Messages due in the next four bins of time, and later. waiting: ms from now -> messages."""
    bins = [0] * (_BINS + 1)
    for ahead_ms, messages in waiting.items():
        bins[min(max(ahead_ms, 0) // bin_ms, _BINS)] += messages
    most = max(*bins[:_BINS], 1)
    parts = []
    for number, messages in enumerate(bins[:_BINS]):
        span = f"{number * bin_ms / 1000:g}-{(number + 1) * bin_ms / 1000:g}s"
        parts.append(f"{span} {_bar(messages / most, encoding)} {messages}")
    return f" due in  {'  '.join(parts)}  later {bins[_BINS]}"


def _bar(share: float, encoding: str) -> str:
    eighths = round(share * _BAR_CELLS * 8)
    bar = "█" * (eighths // 8) + (_EIGHTHS[eighths % 8 - 1] if eighths % 8 else "")
    try:
        bar.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        bar = "#" * -(-eighths // 8)
    return bar


def duration(ms: float) -> str:
    """A duration in at most three digits."""
    if abs(ms) < 10:
        return f"{ms:.1f} ms"
    return f"{ms:.0f} ms" if abs(ms) < 999.5 else f"{ms / 1000:.1f} s"


def verdict_lines(verdict: Verdict) -> list[str]:
    """The verdict's figures."""
    dead = f"dead {len(verdict.dead)}" + (f" ({verdict.dead[0]})" if verdict.dead else "")
    repeated, after_kill = len(verdict.duplicates), len(verdict.after_kill)
    share = "all" if after_kill == repeated else after_kill or "none"
    explained = f" ({share} after the kill)" if repeated else ""
    lines = [
        f"scheduled {verdict.scheduled:,}  cancelled {verdict.cancelled}  "
        f"rescheduled {verdict.rescheduled}  published {verdict.published:,}  {dead}",
        f"received {verdict.received:,} of {verdict.published:,}  "
        f"duplicates {repeated}{explained}  "
        f"early {len(verdict.early)}  lost {len(verdict.lost)}",
    ]
    if steady := verdict.steady_ms:
        p50, p99, most = (duration(percentile(steady, share)) for share in (0.5, 0.99, 1.0))
        lines.append(f"lateness p50 {p50}  p99 {p99}  max {most}")
        if verdict.takeover_ms:
            worst = duration(verdict.takeover_ms[-1])
            lines[-1] = f"steady {lines[-1]};  worst during takeover {worst}"
    return lines
