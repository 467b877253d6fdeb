"""A mutation: a mistake that somebody might make in the product, which a cell must notice."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    """what: the mistake. change: makes it. cells: those that must turn red, one is enough."""

    what: str
    change: Callable[[], None]
    cells: tuple[str, ...]


def in_script(verb: str, old: str, new: str) -> Callable[[], None]:
    """A change of a script's text. It must be there."""

    def change() -> None:
        from delaybridge.store.protocol import scripts, verbs

        known = dict(scripts.scripts())
        source, _ = known[verb]
        if old not in source:
            raise LookupError(f"lua/{verb}.lua has no {old!r}")
        text = source.replace(old, new)
        known[verb] = text, hashlib.sha1(text.encode()).hexdigest()
        scripts.scripts = verbs.scripts = lambda: known  # type: ignore[assignment]

    return change
