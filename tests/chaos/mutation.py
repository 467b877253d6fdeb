"""A mutation: a mistake that somebody might make in the product, which a cell must notice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    """what: the mistake. change: makes it. cells: those that must turn red, one is enough."""

    what: str
    change: Callable[[], None]
    cells: tuple[str, ...]
