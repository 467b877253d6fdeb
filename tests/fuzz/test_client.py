"""Any value that a caller gives a client is answered, or refused with a printable error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from delaybridge import Client, Message
from delaybridge.errors import ConfigError, DelayBridgeError, MessageError
from delaybridge.ingest.instructions import INSTRUCTIONS, instructions
from delaybridge.message import State
from delaybridge.store.messages.selection import Selection
from tests.rigs.hostile import ANYTHING, HARD, SURROGATE

TO = "rabbitmq:orders/close"
KIND_OF = {"rabbitmq": TO, "kafka": "kafka:orders", "redis": "redis:s", "kombu": "kombu:q"}
FIELDS = (
    "destination", "body", "delay", "at", "id", "key", "headers", "properties", "priority",
    "ttl", "at_most_once", "retry",
)  # fmt: skip
calm = settings(deadline=None, suppress_health_check=[*HealthCheck])


@pytest.fixture(scope="module")
def client(redis_url: str) -> Iterator[Client]:
    """A client; its namespace is never emptied, since the server ends with the tests."""
    with Client(redis_url, namespace="fuzz-client") as client:
        yield client


def answered(call: Callable[..., Any], *args: Any, **fields: Any) -> DelayBridgeError | None:
    """The error of the call, None if it is done; any other exception fails the test."""
    try:
        call(*args, **fields)
    except (MessageError, ConfigError) as exc:
        assert str(exc).isprintable()
        assert len(str(exc)) <= 500
        str(exc).encode()
        return exc
    return None


def message(fields: dict[str, Any]) -> Message:
    return Message(**{"destination": TO, "body": b"", "delay": 60} | fields)


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("name", HARD)
def test_a_hard_value_in_a_message_is_stored_or_refused(
    client: Client, name: str, field: str
) -> None:
    for to in KIND_OF.values():
        exc = answered(client.accept, message({"destination": to, field: HARD[name]}))
        assert exc is None or exc.field.isprintable()


@pytest.mark.parametrize("name", HARD)
def test_a_hard_value_inside_headers_and_properties_is_stored_or_refused(
    client: Client, name: str
) -> None:
    value = HARD[name]
    for to in KIND_OF.values():
        for field in ("headers", "properties"):
            for each in ("n", "partition", "priority", "expiration", "timestamp", "reply_to"):
                answered(client.accept, message({"destination": to, field: {each: value}}))
            answered(client.accept, message({"destination": to, field: [(value, value)]}))
            if isinstance(value, str | bytes | int | complex) or name == "tuple bomb":
                answered(client.accept, message({"destination": to, field: {value: 1}}))


@pytest.mark.parametrize("name", HARD)
def test_a_hard_value_in_any_other_call_is_answered_or_refused(client: Client, name: str) -> None:
    value = HARD[name]
    for call in (
        client.cancel,
        client.get,
        client.dead.kick,
        client.dead.discard,
        client.dead.quarantined,
    ):
        answered(call, value)
    for call in (client.cancel, client.get, client.dead.kick, client.dead.discard):
        answered(call, "a", key=value)
    answered(client.reschedule, "a", delay=value)
    answered(client.reschedule, "a", at=value)
    answered(client.schedule, TO, b"", delay=60, on_conflict=value)
    for field in ("state", "destination", "due_from_ms", "due_to_ms", "limit", "cursor"):
        answered(client.pending, **{field: value})
    for field in ("states", "destination", "exchange", "reason", "id_prefix", "due_from_ms"):
        answered(lambda field=field: [*client.select(Selection(**{field: value}))])
    answered(client.pending, cursor=(0.0, value))
    answered(client.pending, cursor=(value, "a"))


@pytest.mark.parametrize("name", HARD)
@pytest.mark.parametrize("header", [*sorted(INSTRUCTIONS), "n"])
def test_a_hard_header_value_of_a_drop_in_is_accepted_or_refused(header: str, name: str) -> None:
    answered(instructions, [(header, HARD[name])])


@pytest.mark.parametrize("name", HARD)
def test_a_hard_header_name_of_a_drop_in_is_accepted_or_refused(name: str) -> None:
    answered(instructions, [(HARD[name], "5s")])


@calm
@given(st.dictionaries(st.sampled_from(FIELDS), ANYTHING, max_size=4))
def test_any_message_is_stored_or_refused(client: Client, fields: dict[str, Any]) -> None:
    answered(client.schedule_many, [message(fields)])


@calm
@given(ANYTHING, ANYTHING, ANYTHING, st.sampled_from([*State]))
def test_any_call_is_answered(client: Client, one: Any, two: Any, three: Any, state: State) -> None:
    answered(client.cancel, one, key=two)
    answered(client.get, one, key=two)
    answered(client.reschedule, one, delay=two, at=three)
    answered(client.pending, state=state, destination=one, cursor=(two, three))
    selection = Selection(states=(state,), destination=SURROGATE, exchange="e", reason="r")
    answered(lambda: [*client.select(selection)])
