"""Histograms: how many observations fell into each bucket, and their sum."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence

from delaybridge.events import LATENESS_BOUNDS_MS

BOUNDS_MS = LATENESS_BOUNDS_MS


def spread(values_ms: Sequence[int]) -> dict[int, int]:
    """Index of a bound -> number of these values that belong to it, for bounds that have some.

    Cheap if all belong to one bound, as nearly always within a batch.
    """
    first, last = (bisect_left(BOUNDS_MS, each) for each in (min(values_ms), max(values_ms)))
    if first == last:
        return {first: len(values_ms)}
    ordered = sorted(values_ms)
    ends = [0, *(bisect_right(ordered, bound) for bound in BOUNDS_MS[first:last]), len(ordered)]
    counts = enumerate((end - start for start, end in zip(ends, ends[1:], strict=False)), first)
    return {index: count for index, count in counts if count}


class Histogram:
    """Observations since the start of the process. Neither number ever falls.

    counts: by index of the bound, not cumulative; the last is above all bounds. sum_ms: of all
    observations; one below zero counts as zero.
    """

    __slots__ = ("counts", "sum_ms")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_MS) + 1)
        self.sum_ms = 0.0

    def add(self, counts: Mapping[int, int], sum_ms: float) -> None:
        """Observations as `spread` counts them, and their sum."""
        for index, count in counts.items():
            self.counts[index] += count
        self.sum_ms += max(0.0, sum_ms)

    def observe(self, value_ms: float) -> None:
        """One observation."""
        self.counts[bisect_left(BOUNDS_MS, value_ms)] += 1
        self.sum_ms += max(0.0, value_ms)

    def copy(self) -> Histogram:
        """The same numbers, which stay as they are now."""
        made = Histogram()
        made.counts, made.sum_ms = self.counts.copy(), self.sum_ms
        return made
