"""Destinations: their text, and rows D1 to D7 of bad-input.md 5.2."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delaybridge.accept.destination import parse_destination
from delaybridge.errors import MessageError
from delaybridge.message import Destination
from tests.rigs.accepting import KINDS, RABBITMQ, SURROGATE, cases, refusal, rows


@pytest.mark.parametrize(
    ("destination", "code"),
    cases(
        {
            "D1": ["rabitmq:orders/close", "us:orders/close", "RabbitMQ:orders/close"],
            "D2": [":"],
            "D6": [
                "http://169.254.169.254/latest",
                "amqp://guest:guest@host/vhost",
                "rabbitmq://host/x",
                "kafka://host:9092",
            ],
        },
        "unknown_destination",
    )
    + cases(
        {
            "D2": [
                *("", "rabbitmq", "rabbitmq:", "rabbitmq:/", "rabbitmq:orders", "kafka:", "redis:"),
                *(None, 5, b"kafka:orders"),
            ],
            "D3": [
                *(f"rabbitmq:{'e' * 256}/k", f"rabbitmq:{'€' * 86}/k", "rabbitmq:a\0b/k"),
                *("rabbitmq:a%00b/k", "rabbitmq:%ff/k", f"rabbitmq:{SURROGATE}/k"),
            ],
            "D4": [f"rabbitmq:e/{'k' * 256}", f"rabbitmq:e/{SURROGATE}", f"rabbitmq:/{'q' * 256}"],
            "D5": [
                *("kafka:.", "kafka:..", f"kafka:{'t' * 250}", "kafka:a b", "kafka:é", "kafka:a/b"),
                *("kafka:a\n", "kafka:٥"),
            ],
            "D6": ["kafka:http://host/x"],
            # Keys of delaybridge begin so, and its Redis may be the one that is published to.
            "D9": ["redis:{delaybridge:0}:due", "redis:{", "kombu:{delaybridge}:birth"],
        },
        "bad_destination",
    ),
)
def test_a_bad_destination_is_refused(destination: Any, code: str) -> None:
    refused = refusal(destination)
    assert (refused.code, refused.field) == (code, "destination")


def test_an_unknown_broker_is_answered_with_the_nearest_names() -> None:
    assert "configured: rabbitmq" in refusal("rabitmq:orders/close").detail  # D1
    assert "guest" not in refusal("amqp://guest:guest@host/vhost").detail  # D6


def test_with_no_broker_configured_every_name_is_unknown() -> None:
    with pytest.raises(MessageError, match="configured: none"):
        parse_destination(RABBITMQ, {})


@pytest.mark.parametrize(
    ("text", "destination"),
    rows(
        ("D3", f"rabbitmq:{'e' * 255}/k", Destination("rabbitmq", "rabbitmq", "e" * 255, "k")),
        ("D3", "rabbitmq:a%2Fb%25/k", Destination("rabbitmq", "rabbitmq", "a/b%", "k")),
        ("D3", "eu:orders/", Destination("eu", "rabbitmq", "orders", "")),
        ("D4", "rabbitmq:e/a/b:c d%2F", Destination("rabbitmq", "rabbitmq", "e", "a/b:c d%2F")),
        ("D5", f"kafka:{'t' * 249}", Destination("kafka", "kafka", "t" * 249)),
        ("D5", "kafka:a.b_c-D9", Destination("kafka", "kafka", "a.b_c-D9")),
        ("D7", "rabbitmq:/queue", Destination("rabbitmq", "rabbitmq", "", "queue")),
        ("D7", "redis:a:b/c", Destination("redis", "redis", "a:b/c")),
        ("D7", "redis:a{b}", Destination("redis", "redis", "a{b}")),
        ("D7", "kombu:queue", Destination("kombu", "kombu", "queue")),
    ),
)
def test_a_destination_is_parsed(text: str, destination: Destination) -> None:
    assert parse_destination(text, KINDS) == destination
    assert parse_destination(str(destination), KINDS) == destination


@given(st.text(), st.text())
def test_a_rabbitmq_destination_is_read_back_from_its_own_text(exchange: str, key: str) -> None:
    made = Destination("eu", "rabbitmq", exchange, key)
    try:
        read = parse_destination(str(made), KINDS)
    except (MessageError, UnicodeEncodeError):
        return
    assert read == made


@given(st.text() | st.from_regex(r"(rabbitmq|kafka|redis|eu):[/%a-f0-9:.]{0,12}"))
def test_any_text_is_a_destination_or_refused(text: str) -> None:
    try:
        destination = parse_destination(text, KINDS)
    except MessageError as exc:
        assert exc.code in ("bad_destination", "unknown_destination")
    else:
        assert parse_destination(str(destination), KINDS) == destination
