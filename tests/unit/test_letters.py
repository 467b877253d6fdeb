"""Dead letters: the headers and properties with which a given-up message is published."""

from __future__ import annotations

from typing import Any

import pytest

from delaybridge.amqp.decoding import decode_table
from delaybridge.amqp.encoding import encode_table
from delaybridge.message import Destination, Record
from delaybridge.scan.lanes.lane import Broker, Copy, DeadLetter, Lot
from delaybridge.scan.lanes.lanes import Lanes
from delaybridge.scan.lanes.retry import RetryPolicy
from delaybridge.store.protocol.record import Tried
from tests.rigs.bucket_session import new_session

TO = Destination("b", "rabbitmq", "", "dead")
OLD = [("a", 2**40), ("x-dead-reason", "another"), ("z", "é")]
SAID = {"x-dead-reason": "unroutable", "x-dead-destination": "b:orders/k", "x-dead-attempts": "3"}


def letter(kind: str, **fields: Any) -> DeadLetter:
    session = new_session()
    lanes = Lanes(
        {"b": Broker(kind, None)},  # type: ignore[arg-type]
        *(RetryPolicy(), lambda event: None),
        window_messages=10,
        window_bytes=10,
    )
    record = Record("b:orders/k", b"body", **fields)
    destination, lane = lanes.routing.route("b:orders/k", 0)
    copy = Copy(Lot(session, 11), "id", 7.5, Tried(2), record, destination, lane)
    copy.stamp = b"same"
    return DeadLetter(copy, "b:/dead", TO, lane, "unroutable", maybe=False)


@pytest.mark.parametrize("kind", ["rabbitmq", "kombu"])
def test_a_header_table_keeps_its_bytes_but_for_the_headers_of_an_earlier_letter(kind: str) -> None:
    table = encode_table(OLD)
    made = letter(kind, headers=table, properties=(1, b"before", b"after"))
    headers = made.record.headers
    assert isinstance(headers, bytes)
    assert headers.startswith(encode_table(OLD[:1]) + encode_table(OLD[2:]))
    assert dict(decode_table(headers)) == {"a": 2**40, "z": "é"} | SAID
    assert (made.record.body, made.record.properties) == (b"body", (1, b"before", b"after"))


def test_header_pairs_are_kept_and_kafka_s_partition_is_not() -> None:
    made = letter("kafka", headers=(("a", None), ("a", b"2")), key=b"k", partition=7)
    pairs = [(name, value.encode()) for name, value in SAID.items()]
    assert made.record.headers == (("a", None), ("a", b"2"), *pairs)
    assert (made.record.key, made.record.partition) == (b"k", None)


def test_the_end_of_a_letter_is_told_to_the_store_as_that_of_its_message() -> None:
    made = letter("rabbitmq", headers=b"")
    assert (made.id, made.claim, made.score, made.stamp) == ("id", 11, 7.5, b"same")
    assert (made.record.destination, made.destination) == ("b:/dead", TO)
