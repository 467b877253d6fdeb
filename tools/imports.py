"""Which room imports which, read from the source of the package."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.rigs.rooms import ANNEXES, ENGINE, FACES, GROUND, PACKAGE, PORTS, room_of

# These are drawn as one room each, and so are the modules that every room may use.
_WHOLE = ("ingest", "ledger", "publishers", "serve")
_GROUND = "message"


def _drawn(room: str) -> str:
    first = room.partition("/")[0]
    return _GROUND if room in GROUND else first if first in _WHOLE else room


ENGINE_ROOMS = list(dict.fromkeys(map(_drawn, (_GROUND, *ENGINE))))
ANNEX_ROOMS = list(dict.fromkeys(map(_drawn, ANNEXES)))


@cache
def imports() -> frozenset[tuple[str, str]]:
    """Pairs of rooms of which the first imports the second, also if only for types."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        name = str(path.relative_to(PACKAGE))
        if name not in PORTS and room_of(name) not in FACES:
            used = (room_of(each) for each in _used_by(path))
            found |= {(_drawn(room_of(name)), _drawn(each)) for each in used if each}
    known = {*ENGINE_ROOMS, *ANNEX_ROOMS}
    return frozenset(pair for pair in found if pair[0] != pair[1] and known.issuperset(pair))


def rooms() -> list[str]:
    """The rooms that have imports or importers, from the lowest to the highest."""
    used = {room for pair in imports() for room in pair}
    return [room for room in (*ENGINE_ROOMS, *ANNEX_ROOMS) if room in used]


def _used_by(path: Path) -> Iterator[str]:
    """The modules of the package that a file imports, as `store/calls/Calls`."""
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            package, _, rest = name.partition(".")
            if package == PACKAGE.name:
                yield rest.replace(".", "/")
