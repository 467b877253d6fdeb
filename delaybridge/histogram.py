"""Histograms: how many observations fell into each bucket, and their sum."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence

from delaybridge.events import LATENESS_BOUNDS_MS
from delaybridge.times import YEAR_MS

BOUNDS_MS = LATENESS_BOUNDS_MS
DELAY_BOUNDS_MS = (*(1000 * 4**power for power in range(13)), YEAR_MS)
_MESSAGES_BOUNDS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
_BOUNDS: Mapping[str, Sequence[float]] = {
    "requested_delay_seconds": DELAY_BOUNDS_MS,
    "scan_batch_messages": _MESSAGES_BOUNDS,
}


def bounds_of(metric: str) -> Sequence[float]:
    """The upper bounds of a metric; times in ms."""
    return _BOUNDS.get(metric, BOUNDS_MS)


def spread(values: Sequence[int], bounds: Sequence[float] = BOUNDS_MS) -> dict[int, int]:
    """Index of a bound -> number of these values that belong to it, for bounds that have some.

    Cheap if all belong to one bound, as nearly always within a batch.
    """
    first, last = (bisect_left(bounds, each) for each in (min(values), max(values)))
    if first == last:
        return {first: len(values)}
    ordered = sorted(values)
    ends = [0, *(bisect_right(ordered, bound) for bound in bounds[first:last]), len(ordered)]
    counts = enumerate((end - start for start, end in zip(ends, ends[1:], strict=False)), first)
    return {index: count for index, count in counts if count}


class Histogram:
    """Observations since the start of the process. Neither number ever falls.

    counts: by index of the bound, not cumulative; the last is above all bounds. sum: of all
    observations; one below zero counts as zero. Times are in ms.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, counts: Mapping[int, int], sum: float) -> None:
        """Observations as `spread` counts them, and their sum."""
        for index, count in counts.items():
            self.counts[index] += count
        self.sum += max(0.0, sum)

    def observe(self, value: float) -> None:
        """One observation; its sum is kept to a thousandth.

        Such sums are exact in whatever order they are added. Else the sum of all processes could
        fall by the last bit when one of them ends, and Prometheus would see a reset.
        """
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += max(0, round(value * 1024)) / 1024

    def copy(self) -> Histogram:
        """The same numbers, which stay as they are now."""
        made = Histogram(self.bounds)
        made.counts, made.sum = self.counts.copy(), self.sum
        return made


class Histograms(dict[tuple[str, ...], Histogram]):
    """Histograms by metric and labels; a new one has the bounds of its metric."""

    def __missing__(self, key: tuple[str, ...]) -> Histogram:
        made = self[key] = Histogram(bounds_of(key[0]))
        return made
