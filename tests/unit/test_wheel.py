"""The wheel: the worked examples of features.md 001, then every history against a sorted list."""

import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from delaybridge.scan.wheel import wheel as wheel_module
from delaybridge.scan.wheel.wheel import Wheel

SECOND_MS = 1000
YEAR_MS = 365 * 24 * 3600 * SECOND_MS
EPOCH_MS = 1_750_000_000_000

SINGLE = (8,)
THREE = (8, 8, 8)
OVERFLOW = len(THREE)


def seconds_wheel(slots: Sequence[int] = THREE) -> Wheel[str, str]:
    """Starts at time 0; one slot of the lowest wheel is one second."""
    return Wheel(0, tick_ms=SECOND_MS, slots=slots)


def milliseconds_wheel() -> Wheel[str, str]:
    return Wheel(EPOCH_MS)


def test_001_01_span_is_slot_count_times_interval() -> None:
    assert seconds_wheel(SINGLE).span_ms == 8 * SECOND_MS


def test_001_02_pointer_2_and_three_seconds_is_slot_5() -> None:
    wheel = seconds_wheel(SINGLE)
    assert wheel.advance(2 * SECOND_MS) == []
    wheel.insert(5 * SECOND_MS, "x", "item")
    assert wheel.place("x") == (0, 5)
    assert wheel.advance(4 * SECOND_MS) == []
    assert wheel.advance(5 * SECOND_MS) == ["item"]


def test_001_02_the_slots_are_a_ring() -> None:
    wheel = seconds_wheel(SINGLE)
    wheel.advance(6 * SECOND_MS)
    wheel.insert(9 * SECOND_MS, "x", "item")
    assert wheel.place("x") == (0, 1)
    assert wheel.advance(8 * SECOND_MS) == []
    assert wheel.advance(9 * SECOND_MS) == ["item"]


def test_001_03_ten_seconds_in_eight_slots_fire_in_the_second_round_at_slot_2() -> None:
    """No rounds are counted: items a round away wait in the overflow buffer."""
    wheel = seconds_wheel(SINGLE)
    wheel.insert(10 * SECOND_MS, "round 1", "late")
    wheel.insert(2 * SECOND_MS, "round 0", "soon")
    assert wheel.place("round 0") == (0, 2)
    assert wheel.place("round 1")[0] == len(SINGLE)
    assert wheel.advance(2 * SECOND_MS) == ["soon"]
    assert wheel.place("round 1")[0] == len(SINGLE)
    assert wheel.advance(3 * SECOND_MS) == []
    assert wheel.place("round 1") == (0, 2)
    assert wheel.advance(9 * SECOND_MS) == []
    assert wheel.advance(10 * SECOND_MS) == ["late"]


def test_001_04_eight_times_eight_times_eight_seconds_with_24_slots() -> None:
    assert sum(THREE) == 24
    wheel = seconds_wheel()
    assert wheel.span_ms == 512 * SECOND_MS
    wheel.insert(511 * SECOND_MS, "inside", "")
    wheel.insert(512 * SECOND_MS, "beyond", "")
    assert wheel.place("inside") == (2, 7)
    assert wheel.place("beyond")[0] == OVERFLOW


def test_001_04_a_day_is_60_60_24() -> None:
    wheel = seconds_wheel((60, 60, 24))
    assert wheel.span_ms == 24 * 3600 * SECOND_MS
    wheel.insert((13 * 3600 + 37 * 60 + 42) * SECOND_MS, "x", "item")
    assert wheel.place("x") == (2, 13)
    assert wheel.advance(13 * 3600 * SECOND_MS) == []
    assert wheel.place("x") == (1, 37)
    assert wheel.advance((13 * 3600 + 37 * 60) * SECOND_MS) == []
    assert wheel.place("x") == (0, 42)
    assert wheel.advance((13 * 3600 + 37 * 60 + 42) * SECOND_MS) == ["item"]


def test_001_04_only_the_lowest_wheel_hands_items_out() -> None:
    wheel = seconds_wheel()
    due_s = [1, 7, 8, 9, 63, 64, 65, 300, 511, 512, 700]
    for due in due_s:
        wheel.insert(due * SECOND_MS, str(due), str(due))
    for now in range(1, 701):
        next_turns = {key for key, _ in wheel.items() if wheel.place(key)[0] > 0}
        out = wheel.advance(now * SECOND_MS)
        assert out == ([str(now)] if now in due_s else [])
        # From a wheel above it comes out by being demoted in the very second it is due.
        assert not next_turns & set(out) or now % 8 == 0


def test_001_05_a_full_turn_of_the_lower_wheel_moves_the_wheel_above() -> None:
    wheel = seconds_wheel()
    wheel.insert(13 * SECOND_MS, "x", "item")
    assert wheel.place("x") == (1, 1)
    for now in range(1, 8):
        assert wheel.advance(now * SECOND_MS) == []
        assert wheel.place("x") == (1, 1)
    wheel.advance(8 * SECOND_MS)
    assert wheel.place("x") == (0, 5)


def test_001_06_five_seconds_wait_in_the_lowest_wheel_slot_5() -> None:
    wheel = seconds_wheel()
    wheel.insert(5 * SECOND_MS, "x", "item")
    assert wheel.place("x") == (0, 5)
    assert wheel.advance(5 * SECOND_MS) == ["item"]


def test_001_06_fifty_seconds_wait_in_the_second_wheel_slot_6_then_slot_2() -> None:
    wheel = seconds_wheel()
    wheel.insert(50 * SECOND_MS, "x", "item")
    wheel.advance(47 * SECOND_MS)
    assert wheel.place("x") == (1, 6)
    assert wheel.advance(48 * SECOND_MS) == []
    assert wheel.place("x") == (0, 2)
    assert wheel.advance(50 * SECOND_MS) == ["item"]


def test_001_06_250_seconds_wait_in_slot_3_then_slot_7_then_slot_2() -> None:
    wheel = seconds_wheel()
    wheel.insert(250 * SECOND_MS, "x", "item")
    wheel.advance(191 * SECOND_MS)
    assert wheel.place("x") == (2, 3)
    wheel.advance(192 * SECOND_MS)
    assert wheel.place("x") == (1, 7)
    wheel.advance((192 + 55) * SECOND_MS)
    assert wheel.place("x") == (1, 7)
    wheel.advance((192 + 56) * SECOND_MS)
    assert wheel.place("x") == (0, 2)
    assert wheel.advance(249 * SECOND_MS) == []
    assert wheel.advance(250 * SECOND_MS) == ["item"]


def test_001_07_600_seconds_overflow_until_472_are_left() -> None:
    wheel = seconds_wheel()
    wheel.insert(600 * SECOND_MS, "x", "item")
    assert wheel.place("x")[0] == OVERFLOW
    wheel.advance(64 * SECOND_MS)
    assert wheel.place("x")[0] == OVERFLOW  # 536 s left
    wheel.advance(127 * SECOND_MS)
    assert wheel.place("x")[0] == OVERFLOW
    wheel.advance(128 * SECOND_MS)
    assert wheel.place("x") == (2, 600 // 64 % 8)  # 472 s left
    assert wheel.advance(599 * SECOND_MS) == []
    assert wheel.advance(600 * SECOND_MS) == ["item"]


def test_001_08_years_without_a_due_item_are_skipped() -> None:
    wheel = milliseconds_wheel()
    wheel.insert(EPOCH_MS + 1000 * YEAR_MS, "x", "item")
    assert wheel.advance(EPOCH_MS + 1000 * YEAR_MS - 1) == []
    assert wheel.advance(EPOCH_MS + 1000 * YEAR_MS) == ["item"]
    assert wheel.advance(EPOCH_MS + 9000 * YEAR_MS) == []


def lines_run(work: Callable[[], object]) -> int:
    """How many lines of the wheel's code run."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace if frame.f_code.co_filename == wheel_module.__file__ else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def test_001_08_insert_and_cancel_cost_the_same_at_any_fill() -> None:
    wheel = milliseconds_wheel()
    costs = []
    for fill in (0, 10, 10_000):
        for number in range(fill):
            wheel.insert(EPOCH_MS + 17 * number, f"{fill}:{number}", "item")
        inserted = lines_run(lambda: wheel.insert(EPOCH_MS + 5000, "x", "item"))
        costs.append((inserted, lines_run(lambda: wheel.cancel("x"))))
    assert len({*costs}) == 1 and min(costs[0]) > 1, costs


def test_001_09_items_beyond_the_span_are_taken_and_keep_their_order() -> None:
    wheel = milliseconds_wheel()
    dues = [EPOCH_MS + 3 * YEAR_MS, EPOCH_MS + wheel.span_ms, EPOCH_MS + YEAR_MS]
    for due_ms in dues:
        wheel.insert(due_ms, str(due_ms), str(due_ms))
    assert wheel.advance(EPOCH_MS + 4 * YEAR_MS) == [str(due_ms) for due_ms in sorted(dues)]


def test_items_already_due_come_out_at_the_next_advance_earliest_first() -> None:
    wheel = milliseconds_wheel()
    wheel.insert(EPOCH_MS, "now", "now")
    wheel.insert(EPOCH_MS - 5, "late", "late")
    wheel.insert(EPOCH_MS - YEAR_MS, "very late", "very late")
    assert wheel.next_due_ms() == EPOCH_MS
    assert wheel.advance(EPOCH_MS) == ["very late", "late", "now"]


def test_items_of_one_millisecond_keep_their_order_of_insertion_across_the_wheels() -> None:
    wheel: Wheel[str, str] = Wheel(0)
    due_ms = 2 * wheel.span_ms + 5 * 256 + 100
    left_ms = [due_ms, wheel.span_ms // 2, 1300, 300, 50, 0]
    levels = []
    for left in left_ms:
        assert wheel.advance(min(due_ms - left, due_ms - 1)) == []
        wheel.insert(due_ms, str(left), str(left))
        levels.append(wheel.place(str(left))[0])
    assert levels == [3, 2, 1, 1, 0, 0]
    assert wheel.advance(due_ms) == [str(left) for left in left_ms]


def test_an_item_not_on_the_wheel_has_no_place() -> None:
    with pytest.raises(KeyError):
        milliseconds_wheel().place("x")


@pytest.mark.parametrize(
    ("arguments", "field"),
    [({"tick_ms": 0}, "tick_ms"), ({"slots": ()}, "slots"), ({"slots": (8, 1)}, "slots")],
)
def test_a_wheel_that_cannot_turn_is_refused(arguments: dict[str, object], field: str) -> None:
    with pytest.raises(ValueError, match=field):
        Wheel(0, **arguments)  # type: ignore[arg-type]


KEYS = st.integers(0, 9)
DELAYS_MS = st.one_of(
    st.integers(-60, 80),
    st.integers(-2000, 2_500_000),
    st.sampled_from([255, 256, 257, 16_383, 16_384, 1_048_575, 1_048_576, YEAR_MS]),
)
STEPS_MS = st.one_of(
    st.just(0),
    st.integers(-20, 80),
    st.sampled_from([255, 256, 16_384, 1_048_576, 3_000_000, YEAR_MS, 5000 * YEAR_MS]),
)
SHAPES = st.sampled_from([(8,), (2, 2), (4, 3, 2), (8, 8, 8), (256, 64, 64)])


class AgainstASortedList(RuleBasedStateMachine):
    """Any history: the same items as from a sorted list, at the same time, in that order."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: dict[int, tuple[int, int]] = {}  # key -> due_ms, number of the insertion

    @initialize(
        now_ms=st.sampled_from([-7, 0, 250, EPOCH_MS, EPOCH_MS + 777]),
        tick_ms=st.sampled_from([1, 1, 1, 10]),
        slots=SHAPES,
    )
    def start(self, now_ms: int, tick_ms: int, slots: tuple[int, ...]) -> None:
        self.tick_ms = tick_ms
        self.slots = slots
        self.now_ms = now_ms
        self.wheel: Wheel[int, int] = Wheel(now_ms, tick_ms=tick_ms, slots=slots)
        self.inserted = 0

    def out_at_ms(self, due_ms: int) -> int:
        """Due times count as the end of their tick."""
        return -(-due_ms // self.tick_ms) * self.tick_ms

    @rule(key=KEYS, delay_ms=DELAYS_MS)
    def insert(self, key: int, delay_ms: int) -> None:
        if key in self.waiting:
            with pytest.raises(KeyError):
                self.wheel.insert(self.now_ms + delay_ms, key, -1)
            return
        self.inserted += 1
        self.waiting[key] = (self.now_ms + delay_ms, self.inserted)
        self.wheel.insert(self.now_ms + delay_ms, key, self.inserted)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), key=KEYS)
    def insert_for_a_millisecond_in_use(self, data: st.DataObject, key: int) -> None:
        due_ms, _ = data.draw(st.sampled_from(list(self.waiting.values())))
        self.insert(key, due_ms - self.now_ms)

    @rule(key=KEYS)
    def cancel(self, key: int) -> None:
        _, item = self.waiting.pop(key, (None, None))
        assert self.wheel.cancel(key) == item
        assert key not in self.wheel

    @rule(step_ms=STEPS_MS)
    def advance(self, step_ms: int) -> None:
        before, now_ms = self.now_ms, self.now_ms + step_ms
        self.now_ms = max(before, now_ms)
        gone = {
            key
            for key, (due_ms, _) in self.waiting.items()
            if self.out_at_ms(due_ms) <= now_ms and now_ms // self.tick_ms >= before // self.tick_ms
        }
        expected = sorted(self.waiting.pop(key) for key in gone)
        assert self.wheel.advance(now_ms) == [item for _, item in expected]

    @rule()
    def advance_to_the_next_due_time(self) -> None:
        next_ms = self.wheel.next_due_ms()
        if next_ms is not None:
            self.advance(next_ms - self.now_ms)

    @rule()
    def clear(self) -> None:
        assert self.wheel.clear() == [item for _, item in sorted(self.waiting.values())]
        self.waiting.clear()

    @invariant()
    def nothing_is_lost(self) -> None:
        assert len(self.wheel) == len(self.waiting)
        assert list(self.wheel.items()) == [(key, item) for key, (_, item) in self.waiting.items()]
        for key, (_, item) in self.waiting.items():
            assert key in self.wheel
            assert self.wheel.get(key) == item

    @invariant()
    def next_due_is_sound(self) -> None:
        next_ms = self.wheel.next_due_ms()
        if not self.waiting:
            assert next_ms is None
            return
        earliest_ms = self.out_at_ms(min(due_ms for due_ms, _ in self.waiting.values()))
        present_ms = self.now_ms // self.tick_ms * self.tick_ms
        turn_ms = self.slots[0] * self.tick_ms
        assert next_ms is not None
        assert present_ms <= next_ms <= max(earliest_ms, present_ms)
        # Above a single wheel is the overflow buffer, which may have to be pulled at any tick.
        if len(self.slots) > 1 and earliest_ms < present_ms // turn_ms * turn_ms + turn_ms:
            assert next_ms == max(earliest_ms, present_ms)

    def teardown(self) -> None:
        """Driven by `next_due_ms` alone, all other items come out: never early, none lost."""
        while self.waiting:
            self.advance_to_the_next_due_time()


TestAgainstASortedList = AgainstASortedList.TestCase
TestAgainstASortedList.settings = settings(deadline=None, stateful_step_count=40, derandomize=True)
