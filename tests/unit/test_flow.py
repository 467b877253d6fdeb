"""How much one destination may have in flight, learned from when it answers."""

from __future__ import annotations

from collections import deque

import pytest

from delaybridge.scan.lanes.flow import Flow

FIRST, LEAST, STALLED_MS = 128, 8, 500

NOW_MS = 1_800_000_000_000
MOST = 10_000


def run(flow: Flow, rate: float, trip_ms: int, seconds: float, start_ms: int = NOW_MS) -> int:
    """Keep it full for this long; the broker confirms `rate` messages a second after a trip.

    Returns the longest that a message was in flight, in ms.
    """
    under_way: deque[int] = deque()  # when each message was handed over
    longest_ms, credit = 0, 0.0
    for now_ms in range(start_ms, start_ms + int(seconds * 1000)):
        credit = min(credit + rate / 1000, max(1.0, rate / 100))
        count = 0
        while credit >= 1 and under_way and now_ms - under_way[0] >= trip_ms:
            longest_ms = max(longest_ms, now_ms - under_way.popleft())
            credit, count = credit - 1, count + 1
        if count:
            flow.answered(count, now_ms)
        if room := max(0, flow.limit - flow.in_flight):
            flow.handed_over(room, now_ms)
            under_way.extend([now_ms] * room)
    return longest_ms


@pytest.mark.parametrize("rate", [10, 50, 130, 1000])
def test_a_slow_destination_has_no_more_in_flight_than_it_confirms_within_a_moment(
    rate: int,
) -> None:
    flow = Flow(MOST, NOW_MS)
    assert run(flow, rate, 2, 30) < 20_000, "the confirm time-out is never reached"
    assert flow.limit <= max(2 * LEAST, rate)


@pytest.mark.parametrize(("rate", "trip_ms"), [(50_000, 3), (20_000, 150), (3000, 700)])
def test_a_fast_destination_is_kept_busy_however_long_its_round_trip(
    rate: int, trip_ms: int
) -> None:
    flow = Flow(MOST, NOW_MS)
    run(flow, rate, trip_ms, 15)
    assert flow.limit >= min(MOST, rate * trip_ms / 1000)


def test_a_destination_that_becomes_slow_is_noticed_and_one_that_recovers_too() -> None:
    flow = Flow(MOST, NOW_MS)
    run(flow, 20_000, 2, 2)
    fast = flow.limit
    flow.answered(flow.in_flight, NOW_MS + 2000)
    run(flow, 100, 2, 150, NOW_MS + 2000)
    assert flow.limit <= 100
    flow.answered(flow.in_flight, NOW_MS + 152_000)
    run(flow, 20_000, 2, 2, NOW_MS + 152_000)
    assert flow.limit >= fast / 2


def test_a_lasting_longer_round_trip_is_not_mistaken_for_a_queue() -> None:
    flow = Flow(MOST, NOW_MS)
    run(flow, 5000, 2, 2)
    flow.answered(flow.in_flight, NOW_MS + 2000)
    run(flow, 5000, 800, 60, NOW_MS + 2000)
    assert flow.limit >= 1000


def test_a_trickle_teaches_nothing_about_a_burst() -> None:
    flow = Flow(MOST, NOW_MS)
    for now_ms in range(NOW_MS, NOW_MS + 10_000, 10):
        flow.handed_over(1, now_ms)
        flow.answered(1, now_ms + 2)
    assert flow.limit == FIRST


def test_after_a_pause_the_limit_starts_low_again() -> None:
    flow = Flow(MOST, NOW_MS)
    run(flow, 20_000, 2, 2)
    assert flow.limit > FIRST
    flow.answered(flow.in_flight, NOW_MS + 2000)
    flow.handed_over(1, NOW_MS + 10_000)
    assert flow.limit == FIRST


def test_the_limit_never_grows_beyond_its_upper_bound() -> None:
    flow = Flow(50, NOW_MS)
    run(flow, 50_000, 1, 1)
    assert flow.limit == 50


def test_the_time_for_more_messages_is_estimated_from_the_oldest_batch() -> None:
    flow = Flow(MOST, NOW_MS)
    assert flow.clear_ms(100, NOW_MS) == 0.0, "nothing is known"
    flow.handed_over(20, NOW_MS)
    assert flow.clear_ms(100, NOW_MS + 40) == 200.0
    flow.handed_over(5, NOW_MS + 40)
    flow.answered(20, NOW_MS + 50)
    assert flow.clear_ms(50, NOW_MS + 90) == 100.0


def test_the_time_until_a_first_answer_is_left_out_if_asked() -> None:
    flow = Flow(MOST, NOW_MS)
    flow.handed_over(20, NOW_MS)
    assert flow.clear_ms(100, NOW_MS + 900, patient=True) == 0.0
    flow.answered(1, NOW_MS + 900)
    assert flow.clear_ms(100, NOW_MS + 1500, patient=True) == 3000.0
    assert flow.clear_ms(100, NOW_MS + 1500) == 7500.0


def test_while_the_limit_grows_few_in_flight_do_not_make_a_destination_slow() -> None:
    flow = Flow(MOST, NOW_MS)
    flow.handed_over(FIRST, NOW_MS)
    flow.answered(1, NOW_MS + 1)
    assert flow.clear_ms(16_000, NOW_MS + 400, patient=True) == 0.0
    assert flow.clear_ms(16_000, NOW_MS + 502, patient=True) > 60_000, "it is not growing"
    flow.handed_over(FIRST, NOW_MS + 501)
    flow.answered(FIRST - 1, NOW_MS + 501)
    assert flow.clear_ms(16_000, NOW_MS + 591, patient=True) > 5000, "the last batch took long"


def test_the_limit_grows_if_it_is_used_though_a_fast_broker_has_few_in_flight() -> None:
    limits = []
    for load in (0, 100):
        flow, now_ms = Flow(MOST, NOW_MS), NOW_MS
        for _ in range(20):
            flow.handed_over(30, now_ms, load)
            flow.answered(30, now_ms + 2)
            now_ms += 10
        limits.append(flow.limit)
    assert limits[0] == FIRST < limits[1] <= 30 / 2 * 100, "100 ms at the rate of a batch"


def test_a_destination_that_answers_fast_gets_what_it_confirms_within_100_ms_at_once() -> None:
    limits = []
    for took_ms in (4, 40, 120):
        flow = Flow(MOST, NOW_MS)
        flow.handed_over(FIRST, NOW_MS)
        flow.answered(FIRST, NOW_MS + took_ms)
        limits.append(flow.limit)
    assert limits == [FIRST * 4, FIRST * 5 // 2, 2 * FIRST]


def test_a_destination_that_takes_a_burst_and_is_slow_then_confirms_before_the_time_out() -> None:
    flow = Flow(MOST, NOW_MS)
    flow.handed_over(FIRST, NOW_MS)
    flow.answered(FIRST, NOW_MS + 1)
    assert run(flow, 50, 2, 30, NOW_MS + 1) < 20_000


def test_it_stalls_when_messages_in_flight_have_no_outcome_for_half_a_second() -> None:
    flow = Flow(MOST, NOW_MS)
    flow.handed_over(2, NOW_MS)
    assert not flow.is_stalled(NOW_MS + STALLED_MS)
    assert flow.is_stalled(NOW_MS + STALLED_MS + 1)
    flow.answered(1, NOW_MS + STALLED_MS + 1)
    assert not flow.is_stalled(NOW_MS + STALLED_MS + 2)
    flow.answered(1, NOW_MS + STALLED_MS + 2)
    assert not flow.is_stalled(NOW_MS + 3_600_000), "nothing is in flight"


def test_a_clock_set_back_a_little_makes_no_round_trip_shorter() -> None:
    flow, now_ms = Flow(1000, 0), 1000
    flow.handed_over(FIRST, now_ms)
    flow.answered(FIRST, now_ms - 60)
    for _ in range(5):
        now_ms += 100
        flow.handed_over(flow.limit, now_ms)
        now_ms += 70
        flow.answered(flow.in_flight, now_ms)
    assert flow.limit == 1000
