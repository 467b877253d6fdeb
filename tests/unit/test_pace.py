"""A worker's pace, as its announcement tells it."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

from delaybridge.events import LATENESS_BOUNDS_MS, Claimed, Published
from delaybridge.operate.metrics.counts import Counts
from delaybridge.operate.parts.pace import CountedPace

NOTHING = {
    "published_s": None, "claims_s": None, "claimed": None, "confirm_ms": {}, "late_ms": {},
}  # fmt: skip


class Rig:
    def __init__(self) -> None:
        self.now_s, self.counts = 100.0, Counts()
        self.pace = CountedPace(self.counts, monotonic=lambda: self.now_s)

    def after(self, seconds: float) -> dict[str, Any]:
        self.now_s += seconds
        return self.pace.announced()

    def happen(self, messages: int, *, took_ms: int = 3, late_ms: int = 1) -> None:
        self.counts(Claimed(messages=messages, destinations={"kafka:t": messages}, took_ms=1.0))
        self.counts(
            Published(
                destination="kafka:t", messages=messages, late_ms=late_ms,
                lateness={bisect_left(LATENESS_BOUNDS_MS, late_ms): messages},
                confirm_ms=[took_ms] * messages,
            )
        )  # fmt: skip


def test_what_is_announced_is_of_the_time_since_it_was_announced_before() -> None:
    rig = Rig()
    assert rig.after(0.5) == NOTHING
    rig.happen(30)
    rig.happen(10)
    said = rig.after(3.5)
    assert (said["published_s"], said["claims_s"], said["claimed"]) == (10.0, 0.5, 20.0)
    assert 2.5 < said["confirm_ms"]["kafka"] <= 5
    rig.happen(500)
    assert rig.after(0.9) == said  # too soon to say
    assert rig.after(0.1)["published_s"] == 500.0


def test_a_quiet_worker_says_zero_and_keeps_the_last_time_of_a_confirm() -> None:
    rig = Rig()
    rig.happen(5, took_ms=80)
    before = rig.after(2)
    said = rig.after(4)
    assert (said["published_s"], said["claims_s"], said["claimed"]) == (0.0, 0.0, None)
    assert said["confirm_ms"] == before["confirm_ms"]
    rig.happen(5, took_ms=3)
    assert rig.after(4)["confirm_ms"]["kafka"] <= 5  # not of all time


def test_the_lateness_of_a_destination_is_told_for_a_minute() -> None:
    rig = Rig()
    rig.happen(99)
    rig.happen(2, late_ms=700)
    assert 500 < rig.after(4)["late_ms"]["kafka:t"] <= 1000
    rig.happen(10)
    assert 500 < rig.after(4)["late_ms"]["kafka:t"] <= 1000  # of the whole minute
    assert rig.after(57)["late_ms"]["kafka:t"] <= 2.5
    assert rig.after(9)["late_ms"] == {}
