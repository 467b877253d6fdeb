"""How text fits a terminal. Widths are in cells: a wide character counts two.

Without a width nothing is cut and nothing is left out: that is what a script reads.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size

_GAP = "  "
# What a column of text keeps: an id or a time as long as columns can be spared, then less.
_ROOMY, _TIGHT = 26, 10


def table(
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Sequence[str] = (),
    spare: Sequence[str] = (),
    width: int | None = None,
) -> list[str]:
    """Lines of aligned columns, the titles first, as wide as the terminal at most.

    right: columns of numbers, aligned to the right and never cut. spare: columns that are left out
    where there is no room, the first of them first. Text is cut in the middle, prose at its end.
    """
    lines = [titles, *rows]
    natural = [max(cell_len(line[i]) for line in lines) for i in range(len(titles))]
    widths = dict(enumerate(natural)) if width is None else {}
    for left_out in range(len(spare) + 1):
        if widths:
            break
        shown = [i for i, title in enumerate(titles) if title not in spare[:left_out]]
        widths = _shrunk(titles, natural, shown, right, _ROOMY, width or 0)
    if not widths:
        shown = [i for i, title in enumerate(titles) if title not in spare]
        least = {i: min(natural[i], max(_TIGHT, len(titles[i]))) for i in shown}
        fitted = _shrunk(titles, natural, shown, right, _TIGHT, width or 0)
        widths = fitted or {i: natural[i] if titles[i] in right else least[i] for i in shown}
    return [
        _GAP.join(
            _padded(line[i], cells, to_the_right=titles[i] in right) for i, cells in widths.items()
        ).rstrip()
        for line in lines
    ]


def _shrunk(
    titles: Sequence[str],
    natural: Sequence[int],
    shown: Sequence[int],
    right: Sequence[str],
    least: int,
    width: int,
) -> dict[int, int]:
    """The columns' widths, the widest text cut first; nothing if they do not fit."""
    widths = {i: natural[i] for i in shown}
    room = width - len(_GAP) * (len(shown) - 1)
    soft = [i for i in shown if titles[i] not in right]
    while sum(widths.values()) > room:
        long = [i for i in soft if widths[i] > max(least, len(titles[i]))]
        if not long:
            return {}
        widths[max(long, key=widths.__getitem__)] -= 1
    return widths


def _padded(text: str, cells: int, *, to_the_right: bool) -> str:
    text = cut(text, cells)
    padding = " " * (cells - cell_len(text))
    return padding + text if to_the_right else text + padding


def cut(text: str, cells: int) -> str:
    """`text` in so many cells at most: prose loses its end, anything else its middle."""
    if cell_len(text) <= cells:
        return text
    mark = _mark()
    room = max(cells - len(mark), 0)
    tail = 0 if " " in text else room // 2
    head = set_cell_size(text, room - tail).rstrip()
    return head + mark + set_cell_size(text[::-1], tail).rstrip()[::-1]


def _mark() -> str:
    try:
        "…".encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return "..."
    return "…"


def wrapped(text: str, width: int, indent: str) -> str:
    """`text` in lines of so many cells, all but the first of them indented."""
    from rich.console import Console
    from rich.text import Text

    room = max(width - len(indent), _TIGHT)
    lines = Text(text).wrap(Console(width=room), room)
    return f"\n{indent}".join(line.plain.rstrip() for line in lines)
