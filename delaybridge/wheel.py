"""The timing wheel: waits in memory, to the millisecond, for what was claimed ahead of its due time."""

import heapq
import itertools
from collections.abc import Hashable, Iterator, Sequence
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

# Due time in ms, insertion number, item. The number is unique, so sorting never compares items.
_Entry = tuple[int, int, T]


class _Slot(dict[K, _Entry[T]]):
    """What waits in one place; knows the place, so that one look-up by key finds both."""

    __slots__ = ("level", "number")

    def __init__(self, level: int, number: int) -> None:
        self.level = level
        self.number = number


class _Level(Generic[K, T]):
    """One wheel of the hierarchy: `count` slots of `unit` ticks each, found by a bitmap.

    A *step* is a time counted in this wheel's units. The wheel holds steps from its pointer's to
    `count - 1` further, so a slot never mixes two turns and needs no round counter.
    """

    __slots__ = ("count", "occupied", "slots", "unit")

    def __init__(self, number: int, unit: int, count: int) -> None:
        self.unit = unit
        self.count = count
        self.slots: list[_Slot[K, T]] = [_Slot(number, slot) for slot in range(count)]
        self.occupied = 0

    def next_step(self, pointer: int) -> int | None:
        """The first occupied step at or after `pointer`, a step too. None: the wheel is empty."""
        here = pointer % self.count
        while self.occupied:
            bits = self.occupied >> here << here or self.occupied
            number = (bits & -bits).bit_length() - 1
            if self.slots[number]:
                return pointer + (number - here) % self.count
            # Emptied since by cancel or expiry: those leave the bit to whoever comes by.
            self.occupied ^= 1 << number
        return None


class Wheel(Generic[K, T]):
    """Hands every item out once, never early, in due order; items of one ms as they were inserted.

    A hierarchy of timing wheels (Varghese & Lauck, "Hashed and Hierarchical Timing Wheels", SOSP
    1987, scheme 7). Insert, cancel and expiry cost O(1) each, however many items wait; a stretch of
    time in which nothing is due costs nothing, however long.

    A *slot* holds what is due in one interval, the *pointer* stands on the slot of the present, and
    the *span* of a wheel is its slot count times its interval. The lowest wheel's interval is one
    tick; that of each higher wheel is the span of the wheel below. Only the lowest wheel hands items
    out. The wheels above are driven by it: when the lower wheel's pointer completes a turn, the
    pointer above moves by one slot and that slot is demoted, that is, spread over the wheels below.
    What lies beyond the span of the highest wheel waits in the overflow buffer, and is pulled as
    soon as a step of that wheel makes it fit.

    A wheel is as exact as its tick: with `tick_ms` above 1 an item due between two ticks comes out
    at the second one. Time is what `advance` is told, and does not go back.
    """

    def __init__(
        self, now_ms: int, *, tick_ms: int = 1, slots: Sequence[int] = (256, 64, 64)
    ) -> None:
        if tick_ms < 1:
            raise ValueError(f"tick_ms must be at least 1, not {tick_ms}")
        if not slots or min(slots) < 2:
            raise ValueError(f"slots must name one wheel or more, of 2 slots or more, not {slots}")
        self._tick_ms = tick_ms
        self._now = now_ms // tick_ms
        units = list(itertools.accumulate(slots, lambda span, count: span * count, initial=1))
        self._span = units.pop()
        self._levels: list[_Level[K, T]] = [
            _Level(number, unit, count)
            for number, (unit, count) in enumerate(zip(units, slots, strict=True))
        ]
        # Beyond the span: one slot for each step of the highest wheel, and those steps as a heap.
        self._overflow: dict[int, _Slot[K, T]] = {}
        self._overflow_steps: list[int] = []
        self._where: dict[K, _Slot[K, T]] = {}
        self._numbers = itertools.count()

    @property
    def span_ms(self) -> int:
        """How far ahead the wheels reach together, in ms; beyond lies the overflow buffer."""
        return self._span * self._tick_ms

    def __len__(self) -> int:
        return len(self._where)

    def __contains__(self, key: K) -> bool:
        return key in self._where

    def items(self) -> Iterator[tuple[K, T]]:
        """Every key and item, in the order of insertion."""
        return ((key, slot[key][2]) for key, slot in self._where.items())

    def get(self, key: K) -> T | None:
        slot = self._where.get(key)
        return None if slot is None else slot[key][2]

    def place(self, key: K) -> tuple[int, int]:
        """Level and slot where the item waits; KeyError if it is not on the wheel.

        Level 0 is the lowest wheel. A level equal to the number of wheels is the overflow buffer;
        its slots are numbered by the highest wheel's steps since time 0.
        """
        slot = self._where[key]
        return slot.level, slot.number

    def insert(self, due_ms: int, key: K, item: T) -> None:
        """Put the item on the wheel. Due already: the next `advance` hands it out.

        Raises KeyError, and changes nothing, if the key is on the wheel.
        """
        if key in self._where:
            raise KeyError(key)
        self._put(key, (due_ms, next(self._numbers), item))

    def cancel(self, key: K) -> T | None:
        """Take the item off the wheel. None: it is not there (any more)."""
        slot = self._where.pop(key, None)
        return None if slot is None else slot.pop(key)[2]

    def advance(self, now_ms: int) -> list[T]:
        """Move time to `now_ms`; return all that is due by then, in due order.

        A time before the last one changes nothing and returns nothing.
        """
        now = now_ms // self._tick_ms
        due: list[_Entry[T]] = []
        while (tick := self._next_tick()) is not None and tick <= now:
            self._now = tick
            self._demote()
            due += self._expire()
        self._now = max(self._now, now)
        # Ticks come in order. Within one, what was overdue when it was inserted may not be, nor
        # what was demoted, hence inserted earlier than what it joined; all of it is sorted runs.
        due.sort()
        return [item for _, _, item in due]

    def next_due_ms(self) -> int | None:
        """When to `advance` next, in ms; None if nothing waits.

        Never later than the tick at which the earliest item is due, and exactly that if it lies in
        the lowest wheel's current turn. Otherwise it may be the time of a demotion, which hands
        nothing out and tells more. At or before the present: something is due already.
        """
        tick = self._next_tick()
        return None if tick is None else tick * self._tick_ms

    def clear(self) -> list[T]:
        """Take everything off the wheel; return it in due order."""
        entries = sorted(slot[key] for key, slot in self._where.items())
        for slot in self._where.values():
            slot.clear()
        self._where.clear()
        return [item for _, _, item in entries]

    def _put(self, key: K, entry: _Entry[T]) -> None:
        """Into the lowest wheel that reaches the due tick, else the overflow buffer."""
        tick = -(-entry[0] // self._tick_ms)
        now = self._now
        if tick < now:
            tick = now
        for level in self._levels:
            number = tick // level.unit
            if number - now // level.unit < level.count:
                number %= level.count
                slot = level.slots[number]
                if not slot:
                    level.occupied |= 1 << number
                break
        else:
            slot = self._overflow_slot(number)
        slot[key] = entry
        self._where[key] = slot

    def _overflow_slot(self, step: int) -> _Slot[K, T]:
        slot = self._overflow.get(step)
        if slot is None:
            slot = self._overflow[step] = _Slot(len(self._levels), step)
            heapq.heappush(self._overflow_steps, step)
        return slot

    def _next_tick(self) -> int | None:
        """The first tick, from the present on, with something to hand out, demote or pull."""
        ticks = [
            step * level.unit
            for level in self._levels
            if (step := level.next_step(self._now // level.unit)) is not None
        ]
        while self._overflow_steps:
            step = self._overflow_steps[0]
            if self._overflow[step]:
                highest = self._levels[-1]
                ticks.append((step - highest.count + 1) * highest.unit)
                break
            del self._overflow[heapq.heappop(self._overflow_steps)]
        return min(ticks, default=None)

    def _demote(self) -> None:
        """Spread over the wheels below each slot whose wheel's pointer has just come to it."""
        for level in self._levels[1:]:
            step, rest = divmod(self._now, level.unit)
            if rest:
                return
            self._spread(level.slots[step % level.count])
        highest = self._levels[-1]
        reach = self._now // highest.unit + highest.count
        while self._overflow_steps and self._overflow_steps[0] < reach:
            self._spread(self._overflow.pop(heapq.heappop(self._overflow_steps)))

    def _spread(self, slot: _Slot[K, T]) -> None:
        entries = list(slot.items())
        slot.clear()
        for key, entry in entries:
            self._put(key, entry)

    def _expire(self) -> list[_Entry[T]]:
        """Empty the slot under the lowest wheel's pointer."""
        lowest = self._levels[0]
        slot = lowest.slots[self._now % lowest.count]
        entries = list(slot.values())
        for key in slot:
            del self._where[key]
        slot.clear()
        return entries
