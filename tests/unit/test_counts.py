"""Counts: totals made from events, bounded labels, lateness by bucket."""

from __future__ import annotations

from bisect import bisect_left
from random import Random
from typing import Any

import pytest

from delaybridge import events
from delaybridge.histogram import BOUNDS_MS, Histogram, spread
from delaybridge.operate.metrics.counts import OTHER, Counts

MOST_DESTINATIONS, MOST_PAIRS, MOST_REASONS = 200, 500, 50
NINE: dict[str, Any] = {"messages": 9, "destinations": {"a:q": 9}}


def published(destination: str, *late_ms: int) -> events.Published:
    return events.Published(
        destination=destination,
        messages=len(late_ms),
        late_ms=max(late_ms),
        late_sum_ms=sum(late_ms),
        lateness=spread(late_ms),
    )


@pytest.mark.parametrize("most", [1, 3, 60, 100_000])
def test_each_value_belongs_to_the_first_bound_that_is_not_below_it(most: int) -> None:
    random = Random(most)
    for length in (1, 2, 50):
        values = [random.randint(-2, most) for _ in range(length)]
        found: dict[int, int] = {}
        for value in values:
            index = bisect_left(BOUNDS_MS, value)
            found[index] = found.get(index, 0) + 1
        assert spread(values) == found, values


def test_each_bound_contains_its_own_value() -> None:
    assert [spread([int(bound)]) for bound in BOUNDS_MS if bound == int(bound)] == [
        {index: 1} for index, bound in enumerate(BOUNDS_MS) if bound == int(bound)
    ]


def test_a_confirmed_batch_is_counted_with_its_lateness() -> None:
    counts = Counts()
    counts(published("a:q", 0, 3, 70_000))
    counts(published("a:q", 4))
    assert counts.totals["messages_published_total", "a:q"] == 4
    histogram = counts.histograms["publish_lateness_seconds", "a:q"]
    assert histogram.counts == [1, 0, 2, *[0] * 12, 1]
    assert histogram.sum == 70_007


def test_a_batch_that_was_early_by_a_clock_step_does_not_lower_the_sum() -> None:
    counts = Counts()
    counts(published("a:q", 10))
    counts(published("a:q", -500))
    histogram = counts.histograms["publish_lateness_seconds", "a:q"]
    assert (histogram.sum, sum(histogram.counts)) == (10, 2)


@pytest.mark.parametrize(
    ("event", "totals"),
    [
        (
            events.Retried(destination="a:q", messages=3, reason="nack: 1"),
            {("messages_retried_total", "a:q", "nack"): 3},
        ),
        (
            events.Buried(destination="a:q", messages=2, reason="expired: 5 ms late"),
            {("messages_buried_total", "a:q", "expired"): 2},
        ),
        (
            events.DeadLettered(destination="a:q", messages=1, reason="unroutable: 312"),
            {("messages_dead_lettered_total", "a:q", "unroutable"): 1},
        ),
        (
            events.Dropped(destination="a:q", messages=1, reason="connection_lost: x"),
            {("messages_dropped_total", "a:q", "connection_lost"): 1},
        ),
        (
            events.Claimed(messages=9, destinations={"a:q": 7, "a:p": 2}),
            {("messages_claimed_total", "a:q"): 7, ("messages_claimed_total", "a:p"): 2},
        ),
        (events.FireAllowed(**NINE), {("messages_fired_total", "a:q"): 9}),
        (events.Settled(**NINE), {("messages_settled_total", "a:q"): 9}),
        (
            events.PublishFailed(destination="a:q", messages=4, reason="nack: 1"),
            {("publish_errors_total", "a", "nack"): 4},
        ),
        (
            events.IngestStored(source="a:q.delay", destination="a:q", messages=4, cancelled=2),
            {
                ("messages_scheduled_total", "a:q", "ingest"): 4,
                ("messages_cancelled_total", "a:q"): 2,
            },
        ),
        (
            events.IngestStored(source="a:q.delay", destination="a:q", rescheduled=1),
            {("messages_rescheduled_total", "a:q"): 1},
        ),
        (
            events.Ingested(source="a:q.delay", messages=4),
            {("messages_ingested_total", "a:q.delay"): 4},
        ),
        (events.StoreSilent(reason="no answer"), {("store_silences_total",): 1}),
        (events.ScannerFailed(reason="ValueError: x"), {("scanner_failures_total",): 1}),
        (events.DeadDropped(messages=9), {("dead_messages_deleted_total",): 9}),
        (
            events.CircuitOpened(destination="a:q", reason="no_exchange"),
            {("circuits_opened_total", "a:q"): 1},
        ),
        (
            events.LeaseAcquired(bucket=3, reclaimed=7, fired=2, destinations={"a:q": 7}),
            {("leases_acquired_total",): 1, ("messages_reclaimed_total", "a:q"): 7},
        ),
        (events.LeaseReleased(bucket=3), {("leases_lost_total", "released"): 1}),
        (events.LeaseLost(bucket=3, reason="expired"), {("leases_lost_total", "expired"): 1}),
        (
            events.Quarantined(source="a:x.delay", messages=2, reason="ingress:bad_header x: y"),
            {("messages_refused_total", "bad_header"): 2},
        ),
        (events.Revoked(messages=1), {}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_each_event_counts(event: events.Event, totals: dict[tuple[str, ...], int]) -> None:
    counts = Counts()
    counts(event)
    counts(event)
    assert dict(counts.totals) == {key: 2 * amount for key, amount in totals.items()}


def test_only_so_many_destinations_and_reasons_get_totals_of_their_own() -> None:
    counts = Counts()
    for _ in range(2):
        for number in range(300):
            counts(published(f"a:{number}", 1))
            counts(events.Retried(destination="a:0", messages=1, reason=f"why{number}: x"))
    by_destination = {
        key[1]: total
        for key, total in counts.totals.items()
        if key[0] == "messages_published_total"
    }
    assert len(by_destination) == MOST_DESTINATIONS + 1
    assert by_destination["a:0"] == 2
    assert by_destination[OTHER] == 2 * (300 - MOST_DESTINATIONS)
    assert len(counts.histograms) == MOST_DESTINATIONS + 1
    retried = [key for key in counts.totals if key[0] == "messages_retried_total"]
    assert {key[1] for key in retried} == {"a:0"}
    assert len(retried) == MOST_REASONS + 1


def test_a_reason_is_counted_by_its_first_word_and_pairs_are_bounded() -> None:
    counts = Counts()
    for destination in range(100):
        for reason in range(40):
            event = events.Buried(
                destination=f"a:{destination}", messages=1, reason=f"r{reason}: x"
            )
            counts(event)
    assert sum(counts.totals.values()) == 4000
    assert len(counts.totals) <= MOST_PAIRS + 100
    assert len(counts.reason("x" * 10_000)) < 200


def test_confirms_and_claims_are_timed() -> None:
    counts = Counts()
    counts(events.Claimed(messages=7, took_ms=1.5))
    batches = counts.histograms["scan_batch_messages",]
    assert (batches.counts[3], batches.sum, len(batches.counts)) == (1, 7, 13)
    counts(events.Published(destination="a:q", messages=1, late_ms=1, confirm_ms=[3, 70_000]))
    assert counts.histograms["claim_seconds",].counts[1] == 1
    confirms = counts.histograms["publish_confirm_seconds", "a"]
    assert (confirms.counts[2], confirms.counts[-1], confirms.sum) == (1, 1, 70_003)


def test_a_copy_stays_as_it_is() -> None:
    counts = Counts()
    counts(published("a:q", 1))
    totals, histograms = counts.copy()
    counts(published("a:q", 1))
    assert totals["messages_published_total", "a:q"] == 1
    assert sum(histograms["publish_lateness_seconds", "a:q"].counts) == 1


def test_sums_of_processes_are_the_same_in_any_order() -> None:
    random = Random(3)

    def total() -> float:
        counts = Counts()
        for _ in range(5):
            counts(events.Claimed(messages=1, took_ms=random.random() * 100))
        return counts.histograms["claim_seconds",].sum

    for _ in range(100):
        first, second, third = total(), total(), total()
        assert (first + second) + third == first + (second + third)


def test_a_value_at_a_bound_is_within_it() -> None:
    found = Histogram((1, 10))
    for value in (0, 1, 1.5, 10, 10.5):
        found.observe(value)
    assert found.counts == [2, 2, 1]
