"""Sentences for people, which a page can translate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Sentence(NamedTuple):
    """template: English, with `{name}` for each of the values. As text it is the English sentence.

    The template must be a literal where it is written: a test looks for the translation of each.
    """

    template: str
    values: Mapping[str, object]

    def __str__(self) -> str:
        return self.template.format(**self.values)


def some(names: Sequence[object], most: int) -> str:
    """The first of them, as `1, 2, …`."""
    return ", ".join(map(str, names[:most])) + (", …" if len(names) > most else "")
