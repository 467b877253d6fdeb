"""A cell's history as a page: when each message came and how late, the faults, what is broken."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

from tests.chaos.cell import Cell
from tests.chaos.checker import INVARIANTS, Fate, Found

WIDTH, HEIGHT, LEFT = 960, 320, 60  # pixels; LEFT: of the first tick's text
LATEST_MS = 100_000
STYLE = """
body { font: 15px/1.4 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem }
svg { width: 100%; height: auto } text { font-size: 12px; fill: #666 }
path { stroke-width: 3; stroke-linecap: round }
.first { stroke: #2b6cb0 } .again { stroke: #c53030 }
rect { fill: #f6ad55; opacity: .3 } line { stroke: #ddd } pre { overflow-x: auto }
"""


def page(
    cell: Cell, fates: Sequence[Fate], faults: Sequence[tuple[int, int]], found: Found,
    figures: str, timelines: Iterable[str],
) -> str:  # fmt: skip
    """The page as HTML. faults: from, to; epoch ms."""
    broken = {name: what for name, what in found.items() if what}
    holds = [
        f"<li><b>{name}</b> {escape(INVARIANTS[name])}: {escape(', '.join(what[:20]))}</li>"
        for name, what in broken.items()
    ]
    return "\n".join(
        [
            "<!doctype html>", f'<html lang="en"><meta charset="utf-8"><title>{cell.id}</title>',
            f"<style>{STYLE}</style>", f"<h1>{cell.id}: {escape(cell.component)}</h1>",
            f"<p>{escape(cell.fault)}. Expected: {escape(cell.expects)}.</p>",
            f"<p>{escape(figures)}</p>", _chart(fates, faults),
            "<p>Each point is a delivery: blue the first one of a message, red a further one. "
            "Shaded: a fault, with the time that its effects may last.</p>",
            f"<h2>Broken</h2><ul>{''.join(holds) or '<li>nothing</li>'}</ul>",
            *(f"<pre>{escape(each)}</pre>" for each in timelines), "</html>", "",
        ]
    )  # fmt: skip


def _chart(fates: Sequence[Fate], faults: Sequence[tuple[int, int]]) -> str:
    came = [(d.at_us / 1000, d.at_us / 1000 - d.due_ms, n > 0)
            for fate in fates for n, d in enumerate(fate.deliveries)]  # fmt: skip
    times = [at_ms for at_ms, _, _ in came] + [ms for fault in faults for ms in fault] or [0.0]
    begin_ms, span_ms = min(times), max(max(times) - min(times), 1.0)

    def x(at_ms: float) -> float:
        return LEFT + (at_ms - begin_ms) / span_ms * (WIDTH - LEFT)

    def y(late_ms: float) -> float:
        share = math.log10(min(max(late_ms, 1.0), LATEST_MS)) / math.log10(LATEST_MS)
        return HEIGHT - 20 - share * (HEIGHT - 40)

    parts = [
        f'<rect x="{x(begin):.0f}" y="20" width="{x(end) - x(begin):.0f}" height="{HEIGHT - 40}"/>'
        for begin, end in faults
    ]
    for late_ms, shown in ((1, "1 ms"), (10, "10 ms"), (100, "0.1 s"), (1000, "1 s"),
                           (10_000, "10 s"), (LATEST_MS, "100 s")):  # fmt: skip
        ends = f'x1="{LEFT}" x2="{WIDTH}" y1="{y(late_ms):.0f}" y2="{y(late_ms):.0f}"'
        parts.append(f'<text x="0" y="{y(late_ms) + 4:.0f}">{shown}</text><line {ends}/>')
    for kind in ("first", "again"):
        points = "".join(f"M{x(at):.1f} {y(late):.1f}h0" for at, late, again in came
                         if again == (kind == "again"))  # fmt: skip
        parts.append(f'<path class="{kind}" d="{points}"/>')
    parts.append(f'<text x="{LEFT}" y="{HEIGHT - 2}">0 s</text>')
    end = f"{span_ms / 1000:.0f} s"
    parts.append(f'<text x="{WIDTH}" y="{HEIGHT - 2}" text-anchor="end">{end}</text>')
    label = "lateness of each delivery over the time of the run"
    body = "\n".join(parts)
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{body}</svg>'
