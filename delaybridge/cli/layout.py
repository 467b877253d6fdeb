"""How text fits a terminal. Widths are in cells: a wide character takes two.

Without a width nothing is cut or left out: scripts read the whole text.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.cells import cell_len, set_cell_size

from delaybridge.cli.output import Column

_GAP = "  "
# The least cells of a column of text: enough for an id or a time while columns can be left out.
_ROOMY, _TIGHT = 26, 10


def table(
    columns: Sequence[Column[Any]], rows: Sequence[Sequence[str]], width: int | None = None
) -> list[str]:
    """Lines of aligned columns, their titles first, at most `width` cells wide.

    Where there is no room, text is cut to 26 cells, then spare columns are left out, then text is
    cut to 10 cells. Columns of numbers are not cut.
    """
    lines = [[column.title for column in columns], *rows]
    widths = _widths(
        columns, [max(map(cell_len, cells)) for cells in zip(*lines, strict=True)], width
    )
    return [
        _GAP.join(_padded(line[i], width, columns[i].right) for i, width in widths.items()).rstrip()
        for line in lines
    ]


def _widths(
    columns: Sequence[Column[Any]], natural: Sequence[int], width: int | None
) -> dict[int, int]:
    """The cells of each column that is shown, by its index."""
    shown = dict(enumerate(natural))
    if width is None:
        return shown
    spare = sorted((column.spare, i) for i, column in enumerate(columns) if column.spare)
    for _, left_out in [*spare, (0, None)]:
        room = width - len(_GAP) * (len(shown) - 1)
        fitted = _shrunk(columns, shown, _ROOMY, room)
        if sum(fitted.values()) <= room:
            return fitted
        if left_out is not None:
            del shown[left_out]
    return _shrunk(columns, shown, _TIGHT, room)


def _shrunk(
    columns: Sequence[Column[Any]], natural: Mapping[int, int], least: int, room: int
) -> dict[int, int]:
    """The columns' widths, the widest text cut first and none below `least` or its title."""
    widths = dict(natural)
    floors = {i: max(least, len(columns[i].title)) for i in natural if not columns[i].right}
    while sum(widths.values()) > room:
        long = [i for i, floor in floors.items() if widths[i] > floor]
        if not long:
            break
        widths[max(long, key=widths.__getitem__)] -= 1
    return widths


def _padded(text: str, cells: int, to_the_right: bool) -> str:
    text = cut(text, cells)
    padding = " " * (cells - cell_len(text))
    return padding + text if to_the_right else text + padding


def cut(text: str, cells: int) -> str:
    """`text` in at most `cells` cells: prose loses its end, an id or a name its middle."""
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
    """`text` in lines of at most `width` cells; all but the first are indented."""
    from rich.console import Console
    from rich.text import Text

    room = max(width - len(indent), _TIGHT)
    lines = Text(text).wrap(Console(width=room), room)
    return f"\n{indent}".join(line.plain.rstrip() for line in lines)
