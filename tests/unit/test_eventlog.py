"""Events as log lines: rare events one line each, frequent ones summed once a second."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from delaybridge import events
from delaybridge.errors import TROUBLESHOOTING
from delaybridge.worker.eventlog import EventLog
from tests.rigs.waiting import until_async

MASSES = 1000


@pytest.fixture(autouse=True)
def everything_is_heard(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="delaybridge")


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.getMessage()) for record in caplog.records]


def published(destination: str, *, messages: int = 1, late_ms: int = 0) -> events.Published:
    return events.Published(destination=destination, messages=messages, late_ms=late_ms)


async def test_a_rare_event_is_logged_at_once(caplog: pytest.LogCaptureFixture) -> None:
    log = EventLog()
    log(events.CircuitOpened(destination="kafka:t", reason="access refused"))
    log(events.ClockStepped(step_ms=-7200000))
    assert lines(caplog) == [
        ("WARNING", 'circuit_opened destination=kafka:t reason="access refused"'),
        ("WARNING", "clock_stepped step_ms=-7200000"),
    ]


@pytest.mark.parametrize("kind", [events.IngestFailed, events.SourceUnguarded])
async def test_the_remedy_for_a_source_is_logged_in_full(
    kind: type[events.Event], caplog: pytest.LogCaptureFixture
) -> None:
    long = "o" * 200
    remedy = f"run once: delaybridge ingest rabbitmq --take-over {long}@5f0c"
    reason = f"{long} belongs to namespace {long}; {remedy}"
    EventLog()(kind(source="orders.delay", reason=reason))  # type: ignore[call-arg]
    EventLog()(kind(source="orders.delay", reason=100 * reason))  # type: ignore[call-arg]
    (_, logged), (_, bounded) = lines(caplog)
    assert remedy in logged
    assert len(bounded) < 1_100


async def test_leases_taken_together_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    log = EventLog()
    for bucket in (3, 0, 1, *range(4, 15), 2, 15, 18):
        log(events.LeaseAcquired(bucket=bucket, reclaimed=bucket % 2, fired=0))
    log(events.LeaseLost(bucket=9, reason="lease ran out"))
    log(events.LeaseReleased(bucket=1))
    log(events.LeaseLost(bucket=8, reason="lease ran out"))
    log.flush()
    assert lines(caplog) == [
        ("INFO", "lease_acquired buckets=0-15,18 reclaimed=8 fired=0"),
        ("WARNING", 'lease_lost buckets=8-9 reason="lease ran out"'),
        ("INFO", "lease_released buckets=1"),
    ]
    taken = fields(caplog)[0]["leases"]
    assert [(bucket, *of) for bucket, _, *of in taken[:3]] == [(3, 1, 0), (0, 0, 0), (1, 1, 0)]
    assert min(at_ms for _, at_ms, *_ in taken) > 1_700_000_000_000


def fields(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """What formatters get in addition to the text."""
    return [{"event": r.event, **r.fields} for r in map(vars_of, caplog.records)]


def vars_of(record: logging.LogRecord) -> Any:
    """The record; typed, it would not have the fields logged in addition to the text."""
    return record


async def test_every_line_has_its_fields(caplog: pytest.LogCaptureFixture) -> None:
    log = EventLog()
    log(published("kafka:t", messages=3, late_ms=7))
    log(events.Retried(destination="kafka:t", messages=1, reason="nack"))
    log.flush()
    log(events.ClockStepped(step_ms=5))
    link = f"{TROUBLESHOOTING}#retried"
    assert fields(caplog) == [
        {"event": "published", "n": 3, "destination": "kafka:t", "lateness_ms": 7},
        {"event": "retried", "n": 1, "destination": "kafka:t", "reason": "nack", "see": link},
        {"event": "clock_stepped", "step_ms": 5, "see": link.replace("retried", "clock_stepped")},
    ]


async def test_the_content_of_a_message_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    log = EventLog()
    for value in ("secret-1", "secret-2"):
        reason = f"ingress:bad_time x-delay: got {value!r}"
        log(events.Quarantined(source="orders.delay", messages=1, reason=reason))
    log.flush()
    assert lines(caplog) == [
        ("WARNING", "quarantined n=2 source=orders.delay reason=ingress:bad_time")
    ]
    assert "secret" not in str(fields(caplog))


async def test_lines_are_bounded_however_many_destinations_and_reasons(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = EventLog()
    for number in range(MASSES):
        log(events.Buried(destination=f"kafka:{number}", messages=1, reason="unroutable: x"))
        log(events.Retried(destination="kafka:t", messages=1, reason=f"refused: {number}"))
    log.flush()
    logged = fields(caplog)
    assert len(logged) < 110
    assert sum(each["n"] for each in logged) == 2 * MASSES
    assert {each["n"] for each in logged if each["event"] == "retried"} == {MASSES}
    assert "(others)" in {each["destination"] for each in logged}


async def test_frequent_events_are_summed_by_destination_and_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = EventLog()
    for late_ms in range(MASSES):
        log(published("rabbitmq:orders", messages=2, late_ms=late_ms))
    log(events.Retried(destination="rabbitmq:orders", messages=1, reason="nack"))
    log(events.Retried(destination="rabbitmq:orders", messages=1, reason="timeout"))
    log(events.Retried(destination="rabbitmq:orders", messages=1, reason="nack"))
    assert lines(caplog) == []
    log.flush()
    assert lines(caplog) == [
        ("INFO", f"published n={2 * MASSES} destination=rabbitmq:orders lateness_ms={MASSES - 1}"),
        ("WARNING", "retried n=2 destination=rabbitmq:orders reason=nack"),
        ("WARNING", "retried n=1 destination=rabbitmq:orders reason=timeout"),
    ]


async def test_each_destination_has_its_own_lateness(caplog: pytest.LogCaptureFixture) -> None:
    log = EventLog()
    log(published("kafka:slow", late_ms=900))
    log(published("kafka:quick", late_ms=2))
    log(published("kafka:slow", late_ms=100))
    log.flush()
    assert [line for _, line in lines(caplog)] == [
        "published n=2 destination=kafka:slow lateness_ms=900",
        "published n=1 destination=kafka:quick lateness_ms=2",
    ]
    caplog.clear()
    log(published("kafka:slow", late_ms=3))
    log.flush()
    assert lines(caplog) == [("INFO", "published n=1 destination=kafka:slow lateness_ms=3")]


async def test_a_sum_is_logged_once_after_a_second(caplog: pytest.LogCaptureFixture) -> None:
    log = EventLog()
    log(published("kafka:t"))
    await until_async(lambda: lines(caplog), "the sum is logged")
    assert lines(caplog) == [("INFO", "published n=1 destination=kafka:t lateness_ms=0")]
    log.flush()
    assert len(lines(caplog)) == 1


async def test_claims_and_revocations_are_logged_at_debug_level(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = EventLog()
    log(events.Claimed(messages=5))
    log(events.Claimed(messages=7))
    log(events.Revoked(messages=1))
    log.flush()
    assert lines(caplog) == [("DEBUG", "claimed n=12"), ("DEBUG", "revoked n=1")]


async def test_hostile_text_stays_on_its_line(caplog: pytest.LogCaptureFixture) -> None:
    log = EventLog()
    log(events.Buried(destination="x\nFAKE line", messages=1, reason="\x1b[2J\r\n" + "r" * 900))
    log(events.ScannerFailed(reason="first\nsecond"))
    log.flush()
    for _, line in lines(caplog):
        assert line.isprintable()
        assert len(line) < 400


async def test_a_silent_store_is_logged_once_a_second(caplog: pytest.LogCaptureFixture) -> None:
    log = EventLog()
    for _ in range(MASSES):
        log(events.StoreSilent(reason="redis: no answer"))
    log.flush()
    assert lines(caplog) == [("WARNING", f'store_silent n={MASSES} reason="redis: no answer"')]
