"""The pages of `delaybridge top` as lines of text, for any width and height. Without I/O."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from delaybridge.errors import printable
from delaybridge.operate.terminal.layout import shortened
from delaybridge.operate.terminal.output import rate_text
from delaybridge.operate.terminal.streams import is_utf
from delaybridge.operate.top.controls import HELP, TABS, View
from delaybridge.operate.top.lists import listed
from delaybridge.operate.top.picture import Picture
from delaybridge.operate.troubles.finding import ERROR, SEVERE, WARNING
from delaybridge.operate.troubles.found import troubles
from delaybridge.operate.views.described import moment, unowned, window_text
from delaybridge.times import in_time, roughly

if TYPE_CHECKING:
    from delaybridge import Horizon, Stats
    from delaybridge.operate.views.series import Rates, Recent

LEAST_WIDTH, LEAST_HEIGHT = 40, 10
_STYLES = {SEVERE: "bold red", ERROR: "red", WARNING: "yellow"}
_TROUBLES = 4
_SECONDS = 60
_MOST_ROWS = 5
_BARS, _PLAIN_BARS = " ▁▂▃▄▅▆▇█", " ...:::##"
_RATES = ("scheduled", "published", "retried", "buried")
_BAD = ("retried", "buried")
_RATE_CELLS = 9
Lines = list[Text]


def page(picture: Picture, view: View, width: int, height: int, about: str = "") -> Lines:
    """Exactly `height` lines of at most `width` cells. about: which Redis and namespace."""
    if width < LEAST_WIDTH or height < LEAST_HEIGHT:
        lines = [Text(f"{width} x {height} is too small: {LEAST_WIDTH} x {LEAST_HEIGHT}")]
        return _fitted(lines, width, height)
    head = [_title(picture, about, width), _tabs(view)]
    foot = [_foot(picture, view)]
    room = height - len(head) - len(foot)
    if view.helps:
        body = [Text(f"  {keys.ljust(16)}{what}") for keys, what in HELP]
    elif picture.stats is None or picture.away_s is not None:
        body = list(_away(picture, about))
    else:
        body = _body(picture, picture.stats, view, width, room)
    return _fitted([*head, *_fitted(body, width, room), *foot], width, height)


def _body(picture: Picture, stats: Stats, view: View, width: int, room: int) -> Lines:
    body: Lines = [*_troubles(picture, stats), Text()]
    if view.tab == 0:
        body += [*_states(stats), Text()]
        if picture.recent is not None:
            body += [*_rate_lines(picture.recent), Text()]
        if picture.horizon is not None:
            # Destinations get what is left, but a few lines at least.
            rows = max(1, min(_MOST_ROWS, room - len(body) - 7))
            body += [*_minute(picture.horizon, width, rows), Text()]
    return body + listed(picture, stats, view, width, room - len(body))


def _title(picture: Picture, about: str, width: int) -> Text:
    at = moment(picture.stats.now_ms) if picture.stats else ""
    right = f"{(at or '')[11:19]} UTC  {picture.took_ms:.0f} ms" if at else ""
    left = shortened(f"delaybridge top  {printable(about)}", max(width - len(right) - 2, 10))
    return Text(f"{left.ljust(width - len(right))}{right}", style="bold")


def _tabs(view: View) -> Text:
    text = Text()
    for number, name in enumerate(TABS):
        is_shown = number == view.tab and not view.helps
        text.append(f" {number + 1} {name} ", style="reverse" if is_shown else "")
    return text


def _foot(picture: Picture, view: View) -> Text:
    if view.note:
        return Text(printable(view.note), style="bold yellow")
    if picture.error and picture.away_s is None:
        return Text(printable(picture.error), style="red")
    return Text("q quit  ? help  tab view  j k select  P pause or resume", style="dim")


def _away(picture: Picture, about: str) -> Iterator[Text]:
    yield Text()
    if not picture.error:
        yield Text(f"  asking {about} ...")
        return
    if picture.away_s is not None:
        since = roughly(int((time.monotonic() - picture.away_s) * 1000))
        what = "Redis has not answered" if picture.is_silent else "no look has succeeded"
        yield Text(f"  {what} for {since}; trying again.", style="bold red")
    yield Text(f"  {printable(picture.error)}")
    yield Text()
    if picture.is_silent:
        yield Text("  It may be restarting or failing over, or the network is down.")
        yield Text("  If workers cannot reach it either, nothing is delivered until it is back.")
    yield Text("  In another terminal: delaybridge doctor")
    if picture.stats is not None:
        s = picture.stats
        yield Text()
        yield Text(
            f"  {(moment(s.now_ms) or '')[11:19]} UTC, seen last: {s.delayed:,} delayed, "
            f"{s.in_flight:,} in flight, {s.parked:,} parked, {s.dead:,} dead"
        )


def _troubles(picture: Picture, stats: Stats) -> Iterator[Text]:
    """The alerts, the worst first; of the rest only their number."""
    found = troubles(stats, picture.memory)
    for each in found[:_TROUBLES]:
        if each.trouble:
            yield Text(f"! {printable(each.what)}", style=_STYLES[each.trouble.severity])
    if len(found) > _TROUBLES:
        yield Text(f"! and {len(found) - _TROUBLES} more: delaybridge health", style="red")
    if not found:
        yield Text("well: every bucket has its worker, nothing is late", style="green")


def _states(stats: Stats) -> Iterator[Text]:
    text = Text()
    for name in ("delayed", "in_flight", "parked", "dead"):
        count = getattr(stats, name)
        style = "bold yellow" if count and name in ("parked", "dead") else "bold"
        text.append(f"{name.replace('_', ' ')} ").append(f"{count:,}", style=style).append("   ")
    yield text
    wait_ms = None if stats.next_due_ms is None else stats.next_due_ms - stats.now_ms
    facts = {
        "next due": "-" if wait_ms is None else in_time(wait_ms),
        "overdue": roughly(stats.overdue_ms) if stats.overdue_ms else "nothing",
        "buckets": f"{len(stats.buckets) - len(unowned(stats.buckets))}/{len(stats.buckets)}",
        "workers": str(len(stats.workers)),
        "ingests": str(len(stats.ingests)) if stats.ingests else "",
        "fronts": str(len(stats.fronts)) if stats.fronts else "",
    }
    yield Text("   ".join(f"{name} {fact}" for name, fact in facts.items() if fact))


def _rate_lines(recent: Recent) -> Iterator[Text]:
    """Messages a second of the last 1 s, 1 m and 15 m, and how late they were."""
    if recent.missing:
        yield Text(f"RATE/s  none: {printable(recent.missing)}", style="dim")
        return
    windows = [window_text(rates) for rates in recent.rates]
    head = "RATE/s".ljust(11) + "".join(window.rjust(_RATE_CELLS) for window in windows)
    late = "".join(word.rjust(_RATE_CELLS) for word in ("p50", "p99", "max"))
    yield Text(f"{head}   {'LATENESS'.ljust(9)}{late}", style="bold")
    for number, name in enumerate(_RATES):
        line = _rate_line(name, recent.rates)
        if number < len(recent.rates):
            line.append(f"   {windows[number].ljust(9)}{_lateness(recent.rates[number])}")
        yield line
    if recent.silent:
        names = ", ".join(f"{name} ({why})" if why else name for name, why in recent.silent.items())
        yield Text(f"without {printable(names)}", style="yellow")


def _rate_line(name: str, windows: Sequence[Rates]) -> Text:
    """One rate in each window."""
    line = Text(name.ljust(11))
    for rates in windows:
        per_s = rates.per_s.get(name, 0.0)
        shown = rate_text(per_s) if rates.covered_s else "-"
        line.append(shown.rjust(_RATE_CELLS), style="yellow" if per_s and name in _BAD else "")
    return line


def _lateness(rates: Rates) -> str:
    if rates.lateness is None:
        return "".join("-".rjust(_RATE_CELLS) for _ in range(3))
    return "".join(_ms(each).rjust(_RATE_CELLS) for each in rates.lateness)


def _ms(ms: float) -> str:
    if ms < 10:
        return f"{ms:.1f} ms"
    return f"{ms:,.0f} ms" if ms < 10_000 else f"{ms / 1000:,.0f} s"


def _minute(horizon: Horizon, width: int, rows: int) -> Iterator[Text]:
    """The next 60 seconds as bars, in as many columns as there is room for."""
    seconds = [0] * _SECONDS
    for number, cell in enumerate(horizon.cells):
        seconds[min(number, _SECONDS - 1)] += cell.messages
    step = next(n for n in (1, 2, 3, 4, 5, 6) if _SECONDS // n <= width - 12)
    counts = [sum(seconds[at : at + step]) for at in range(0, _SECONDS, step)]
    most = max(counts)
    unit = "1s" if step == 1 else f"{step}s"
    peak = f", at most {most:,} in {unit}, in {counts.index(most) * step}s" if most else ""
    # Workers have claimed most of what is due within a second or two; it is in no bar.
    claimed = f"; {horizon.in_flight:,} claimed" if horizon.in_flight else ""
    yield Text(f"NEXT MINUTE  {horizon.messages:,} fall due{peak}{claimed}", style="bold")
    for row in reversed(range(rows)):
        bars = "".join(_bar(count, most, row, rows) for count in counts)
        yield Text(f"{f'{most:,}' if row == rows - 1 and most else '':>10}  ").append(
            bars, style="cyan"
        )
    marks = "".join(f"{at}s".ljust(len(counts) // 6) for at in range(0, _SECONDS, 10))
    yield Text(f"{'':>10}  {marks}", style="dim")


def _bar(count: int, most: int, row: int, rows: int) -> str:
    """One character of a bar; anything above zero shows."""
    eighths = max(round(count / most * rows * 8), 1) if count else 0
    return (_BARS if is_utf() else _PLAIN_BARS)[max(0, min(8, eighths - row * 8))]


def _fitted(lines: Sequence[Text], width: int, height: int) -> Lines:
    fitted = [*lines[:height], *[Text()] * max(0, height - len(lines))]
    for line in fitted:
        line.truncate(width, overflow="ellipsis" if is_utf() else "crop")
    return fitted
