"""The owner of a source: a delay exchange or delay topic belongs to one namespace.

If two namespaces read it, its messages would be divided between two stores, and `cancel` in one
would not find those in the other. The broker keeps the owner's name, because the two may not share
a Redis.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Self

from delaybridge.errors import ConfigError
from delaybridge.ingest.routes import Route


class SourceTaken(ConfigError):
    """A source belongs to another namespace."""


class Owner(NamedTuple):
    """A namespace, as its sources record it.

    name: NAMESPACE@BIRTH; the birth tells it from others of the same name, and from itself before
    it was wiped. take_over: owners whose sources this one takes over.
    """

    name: str
    take_over: frozenset[str] = frozenset()

    @classmethod
    def of_namespace(cls, namespace: str, birth: str, take_over: Iterable[str] = ()) -> Self:
        """The owner for a namespace; birth: drawn at random when it was created."""
        return cls(f"{namespace}@{birth}", frozenset(take_over))

    def refusal(self, route: Route, other: str) -> str:
        """Why this namespace does not read the source of another, and what to do."""
        namespace, _, _ = other.partition("@")
        own, _, _ = self.name.partition("@")
        whose = f"namespace {namespace!r} ({other})"
        if namespace == own:
            whose += ", which this Redis does not hold: it was wiped since, or it is another Redis"
        kind = f"{route.kind}{' --front' if route.is_fronted else ''}"
        return (
            f"{route} belongs to {whose}. Let {self.name} read another source; or, if {other} "
            f"is given up, run once, until it reads: delaybridge ingest {kind} --take-over {other}"
        )
