"""The recording of `delaybridge demo` that the README shows: `python -m tools.demo`."""

from __future__ import annotations

import re
import subprocess
import sys
import time
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
@keyframes shown { from { opacity: 0; } }
@media screen and (prefers-reduced-motion: no-preference) { text { animation: shown 1ms both; } }
</style>"""
_EVENT = re.compile(r" \d\d:\d\d  \S")  # a row of numbers has more spaces


def recorded() -> list[tuple[float, str]]:
    """What the demo prints now: the seconds since its start, and the line."""
    command = [sys.executable, "-m", "delaybridge", "demo"]
    lines: list[tuple[float, str]] = []
    began_s = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            lines.append((time.monotonic() - began_s, line.rstrip()))
    assert lines[-1][1] == "PASS", lines
    return lines


def drawn(lines: Sequence[tuple[float, str]]) -> str:
    """The lines as a terminal shows them, each at its second, in SVG."""
    shown = [(0.0, "$ delaybridge demo"), *lines]
    width = max(len(line) for _, line in shown) * _LETTER + 2 * _MARGIN
    height = len(shown) * _LINE + 2 * _MARGIN
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" '
        'role="img" aria-label="What the demo prints">'
    )
    ground = f'<rect width="{width:.0f}" height="{height}" rx="8" fill="#161b22"/>'
    places = range(_MARGIN + 12, height, _LINE)
    rows = [
        f'<text x="{_MARGIN}" y="{y}" style="animation-delay: {at_s:.1f}s"{_kind(line)}>'
        f"{escape(line)}</text>"
        for y, (at_s, line) in zip(places, shown, strict=False)
        if line
    ]
    return "\n".join([head, _STYLE, ground, *rows, "</svg>", ""])


def _kind(line: str) -> str:
    if line.startswith("$"):
        return ' class="command"'
    if line == "PASS":
        return ' class="end"'
    return ' class="event"' if _EVENT.match(line) else ""


def main() -> None:
    """Record it, and draw it."""
    PICTURE.write_text(drawn(recorded()))


if __name__ == "__main__":
    main()
