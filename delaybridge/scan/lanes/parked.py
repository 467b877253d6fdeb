"""The messages of one lane that one session has parked, and which copies must wait behind them.

A copy later than the earliest parked message is parked too, so that no message overtakes an earlier
one of its key. They come back all at once; to probe a circuit, only the earliest few.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from math import inf

_KNOWN = 50_000  # ids remembered; the others are read from the store, a page at a time
_FEW = 5000  # fewer ids than that: the next page is read


class Parked:
    """Ids and scores of parked messages; beyond 50,000, of the earliest only.

    is_whole: every parked id is known. is_returning: some are going back to `due`; copies that come
    meanwhile are parked too.
    """

    def __init__(self) -> None:
        self._known: list[tuple[float, str]] = []  # a heap
        self._last = -inf, ""  # all up to here are known
        self._meanwhile: list[tuple[float, str]] | None = None  # parked while a page is read
        self.is_whole = True
        self.is_returning = False

    @property
    def is_empty(self) -> bool:
        """Whether no message is parked here."""
        return self.is_whole and not self._known

    @property
    def may_return(self) -> bool:
        """Whether some can be brought back."""
        return bool(self._known) and not self.is_returning

    def __len__(self) -> int:
        """The number of known ids."""
        return len(self._known)

    @property
    def first(self) -> float:
        """The earliest score, -inf if unknown."""
        return self._known[0][0] if self._known else -inf

    def count_due(self, now_ms: int, most: int) -> int:
        """How many of the known ones are due; at least `most` is enough."""
        if self._last[0] < now_ms + 1:
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
        one = score, id
        if one <= self._last or (self.is_whole and len(self._known) < min(bound, _KNOWN)):
            heapq.heappush(self._known, one)
            self._last = max(self._last, one)
        else:
            self.is_whole = False
            if self._meanwhile is not None:
                self._meanwhile.append(one)

    def is_before(self, score: float) -> bool:
        """Whether a copy of this score must wait behind a parked message."""
        return self.is_returning or not self._known or score > self._known[0][0]

    def take_earliest(self, most: int | None) -> list[str]:
        """Take the earliest `most` known ids, or all that are known."""
        if most is not None and most < len(self._known):
            return [heapq.heappop(self._known)[1] for _ in range(most)]
        ids = [id for _, id in self._known]
        self._known = []
        if self.is_whole:
            self._last = -inf, ""
        return ids

    def take_all(self) -> list[str] | None:
        """Take every id; None if not every one is known."""
        ids = self.take_earliest(None) if self.is_whole else None
        self._known, self._last, self.is_whole = [], (-inf, ""), True
        self._meanwhile = None
        return ids

    # pages of the ids that are not known

    def lacks_page(self, bound: int) -> bool:
        """Whether so few ids are known that the next ones are to be read."""
        return not self.is_whole and len(self._known) < min(_FEW, bound)

    def begin_page(self) -> tuple[float, str]:
        """The next ids are being read; returns the score and id after which they begin."""
        self._meanwhile = []
        return self._last

    def add_page(
        self, ours: Iterable[tuple[float, str]], end: tuple[float, str] | None, bound: int
    ) -> None:
        """These were parked when the page was read; it may begin before what is not known.

        end: its last message; None: no more follow.
        """
        if self._meanwhile is None:
            return  # all were brought back since
        meanwhile, self._meanwhile = self._meanwhile, None
        page = {one for one in ours if one > self._last}
        self.is_whole = end is None
        self._last = max([self._last, *page] if end is None else [self._last, end])
        for one in page:
            heapq.heappush(self._known, one)
        for one in meanwhile:
            if one not in page:
                self.add(*one, bound)
