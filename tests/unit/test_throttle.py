"""Throttles: how long an address that guesses has to wait, and how often a token may ask."""

from __future__ import annotations

from delaybridge.serve.access.throttle import Failures, Pace

HERE = "192.0.2.1"


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def fail(failures: Failures, count: int, address: str = HERE) -> list[int]:
    return [failures.failed(address) for _ in range(count)]


def test_ten_failures_in_a_minute_cost_a_minute_and_each_time_twice_as_much() -> None:
    clock = Clock()
    failures = Failures(clock)
    waits = []
    for _ in range(9):
        *free, wait = fail(failures, 11)
        assert free == [0] * 10
        waits.append(wait)
        clock.now_s += wait - 1
        assert failures.failed(HERE) == 1
        clock.now_s += 1
    assert waits == [60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]
    clock.now_s += 3700
    assert fail(failures, 11)[-1] == 60


def test_few_failures_a_minute_cost_nothing() -> None:
    clock = Clock()
    failures = Failures(clock)
    for _ in range(30):
        assert fail(failures, 10) == [0] * 10
        clock.now_s += 61


def test_addresses_count_by_subscriber() -> None:
    failures = Failures(Clock())
    assert fail(failures, 11)[-1] == 60
    assert failures.failed(f"::ffff:{HERE}") == 60
    assert failures.failed("192.0.2.2") == 0
    assert fail(failures, 11, "2001:db8::1")[-1] == 60
    assert failures.failed("2001:db8::ffff:2") == 60
    assert failures.failed("2001:db8:0:1::1") == 0
    assert fail(failures, 11, "")[-1] == 60


def test_the_table_is_bounded_and_keeps_those_that_failed_last() -> None:
    failures = Failures(Clock())
    fail(failures, 11)
    for number in range(9_999):
        failures.failed(f"10.0.{number // 256}.{number % 256}")
    assert failures.failed(HERE) == 60
    for number in range(10_000):
        failures.failed(f"10.1.{number // 256}.{number % 256}")
    assert len(failures.records) == 10_000
    assert failures.failed(HERE) == 0


def test_a_rate_allows_so_many_a_second_and_what_was_saved_up_for_one() -> None:
    clock = Clock()
    pace = Pace(5, clock)
    assert [pace.wait_s("a") for _ in range(7)] == [0] * 5 + [1, 1]
    assert pace.wait_s("b") == 0
    allowed = 0
    for _ in range(100):
        clock.now_s += 0.05
        allowed += pace.wait_s("a") == 0
    assert allowed == 25


def test_a_rate_below_one_and_none() -> None:
    clock = Clock()
    slow, free = Pace(0.1, clock), Pace(0, clock)
    assert (slow.wait_s("a"), slow.wait_s("a")) == (0, 10)
    clock.now_s += 10
    assert slow.wait_s("a") == 0
    assert [free.wait_s("a") for _ in range(100)] == [0] * 100
