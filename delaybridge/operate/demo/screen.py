"""The demo's output: one row per second, events between the rows, and the result.

On a terminal the latest row and the histogram change in place; a pipe gets only finished lines.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.live import Live
from rich.text import Text

from delaybridge.errors import printable
from delaybridge.operate.demo.result import RunResult
from delaybridge.operate.terminal.layout import wrapped

_WIDTH = 80
_LABEL_CELLS, _CLOCK_CELLS = 10, 8
_BAR_CELLS = 4
_EIGHTHS = " ▏▎▍▌▋▊▉"
_BINS = 4


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Rich would exit with 1; the command line ends with 0 when its reader has enough."""
        raise BrokenPipeError


class Screen(Live):
    """Prints lines, and on a terminal live lines below them that change in place."""

    def __init__(self, console: Console | None = None, *, color: bool = False) -> None:
        """color: whether to colour if stdout is a terminal."""
        console = console or _Console()
        super().__init__(console=console, auto_refresh=False, transient=True)
        self.is_animated = console.is_terminal and not console.is_dumb_terminal
        self._color = color

    def line(self, text: str = "", *, style: str = "", indent: int = _LABEL_CELLS) -> None:
        """Print a line, wrapped at 80 cells. indent: of the lines that it continues on."""
        text = printable(text)
        shown = text[:indent] + wrapped(text[indent:], _WIDTH, " " * indent)
        self.console.print(Text(shown, style if self._color else ""), soft_wrap=True)

    def event(self, clock: str, text: str) -> None:
        """Print an event of the run. clock: when it happened."""
        self.line(f" {clock}  {text}", style="bold", indent=_CLOCK_CELLS)

    def show_live(self, *lines: str) -> None:
        """Replace the live lines."""
        if self.is_animated:
            self.update(Text("\n".join(lines), no_wrap=True, overflow="crop"), refresh=True)

    def results(self, result: RunResult, *, is_stand_in: bool) -> None:
        """Print the figures of a run."""
        self.show_live()
        dead = f"dead {len(result.dead)}" + (f" ({result.dead[0]})" if result.dead else "")
        repeated, after_kill = len(result.duplicates), len(result.after_kill)
        share = "all" if after_kill == repeated else after_kill or "none"
        explained = f" ({share} after the kill)" if repeated else ""
        self.line()
        self.line(
            f"scheduled {result.scheduled:,}  cancelled {result.cancelled}  "
            f"rescheduled {result.rescheduled}  published {result.published:,}  {dead}"
        )
        self.line(
            f"received {result.received:,} of {result.published:,}  "
            f"duplicates {repeated}{explained}  early {len(result.early)}  lost {len(result.lost)}"
        )
        if result.steady_ms:
            p50, p99, most = percentiles(result.steady_ms)
            worst = [f";  during the takeover max {duration(ms)}" for ms in result.takeover_ms]
            self.line(f"lateness p50 {p50}  p99 {p99}  max {most}{''.join(worst[-1:])}")
        if is_stand_in:
            self.line("(of librdkafka's mock, a stand-in; with a real broker: --broker URL)")


def histogram(waiting: Mapping[int, int], bin_ms: int, encoding: str) -> str:
    """Messages due in the next four bins of time, and later. waiting: ms from now -> messages."""
    bins = [0] * (_BINS + 1)
    for ahead_ms, messages in waiting.items():
        bins[min(max(ahead_ms, 0) // bin_ms, _BINS)] += messages
    most = max(*bins[:_BINS], 1)
    is_utf = encoding.lower().startswith("utf")
    parts = []
    for number, messages in enumerate(bins[:_BINS]):
        full, eighths = divmod(-(-messages * _BAR_CELLS * 8 // most), 8)
        bar = ("█" * full + _EIGHTHS[eighths]).rstrip() if is_utf else "#" * (full + bool(eighths))
        span = f"{number * bin_ms / 1000:g}-{(number + 1) * bin_ms / 1000:g}s"
        parts.append(f"{span} {bar} {messages}")
    return f" due in  {'  '.join(parts)}  later {bins[_BINS]}"


def percentiles(sorted_ms: Sequence[float]) -> list[str]:
    """Median, 99th percentile and maximum: this share of the values does not exceed it."""
    ranks = [math.ceil(len(sorted_ms) * share) - 1 for share in (0.5, 0.99, 1.0)]
    return [duration(sorted_ms[rank]) for rank in ranks]


def duration(ms: float) -> str:
    """A duration in at most three digits."""
    if abs(ms) < 10:
        return f"{ms:.1f} ms"
    return f"{ms:.0f} ms" if abs(ms) < 999.5 else f"{ms / 1000:.1f} s"
