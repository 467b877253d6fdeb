"""Metrics: exposition, totals over processes that come and go, health, and the page."""

from __future__ import annotations

import pickle
from collections import ChainMap
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from delaybridge import events
from delaybridge.front.counts import FrontCounts
from delaybridge.operate.metrics import health
from delaybridge.operate.metrics.catalog import METRICS, PREFIX
from delaybridge.operate.metrics.counts import OTHER, Counts
from delaybridge.operate.metrics.exposition import OPENMETRICS, TEXT, exposed
from delaybridge.operate.metrics.gauges import gauges_of
from delaybridge.operate.metrics.reader import Reading
from delaybridge.operate.metrics.reports import ProcessReports
from delaybridge.operate.notices.repairs import Orphans
from delaybridge.operate.views.bucket_counts import BucketStats
from delaybridge.operate.views.gauges import Gauges
from delaybridge.operate.views.retrying import Retrying
from delaybridge.operate.views.tally import DestinationCounts, Tally
from delaybridge.worker.service import ProcessReport
from tools.metrics_table import table

MOST_DESTINATIONS, LIVE_S = 200, 30.0

ROOT = Path(__file__).parents[2]
NOW_MS = 1_800_000_000_000
HOSTILE = 'a"b\\c\nd\r\x00é\U0001f600\udc80{}=,'


def published(destination: str, messages: int, late_ms: int = 3) -> events.Published:
    return events.Published(
        destination=destination,
        messages=messages,
        late_ms=late_ms,
        late_sum_ms=messages * late_ms,
        lateness={2: messages},
        confirm_ms=[1],
    )


def report(*heard: events.Event, **fields: object) -> ProcessReport:
    counts = Counts()
    for event in heard:
        counts(event)
    return ProcessReport(*counts.copy())._replace(**fields)  # type: ignore[arg-type]


def bucket(number: int, **fields: Any) -> BucketStats:
    counts = {"delayed": 0, "in_flight": 0, "parked": 0, "dead": 0, "overdue_ms": 0, **fields}
    return BucketStats(bucket=number, next_due_ms=NOW_MS, owner="w", lease_ms=1, **counts)


READING = Reading(
    Gauges(
        now_us=NOW_MS * 1000,
        memory={"used_memory": "1000", "maxmemory": "5000"},
        accepted={"scheduled": 70, "cancelled": 4, "rescheduled": 0, "kicked": 3},
        buckets=16,
        unowned=[7],
        held=[
            bucket(0, delayed=4, overdue_ms=10, orphans=Orphans(NOW_MS, 3, 1, 101, 4, waiting=99)),
            bucket(1, delayed=5, dead=2, parked=1, orphans=Orphans(NOW_MS, 4, 2)),
        ],
        alone=[bucket(7, delayed=100, overdue_ms=2500)],
        horizon={"1m": 3, "1d": 9},
        retrying=[Retrying("a:q", "nack", 6, NOW_MS, "nack: 1")],
        destinations=[DestinationCounts("a:q", delayed=Tally(80, 7), dead=Tally(2))],
    ),
    skew_s=0.25,
    unowned_s={7: 12.0},
)
WORKER = {"brokers": {"a": None, "b": "refused"}, "buckets": (0, 1), "scanned_s": 1.0}


def scraped(
    reports: ProcessReports, found: Reading = READING, format: str = TEXT
) -> dict[tuple[str, ...], float]:
    """(name, label values in order of name) -> value, as Prometheus reads them."""
    text, content_type = exposed(reports.totals(), gauges_of(reports.latest, found), format)
    assert content_type.startswith(format)
    read = read_openmetrics if format == OPENMETRICS else read_text
    samples = (sample for family in read(text.decode()) for sample in family.samples)
    return {
        (each.name.removeprefix(PREFIX), *(each.labels[name] for name in sorted(each.labels))): (
            each.value
        )
        for each in samples
    }


@pytest.mark.parametrize("format", [TEXT, OPENMETRICS])
def test_every_metric_of_the_catalog_is_exposed_and_no_other(format: str) -> None:
    reports = ProcessReports(["w"])
    counts = Counts()
    for name, metric in METRICS.items():
        if metric.kind == "counter" or name == "recurring_last_run_timestamp_seconds":
            counts.totals[name, *metric.labels] += 1
        elif metric.kind == "histogram":
            counts.histograms[name, *metric.labels].observe(3)
    said = ProcessReport(*counts.copy())._replace(
        brokers={"a": None},
        scanned_s=1.0,
        sources={"a:x.delay": ("reading", 3, 2)},
        held={("a:q", "paused"): 2},
        ledger={"silent": "", "waiting": 0},
        nodes={"h:5672": None},
    )
    said = said._replace(front=FrontCounts(lambda event: None).report(said).front)
    reports.put("w", said)
    samples = {name for name, *_ in scraped(reports, format=format)}
    suffixes = {"histogram": "_count", "counter": "", "gauge": "", "info": ""}
    expected = {name + suffixes[metric.kind] for name, metric in METRICS.items()}
    assert expected <= samples
    parts = {f"{name}{part}" for name in METRICS for part in ("_bucket", "_sum")}
    assert samples - expected - parts == set()


def test_every_event_counts_what_the_catalog_describes() -> None:
    """A total that the catalog lacks would fail every scrape."""
    counts = Counts()
    samples = {"int": 1, "float": 1.0, "str": "a:q", "Mapping[int, int]": {0: 1}}
    samples["Mapping[str, int]"] = {"a:q": 1}
    for kind in events.Event.__subclasses__():
        types = ChainMap(*(vars(each).get("__annotations__", {}) for each in kind.__mro__))
        values = {f.name: samples.get(types[f.name], ()) for f in msgspec.structs.fields(kind)}
        counts(kind(**values))
    for name, *labels in (*counts.totals, *counts.histograms):
        assert len(labels) == len(METRICS[name].labels), name
    counted = {name for name, *_ in (*counts.totals, *counts.histograms)}
    described = {
        name
        for name, metric in METRICS.items()
        if metric.kind in ("counter", "histogram") and not metric.of_redis
    } | {"recurring_last_run_timestamp_seconds"}
    of_fronts = {name for name in described if name.startswith("front_")}
    others = {"process_crashes_total", "publish_confirm_seconds"}
    assert described - counted == others | of_fronts


def test_values_of_redis_and_of_processes() -> None:
    reports = ProcessReports(["w", "v"])
    released = [events.LeaseReleased(bucket=n) for n in range(3)]
    reports.put("w", report(published("a:q", 2), *released, **WORKER, unconfirmed={"a": 3}))
    reports.put("v", report(published("a:q", 3), **WORKER, unconfirmed={"a": 4}, parked_ms=NOW_MS))
    found = scraped(reports)
    expected = {
        ("messages_published_total", "a:q"): 5,
        ("publish_lateness_seconds_count", "a:q"): 5,
        ("publish_lateness_seconds_bucket", "a:q", "0.0025"): 0,
        ("publish_lateness_seconds_bucket", "a:q", "0.005"): 5,
        ("publish_lateness_seconds_bucket", "a:q", "+Inf"): 5,
        ("publish_lateness_seconds_sum", "a:q"): 0.015,
        ("publish_confirm_seconds_count", "a"): 2,
        ("worker_processes",): 2,
        ("publisher_unconfirmed_messages", "a"): 7,
        ("broker_up", "a"): 1,
        ("broker_up", "b"): 0,
        ("store_up",): 1,
        ("store_memory_bytes",): 1000,
        ("store_memory_max_bytes",): 5000,
        ("store_messages_scheduled_total",): 70,
        ("store_messages_cancelled_total",): 4,
        ("store_messages_rescheduled_total",): 0,
        ("store_messages_kicked_total",): 3,
        ("messages", "delayed"): 9,
        ("messages", "dead"): 2,
        ("oldest_overdue_seconds",): 2.5,
        ("orphans_found_messages", "due"): 7,
        ("orphans_found_messages", "dead"): 3,
        ("orphans_found_messages", "parked"): 101,
        ("orphans_found_messages", "bare"): 4,
        ("orphans_waiting_messages",): 99,
        ("next_due_timestamp_seconds",): NOW_MS / 1000,
        ("horizon_messages", "1d"): 9,
        ("buckets",): 16,
        ("buckets_unowned",): 1,
        ("buckets_unseen",): 0,
        ("worker_clock_skew_seconds",): 0.25,
        ("retrying_messages", "a:q", "nack"): 6,
        ("destination_messages", "a:q", "delayed"): 80,
        ("destination_messages_error", "a:q", "delayed"): 7,
        ("destination_messages", "a:q", "dead"): 2,
        ("destination_messages_error", "a:q", "dead"): 0,
        ("scanner_failures_total",): 0,  # a rate needs a beginning
        ("leases_lost_total", "expired"): 0,
        ("leases_lost_total", "released"): 3,
    }
    assert {key: found.get(key) for key in expected} == expected
    assert ("messages_retried_total",) not in found


def test_the_last_run_of_a_recurring_message_is_the_latest_of_all_processes() -> None:
    reports = ProcessReports(["w", "v"])
    for name, due_ms in (("w", 9000), ("v", 5000)):
        made = events.RunsMade(name="beat", destination="a:q", messages=1, missed=0, due_ms=due_ms)
        reports.put(name, report(made, **WORKER))
    last_run = "recurring_last_run_timestamp_seconds", "beat"
    assert scraped(reports)[last_run] == 9
    reports.ended("w", crashed=True)
    assert scraped(reports)[last_run] == 9


def test_a_parked_message_is_overdue_unless_it_is_held() -> None:
    reports = ProcessReports(["w"])
    held = {("a:q", "paused"): 5}
    reports.put("w", report(**WORKER, held=held, parked_ms=None))
    found = scraped(reports)
    assert (found["oldest_overdue_seconds",], found["held_messages", "paused", "a:q"]) == (2.5, 5)
    reports.put("w", report(**WORKER, held=held, parked_ms=NOW_MS - 60_000))
    assert scraped(reports)["oldest_overdue_seconds",] == 60
    assert READING.gauges is not None
    gone = READING._replace(gauges=READING.gauges._replace(held=[bucket(0, delayed=4)]))
    assert scraped(reports, gone)["oldest_overdue_seconds",] == 2.5, "it was cancelled since"


def test_without_redis_counters_are_served_and_its_gauges_are_absent() -> None:
    reports = ProcessReports(["w"])
    reports.put("w", report(published("a:q", 2), **WORKER))
    found = scraped(reports, Reading(error="redis: no answer"))
    assert found["store_up",] == 0
    assert found["messages_published_total", "a:q"] == 2
    assert not {name for name, *_ in found} & {"messages", "oldest_overdue_seconds", "buckets"}


def test_before_anything_exists_it_is_exposed_as_well() -> None:
    found = scraped(ProcessReports(["w"]), Reading(Gauges(now_us=NOW_MS * 1000)))
    assert found["oldest_overdue_seconds",] == found["buckets",] == found["worker_processes",] == 0
    assert found["store_up",] == 1


@pytest.mark.parametrize("format", [TEXT, OPENMETRICS])
def test_hostile_labels_are_escaped(format: str) -> None:
    reports = ProcessReports(["w"])
    reports.put("w", report(published(HOSTILE, 2), published("a:q", 1), **WORKER))
    text, _ = exposed(reports.totals(), {}, format)
    read = read_openmetrics if format == OPENMETRICS else read_text
    # The parsers of the library split at \r, Prometheus does not.
    families = read(text.decode().replace("\r", "?"))
    found = {
        sample.labels["destination"]: sample.value
        for family in families
        for sample in family.samples
        if sample.name == "delaybridge_messages_published_total"
    }
    shown = HOSTILE.replace("\udc80", "?").replace("\r", "?")
    assert found == {"a:q": 1, shown: 2}


# totals


def test_totals_never_fall_while_processes_die_and_come_back() -> None:
    reports = ProcessReports(["w-0", "w-1"])
    seen = []

    def look() -> None:
        total = reports.totals()
        seen.append(
            (
                total.totals["messages_published_total", "a:q"],
                total.histograms["publish_lateness_seconds", "a:q"].sum,
            )
        )

    for generation in range(3):
        reports.put("w-0", report(published("a:q", 5)))
        look()
        reports.put("w-0", report(published("a:q", 7)))
        look()
        reports.put("w-1", report(published("a:q", 1 + generation)))
        look()
        reports.ended("w-0", crashed=True)
        look()
    assert seen == sorted(seen)
    assert seen[-1] == (3 * 7 + 3, 3 * (3 * 7 + 3))
    assert reports.totals().totals["process_crashes_total",] == 3
    reports.ended("w-1", crashed=False)
    assert reports.totals().totals["process_crashes_total",] == 3
    assert reports.latest == {}


def test_a_process_that_ends_without_a_report_changes_nothing() -> None:
    reports = ProcessReports(["w"])
    reports.ended("w", crashed=False)
    assert dict(reports.totals().totals) == {}


def test_destinations_of_all_processes_together_are_bounded_and_keep_their_names() -> None:
    reports = ProcessReports(["v", "w"])
    for name in ("v", "w"):
        reports.put(name, report(*(published(f"{name}:{n}", 1) for n in range(250))))
    first = reports.totals().totals
    named = [key for key in first if key[0] == "messages_published_total"]
    assert len(named) == MOST_DESTINATIONS + 1
    assert first["messages_published_total", OTHER] == 500 - MOST_DESTINATIONS
    reports.ended("v", crashed=True)
    reports.put("v", report(published("new:q", 1)))
    after = reports.totals().totals
    assert all(after[key] >= first[key] for key in first)
    assert ("messages_published_total", "new:q") not in after


def test_a_report_is_pickled_small() -> None:
    many = (published(f"rabbitmq:orders.{n}", 10**9) for n in range(MOST_DESTINATIONS + 50))
    why = (
        events.Retried(destination=f"rabbitmq:orders.{n}", messages=1, reason=f"reason{m}: x")
        for n in range(50)
        for m in range(50)
    )
    said = report(*many, *why, **WORKER)
    pickled = pickle.dumps(said)
    assert len(pickled) < 64 * 1024, "it fits into a pipe"
    assert pickle.loads(pickled).totals == said.totals


# health


def test_a_process_that_is_silent_for_long_does_not_live() -> None:
    now_s = 0.0
    reports = ProcessReports(["v", "w"], monotonic=lambda: now_s)
    reports.put("v", report())
    now_s = LIVE_S
    assert health.live(reports.latest, reports.silent()).is_well
    reports.put("v", report())
    now_s = LIVE_S + 1
    found = health.live(reports.latest, reports.silent())
    assert not found.is_well
    (silent,) = found.as_json["reasons"]
    assert silent.startswith("w ") and silent.endswith(" 31 s")
    reports.put("w", report())
    assert health.live(reports.latest, reports.silent()).is_well


def ready(found: Reading = READING, patience_s: float = 20, **fields: object) -> list[str]:
    reports = {"w": report(**(WORKER | fields))}
    return health.ready(reports, found, patience_s=patience_s).reasons


def test_ready_says_why_not() -> None:
    assert ready() == []
    assert ready(Reading(error="redis: no answer")) == ["redis: no answer"]
    (alone,) = ready(patience_s=11)
    assert alone.startswith("1 buckets ") and alone.endswith(" 12 s: [7]")
    assert ready(brokers={"a": "refused", "b": "tls: x"}) == [
        "broker a: refused",
        "broker b: tls: x",
    ]
    (draining,) = ready(is_draining=True)
    assert draining.startswith("draining: ")
    assert len(health.ready({}, READING, patience_s=20).reasons) == 1


def test_what_waits_for_the_ledger_is_not_ready() -> None:
    waits = {"silent": "no answer", "waiting": 3}
    assert ready(ledger=waits) == [
        "3 buckets wait to be compared with the ledger, which does not answer: no answer"
    ]
    assert ready(ledger=waits | {"waiting": 0}) == []  # what Redis has goes out
    (reason,) = ready(awaits="no answer")
    assert reason.endswith(" waits for the record of the namespace: no answer")


def test_an_ingest_process_is_ready_while_one_source_is_read() -> None:
    none: dict[str, object] = {"brokers": {}, "scanned_s": None}
    down = ("no answer", None)
    assert (
        ready(**none, sources={"a:x": down, "b:y": ("idle: other processes read it", 0, 0)}) == []
    )
    assert ready(**none, sources={"a:x": down}) == ["source a:x: no answer"]


def test_reasons_contain_no_password_and_are_bounded() -> None:
    url = "amqp://guest:secret@host/"
    shown = health.Health([f"broker a: {url} \n{'x' * 1000}"] * 50, {}).as_json
    assert "secret" not in str(shown)
    assert "\n" not in shown["reasons"][0]
    assert len(str(shown)) < 10_000


# the page


def test_the_page_lists_every_metric_as_the_catalog_has_it() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    for kinds in (("counter",), ("histogram",), ("gauge", "info")):
        assert table(*kinds) in page, "python -m tools.metrics_table"
