"""The rates and the lateness of `delaybridge top`, in a few lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from delaybridge.errors import printable
from delaybridge.operate.terminal.output import rate_text
from delaybridge.operate.views.described import window_text

if TYPE_CHECKING:
    from delaybridge.operate.views.series import Rates, Recent

_NAMES = ("scheduled", "published", "retried", "buried")
_BAD = ("retried", "buried")
_CELLS = 9


def rate_lines(recent: Recent) -> Iterator[Text]:
    """Messages a second of the last 1 s, 1 m and 15 m, and how late they were."""
    if recent.missing:
        yield Text(f"RATE/s  none: {printable(recent.missing)}", style="dim")
        return
    windows = [window_text(rates) for rates in recent.rates]
    head = "RATE/s".ljust(11) + "".join(window.rjust(_CELLS) for window in windows)
    late = "".join(word.rjust(_CELLS) for word in ("p50", "p99", "max"))
    yield Text(f"{head}   {'LATENESS'.ljust(9)}{late}", style="bold")
    for number, name in enumerate(_NAMES):
        line = _of(name, recent.rates)
        if number < len(recent.rates):
            line.append(f"   {windows[number].ljust(9)}{_lateness(recent.rates[number])}")
        yield line
    if recent.silent:
        names = ", ".join(f"{name} ({why})" if why else name for name, why in recent.silent.items())
        yield Text(f"without {printable(names)}", style="yellow")


def _of(name: str, windows: Sequence[Rates]) -> Text:
    """One rate in each window."""
    line = Text(name.ljust(11))
    for rates in windows:
        per_s = rates.per_s.get(name, 0.0)
        shown = rate_text(per_s) if rates.covered_s else "-"
        line.append(shown.rjust(_CELLS), style="yellow" if per_s and name in _BAD else "")
    return line


def _lateness(rates: Rates) -> str:
    if rates.lateness is None:
        return "".join("-".rjust(_CELLS) for _ in range(3))
    return "".join(_ms(each).rjust(_CELLS) for each in rates.lateness)


def _ms(ms: float) -> str:
    if ms < 10:
        return f"{ms:.1f} ms"
    return f"{ms:,.0f} ms" if ms < 10_000 else f"{ms / 1000:,.0f} s"
