"""A program at the front knows nothing of delaybridge: its message_id may be another's."""

from __future__ import annotations

from typing import Any

import pytest

from delaybridge.ingest.entries import Quarantine, Schedule
from delaybridge.ingest.rabbitmq.answered import sorted_out
from delaybridge.ingest.rabbitmq.channel import HeldMessage
from delaybridge.ingest.storing import PATIENCE_S, are_scheduled
from delaybridge.message import Answer
from tests.rigs.raw_messages import STAMP, delivered, read, reader

FRONTED = {"intake": "x.due.intake"}
HOUR: dict[str, Any] = {"x-delay": 3_600_000}


def held(
    body: bytes = b"body", *, redelivered: bool = False, stamp: bytes = STAMP, **headers: Any
) -> HeldMessage:
    message = delivered(HOUR | headers, body, redelivered=redelivered, message_id="order-1")
    entry = reader(**FRONTED).read(message, stamp)
    assert isinstance(entry, Schedule)
    return HeldMessage(message, stamp, entry.accepted.id, entry)


def other_id(one: HeldMessage, answer: Answer, now_s: float = 0.0) -> str:
    """The id under which it is stored instead; its stamp is another as well."""
    done, late, again = sorted_out([one], [answer], now_s)
    assert (done, late, again) == ([], {}, [one])
    assert isinstance(one.entry, Schedule) and one.entry.stamp == one.stamp != STAMP, one
    assert one.id == one.entry.accepted.id != "order-1"
    assert one.entry.accepted.shard_key == one.id.encode()
    return one.id


@pytest.mark.parametrize("answer", [Answer.CONFLICT, Answer.FOREIGN])
def test_a_message_whose_id_another_has_is_stored_under_an_id_of_its_content(
    answer: Answer,
) -> None:
    first = other_id(held(), answer)
    assert first.startswith("order-1~")
    # the same when it is delivered again, so that it is recognized; another content has another
    assert other_id(held(redelivered=True), answer) == first
    assert other_id(held(b"other"), answer) != first


def test_a_message_in_flight_is_waited_for_and_then_no_reason_to_quarantine_another() -> None:
    one = held()
    assert sorted_out([one], [Answer.IN_FLIGHT], 1.0)[1] == {1: Answer.IN_FLIGHT}
    other_id(one, Answer.IN_FLIGHT, 1.0 + PATIENCE_S)


def test_the_same_bytes_are_another_message_unless_they_are_delivered_again() -> None:
    found = [Answer.CREATED, Answer.DUPLICATE]
    assert not are_scheduled([held().entry] * 2, found, are_loose=True)
    assert are_scheduled([held().entry] * 2, found)
    three = [held(stamp=stamp) for stamp in (b"a", b"b", b"c")]
    assert len({other_id(one, Answer.DUPLICATE) for one in three}) == 3
    again = held(redelivered=True)
    assert sorted_out([again], [Answer.DUPLICATE], 0.0)[0] == [(again, Answer.DUPLICATE)]


@pytest.mark.parametrize("named", ["delaybridge-id", "delaybridge-on-conflict"])
def test_whoever_names_an_id_or_a_policy_for_delaybridge_means_it(named: str) -> None:
    headers = {named: {"delaybridge-id": "order-1"}.get(named, "keep")}
    one = held(**headers)
    assert sorted_out([one], [Answer.DUPLICATE], 0.0)[0] == [(one, Answer.DUPLICATE)]
    one = held(**headers)
    sorted_out([one], [Answer.CONFLICT], 0.0)
    assert isinstance(one.entry, Quarantine)


@pytest.mark.parametrize("id", ["a b\n", b"\xff\xfe"], ids=["line", "bytes"])
def test_a_message_id_that_is_no_id_is_as_if_there_were_none(id: str | bytes) -> None:
    at_front = reader(**FRONTED)
    entry = read(delivered(HOUR, message_id=id), at_front)
    assert isinstance(entry, Schedule) and len(entry.accepted.id) == 26
    assert at_front.without_id == 1
    # at a delay exchange it is refused, as ever
    assert isinstance(read(delivered(HOUR, message_id=id)), Quarantine)
