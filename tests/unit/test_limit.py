"""The permits of a lane with a rate: what it asks for, and what becomes of those it has."""

from __future__ import annotations

import pytest

from delaybridge.scan.lanes.limit import Limit

NOW_MS = 1_800_000_000_000


def limit_of(*rates: float) -> Limit:
    return Limit([(f"place {n}", rate) for n, rate in enumerate(rates)])


@pytest.mark.parametrize(
    ("rates", "waiting", "want"),
    [([100], 0, 0), ([100], 7, 7), ([100], 50, 20), ([0.01], 50, 1), ([1000, 30], 50, 6)],
)
def test_it_wants_what_waits_but_at_most_a_fifth_of_a_second_of_its_rate(
    rates: list[float], waiting: int, want: int
) -> None:
    assert limit_of(*rates).want(waiting) == want


def test_it_wants_no_more_than_what_its_permits_do_not_cover() -> None:
    limit = limit_of(100)
    limit.granted(20, 15, 0, NOW_MS)
    assert limit.want(50) == 5
    assert limit.want(15) == 0


def test_a_dead_letter_that_did_not_wait_is_made_up_for() -> None:
    limit = limit_of(100)
    limit.permits -= 3
    assert limit.want(1) == 4


def test_with_all_it_wanted_it_asks_again_as_soon_as_it_needs_more() -> None:
    limit = limit_of(100)
    limit.granted(5, 5, 300, NOW_MS)
    assert (limit.is_short, limit.ask_at_ms) == (False, NOW_MS)


@pytest.mark.parametrize(
    ("rate", "pause_ms", "soonest_ms", "spread_ms"),
    [(100, 0, 50, 50), (100, 49, 50, 50), (2, 400, 400, 50), (2500, 1, 20, 20), (9e5, 1, 10, 10)],
)
def test_with_less_it_asks_when_the_store_has_more_and_not_all_workers_at_once(
    rate: float, pause_ms: int, soonest_ms: int, spread_ms: int
) -> None:
    asked_ms = set()
    for _ in range(1000):
        limit = limit_of(rate)
        limit.granted(5, 4, pause_ms, NOW_MS)
        assert limit.is_short
        asked_ms.add(limit.ask_at_ms - NOW_MS)
    assert soonest_ms == min(asked_ms)
    assert max(asked_ms) == soonest_ms + spread_ms - 1


def test_the_permits_of_an_idle_lane_lapse_and_those_of_a_waiting_one_do_not() -> None:
    limit = limit_of(100)
    limit.granted(20, 20, 0, NOW_MS)
    limit.lapse(NOW_MS + 400, is_busy=False)
    assert limit.permits == 20
    limit.lapse(NOW_MS + 600, is_busy=True)
    limit.lapse(NOW_MS + 1000, is_busy=False)
    assert limit.permits == 20
    limit.use_permit(NOW_MS + 1050)
    limit.lapse(NOW_MS + 1500, is_busy=False)
    assert limit.permits == 19
    limit.lapse(NOW_MS + 1600, is_busy=False)
    assert limit.permits == 0


@pytest.mark.parametrize(("rate", "kept"), [(1000, 301), (5000, 1501), (2, 1), (4, 2), (0.01, 1)])
def test_of_messages_due_at_about_one_time_it_plans_as_many_as_may_be_on_time(
    rate: float, kept: int
) -> None:
    limit = limit_of(rate)
    for at_ms in (NOW_MS + 400, NOW_MS + 1000):
        planned = [limit.plan(at_ms + n % 100, NOW_MS) for n in range(2000)]
        assert planned == [n < kept for n in range(2000)]


def test_it_forgets_times_that_have_passed() -> None:
    limit = limit_of(1)
    for at_ms in range(NOW_MS, NOW_MS + 60_000, 50):
        limit.plan(at_ms + 2000, at_ms)
    assert len(limit.planned) <= 22


def test_what_is_owed_does_not_lapse() -> None:
    limit = limit_of(100)
    limit.permits = -3
    limit.lapse(NOW_MS, is_busy=False)
    assert limit.permits == -3


def test_a_clock_that_was_set_changes_no_pause() -> None:
    limit = limit_of(100)
    limit.granted(5, 4, 400, NOW_MS)
    asks_ms = limit.ask_at_ms
    limit.clock_stepped(-3_600_000)
    assert limit.ask_at_ms == asks_ms - 3_600_000
    limit.lapse(NOW_MS - 3_600_000 + 400, is_busy=False)
    assert limit.permits == 4


def test_it_says_what_holds_its_messages_back() -> None:
    limit = limit_of(1000, 2.5)
    assert str(limit) == "limited: to 2.5/s"
    limit.refused("redis: WRONGTYPE", NOW_MS)
    assert (str(limit), limit.is_short, limit.ask_at_ms) == (
        "rate: redis: WRONGTYPE", True, NOW_MS + 1000,
    )  # fmt: skip
    limit.granted(1, 1, 0, NOW_MS)
    assert str(limit) == "limited: to 2.5/s"
