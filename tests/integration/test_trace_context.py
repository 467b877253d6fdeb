"""A message scheduled again in another trace is the same message; other content is a conflict."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from delaybridge import Client, Message
from delaybridge.amqp.encoding import encode_table
from delaybridge.message import ContentHeader

BROKERS = {
    "rabbitmq": "amqp://localhost",
    "kafka": "kafka://localhost",
    "redis": "redis://localhost",
    "kombu": "kombu+memory://",
}
DESTINATIONS = ["rabbitmq:x/k", "kafka:t", "redis:s", "kombu:q"]
ONE, OTHER = ({"traceparent": f"00-{digit * 32}-{digit * 16}-01"} for digit in "ab")
B3 = {"b3": f"{'c' * 32}-{'c' * 16}-1"}


@pytest.fixture
def client(redis_url: str, namespace: str) -> Iterator[Client]:
    with Client(redis_url, namespace=namespace, brokers=BROKERS) as client:
        yield client


def schedule(client: Client, destination: str, headers: Any, body: Any = b"b", **more: Any) -> str:
    messages = [
        delayed(destination, body, headers=headers, id="x", **more),
        delayed(destination, b"new", id="y"),  # so that not all are new
    ]
    return str.__str__(client.schedule_many(messages)[0].answer)


def delayed(destination: str, body: Any, **more: Any) -> Any:

    return Message(destination, body, at="2035-01-01T00:00:00Z", **more)


@pytest.mark.parametrize("destination", DESTINATIONS)
@pytest.mark.parametrize("again", [{}, OTHER, {**OTHER, "tracestate": "a=b", "baggage": "c=d"}, B3])
@pytest.mark.parametrize("own", [{}, {"a": "b"}], ids=["no headers", "a header"])
def test_another_trace_is_no_other_content(
    client: Client, destination: str, again: dict[str, str], own: dict[str, str]
) -> None:
    assert schedule(client, destination, {**own, **ONE}) == "created"
    assert schedule(client, destination, {**own, **again}) == "duplicate"
    assert schedule(client, destination, {**again, **own}) == "duplicate"


@pytest.mark.parametrize("destination", DESTINATIONS)
@pytest.mark.parametrize(
    ("headers", "more"),
    [
        ({**OTHER, "a": "c"}, {}),
        (OTHER, {}),
        ({**OTHER, "a": "b", "d": ""}, {}),
        ({**OTHER, "a": "b"}, {"body": b""}),
        ({**OTHER, "a": "b"}, {"ttl": 1}),
        ({**OTHER, "a": "b"}, {"at_most_once": True}),
        ({**OTHER, "a": "b"}, {"retry": {"max_attempts": 3}}),
    ],
)
def test_other_content_in_another_trace_is_a_conflict(
    client: Client, destination: str, headers: dict[str, str], more: dict[str, Any]
) -> None:
    assert schedule(client, destination, {**ONE, "a": "b"}) == "created"
    assert schedule(client, destination, headers, **more) == "conflict"


def test_a_tombstone_is_not_an_empty_body(client: Client) -> None:
    assert schedule(client, "kafka:t", ONE, None) == "created"
    assert schedule(client, "kafka:t", OTHER, b"") == "conflict"
    assert schedule(client, "kafka:t", OTHER, None) == "duplicate"


def test_retry_plans_are_compared(client: Client) -> None:
    plan = {"max_attempts": 3, "base_ms": 10, "factor": 1.5, "max_ms": 100}
    assert schedule(client, "kafka:t", ONE, retry=plan) == "created"
    assert schedule(client, "kafka:t", OTHER, retry=plan) == "duplicate"
    assert schedule(client, "kafka:t", OTHER, retry={**plan, "factor": 1.25}) == "conflict"


def test_a_message_that_was_late_at_once_is_compared_too(client: Client) -> None:
    late = {"at": "2020-01-01T00:00:00Z", "id": "x"}

    for headers, answer in ((ONE, "created"), (OTHER, "duplicate")):
        message = Message("kafka:t", b"b", headers=headers, **late)
        assert client.schedule_many([message])[0].answer == answer


@pytest.mark.parametrize("size", [b"\0\0\0\xff", b"\xff\xff\xff\xff", b""])
def test_a_table_that_only_looks_like_a_context_is_compared_as_it_is(
    client: Client, size: bytes
) -> None:
    # Entries of other headers may contain anything.
    for text, answer in ((b"1", "created"), (b"1", "duplicate"), (b"2", "conflict")):
        table = encode_table([("a", b"\x0btraceparentS" + size), ("b", text)])
        properties = ContentHeader(1, 0, b"", table, b"")
        message = delayed("rabbitmq:x/k", b"b", properties=properties, id="x")
        assert client.schedule_many([message])[0].answer == answer


def test_values_of_every_type_are_compared(client: Client) -> None:
    value = {
        "int": 1, "long": 2**40, "float": 1.5, "yes": True, "none": None, "bytes": b"\0",
        "list": [1, "a"], "dict": {"a": 1}, "decimal": Decimal("1.5"),
        "time": datetime(2030, 1, 1, tzinfo=UTC),
    }  # fmt: skip
    assert schedule(client, "rabbitmq:x/k", {**ONE, **value}) == "created"
    assert schedule(client, "rabbitmq:x/k", {**value, **OTHER}) == "duplicate"
    assert schedule(client, "rabbitmq:x/k", {**value, **OTHER, "none": 1}) == "conflict"
