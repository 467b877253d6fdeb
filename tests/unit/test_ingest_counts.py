"""What ingest counts of stored messages: how long they are to wait."""

from __future__ import annotations

from random import Random
from time import time_ns

import pytest

from delaybridge import events
from delaybridge.accept.accept import Accepted
from delaybridge.histogram import DELAY_BOUNDS_MS
from delaybridge.ingest.counts import SourceCounts, delays_of
from delaybridge.ingest.entries import Schedule
from delaybridge.message import Answer, OnConflict
from delaybridge.operate.metrics.counts import Counts

DAY_MS = 86_400_000


def entry(when: str) -> Schedule:
    return Schedule(Accepted("id", b"k", when, 255, b""), b"call", OnConflict.FAIL, b"")


def delays(*whens: str) -> tuple[dict[int, int], int]:
    counts, sum_ms = delays_of([entry(when) for when in whens])
    return dict(counts), sum_ms


def test_delays_belong_to_the_first_bound_that_is_not_below_them() -> None:
    assert delays("+0") == ({0: 1}, 0)
    assert delays("+1000", "+1001", "+4000") == ({0: 1, 1: 2}, 6001)
    assert delays("+5000", "+5000", "+0", "+5000") == ({0: 1, 2: 3}, 15_000)
    assert delays(f"+{500 * DAY_MS}") == ({len(DELAY_BOUNDS_MS): 1}, 500 * DAY_MS)
    assert delays() == ({}, 0)


def test_a_due_time_is_a_delay_from_now_and_one_in_the_past_is_none() -> None:
    now_ms = time_ns() // 1_000_000
    counts, sum_ms = delays(str(now_ms + DAY_MS), str(now_ms - DAY_MS))
    assert counts == {0: 1, 9: 1}
    assert DAY_MS - 10_000 < sum_ms <= DAY_MS


@pytest.mark.parametrize("different", [3, 1000])
def test_few_and_many_different_delays_are_counted_alike(different: int) -> None:
    random = Random(different)
    pool = [random.randrange(10 ** random.randrange(2, 11)) for _ in range(different)]
    waits_ms = [random.choice(pool) for _ in range(300)] if different < 300 else pool
    one_by_one = [delays(f"+{wait_ms}") for wait_ms in waits_ms]
    counts, sum_ms = delays(*(f"+{wait_ms}" for wait_ms in waits_ms))
    assert sum_ms == sum(each for _, each in one_by_one)
    for index in range(len(DELAY_BOUNDS_MS) + 1):
        assert counts.get(index, 0) == sum(found.get(index, 0) for found, _ in one_by_one)


def test_only_scheduled_messages_have_a_delay() -> None:
    source, counts = SourceCounts(source="a:q.delay", target="a:q"), Counts()
    source.scheduled([entry("+2000"), entry("+2000")], counts)
    source.report([(entry("+1000"), Answer.CREATED)], counts)
    source.report([], counts)
    histogram = counts.histograms["requested_delay_seconds", "a:q"]
    assert (histogram.counts[:3], histogram.sum) == ([1, 2, 0], 5000)
    assert counts.totals["messages_scheduled_total", "a:q", "ingest"] == 3
    only_cancelled = events.IngestStored(source="a:p.delay", destination="a:p", cancelled=1)
    counts(only_cancelled)
    assert ("requested_delay_seconds", "a:p") not in counts.histograms


def test_a_change_of_state_or_faults_calls_back_and_nothing_else_does() -> None:
    changes: list[str] = []
    source = SourceCounts(source="a:q.delay", target="a:q", on_change=lambda: changes.append("!"))
    source.state = "starting"
    assert source.note("bindings", []) == []
    assert not changes
    source.state = "reading"
    assert source.note("bindings", ["b", "c"]) == ["b", "c"]
    assert source.note("target", ["t"]) == ["t"]
    assert source.note("bindings", ["c", "d"]) == ["d"]
    assert source.note("bindings", ("c", "d")) == []
    assert (len(changes), source.faults) == (4, ["c", "d", "t"])
    assert source.announcement()["faults"] == ["c", "d", "t"]
    source.note("bindings", ())
    assert (len(changes), source.faults) == (5, ["t"])
