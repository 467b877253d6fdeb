"""A message that expired in its intake queue is read as it was sent; deaths elsewhere are kept."""

from __future__ import annotations

from typing import Any

import pytest

from delaybridge.amqp.decoding import decode_properties, decode_table
from delaybridge.ingest.entries import Quarantine, Schedule
from tests.rigs.raw_messages import delivered, read, record_of

EVERY = {
    "content_type": "t",
    "delivery_mode": 2,
    "priority": 9,
    "correlation_id": "c",
    "reply_to": "r",
    "message_id": "m",
    "app_id": "a",
}


def death(queue: str, **about: Any) -> dict[str, Any]:
    return {"count": 1, "reason": "expired", "queue": queue, "exchange": f"{queue}.x", **about}


def about(last: dict[str, Any], first: dict[str, Any]) -> dict[str, Any]:
    """The headers that RabbitMQ sets besides `x-death`."""
    return {
        f"x-{which}-death-{what}": one[what]
        for which, one in (("first", first), ("last", last))
        for what in ("exchange", "queue", "reason")
    }


def died(*deaths: dict[str, Any], **properties: Any) -> Any:
    """What is stored of a message with these deaths, the latest first."""
    headers = {"a": 1, "x-death": [*deaths], "x-delay": 5, **about(deaths[0], deaths[-1])}
    return read(delivered(headers, **properties))


def test_a_death_in_the_intake_queue_leaves_no_trace_and_expiration_is_restored() -> None:  # A30
    late = death("x.delay.expired")
    entry = died(late, death("x.delay", **{"original-expiration": "100"}), **EVERY)
    assert isinstance(entry, Schedule)
    record = record_of(entry)
    assert decode_table(record.headers) == [("a", 1), ("x-delay", 5)]
    assert decode_properties(*record.properties) == {**EVERY, "expiration": "100"}


@pytest.mark.parametrize("key", ["the.key", "\u20ac"])
def test_a_routing_key_that_a_policy_gave_to_dead_letters_is_undone(key: str) -> None:
    entry = died(death("x.delay", **{"routing-keys": [key, "cc"]}))
    assert record_of(entry).destination == f"rabbitmq:x/{key}"


def test_deaths_in_other_queues_are_kept_to_the_byte() -> None:
    before, first = death("q", **{"original-expiration": "7"}), death("p")
    was = record_of(died(before, first, message_id="m"))
    assert record_of(died(death("x.delay"), before, first, message_id="m")) == was
    assert dict(decode_table(was.headers))["x-last-death-queue"] == "q"


@pytest.mark.parametrize(
    "deaths",
    [
        "x.delay",
        None,
        ["x.delay"] * 9,
        [{"queue": 5}],
        [{"queue": "x.delay", "count": 9}],
        [{"queue": [1]}],
        {"queue": {"a": 1}},
    ],
)
def test_a_producer_s_own_x_death_stops_nothing(deaths: Any) -> None:
    assert isinstance(read(delivered({"x-delay": 5, "x-death": deaths})), Schedule)


def test_an_expiration_that_no_broker_takes_is_quarantined() -> None:
    entry = died(death("x.delay", **{"original-expiration": "soon"}))
    assert isinstance(entry, Quarantine)
    assert "bad_expiration" in entry.reason


def test_counts_of_a_queue_that_returned_it_before_it_expired_are_removed() -> None:
    headers = {"x-delay": 5, "x-death": [death("x.delay")], "x-acquired-count": 1}
    assert decode_table(record_of(read(delivered(headers))).headers) == [("x-delay", 5)]
