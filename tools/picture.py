"""Boxes, arrows and text of a picture, as SVG."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

_STYLE = """\
<style>
text { font: 13px system-ui, sans-serif; fill: #1f2328; }
.small { font-size: 11px; fill: #59636e; }
.label { font-size: 11px; fill: #0550ae; paint-order: stroke; stroke: #fff; stroke-width: 3px; }
rect { stroke: #59636e; rx: 5px; }
path { fill: none; stroke: #8c959f; marker-end: url(#tip); }
</style>
<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"
 orient="auto"><path d="M0 0L8 4L0 8" style="marker-end: none"/></marker></defs>"""


@dataclass(frozen=True)
class Box:
    """A box with its middle at x, y; `note` is a second line in small type."""

    name: str
    x: float
    y: float
    width: float
    height: float
    fill: str
    note: str = ""

    def drawn(self) -> str:
        """The rectangle, and its text in the middle."""
        left, top = self.x - self.width / 2, self.y - self.height / 2
        down = 0.0 if self.note else 4.0
        lines = [
            f'<rect x="{left:g}" y="{top:g}" width="{self.width:g}" height="{self.height:g}" '
            f'fill="{self.fill}"/>',
            text(self.x, self.y + down, self.name),
        ]
        if self.note:
            lines.append(text(self.x, self.y + 14, self.note, "small"))
        return "\n".join(lines)


def text(x: float, y: float, words: str, kind: str = "") -> str:
    """A line of text with its middle at x."""
    marked = f' class="{kind}"' if kind else ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="middle"{marked}>{escape(words)}</text>'


def picture(width: float, height: float, title: str, parts: list[str]) -> str:
    """The whole SVG on white ground, so that it can be read on a dark page, too."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'role="img" aria-label="{escape(title)}">'
    )
    ground = f'<rect width="{width:g}" height="{height:g}" fill="#fff" style="stroke: none"/>'
    return "\n".join([head, _STYLE, ground, *parts, "</svg>", ""])
