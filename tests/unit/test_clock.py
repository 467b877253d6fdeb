"""The store's clock as a worker knows it, over a simulated network and a simulated store.

All simulated times are whole microseconds, as Redis' TIME gives them.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delaybridge.scan.leases.clock import StoreClock

STEP_MS = 100

STORE_AHEAD_US = 1_800_000_000_000_000
LATENCIES_US = st.integers(0, 3_000_000)
SOON_US = st.integers(0, 10_000_000)
READINGS = st.lists(st.tuples(SOON_US, LATENCIES_US, LATENCIES_US), min_size=1, max_size=20)


class World:
    """A worker and a store, each with its clock, and the network between them.

    drift_ppm: how much faster the store's clock runs than the worker's.
    """

    def __init__(self, *, drift_ppm: int = 0) -> None:
        self.now_us = 1_000_000  # the worker's monotonic clock
        self._store_us = STORE_AHEAD_US
        self._drift_ppm = drift_ppm
        self.clock = StoreClock(monotonic=lambda: self.now_us / 1e6)

    @property
    def store_us(self) -> int:
        return self._store_us + self.now_us + self.now_us * self._drift_ppm // 1_000_000

    def set_store_clock(self, by_us: int) -> None:
        self._store_us += by_us

    def read(self, there_us: int = 200, back_us: int = 200) -> int:
        """Read the store's clock over a network with these delays; the step it reports, in ms."""
        sent_s = self.clock.monotonic()
        self.now_us += there_us
        store_us = self.store_us
        self.now_us += back_us
        return self.clock.observe(store_us, sent_s, self.clock.monotonic())

    @property
    def ahead_us(self) -> int:
        """How far the worker's clock, in whole ms, is ahead of the store's; negative: behind."""
        return self.clock.now_ms() * 1000 - self.store_us


def test_before_the_first_reading_there_is_no_time() -> None:
    clock = StoreClock()
    assert not clock.is_set
    with pytest.raises(RuntimeError):
        clock.now_ms()
    clock.observe(STORE_AHEAD_US, 1.0, 1.0)
    assert clock.is_set


@given(READINGS, SOON_US)
def test_it_is_never_ahead_of_the_store_whatever_the_network_did(
    readings: list[tuple[int, int, int]], later_us: int
) -> None:
    world = World()
    for pause_us, there_us, back_us in readings:
        world.now_us += pause_us
        assert world.read(there_us, back_us) == 0, "no clock was set"
        assert world.ahead_us <= 0
    world.now_us += later_us
    assert world.ahead_us <= 0


@given(READINGS)
def test_it_is_behind_by_at_most_the_fastest_recent_round_trip(
    readings: list[tuple[int, int, int]],
) -> None:
    world = World()
    for pause_us, there_us, back_us in readings:
        world.now_us += pause_us
        world.read(there_us, back_us)
    fastest_us = min(back_us for _, _, back_us in readings[-8:])
    assert world.ahead_us >= -fastest_us - 1000, "a millisecond is lost by rounding down"


def test_a_slow_reading_before_a_fast_one_is_not_taken_for_a_step() -> None:
    world = World(drift_ppm=100)
    world.read(there_us=10, back_us=900_000)
    assert world.read(there_us=100, back_us=100) == 0
    assert -1100 <= world.ahead_us <= 0


@given(READINGS, st.integers(STEP_MS * 1000 + 1000, 10**10), st.booleans())
def test_a_step_is_reported_with_its_size_and_followed_at_once(
    readings: list[tuple[int, int, int]], size_us: int, back: bool
) -> None:
    world = World()
    for pause_us, _, _ in readings:
        world.now_us += pause_us
        world.read()
    step_us = -size_us if back else size_us
    world.set_store_clock(step_us)
    assert world.read() == pytest.approx(step_us / 1000, abs=1)
    assert -1200 <= world.ahead_us <= 0
    assert world.read() == 0, "reported once"
    assert -1200 <= world.ahead_us <= 0


@pytest.mark.parametrize("step_us", [-STEP_MS * 900, -2000, 2000, STEP_MS * 900])
def test_a_small_step_is_followed_silently(step_us: int) -> None:
    world = World()
    world.read()
    world.set_store_clock(step_us)
    assert world.read() == 0
    assert -1200 <= world.ahead_us <= 0


@given(
    st.lists(st.tuples(st.integers(-5_000_000, 5_000_000), LATENCIES_US, LATENCIES_US), min_size=1)
)
def test_it_is_ahead_by_at_most_the_time_of_the_last_request_even_if_the_store_s_clock_is_set(
    readings: list[tuple[int, int, int]],
) -> None:
    world = World()
    for step_us, there_us, back_us in readings:
        world.set_store_clock(step_us)
        world.read(there_us, back_us)
        assert world.ahead_us <= there_us


@given(st.integers(-200, 200), st.lists(st.integers(50, 1000), min_size=30, max_size=30))
def test_drift_is_followed_silently(drift_ppm: int, latencies_us: list[int]) -> None:
    world = World(drift_ppm=drift_ppm)
    world.read(100, 100)
    for latency_us in latencies_us:
        world.now_us += 4_000_000
        drifted_us = 4 * 200
        assert -32 * 200 - 2000 <= world.ahead_us <= max(latencies_us) + drifted_us
        assert world.read(latency_us, latency_us) == 0


@given(st.integers(1_700_000_000_000, 1_900_000_000_000), st.integers(0, 10**9), LATENCIES_US)
def test_the_instant_of_a_store_time_is_neither_before_it_nor_noticeably_after(
    store_ms: int, uptime_us: int, back_us: int
) -> None:
    world = World()
    world.now_us += uptime_us
    world.read(0, back_us)
    at_s = world.clock.monotonic_at(store_ms)
    world.now_us = round(at_s * 1e6 + 0.5)  # an alarm set to it rings no sooner
    assert world.clock.now_ms() == store_ms
    world.now_us -= 3
    assert world.clock.now_ms() == store_ms - 1


@given(reading=READINGS, ahead_us=st.integers(-5_000_000, 5_000_000))
def test_a_wall_clock_is_never_said_to_differ_by_more_than_it_does(
    reading: list[tuple[int, int, int]], ahead_us: int
) -> None:
    world = World()
    for later_us, there_us, back_us in reading:
        world.now_us += later_us
        world.read(there_us, back_us)
    said_ms = world.clock.ahead_ms((world.store_us + ahead_us) / 1e6)
    assert min(0, ahead_us / 1000) - 0.6 <= said_ms <= max(0, ahead_us / 1000) + 0.6


def test_a_wall_clock_that_differs_is_found_but_for_the_round_trip() -> None:
    world = World()
    world.read(300, 700)
    wall_s = world.store_us / 1e6
    said = [world.clock.ahead_ms(wall_s + ahead_s) for ahead_s in (-2.0, 0.0, 2.0)]
    assert said == [-1999, 0, 2000] or said == [-2000, 0, 1999]
