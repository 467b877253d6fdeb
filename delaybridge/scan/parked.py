"""The messages of one lane that one session has parked, and which copies must wait behind them.

A copy later than the earliest parked message is parked too, so that no message overtakes an earlier
one of its key. They come back all at once; to probe a circuit, only the earliest few.
"""

from __future__ import annotations

import heapq
from math import inf

from delaybridge.scan.copy import Copy

_KNOWN = 50_000  # ids remembered; beyond that, all parked messages come back together


class Parked:
    """Ids and scores of parked messages; beyond 50,000, of the earliest only.

    is_returning: some are going back to `due`; copies that come meanwhile are parked too.
    """

    def __init__(self) -> None:
        self._known: list[tuple[float, str]] = []  # a heap
        self._last = -inf  # the highest score known
        self._is_whole = True  # every parked id is known
        self.is_returning = False

    @property
    def is_empty(self) -> bool:
        """Whether no message is parked here."""
        return self._is_whole and not self._known

    def __len__(self) -> int:
        """The number of known ids."""
        return len(self._known)

    @property
    def first(self) -> float:
        """The earliest score, -inf if unknown."""
        return self._known[0][0] if self._known else -inf

    def count_due(self, now_ms: int, most: int) -> int:
        """How many of the known ones are due; at least `most` is enough."""
        if self._last < now_ms + 1:
            return len(self._known)
        count, looks = 0, [0]
        while looks and count < most:
            n = looks.pop()
            if n < len(self._known) and self._known[n][0] < now_ms + 1:
                count += 1
                looks += (2 * n + 1, 2 * n + 2)
        return count

    def add(self, score: float, id: str, bound: int = _KNOWN) -> None:
        """Park one more. Beyond the bound only the earliest ids are kept."""
        if score < self._last or (self._is_whole and len(self._known) < min(bound, _KNOWN)):
            heapq.heappush(self._known, (score, id))
            self._last = max(self._last, score)
        else:
            self._is_whole = False

    def is_before(self, copy: Copy) -> bool:
        """Whether the copy must wait behind a parked message."""
        return self.is_returning or not self._known or copy.score > self._known[0][0]

    def take(self, most: int | None) -> list[str] | None:
        """Take the earliest `most` ids, or all. Returns None for all, if not every id is known."""
        if most is not None and most < len(self._known):
            return [heapq.heappop(self._known)[1] for _ in range(most)]
        ids = [id for _, id in self._known] if self._is_whole else None
        self._known, self._last, self._is_whole = [], -inf, True
        return ids
