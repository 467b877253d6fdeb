"""Accepted and refused headers: rows H of bad-input.md 5.2, as the client takes them.

What an AMQP table carries is tested in test_amqp.py.
"""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delaybridge.amqp.decoding import decode_table
from delaybridge.errors import MessageError
from delaybridge.message import OWN_HEADERS
from tests.rigs.accepting import KAFKA, LIMITS, RABBITMQ, SURROGATE, cases, refusal, rows, taken
from tests.rigs.hostile import ANYTHING


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def cyclic() -> dict[str, Any]:
    found: dict[str, Any] = {}
    found["self"] = found
    return found


BOTH, AMQP, PLAIN = (RABBITMQ, KAFKA), (RABBITMQ,), (KAFKA,)
NO_TYPE = "unsupported_header_type"


@pytest.mark.parametrize(
    ("headers", "code", "destinations"),
    cases(
        {
            "H3": [{"": "v"}],
            "H4": [{"n" * 256: "v"}, {"€" * 86: "v"}],
            "H5": [{"a\0b": "v"}, {"a\nb": "v"}],
            "H6": [
                *({5: "v"}, {b"n": "v"}, {None: "v"}, "name=value", 5, [("a",)]),
                *([("a", "b", "c")], [5]),
            ],
            "H11": [{"n": SURROGATE}, {SURROGATE: "v"}],
        },
        "bad_header",
        BOTH,
    )
    + cases({"H13": [{"n": {1, 2}}, {"n": (1, 2)}, {"n": object()}]}, NO_TYPE, BOTH)
    + cases({"H9": [{"n": 1.5}, {"n": 1}, {"n": True}]}, NO_TYPE, PLAIN)
    + cases({"H7": [{"delaybridge-delay": "5s"}, {"delaybridge-": "v"}]}, "reserved_header", BOTH)
    + cases({"H8": [{"n": float("nan")}, {"n": float("-inf")}]}, "non_finite", AMQP)
    + cases({"H10": [{"n": 2**63}, {"n": -(2**63) - 1}]}, "header_out_of_range", AMQP)
    + rows(
        ("H1", {f"n{i}": "v" for i in range(65)}, "too_many_headers", BOTH),
        ("H2", {f"n{i}": "v" * 1000 for i in range(33)}, "headers_too_large", BOTH),
        ("H8", {"n": [{"m": float("inf")}]}, "non_finite", AMQP),
        ("H8", {"n": float("nan")}, NO_TYPE, PLAIN),
        ("H11", {"n": {SURROGATE: "v"}}, "bad_header", AMQP),
        ("H14", {"n": nested(5)}, "nested_too_deep", AMQP),
        ("H15", cyclic(), "nested_too_deep", AMQP),
        ("H15", cyclic(), NO_TYPE, PLAIN),
        ("H16", [("a", "1"), ("a", "2")], "duplicate_header", AMQP),
        ("H18", {"n": datetime(1969, 12, 31, tzinfo=UTC)}, "header_out_of_range", AMQP),
        ("H18", {"n": datetime(2030, 1, 1)}, "zone_required", AMQP),
        ("H19", {"n": Decimal("1e-256")}, "header_out_of_range", AMQP),
        ("H19", {"n": Decimal("NaN")}, "non_finite", AMQP),
        ("H22", {"n": "v" * 70_000}, "headers_too_large", BOTH),
    ),
)
def test_a_bad_header_is_refused_when_it_is_scheduled(
    headers: Any, code: str, destinations: tuple[str, ...]
) -> None:
    for destination in destinations:
        assert refusal(destination, headers=headers).code == code


@pytest.mark.parametrize(
    "headers",
    rows(
        ("H1", [(f"n{i}", "v") for i in range(64)]),
        ("H2", [("n", "v" * (LIMITS.headers_bytes - 7))]),
        ("H4", [("n" * 255, "v")]),
        ("H9", [("n", 1.5)]),
        ("H10", [("n", 2**63 - 1), ("m", -(2**63)), ("o", 2**31)]),
        ("H12", [("n", b"\xff\xfe")]),
        ("H14", [("n", nested(4))]),
        ("H17", [("n", None)]),
        ("H18", [("n", datetime(1970, 1, 1, tzinfo=UTC))]),
        ("H19", [("n", Decimal("1e-9"))]),
        ("H20", [("x-delay", 5000)]),
        ("H21", [("x-death", [{"count": 1, "queue": "q"}]), ("BCC", ["a", "b"]), ("CC", ["c"])]),
    ),
)
def test_other_headers_reach_rabbitmq_as_they_are(headers: list[tuple[str, Any]]) -> None:
    _, record = taken(headers=headers)
    assert isinstance(record.headers, bytes)
    assert decode_table(record.headers) == headers


def test_kafka_keeps_order_duplicates_null_and_bytes() -> None:
    headers = [("b", "é"), ("a", b"\xff"), ("b", None), ("x-delay", "5")]  # H12, H16, H17, H20
    _, record = taken(KAFKA, headers=headers)
    kept = (("b", "é".encode()), ("a", b"\xff"), ("b", None), ("x-delay", b"5"))
    assert record.headers == kept


@pytest.mark.parametrize("destination", [RABBITMQ, KAFKA])
def test_a_message_sent_on_with_our_own_headers_is_taken_without_them(destination: str) -> None:
    ours = [(name, "v") for name in OWN_HEADERS]  # H7
    theirs = [(f"n{i}", "v") for i in range(64)]
    _, with_ours = taken(destination, headers=ours + theirs)
    _, without = taken(destination, headers=theirs)
    assert with_ours.headers == without.headers


def test_a_mapping_and_its_pairs_are_the_same_headers() -> None:
    headers = {"b": 1, "a": "x"}
    assert taken(headers=headers)[1] == taken(headers=list(headers.items()))[1]


@given(st.sampled_from([RABBITMQ, KAFKA, "redis:s"]), st.dictionaries(st.text(), ANYTHING))
def test_any_headers_are_taken_or_refused(destination: str, headers: dict[str, Any]) -> None:
    try:
        taken(destination, headers=headers)
    except MessageError as exc:
        assert exc.detail.isprintable()
