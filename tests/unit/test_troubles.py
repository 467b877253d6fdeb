"""Troubles: failing messages counted by their reason, and why a message is parked."""

from __future__ import annotations

import pytest

from delaybridge.operate.views.retrying import Retrying, counted
from delaybridge.store.protocol.record import (
    SLOW,
    Failing,
    Trouble,
    WorkerTroubles,
    first_word,
    other_kind,
)


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        ("unroutable: 312 NO_ROUTE", "unroutable"),
        ("payload_missing", "payload_missing"),
        ("ingress:bad_header x-delay: no number", "ingress:bad_header"),
        ("ingress:bad_route", "ingress:bad_route"),
        ("", ""),
    ],
)
def test_reasons_are_counted_by_their_first_word_and_those_of_ingest_by_their_code(
    reason: str, word: str
) -> None:
    assert first_word(reason) == word


def test_failing_messages_are_counted_by_destination_and_reason_the_most_frequent_first() -> None:
    failing = [
        Failing(30, "kafka:a", "timeout: 2"),
        Failing(20, "kafka:b", "timeout: 3"),
        Failing(10, "kafka:b", "timeout: 4"),
        Failing(40, "kafka:b", "nack: 5"),
    ]
    assert counted(failing) == [
        Retrying("kafka:b", "timeout", 2, 10, "timeout: 4"),
        Retrying("kafka:a", "timeout", 1, 30, "timeout: 2"),
        Retrying("kafka:b", "nack", 1, 40, "nack: 5"),
    ]


ANNOUNCED = WorkerTroubles(
    {"a": None, "b": "not_connected: refused", "c": None},
    {"a:orders": "access_refused: 403", "a:/q": "stalled", other_kind("c"): "other_kind: c"},
)


@pytest.mark.parametrize(
    ("destination", "reason"),
    [
        ("a:orders/close", "access_refused: 403"),
        ("a:/q", "stalled"),
        ("a:orders2/close", SLOW),
        ("b:any", "not_connected: refused"),
        ("c:any", "other_kind: c"),
        ("d:any", "no_broker: its worker has no broker named 'd'"),
    ],
)
def test_a_parked_message_has_the_reason_of_its_destination_or_of_its_broker(
    destination: str, reason: str
) -> None:
    assert ANNOUNCED.why(destination) == reason


def test_a_worker_whose_version_announces_no_brokers_is_not_reported_to_lack_one() -> None:
    assert WorkerTroubles().why("a:q") == SLOW
    assert WorkerTroubles().troubles("w") == []


def test_the_troubles_of_a_worker_are_its_brokers_and_its_destinations() -> None:
    assert ANNOUNCED.troubles("w")[:2] == [
        Trouble("b:", "not_connected: refused", "w"),
        Trouble("a:orders", "access_refused: 403", "w"),
    ]


def test_a_destination_that_refuses_messages_is_trouble_unless_its_messages_are_parked() -> None:
    said = WorkerTroubles(parked={"a:q": "stalled"}, refused={"a:q": "nacked", "a:r": "nacked: 1"})
    (parked, refusal) = said.troubles("w")
    assert parked == Trouble("a:q", "stalled", "w") and not parked.is_refusal
    assert refusal == Trouble("a:r", "refuses: nacked: 1", "w") and refusal.is_refusal
