"""Arrays of PostgreSQL, written as its text: its driver takes five to ten times as long."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any


def arguments(kinds: Mapping[str, str], columns: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Columns as arguments `of_...` of a statement that casts each to an array of its kind."""
    return {f"of_{name}": array(kinds[name], column) for name, column in columns.items()}


def array(kind: str, column: Sequence[Any]) -> Any:
    """The values of a column, none of them None: or else as they are, for the driver to write."""
    return column if None in column else _WRITERS.get(kind, _numbers)(column)


def _numbers(column: Sequence[int]) -> str:
    return f"{{{','.join(map(str, column))}}}"


def _texts(column: Sequence[str]) -> str:
    joined = '","'.join(column)
    if "\\" in joined or joined.count('"') > 2 * (len(column) - 1):
        escaped = (text.replace("\\", "\\\\").replace('"', '\\"') for text in column)
        joined = '","'.join(escaped)
    return f'{{"{joined}"}}' if column else "{}"


def _bytes(column: Sequence[bytes]) -> str:
    written = [f'"\\\\x{data.hex()}"' for data in column]
    return f"{{{','.join(written)}}}"


_WRITERS: Mapping[str, Callable[[Sequence[Any]], str]] = {"text": _texts, "bytea": _bytes}
