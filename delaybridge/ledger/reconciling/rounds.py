"""Rounds: each of some buckets is looked at once in a time, one after another."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import inf
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class Rounds(Generic[T]):
    """A look at each within `every_s` of the last one, or since it was first seen.

    Looks take at most half of the time: if those of a round take longer than half of `every_s`, a
    round lasts twice as long as they do. Times in seconds, on one clock of the caller's.
    """

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._due_s: dict[T, float] = {}
        self._rest_s = -inf  # until then no bucket is looked at

    def next(self, held: Sequence[T], now_s: float) -> tuple[T | None, float]:
        """Whose turn it is, or None and the seconds until the next turn.

        Those that are new together get their first turns spread over the time.
        """
        new = [each for each in held if each not in self._due_s]
        known = {each: self._due_s[each] for each in held if each in self._due_s}
        step_s = self._every_s / max(1, len(new))
        self._due_s = known | {each: now_s + i * step_s for i, each in enumerate(new, 1)}
        if not held:
            return None, inf
        first = min(held, key=self._due_s.__getitem__)
        wait_s = max(self._due_s[first], self._rest_s) - now_s
        return (None, wait_s) if wait_s > 0 else (first, 0.0)

    def looked(self, one: T, began_s: float, now_s: float) -> None:
        """It was looked at from then until now."""
        self._due_s[one] = began_s + self._every_s
        self._rest_s = now_s + (now_s - began_s)
