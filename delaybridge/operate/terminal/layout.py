"""How text fits a terminal. Widths are in cells: a wide character takes two.

Without a width nothing is cut or left out: scripts read the whole text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from rich.cells import cell_len, set_cell_size

from delaybridge.operate.terminal.streams import is_utf

_GAP = "  "
_RIGHT = ">"
# The least cells of a column of text: enough for an id or a time while columns can be left out.
_ROOMY, _TIGHT = 26, 10
_COMMAND = re.compile(
    r"""(?<=: )(?:rabbitmq(?:ctl|admin)|redis-cli|kafka-topics\.sh|delaybridge)"""
    r"""(?: (?:(?!\. [A-Z])[^\s;'"(]|'[^']*'|"[^"]*")+)+""",
    re.ASCII,
)


def table(
    rows: Sequence[Mapping[str, str]], spare: Sequence[str] = (), width: int | None = None
) -> list[str]:
    """Lines of aligned columns, their titles first, at most `width` cells wide.

    If there is no room, text is cut to 26 cells, then spare columns are left out in this order,
    then text is cut to 10 cells. Columns that are aligned to the right are not cut.
    """
    columns = {title: [title.lstrip(_RIGHT), *(row[title] for row in rows)] for title in rows[0]}
    columns = {title: cells for title, cells in columns.items() if any(cells[1:])}
    widths = {title: max(map(cell_len, cells)) for title, cells in columns.items()}
    if width is not None:
        widths = _fitted(widths, [title for title in spare if title in widths], width)
    return [
        _GAP.join(
            _padded(columns[title][at], cells, title) for title, cells in widths.items()
        ).rstrip()
        for at in range(len(rows) + 1)
    ]


def _fitted(natural: Mapping[str, int], spare: Sequence[str], width: int) -> dict[str, int]:
    """The cells of each column that is shown."""
    for count in range(len(spare) + 1):
        shown = {title: cells for title, cells in natural.items() if title not in spare[:count]}
        room = width - len(_GAP) * (len(shown) - 1)
        if sum(_shrunk(shown, _ROOMY, room).values()) <= room:
            return _shrunk(shown, _ROOMY, room)
    return _shrunk(shown, _TIGHT, room)


def _shrunk(natural: Mapping[str, int], least: int, room: int) -> dict[str, int]:
    """The columns' widths, the widest text cut first and none below `least` or its title."""
    widths = dict(natural)
    floors = {title: max(least, len(title)) for title in natural if title[0] != _RIGHT}
    while sum(widths.values()) > room:
        long = [title for title, floor in floors.items() if widths[title] > floor]
        if not long:
            break
        widths[max(long, key=widths.__getitem__)] -= 1
    return widths


def _padded(text: str, cells: int, title: str) -> str:
    text = shortened(text, cells)
    padding = " " * (cells - cell_len(text))
    return padding + text if title[0] == _RIGHT else text + padding


def shortened(text: str, cells: int) -> str:
    """`text` in at most `cells` cells: prose loses its end, an id or a name its middle."""
    if cell_len(text) <= cells:
        return text
    mark = "…" if is_utf() else "..."
    room = max(cells - len(mark), 0)
    tail = 0 if " " in text else room // 2
    head = set_cell_size(text, room - tail).rstrip()
    return head + mark + set_cell_size(text[::-1], tail).rstrip()[::-1]


def wrapped(text: str, width: int, indent: str) -> str:
    """`text` in lines of at most `width` cells; all but the first are indented.

    A command that needs more has a line of its own, so that it can be copied whole.
    """
    room = max(width - len(indent), _TIGHT)
    lines = _lines(text, room)
    if [each for line in lines for each in _COMMAND.findall(line)] != _COMMAND.findall(text):
        parts = re.split(f"({_COMMAND.pattern})", text)  # prose, command, prose, ...
        parted = [_lines(prose.strip(" ;").removeprefix(". "), room) for prose in parts[::2]]
        lines = parted[0]
        for command, prose in zip(parts[1::2], parted[1:], strict=True):
            lines += [command, *prose]
    return f"\n{indent}".join(line for line in lines if line)


def _lines(text: str, room: int) -> list[str]:
    from rich.console import Console
    from rich.text import Text

    return [line.plain.rstrip() for line in Text(text).wrap(Console(width=room), room)]
