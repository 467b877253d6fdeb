"""Spreads many messages evenly over a span of time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from delaybridge.store.messages.selection import Selected


class Spreading:
    """Gives each message its place in the span, in their order, bucket by bucket."""

    def __init__(self, over_ms: int, counted: Mapping[int | None, int]) -> None:
        """counted: bucket -> how many messages; None: of those named by id."""
        self._over_ms, self._counted = over_ms, counted
        self._places = Counter[int | None]()

    def later_ms(self, some: Sequence[str | Selected]) -> list[int]:
        """For each of the next messages: how much later than the first of all it is due."""
        found = []
        for one in some:
            bucket = None if isinstance(one, str) else one.bucket
            place, count = self._places[bucket], max(self._counted.get(bucket, 0), 1)
            self._places[bucket] += 1
            # One that was not counted comes last.
            found.append(self._over_ms * min(place, count - 1) // count)
        return found
