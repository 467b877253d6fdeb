"""Which room imports which: read from the source of the package."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "delaybridge"
# The engine's rooms of which the parts are shown; a module beside them belongs to the room itself.
_SPLIT = ("store", "scan", "publish")
_LOWEST = "message"  # with the other modules that every room may use
_BARE = ("__init__", "__main__", "web")  # public names of other rooms
_PORT = "client/annexes.py"  # finds an annex when it is called; it imports types of annexes only


def room_of(path: Path) -> str:
    """The room of a file: its folder, or one of its folder's parts."""
    folder, *rest = path.relative_to(PACKAGE).parts
    if not rest:
        return _LOWEST
    return f"{folder}/{rest[0]}" if folder in _SPLIT and len(rest) > 1 else folder


@cache
def rooms() -> dict[str, str]:
    """Each room with its purpose, the first sentence of its docstring."""
    found = {_LOWEST: "One message in its three forms; times, errors, events."}
    for sign in sorted(PACKAGE.rglob("__init__.py")):
        if sign.parent != PACKAGE and (room := room_of(sign)) not in found:
            about = ast.get_docstring(ast.parse(sign.read_text())) or ""
            found[room] = about.split("\n\n")[0].replace("\n", " ")
    return found


@cache
def imports() -> frozenset[tuple[str, str]]:
    """Pairs of rooms of which the first imports the second, also if only for types."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        is_bare = path.parent == PACKAGE and path.stem in _BARE
        if not is_bare and path.relative_to(PACKAGE) != Path(_PORT):
            found |= {(room_of(path), room_of(used)) for used in _used_by(path)}
    return frozenset((upper, lower) for upper, lower in found if upper != lower)


def _used_by(path: Path) -> Iterator[Path]:
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            first, *parts = name.split(".")
            if first == "delaybridge" and (used := _file(parts)) is not None:
                yield used


def _file(parts: list[str]) -> Path | None:
    """The module of a dotted name, which may end with the name of something in it."""
    for count in range(len(parts), 0, -1):
        path = PACKAGE.joinpath(*parts[:count])
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if file.is_file():
                return file
    return None
