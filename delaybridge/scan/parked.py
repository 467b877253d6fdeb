"""What one session has set aside of one lane, and who must wait behind it.

Whatever is later than the earliest that is parked is parked behind it, so that nothing of one key
overtakes. All comes back at once when the way is free; a handful of the earliest, to probe a
circuit.
"""

from __future__ import annotations

import heapq
from math import inf

from delaybridge.scan.copy import Copy

_KNOWN = 50_000  # ids remembered, to bring back those and no others


class Parked:
    """Ids and scores, the earliest of them all where they are too many to remember.

    is_returning: some are on their way back; whatever comes meanwhile is parked, too.
    """

    def __init__(self) -> None:
        self._known: list[tuple[float, str]] = []  # a heap
        self._last = -inf  # the highest score known
        self._is_whole = True  # nothing was parked that is not known
        self.is_returning = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left here."""
        return self._is_whole and not self._known

    def __len__(self) -> int:
        """How many are known."""
        return len(self._known)

    @property
    def first(self) -> float:
        """The earliest score; -inf if it is not known."""
        return self._known[0][0] if self._known else -inf

    def add(self, copy: Copy) -> None:
        """Remember it, and when that is too many, the earliest: they come back first."""
        if copy.score < self._last or (self._is_whole and len(self._known) < _KNOWN):
            heapq.heappush(self._known, (copy.score, copy.id))
            self._last = max(self._last, copy.score)
        else:
            self._is_whole = False

    def is_before(self, copy: Copy) -> bool:
        """Whether the copy must wait behind it."""
        return self.is_returning or not self._known or copy.score > self._known[0][0]

    def take(self, most: int | None) -> list[str] | None:
        """The ids of the earliest, or of all; None: all, and they are not all known."""
        if most is not None and most < len(self._known):
            return [heapq.heappop(self._known)[1] for _ in range(most)]
        ids = [id for _, id in self._known] if self._is_whole else None
        self._known, self._last, self._is_whole = [], -inf, True
        return ids
