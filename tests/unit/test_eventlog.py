"""Events as log lines: one a line at once, or summed up a second where they come in masses."""

from __future__ import annotations

import logging

import pytest

from delaybridge import events
from delaybridge.eventlog import EventLog
from tests.waiting import wait_until_async

DEADLINE_S = 10.0
MASSES = 1000


@pytest.fixture(autouse=True)
def everything_is_heard(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="delaybridge")


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.getMessage()) for record in caplog.records]


def published(destination: str, *, messages: int = 1, late_ms: int = 0) -> events.Published:
    return events.Published(destination=destination, messages=messages, late_ms=late_ms)


async def test_what_is_rare_is_said_at_once(caplog: pytest.LogCaptureFixture) -> None:
    log = EventLog()
    log(events.LeaseAcquired(bucket=3, reclaimed=2, fired=1))
    log(events.LeaseLost(bucket=3, reason="lease ran out"))
    log(events.ClockStepped(step_ms=-7200000))
    assert lines(caplog) == [
        ("INFO", "lease_acquired bucket=3 reclaimed=2 fired=1"),
        ("WARNING", "lease_lost bucket=3 reason='lease ran out'"),
        ("WARNING", "clock_stepped step_ms=-7200000"),
    ]


async def test_what_comes_in_masses_is_summed_up_by_destination_and_reason(
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
        ("INFO", f"published n={2 * MASSES} destination=rabbitmq:orders latest={MASSES - 1}ms"),
        ("WARNING", "retried n=2 destination=rabbitmq:orders reason='nack'"),
        ("WARNING", "retried n=1 destination=rabbitmq:orders reason='timeout'"),
    ]


async def test_each_destination_is_as_late_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    log = EventLog()
    log(published("kafka:slow", late_ms=900))
    log(published("kafka:quick", late_ms=2))
    log(published("kafka:slow", late_ms=100))
    log.flush()
    assert [line for _, line in lines(caplog)] == [
        "published n=2 destination=kafka:slow latest=900ms",
        "published n=1 destination=kafka:quick latest=2ms",
    ]
    caplog.clear()
    log(published("kafka:slow", late_ms=3))
    log.flush()
    assert lines(caplog) == [("INFO", "published n=1 destination=kafka:slow latest=3ms")]


async def test_the_sum_is_said_by_itself_after_a_second_and_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = EventLog()
    log(published("kafka:t"))
    await wait_until_async(lambda: lines(caplog), DEADLINE_S, "the sum is logged")
    assert lines(caplog) == [("INFO", "published n=1 destination=kafka:t latest=0ms")]
    log.flush()
    assert len(lines(caplog)) == 1


async def test_claims_and_revocations_are_for_debugging(caplog: pytest.LogCaptureFixture) -> None:
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


async def test_a_store_that_is_silent_is_mentioned_once_a_second(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = EventLog()
    for _ in range(MASSES):
        log(events.StoreSilent(reason="redis: no answer"))
    log.flush()
    assert lines(caplog) == [("WARNING", f"store_silent n={MASSES} reason='redis: no answer'")]
