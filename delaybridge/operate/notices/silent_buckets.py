"""Buckets that cannot be seen now: a server of a Cluster does not answer, all others do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from delaybridge.errors import StoreError, StoreUnavailable
from delaybridge.store.namespace.translatable import Sentence

_NAMED = 10  # buckets


class Unseen(NamedTuple):
    """A server that does not answer, and its buckets: nothing is known of their messages.

    They wait, and go out when the server answers again, or when another has taken its place.
    """

    node: str
    buckets: tuple[int, ...]
    why: str

    @property
    def sentence(self) -> Sentence:
        """Which server it is, which buckets, and why."""
        shown = ", ".join(map(str, self.buckets[:_NAMED]))
        values: dict[str, object] = {"node": self.node, "buckets": shown, "why": self.why}
        if len(self.buckets) == 1:
            return Sentence(
                "{node} does not answer, its bucket {buckets} cannot be seen: {why}", values
            )
        if (more := len(self.buckets) - _NAMED) > 0:
            return Sentence(
                "{node} does not answer, its buckets {buckets} and {more} more cannot be seen: "
                "{why}",
                values | {"more": more},
            )
        return Sentence(
            "{node} does not answer, its buckets {buckets} cannot be seen: {why}", values
        )

    def __str__(self) -> str:
        return str(self.sentence)


def numbers(unseen: Iterable[Unseen]) -> list[int]:
    """The numbers of these buckets."""
    return [bucket for each in unseen for bucket in each.buckets]


def why_unseen(node: str, error: StoreError | None) -> str:
    """The reason if a server of a Cluster did not answer; empty for none. Raises other errors."""
    if error is None:
        return ""
    if not node or not isinstance(error, StoreUnavailable):
        raise error
    return str(error).removeprefix("redis: ").rstrip(".")


def by_node(found: Iterable[tuple[int, str, str]]) -> list[Unseen]:
    """Bucket, node and reason of each bucket; those with a reason, by node."""
    grouped: dict[str, list[tuple[int, str]]] = {}
    for bucket, node, why in found:
        if why:
            grouped.setdefault(node, []).append((bucket, why))
    return [
        Unseen(node, tuple(bucket for bucket, _ in of_node), of_node[0][1])
        for node, of_node in sorted(grouped.items())
    ]
