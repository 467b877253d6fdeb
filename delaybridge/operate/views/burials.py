"""The dead set by reason: what was given up, why, and how often."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from delaybridge.store.protocol.record import first_word
from delaybridge.store.protocol.stored import Stored


class DeadGroup(msgspec.Struct):
    """Dead messages of one destination that were given up for one reason.

    reason: its first word; example: a whole one. oldest_ms, latest_ms: when they were buried, in
    epoch milliseconds.
    """

    reason: str
    destination: str
    messages: int
    oldest_ms: int
    latest_ms: int
    example: str


class Burials:
    """Adds dead messages up, in any order."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, str], DeadGroup] = {}

    def add(self, some: Iterable[Stored]) -> None:
        """Count these messages as well."""
        for one in some:
            example, place, at_ms = one.reason or "?", one.destination or "?", one.dead_ms or 0
            word = first_word(example)
            group = self._groups.get((word, place))
            if group is None:
                group = DeadGroup(word, place, 0, at_ms, at_ms, example)
                self._groups[word, place] = group
            group.messages += 1
            group.oldest_ms = min(group.oldest_ms, at_ms)
            group.latest_ms = max(group.latest_ms, at_ms)

    def groups(self) -> list[DeadGroup]:
        """The groups, the largest first."""
        return sorted(self._groups.values(), key=lambda group: -group.messages)
