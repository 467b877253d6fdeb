"""The timing wheel: holds items in memory and hands each out at its millisecond.

Copies wait on it until their time comes; then they are ripe, by score, until they are fired.
"""

import heapq
import itertools
import operator
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Generic, TypeVar

from delaybridge.scan.lanes.lane import Copy, Window

BACKWARDS_MS = 50  # a wheel never turns back; if the clock does, by more, it is replaced
by_score = operator.attrgetter("score")

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class _Moment(dict[K, T]):
    """All items of one due millisecond, by key, in the order they were inserted."""

    __slots__ = ("due_ms", "slot")

    def __init__(self, due_ms: int, slot: "_Slot[K, T]") -> None:
        self.due_ms = due_ms
        self.slot = slot


class _Slot(dict[int, _Moment[K, T]]):
    """The moments of one slot, by due time in ms."""

    __slots__ = ("level", "number")

    def __init__(self, level: int, number: int) -> None:
        self.level = level
        self.number = number


class _Level(Generic[K, T]):
    """One wheel of the hierarchy: `count` slots of `unit` ticks each, found by a bitmap.

    A *step* is a time counted in this wheel's slots. The wheel reaches from the step under its
    pointer to `count - 1` further, so a slot never mixes two turns and needs no round counter.
    """

    __slots__ = ("count", "occupied", "slots", "unit")

    def __init__(self, number: int, unit: int, count: int) -> None:
        self.unit = unit
        self.count = count
        self.slots: list[_Slot[K, T]] = [_Slot(number, slot) for slot in range(count)]
        self.occupied = 0

    def slot(self, step: int) -> _Slot[K, T]:
        """The slot of that step, marked as occupied: the caller is about to fill it."""
        number = step % self.count
        self.occupied |= 1 << number
        return self.slots[number]

    def next_step(self, pointer: int) -> int | None:
        """The first occupied step at or after the pointer's. None: nothing waits here."""
        here = pointer % self.count
        while self.occupied:
            bits = self.occupied >> here << here or self.occupied
            number = (bits & -bits).bit_length() - 1
            if self.slots[number]:
                return pointer + (number - here) % self.count
            # A slot that was emptied kept its bit; it is cleared here, once.
            self.occupied ^= 1 << number
        return None


class Wheel(Generic[K, T]):
    """Hands every item out once, never early, in due order; within a ms, in order of insertion.

    A hierarchy of timing wheels (Varghese & Lauck, "Hashed and Hierarchical Timing Wheels", SOSP
    1987, scheme 7). Insert, cancel and expiry cost O(1) each, however many items wait; a stretch
    of time in which nothing is due costs nothing, however long it is.

    A *slot* holds the items due in one interval, the *pointer* stands on the slot of the present,
    and the *span* of a wheel is its slot count times its interval. The lowest wheel's interval is
    one tick; that of each wheel above is the span of the one below. Only the lowest wheel hands
    items out. It drives the wheels above: each time a wheel has made a full turn, the pointer
    above moves by one slot, and that slot is demoted, that is, spread over the wheels below. Items
    beyond the span of the highest wheel wait in the overflow buffer, until a step of that wheel
    brings them into its span.

    The items of one millisecond are a *moment*, and the wheels turn moments: to demote a burst
    costs as much as to demote one item, and the order within it never changes.

    A wheel is as exact as its tick: with `tick_ms` above 1, an item due between two ticks comes
    out at the second one. The present is the time that `advance` was given last; it never goes
    back.
    """

    def __init__(
        self, now_ms: int, *, tick_ms: int = 1, slots: Sequence[int] = (256, 64, 64)
    ) -> None:
        if tick_ms < 1:
            raise ValueError(f"tick_ms must be 1 or more, not {tick_ms}")
        if not slots or min(slots) < 2:
            raise ValueError(f"slots must be one count or more, each 2 or more, not {slots}")
        self._tick_ms = tick_ms
        self._tick = now_ms // tick_ms
        units = itertools.accumulate(slots[:-1], operator.mul, initial=1)
        self._levels: list[_Level[K, T]] = [
            _Level(number, unit, count)
            for number, (unit, count) in enumerate(zip(units, slots, strict=True))
        ]
        # Beyond the span: one slot for each step of the highest wheel, and those steps as a heap.
        self._overflow: dict[int, _Slot[K, T]] = {}
        self._overflow_steps: list[int] = []
        self._moments: dict[int, _Moment[K, T]] = {}
        self._where: dict[K, _Moment[K, T]] = {}
        self._known_tick: int | None = None  # `_next_tick`, until a slot is filled or emptied

    @property
    def span_ms(self) -> int:
        """How far ahead the wheels reach, in ms; later items wait in the overflow buffer."""
        highest = self._levels[-1]
        return highest.unit * highest.count * self._tick_ms

    def __len__(self) -> int:
        return len(self._where)

    def __contains__(self, key: K) -> bool:
        return key in self._where

    def items(self) -> Iterator[tuple[K, T]]:
        """Every key with its item, in the order of insertion."""
        return ((key, moment[key]) for key, moment in self._where.items())

    def get(self, key: K) -> T | None:
        moment = self._where.get(key)
        return None if moment is None else moment[key]

    def place(self, key: K) -> tuple[int, int]:
        """The level and the slot where the item waits; KeyError if it is not on the wheel.

        Level 0 is the lowest wheel. The level that equals the number of wheels is the overflow
        buffer, whose slots are the highest wheel's steps, counted from time 0.
        """
        slot = self._where[key].slot
        return slot.level, slot.number

    def insert(self, due_ms: int, key: K, item: T) -> None:
        """Put the item on the wheel. If it is due already, the next `advance` hands it out.

        Raises KeyError, and changes nothing, if the key is on the wheel.
        """
        if key in self._where:
            raise KeyError(key)
        moment = self._moments.get(due_ms)
        if moment is None:
            self._known_tick = None
            moment = _Moment(due_ms, self._slot(due_ms))
            self._moments[due_ms] = moment.slot[due_ms] = moment
        moment[key] = item
        self._where[key] = moment

    def cancel(self, key: K) -> T | None:
        """Take the item off the wheel and return it. None: it is not there, or no longer."""
        moment = self._where.pop(key, None)
        if moment is None:
            return None
        item = moment.pop(key)
        if not moment:
            self._known_tick = None
            del self._moments[moment.due_ms], moment.slot[moment.due_ms]
        return item

    def advance(self, now_ms: int) -> list[T]:
        """Move time on to `now_ms`; return all that is due by then, in due order.

        A time before the last one changes nothing and returns nothing.
        """
        now = now_ms // self._tick_ms
        due: list[T] = []
        while (tick := self._next_tick()) is not None and tick <= now:
            self._tick, self._known_tick = tick, None
            self._demote()
            self._expire(due)
        self._tick = max(self._tick, now)
        return due

    def next_due_ms(self) -> int | None:
        """When to `advance` next, in ms; None if nothing waits. Costs the same at any fill.

        Never later than the tick at which the earliest item comes out. Exactly that if it comes
        out before the lowest wheel completes its turn and a second wheel stands above; else it may
        be the time of a demotion or a pull, after which there is nothing to hand out, but more to
        tell. At or before the present time: something is due already.
        """
        tick = self._next_tick()
        return None if tick is None else tick * self._tick_ms

    def clear(self) -> list[T]:
        """Take everything off the wheel; return it in due order."""
        items = [item for due in sorted(self._moments) for item in self._moments[due].values()]
        for moment in self._moments.values():
            del moment.slot[moment.due_ms]
        self._moments.clear()
        self._where.clear()
        self._known_tick = None
        return items

    def _slot(self, due_ms: int) -> _Slot[K, T]:
        """In the lowest wheel that reaches the due time, else in the overflow buffer."""
        tick = max(-(-due_ms // self._tick_ms), self._tick)
        step = tick
        for level in self._levels:
            step = tick // level.unit
            if step - self._tick // level.unit < level.count:
                return level.slot(step)
        if step not in self._overflow:
            self._overflow[step] = _Slot(len(self._levels), step)
            heapq.heappush(self._overflow_steps, step)
        return self._overflow[step]

    def _next_tick(self) -> int | None:
        """The first tick, from the present on, with anything to hand out, to demote or to pull."""
        if self._known_tick is None and self._where:
            self._known_tick = self._look_for_tick()
        return self._known_tick

    def _look_for_tick(self) -> int | None:
        ticks = [
            step * level.unit
            for level in self._levels
            if (step := level.next_step(self._tick // level.unit)) is not None
        ]
        while self._overflow_steps and not self._overflow[self._overflow_steps[0]]:
            del self._overflow[heapq.heappop(self._overflow_steps)]
        if self._overflow_steps:
            highest = self._levels[-1]
            ticks.append((self._overflow_steps[0] - highest.count + 1) * highest.unit)
        return min(ticks, default=None)

    def _demote(self) -> None:
        """Spread over the wheels below every slot that a pointer has just come to."""
        for level in self._levels[1:]:
            step, rest = divmod(self._tick, level.unit)
            if rest:
                return
            self._spread(level.slots[step % level.count])
        highest = self._levels[-1]
        reach = self._tick // highest.unit + highest.count
        while self._overflow_steps and self._overflow_steps[0] < reach:
            self._spread(self._overflow.pop(heapq.heappop(self._overflow_steps)))

    def _spread(self, slot: _Slot[K, T]) -> None:
        moments = list(slot.values())
        slot.clear()
        for moment in moments:
            moment.slot = self._slot(moment.due_ms)
            moment.slot[moment.due_ms] = moment

    def _expire(self, due: list[T]) -> None:
        """Move the items under the lowest wheel's pointer to the end of `due`."""
        lowest = self._levels[0]
        slot = lowest.slots[self._tick % lowest.count]
        # More than one moment only where they came late, or where a tick has many milliseconds.
        for due_ms in sorted(slot):
            moment = self._moments.pop(due_ms)
            due += moment.values()
            for key in moment:
                del self._where[key]
        slot.clear()


class WaitingCopies:
    """Holds copies until they are fired. messages, bytes: how much it holds.

    ripe: copies that may be fired now, by score; take them off with `taken`.
    """

    def __init__(self, now_ms: int, window: Window) -> None:
        """window: counts the ripe copies of each lane."""
        self._wheel: Wheel[Copy, Copy] = Wheel(now_ms)
        self._turned_ms = now_ms  # how far the wheel has turned
        self._late: list[Copy] = []  # due already when they came
        self._window = window
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
        self._window.ripened(late)

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
            self._window.ripened(ripe)
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
        self._window.unripened(off)
        waiting = self._wheel.clear() + off
        self._wheel, self._turned_ms = Wheel(now_ms), now_ms
        for copy in waiting:
            self._wheel.insert(int(copy.score), copy, copy)
        self.ripe, self._late = [], []

    def taken(self, copies: Sequence[Copy], kept: list[Copy], checked: int) -> None:
        """These ripe copies wait no more. Of the first `checked` ripe ones, only `kept` stay."""
        self.ripe[:checked] = kept
        self._end_wait(copies)
        self._window.unripened(copies)

    def remove(self, which: Callable[[Copy], bool]) -> list[Copy]:
        """Take such copies out, wherever they wait."""
        off = [copy for copy in self.ripe + self._late if which(copy)]
        if off:
            self._window.unripened(off)
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
            lot.session.claims.waits_no_more(lot.claim, count)
