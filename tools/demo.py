"""The picture of the README: `delaybridge demo | python -m tools.demo`."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path

PICTURE = Path(__file__).parents[1] / "docs" / "demo.svg"
_LINE, _LETTER, _MARGIN = 17, 7.85, 18
_STYLE = """\
<style>
text { font: 13px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  fill: #d0d7de; white-space: pre; }
.event { fill: #e3b341; } .end { fill: #56d364; font-weight: bold; } .command { fill: #79c0ff; }
</style>"""
_EVENT = re.compile(r" \d\d:\d\d  \S")  # a row of numbers has more spaces


def drawn(lines: Sequence[str]) -> str:
    """The lines as a terminal shows them, in SVG."""
    shown = ["$ delaybridge demo", *lines]
    width = max(map(len, shown)) * _LETTER + 2 * _MARGIN
    height = len(shown) * _LINE + 2 * _MARGIN
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" '
        'role="img" aria-label="What the demo prints">'
    )
    ground = f'<rect width="{width:.0f}" height="{height}" rx="8" fill="#161b22"/>'
    places = range(_MARGIN + 12, height, _LINE)
    rows = [
        f'<text x="{_MARGIN}" y="{y}"{_kind(line)}>{escape(line)}</text>'
        for y, line in zip(places, shown, strict=False)
        if line
    ]
    return "\n".join([head, _STYLE, ground, *rows, "</svg>", ""])


def _kind(line: str) -> str:
    if line.startswith("$"):
        return ' class="command"'
    if line == "PASS":
        return ' class="end"'
    return ' class="event"' if _EVENT.match(line) else ""


if __name__ == "__main__":
    PICTURE.write_text(drawn([line.rstrip() for line in sys.stdin]))
