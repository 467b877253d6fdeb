"""Which of the two producers a topic gains from, and what a topic must not forget."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from confluent_kafka import KafkaError

from delaybridge.message import Delivery, Destination, Record
from delaybridge.publish import PublishOptions
from delaybridge.publish.kafka.clients import KafkaClients
from delaybridge.publish.kafka.configuration import configuration
from delaybridge.publish.kafka.outcomes import FailedRecord, Judgement
from delaybridge.publish.kafka.topic import TopicState

FEW, MANY, QUEUED, SETTLED_S, SLOW_S = 128, 400, 5, 30.0, 0.2


def topic(*, in_flight: int = 0, held: int = 0, took_s: float = 0.001) -> TopicState:
    """A topic with this many deliveries; the last one took `took_s`."""
    made = TopicState("t")
    delivery: Any = object()
    made.in_flight = in_flight + 1
    made.confirmed(1, 0.0, took_s)
    made.held.extend([delivery] * held)
    return made


@pytest.mark.parametrize(
    ("made", "is_patient", "gains"),
    [
        (topic(held=1), False, False),
        (topic(held=MANY - 1), False, False),
        (topic(held=MANY), False, True),
        (topic(in_flight=MANY - 1, held=1), False, True),
        (topic(held=FEW), False, False),
        (topic(held=FEW), True, True),
        (topic(held=FEW - 1), True, False),
        (topic(held=QUEUED + 1, took_s=2 * SLOW_S), False, True),
        (topic(held=QUEUED, took_s=2 * SLOW_S), False, False),
        (topic(held=1, took_s=2 * SLOW_S), True, True),
    ],
)
def test_a_backlog_and_a_slow_broker_gain_from_patience(
    made: TopicState, is_patient: bool, gains: bool
) -> None:
    assert made.gains_from_patience(is_patient=is_patient) is gains


def test_a_topic_with_records_anywhere_is_in_use() -> None:
    assert not topic().is_in_use
    assert topic(in_flight=1).is_in_use
    assert topic(held=1).is_in_use
    waiting = topic()
    waiting.waiting.append(object())  # type: ignore[arg-type]
    assert waiting.is_in_use


def test_after_a_failed_record_it_stays_and_a_shorter_stay_changes_nothing() -> None:
    made = topic(in_flight=1)
    made.failed(100.0)
    made.stay_until(101.0)
    assert made.settled_s == 100.0 + SETTLED_S
    assert made.in_flight == 0


class ReadyClient:
    """A producer that is ready at once, and reaches no broker."""

    needs_id = True

    def __init__(self, *_: object) -> None:
        self.ready = asyncio.Event()
        self.ready.set()

    async def error_of_topic(self, *_: object) -> None:
        """All is well."""


def producers_of(monkeypatch: pytest.MonkeyPatch) -> KafkaClients:
    monkeypatch.setattr("delaybridge.publish.kafka.clients.KafkaClient", ReadyClient)
    quiet: Any = None
    settings = configuration("kafka", "kafka://a", PublishOptions())
    made = KafkaClients(settings, quiet, quiet)
    made.open()
    return made


async def test_after_a_failed_record_a_topic_stays_but_not_with_the_producer_of_single_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A lost connection charges all that this one has in flight."""
    producers, now_s = producers_of(monkeypatch), 100.0
    made, delivery = topic(), Delivery("x", Record("k:t", b""), Destination("k", "k", "t"), 1, 1)
    suspects = [FailedRecord(delivery, KafkaError(KafkaError.INVALID_RECORD), 0)] * 3
    made.in_flight = 3 + 1
    made.refused(Judgement(suspects=suspects), now_s)
    made.client = producers.best_for(made, now_s)
    assert made.client is producers.single is not None
    made.failed(now_s)
    assert producers.best_for(made, now_s) is producers.single, "there are suspects"
    made.pop(3)
    made.client = producers.best_for(made, now_s)
    assert made.client is producers.apart is not None
    made.care = None
    assert producers.best_for(made, now_s) is producers.apart, "here it stays"
    assert producers.best_for(made, now_s + SETTLED_S) is producers.prompt
