"""Which Redis servers a store has, and which of them has a key: as a call may know it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Placement(Protocol):
    """The servers of a store. A `Store` and an `AsyncStore` are one; no call of it does I/O.

    timeout_s: the seconds in which a call is to have its answer.
    """

    timeout_s: float

    def node_of(self, key: str) -> str:
        """The server that has a key, as `host:port`; empty unless this is a Redis Cluster."""

    def nodes(self) -> Sequence[str]:
        """Every master, as `node_of` names it."""

    def describe(self) -> str:
        """How the servers work together, for people; empty for one server alone."""

    def misses(self, key: str = "") -> bool:
        """Whether the server of a key, or any of a Cluster, does not answer, or did not lately."""


class _OneServer:
    timeout_s = 0.0

    def node_of(self, key: str) -> str:
        return ""

    def nodes(self) -> Sequence[str]:
        return [""]

    def describe(self) -> str:
        return ""

    def misses(self, key: str = "") -> bool:
        return False


ONE_SERVER: Placement = _OneServer()
"""A server that is alone, or behind Sentinels."""


def at(node: str) -> str:
    """`near` for a command that this server is to answer."""
    return f"@{node}" if node else ""
