"""Whose a source is: a delay exchange or delay topic belongs to one namespace.

Read by two, it would be divided between two stores, and `cancel` in one would not find what the
other has. The broker keeps the owner's name, so it holds whatever Redis each of them uses.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Self

from delaybridge.errors import ConfigError
from delaybridge.ingest.routes import Route


class SourceTaken(ConfigError):
    """A source belongs to another namespace."""


class Owner(NamedTuple):
    """A namespace as its sources name it.

    name: NAMESPACE@BIRTH; two of one name, or one that was wiped and used again, differ in birth.
    take_over: the names of owners whose sources become this one's.
    """

    name: str
    take_over: frozenset[str] = frozenset()

    @classmethod
    def of(cls, namespace: str, birth: str, take_over: Iterable[str] = ()) -> Self:
        """The owner that a namespace is, once it was born."""
        return cls(f"{namespace}@{birth}", frozenset(take_over))

    def refusal(self, route: Route, other: str) -> str:
        """Why this namespace does not read what belongs to another, and what to do."""
        namespace, _, _ = other.partition("@")
        own, _, _ = self.name.partition("@")
        whose = f"namespace {namespace!r} ({other})"
        if namespace == own:
            whose += ", which this Redis does not hold: it was wiped since, or it is another Redis"
        return (
            f"{route} belongs to {whose}. Let {self.name} read another source; or, if {other} "
            f"is given up, run once: delaybridge ingest {route.kind} --take-over {other}"
        )
