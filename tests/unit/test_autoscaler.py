"""Workers follow a wave, by KEDA's own formula and the chart's own values, on a simulated clock."""

from __future__ import annotations

import pytest

from tests.rigs.autoscaler import SYNC_S, of_the_chart, simulated

CAPACITY = 100.0  # messages a second of one pod
TARGET = CAPACITY * 60 * 0.6  # of `keda.targetPerMinute`: with room to spare
LOW, HIGH, RISES_S = 2.0, 2000.0, 600  # a thousand-fold wave in ten minutes
AFTER_S = 1200


def wave(now_s: float) -> float:
    """It rises for ten minutes, lasts for five, and is over."""
    if now_s > RISES_S + 300:
        return LOW
    return LOW * (HIGH / LOW) ** min(1.0, now_s / RISES_S)


@pytest.mark.parametrize("pod_s", [2, 10, 20, 30, 45])
def test_nothing_of_a_thousandfold_wave_is_late(pod_s: int) -> None:
    scaler = of_the_chart(target=TARGET, most=64)
    found = simulated(scaler, wave, seconds=RISES_S + AFTER_S, capacity=CAPACITY, pod_s=pod_s)
    assert found.late_s == 0
    assert HIGH / CAPACITY <= max(found.pods) <= 2 * HIGH / CAPACITY
    assert found.pods[0] == found.pods[-1] == scaler.least, "and they go when it is over"


@pytest.mark.parametrize("pod_s", [2, 10, 20, 30])
def test_without_room_to_spare_it_is_late_by_less_than_the_start_of_a_pod(pod_s: int) -> None:
    scaler = of_the_chart(target=CAPACITY * 60, most=64)
    found = simulated(scaler, wave, seconds=RISES_S + 300, capacity=CAPACITY, pod_s=pod_s)
    assert found.late_s <= pod_s / 2


def test_by_what_is_due_already_workers_come_late_and_in_excess() -> None:
    scaler = of_the_chart(target=TARGET / 60, most=999)
    found = simulated(scaler, wave, seconds=RISES_S, capacity=CAPACITY, pod_s=30, ahead_s=0)
    assert found.late_s >= 10
    assert max(found.pods) > 2 * HIGH / CAPACITY


def test_a_burst_that_is_seen_a_minute_before_finds_its_workers() -> None:
    def burst(now_s: float) -> float:
        return 1000.0 if 300 <= now_s < 360 else 1.0

    scaler = of_the_chart(target=TARGET, most=64)
    found = simulated(scaler, burst, seconds=400, capacity=CAPACITY, pod_s=20)
    assert found.late_s <= 20
    assert found.pods[299] >= 10 > found.pods[200]


def test_the_formula_is_that_of_kubernetes() -> None:
    scaler = of_the_chart(target=100, most=50)
    assert scaler.decide(0, 205, 2) == 2, "within a tenth of the target"
    assert scaler.decide(15, 301, 2) == 4, "rounded up"
    assert scaler.decide(30, 9900, 4) == 40, "ten times as many in one step"
    assert scaler.decide(45, 9900, 40) == 50, "and never more than these"
    assert scaler.decide(60, 100, 50) == 50, "fewer were not wanted long enough"
    assert scaler.decide(46 + 300, 100, 50) == 25, "half of them in a minute"
    assert scaler.decide(61 + 300, 100, 25) == 25
    assert scaler.decide(110 + 300, 0, 25) == 12
    assert SYNC_S == 15
