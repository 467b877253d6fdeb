"""Copies that wait to be fired: on the wheel until their time comes, then ripe, by score."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from operator import attrgetter

from delaybridge.scan.lanes.lanes import Lanes
from delaybridge.scan.leases.copy import Copy
from delaybridge.scan.wheel.wheel import Wheel

BACKWARDS_MS = 50  # a wheel never turns back; if the clock does, by more, it is replaced
by_score = attrgetter("score")


class WaitingCopies:
    """Holds copies until they are fired. messages, bytes: how much it holds.

    ripe: copies that may be fired now, by score; take them off with `taken`.
    """

    def __init__(self, now_ms: int, lanes: Lanes) -> None:
        """lanes: told how many ripe copies each lane has."""
        self._wheel: Wheel[Copy, Copy] = Wheel(now_ms)
        self._turned_ms = now_ms  # how far the wheel has turned
        self._late: list[Copy] = []  # due already when they came
        self._lanes = lanes
        self.ripe: list[Copy] = []
        self.messages = self.bytes = 0

    def add(self, copies: Sequence[Copy]) -> None:
        """Wait with the copies of a claim."""
        self.messages += len(copies)
        self.bytes += sum([copy.size for copy in copies])
        late, turned_ms, insert = list[Copy](), self._turned_ms, self._wheel.insert
        for copy in copies:
            if copy.score <= turned_ms:
                late.append(copy)
            else:
                insert(int(copy.score), copy, copy)
        self._late += late
        self._lanes.ripened(late)

    def next_due_ms(self) -> int | None:
        """When the wheel must be turned next."""
        return self._wheel.next_due_ms()

    def ripen(self, now_ms: int, lead_ms: int, most_ms: int) -> None:
        """Make the copies due within `lead_ms` ripe; if there are any, all due within `most_ms`."""
        to_ms = now_ms + lead_ms
        next_ms = self._wheel.next_due_ms()
        if next_ms is not None and next_ms <= to_ms:
            to_ms = now_ms + most_ms
        if to_ms < self._turned_ms - BACKWARDS_MS:
            self._turn_back(now_ms)
        # The lead may have shrunk, but the wheel never turns back, and `add` compares with it.
        self._turned_ms = max(self._turned_ms, to_ms)
        ripe = self._wheel.advance(self._turned_ms)
        if ripe or self._late:
            self._lanes.ripened(ripe)
            self._merge(self._late + ripe)
            self._late = []

    def _merge(self, copies: list[Copy]) -> None:
        """Put copies among the ripe ones; those before the first of them keep their places."""
        copies.sort(key=by_score)
        place = bisect_right(self.ripe, copies[0].score, key=by_score)
        rest = self.ripe[place:] + copies
        rest.sort(key=by_score)
        self.ripe[place:] = rest

    def _turn_back(self, now_ms: int) -> None:
        """The store's clock was set back: everything waits on a new wheel."""
        off = self.ripe + self._late
        self._lanes.unripened(off)
        waiting = self._wheel.clear() + off
        self._wheel, self._turned_ms = Wheel(now_ms), now_ms
        for copy in waiting:
            self._wheel.insert(int(copy.score), copy, copy)
        self.ripe, self._late = [], []

    def taken(self, copies: Sequence[Copy], kept: list[Copy], checked: int) -> None:
        """These ripe copies wait no more. Of the first `checked` ripe ones, only `kept` stay."""
        self.ripe[:checked] = kept
        self._lanes.unripened(copies)
        self._end_wait(copies)

    def remove(self, which: Callable[[Copy], bool]) -> list[Copy]:
        """Take such copies out, wherever they wait."""
        off = [copy for copy in self.ripe + self._late if which(copy)]
        if off:
            self._lanes.unripened(off)
            self.ripe = [copy for copy in self.ripe if not which(copy)]
            self._late = [copy for copy in self._late if not which(copy)]
        turning = [copy for _, copy in self._wheel.items() if which(copy)]
        for copy in turning:
            self._wheel.cancel(copy)
        self._end_wait(off + turning)
        return off + turning

    def is_due(self, now_ms: int) -> bool:
        """Whether anything is ripe, late or due on the wheel."""
        next_ms = self._wheel.next_due_ms()
        return bool(self.ripe or self._late) or (next_ms is not None and next_ms <= now_ms)

    def _end_wait(self, copies: Sequence[Copy]) -> None:
        self.messages -= len(copies)
        self.bytes -= sum([copy.size for copy in copies])
        for lot, count in Counter([copy.lot for copy in copies]).items():
            lot.session.waits_no_more(lot.claim, count)
