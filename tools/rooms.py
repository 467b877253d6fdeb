"""The rooms of the package and their arrows, drawn from the imports: `python -m tools.rooms`.

An arrow leads from a room to one that it imports. Those that follow from others are left out: if A
imports B and B imports C, there is no arrow from A to C.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from statistics import fmean

from tools.imports import ANNEX_ROOMS, imports, rooms
from tools.picture import Box, picture, text

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "rooms.svg"
_ROW, _WIDTH, _MARGIN = 52, 900, 90
_BOX_HEIGHT, _LETTER = 30, 8
Arrows = dict[str, set[str]]


def drawn() -> str:
    """The whole picture as SVG text."""
    arrows = _without_shortcuts(_downward())
    levels = _levels(arrows)
    ways = [_way(upper, lower, levels) for upper in arrows for lower in sorted(arrows[upper])]
    at = _places(ways, levels)
    height = (max(levels.values()) + 1) * _ROW
    width = max(at[room] + len(room) * _LETTER / 2 for room in levels) + 20
    bottom = height - _ROW / 2

    def y_of(level: float) -> float:
        return bottom - level * _ROW

    first = min(levels[room] for room in levels if room in ANNEX_ROOMS)
    border = (y_of(first) + y_of(first - 1)) / 2
    parts = [
        f'<rect width="{width:g}" height="{border:g}" fill="#fff8e6" style="stroke: none"/>',
        text(50, border - 10, "annexes", "small"),
        text(50, border + 18, "engine", "small"),
        *(_line([(at[n], y_of(_level(n, levels))) for n in way]) for way in ways),
    ]
    for room in levels:
        fill = "#ffe7b3" if room in ANNEX_ROOMS else "#ddf4ff"
        place = at[room], y_of(levels[room]), len(room) * _LETTER + 16
        parts.append(Box(room, *place, _BOX_HEIGHT, fill).drawn())
    return picture(width, height, "The rooms and what they import", parts)


def _downward() -> Arrows:
    """What each room imports of the lower ones."""
    order = {room: place for place, room in enumerate(rooms())}
    found: Arrows = {room: set() for room in order}
    for upper, lower in imports():
        if order[lower] < order[upper]:
            found[upper].add(lower)
    return found


def _reached(room: str, arrows: Arrows) -> set[str]:
    found: set[str] = set()
    left = [room]
    while left:
        new = arrows.get(left.pop(), set()) - found
        found |= new
        left += new
    return found


def _without_shortcuts(arrows: Arrows) -> Arrows:
    return {
        room: lower - {far for near in lower for far in _reached(near, arrows)}
        for room, lower in arrows.items()
    }


def _levels(arrows: Arrows) -> dict[str, int]:
    """The row of each room, the lowest is 0; every annex is above the whole engine."""
    levels: dict[str, int] = {}

    def level(room: str) -> int:
        if room not in levels:
            levels[room] = 1 + max(map(level, arrows[room]), default=-1)
        return levels[room]

    top = max(level(room) for room in arrows if room not in ANNEX_ROOMS)
    levels = {room: number for room, number in levels.items() if room not in ANNEX_ROOMS}
    for room in (each for each in arrows if each in ANNEX_ROOMS):
        level(room)
        levels[room] = max(levels[room], top + 1)
    return levels


def _way(upper: str, lower: str, levels: dict[str, int]) -> list[str]:
    """The points that an arrow passes: in each row between its ends it needs a place of its own."""
    between = range(levels[upper] - 1, levels[lower], -1)
    return [upper, *(f"{upper}>{lower}@{row}" for row in between), lower]


def _level(name: str, levels: dict[str, int]) -> int:
    return levels[name] if name in levels else int(name.rpartition("@")[2])


def _places(ways: list[list[str]], levels: dict[str, int]) -> dict[str, float]:
    """How far to the right each room and point is: near the middle of its neighbours."""
    near: Arrows = defaultdict(set)
    for way in ways:
        for one, other in pairwise(way):
            near[one].add(other)
            near[other].add(one)
    beside = {name: sorted(names) for name, names in near.items()}
    rows: dict[int, list[str]] = defaultdict(list)
    for name in sorted({*levels, *near}):
        rows[_level(name, levels)].append(name)
    middle = _WIDTH / 2
    at = {name: middle + 9.0 * place for row in rows.values() for place, name in enumerate(row)}
    for turn in range(60):
        for number in sorted(rows, reverse=turn % 2 == 0):
            row = rows[number]
            wanted = {n: fmean(at[o] for o in beside[n]) for n in row if n in beside}
            if turn < 30:  # then their order stays, and only the distances change
                row.sort(key=lambda name: (wanted.get(name, middle), name))
            at |= _apart(row, levels, wanted)
    left = min(at[room] - len(room) * _LETTER / 2 for room in levels) - _MARGIN
    return {name: round(x - left) for name, x in at.items()}


def _apart(row: list[str], levels: dict[str, int], wanted: dict[str, float]) -> dict[str, float]:
    """Places for a row in this order: near those that are wanted, and none above another."""
    half = [len(name) * _LETTER / 2 + 15 if name in levels else 13.0 for name in row]
    wish = [wanted.get(name, _WIDTH / 2) for name in row]
    right, left = [*wish], [*wish]
    at_least, at_most = float(_MARGIN), float(_WIDTH - _MARGIN)
    for place in range(len(row)):
        right[place] = max(wish[place], at_least + half[place])
        at_least = right[place] + half[place]
    for place in reversed(range(len(row))):
        left[place] = min(wish[place], at_most - half[place])
        at_most = left[place] - half[place]
    return {name: (r + k) / 2 for name, r, k in zip(row, right, left, strict=True)}


def _line(points: list[tuple[float, float]]) -> str:
    """A smooth line from the bottom of a box, through points, to the top of another."""
    (x, y), *between, (to_x, to_y) = points
    way = [(x, y + _BOX_HEIGHT / 2), *between, (to_x, to_y - _BOX_HEIGHT / 2 - 1)]
    path = f"M{way[0][0]:.0f} {way[0][1]:.0f}"
    for place, ((x, y), (to_x, to_y)) in enumerate(pairwise(way)):
        before, after = way[max(place - 1, 0)], way[min(place + 2, len(way) - 1)]
        bend = x + (to_x - before[0]) / 6, y + (to_y - before[1]) / 6
        to_bend = to_x - (after[0] - x) / 6, to_y - (after[1] - y) / 6
        path += "C" + " ".join(f"{number:.0f}" for number in (*bend, *to_bend, to_x, to_y))
    return f'<path d="{path}"/>'


if __name__ == "__main__":
    PICTURE.write_text(drawn())
