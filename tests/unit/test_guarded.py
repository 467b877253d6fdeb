"""A publisher without a link: whatever it does, each delivery has one outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from delaybridge.message import PULL, Delivery, Destination
from delaybridge.publish import CONFIRMED, Outcome, PublishOptions, Report, Verdict
from delaybridge.publish.guarded import GuardedPublisher
from delaybridge.publish.memory import MemoryPublisher
from delaybridge.publish.pull import PullPublisher
from delaybridge.scan.lanes.lane import Broker
from delaybridge.worker.brokers import Brokers
from tests.rigs.broker import Sink
from tests.rigs.broker_memory import MemoryRig

TIMEOUT_S = 0.1


class Careless(MemoryPublisher):
    """It holds what it is handed; `raises` tells after how many messages it raises, or on close."""

    raises: int | str | None = None

    def __init__(self, report: Report) -> None:
        super().__init__("m", "", report=report, on_change=lambda: None, options=None)
        self.hold = True

    def publish(self, deliveries: Sequence[Delivery]) -> None:
        if isinstance(self.raises, int):
            super().publish(deliveries[: self.raises])
            self.confirm()
            raise RuntimeError("told to")
        super().publish(deliveries)

    async def close(self, timeout_s: float) -> None:
        if self.raises == "close":
            raise RuntimeError("told to")
        if self.raises == "never closes":
            await asyncio.Event().wait()


def guarded(sink: Sink, timeout_s: float = 3600.0) -> tuple[GuardedPublisher, Careless]:
    made = GuardedPublisher(Careless, sink.report, timeout_s)
    sink.publisher = made
    inner = made._made
    assert isinstance(inner, Careless)
    return made, inner


def deliveries(count: int) -> list[Delivery]:
    return MemoryRig().deliveries(Destination("m", "memory", "q"), count)


async def test_what_a_publish_that_raises_has_not_reported_is_unknown() -> None:
    made, inner = guarded(sink := Sink())
    inner.raises = 2
    made.publish(sent := deliveries(5))
    assert sink.outcomes == {}, "never from inside `publish`"
    await sink.all_of(sent)
    assert [sink.outcomes[one].verdict for one in sent] == [Verdict.CONFIRMED] * 2 + [
        Verdict.UNKNOWN
    ] * 3
    assert sink.reasons(sent[2:]) == {"failed"}
    await made.close(0)


async def test_what_it_never_reports_is_unknown_in_time_and_a_late_report_is_not_heard() -> None:
    made, inner = guarded(sink := Sink(), TIMEOUT_S)
    made.publish(first := deliveries(3))
    inner.confirm(1)
    made.publish(second := deliveries(2))
    await sink.all_of([*first, *second])
    assert sink.outcomes[first[0]] == CONFIRMED
    assert sink.reasons([*first[1:], *second]) == {"confirm_timeout"}
    inner.confirm()
    made.publish(marker := deliveries(1))
    await sink.all_of(marker)
    assert sink.reasons(first[1:]) == {"confirm_timeout"}
    await made.close(0)


@pytest.mark.parametrize("raises", ["close", "never closes", None])
async def test_when_it_is_closed_all_have_outcomes(
    raises: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delaybridge.publish.guarded.CLOSE_S", 0.01)
    made, inner = guarded(sink := Sink())
    made.publish(sent := deliveries(3))
    inner.raises = raises
    await made.close(0)
    assert sink.verdicts(sent) == {Verdict.UNKNOWN}


async def test_no_batch_is_kept_that_has_its_outcomes() -> None:
    made, inner = guarded(Sink())
    inner.hold = False
    for _ in range(10):
        made.publish(deliveries(3))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert len(made._batches) <= 1
    await made.close(0)


async def test_pull_topics_are_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    def raising(*_: object) -> None:
        raise RuntimeError("told to")

    sink = Sink()
    brokers = Brokers({}, PublishOptions(), report=sink.report, on_change=lambda: None)
    sink.publisher = publisher = brokers.by_name[PULL].publisher
    with monkeypatch.context() as patch:
        patch.setattr(PullPublisher, "publish", raising)
        publisher.publish(sent := deliveries(3))
    await sink.all_of(sent)
    assert sink.verdicts(sent) == {Verdict.UNKNOWN}
    await sink.publish(sent := deliveries(3))
    assert {sink.outcomes[one] for one in sent} == {CONFIRMED}
    await brokers.close(0)


def test_an_outcome_for_all_is_passed_on_as_it_came() -> None:
    passed: list[tuple[Sequence[Delivery], Outcome]] = []
    made = GuardedPublisher(Careless, lambda *what: passed.append(what), 1.0)
    made._owed.add(sent := deliveries(3))
    made._owed.report(sent, CONFIRMED)
    assert passed[0][0] is sent, "no work for each message"


async def test_a_broker_that_is_away_is_logged_once_however_its_library_words_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    brokers = Brokers({}, PublishOptions(), report=Sink().report, on_change=lambda: None)
    inner = MemoryPublisher("m", "", report=Sink().report, on_change=lambda: None, options=None)
    brokers.by_name["m"] = Broker("memory", inner)
    for inner.unavailable in ("unreachable: 1/1", "unreachable: 0/2", "login_refused: no", None):
        brokers._changed("m")
    logged = [(each.levelname, each.getMessage()) for each in caplog.records]
    assert [level for level, _ in logged] == ["WARNING", "WARNING"], logged
