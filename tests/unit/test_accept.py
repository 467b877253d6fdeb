"""Accepted and refused messages: rows I, B and D of bad-input.md 5.2, as the client takes them.

Rows of other surfaces (HTTP, ingest, the broker's own answer) are tested where they live. D1 to D7
are in test_destination.py, H in test_accept_headers.py, T in test_times.py.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delaybridge.accept.accept import Accepted, accept, check_id, check_key, when
from delaybridge.errors import MessageError
from delaybridge.message import Limits, Message
from tests.rigs.accepting import KAFKA, LIMITS, RABBITMQ, SURROGATE, cases, refusal, rows, taken
from tests.rigs.hostile import ANYTHING

# I: ids


@pytest.mark.parametrize(
    "id",
    cases(
        {
            "I1": [""],
            "I2": ["a" * 256],
            "I3": ["€" * 86],
            "I4": ["a\nb", "a\r\nb", "a\n"],
            "I5": ["a\0b"],
            "I6": ["\x1b[2J"],
            "I7": ["\x7f", "\x9b"],
            "I8": ["a\u2028b", "a\u2029b"],
            "I9": ["abc\u202egnp.exe"],
            "I10": [SURROGATE],
            "I11": [b"\xff\xfe", b"bytes"],
            "I12": [" a", "a ", "\ta", "a\u00a0"],
            "I24": [5, True, ["a"], 5.0, ("a",)],
        }
    ),
)
def test_a_bad_id_is_refused_before_any_io(id: Any) -> None:
    refused = refusal(id=id)
    assert (refused.code, refused.field) == ("bad_id", "id")
    with pytest.raises(MessageError, match="bad_id"):
        check_id(id)


@pytest.mark.parametrize(
    "id",
    cases(
        {
            "I2": ["a" * 255],
            "I3": ["€" * 85],
            "I12": ["a b"],
            "I13": ["{x}"],
            "I14": ["'); redis.call('FLUSHALL') --"],
            "I15": ['") return 1 --', "]] .. os.exit()"],
            "I16": ["*", "?[a-z]"],
            "I17": ["../../etc/passwd", "%2e%2e%2f"],
            "I18": ["<script>alert(1)</script>"],
            "I19": ["' OR 1=1 --"],
            "I20": ["S|x", "a|b", "0", "é日本語🙂"],
        }
    ),
)
def test_any_printable_text_is_an_id(id: str) -> None:
    accepted, _ = taken(id=id)
    assert (accepted.id, accepted.shard_key) == (id, id.encode())


def test_the_limit_of_an_id_is_a_setting() -> None:
    with pytest.raises(MessageError, match="give 1 to 10"):
        check_id("a" * 11, Limits(id_bytes=10))


@given(st.text())
def test_an_id_is_taken_as_it_is_or_refused(id: str) -> None:
    try:
        assert check_id(id) == id
    except MessageError as exc:
        assert exc.code == "bad_id"
    else:
        assert id.isprintable()
        assert 1 <= len(id.encode()) <= 255


def test_an_id_is_generated_if_omitted() -> None:
    accepted, _ = taken()
    assert check_id(accepted.id) == accepted.id
    assert accepted.shard_key == accepted.id.encode()


# B: bodies


@pytest.mark.parametrize(
    ("body", "stored"),
    rows(
        ("B1", b"", b""),
        ("B1", "", b""),
        ("B3", b"x" * LIMITS.body_bytes, b"x" * LIMITS.body_bytes),
        ("B6", b"\xff\xfe\x00", b"\xff\xfe\x00"),
        ("B6", bytearray(b"abc"), b"abc"),
        ("B6", memoryview(b"abc"), b"abc"),
        ("B6", "é", b"\xc3\xa9"),
        ("B10", b"\x1f\x8b\x08\x00bomb", b"\x1f\x8b\x08\x00bomb"),
    ),
)
@pytest.mark.parametrize("destination", [RABBITMQ, KAFKA])
def test_a_body_is_kept_as_it_is(body: Any, stored: bytes, destination: str) -> None:
    assert taken(destination, body)[1].body == stored


def test_null_is_kept_for_kafka_and_refused_elsewhere() -> None:
    assert taken(KAFKA, None)[1].body is None
    assert refusal(RABBITMQ, None).code == "null_body"


def test_one_byte_too_many_is_refused_with_the_limit_and_the_broker_named() -> None:
    refused = refusal(RABBITMQ, b"x" * (LIMITS.body_bytes + 1))
    assert refused.code == "body_too_large"
    assert str(LIMITS.body_bytes) in refused.detail
    assert "rabbitmq" in refused.detail


@pytest.mark.parametrize(
    "body", cases({"B8": [SURROGATE], "B9": [5, {"a": 1}, ["a"], True, object]})
)
def test_a_body_that_is_neither_bytes_nor_text_is_refused(body: Any) -> None:
    assert refusal(body=body).code == "bad_body"


@pytest.mark.parametrize(
    ("fields", "code"),
    cases(
        {"D10": [{"priority": p} for p in (-1, 256, 300, 1.5, "high", True, None)]}, "bad_priority"
    )
    + cases({"D10": [{"properties": {"priority": 256}}]}, "bad_priority")
    + cases(
        {"D11": [{"properties": {"expiration": e}} for e in ("-1", "abc", 5000)]}, "bad_expiration"
    )
    + cases(
        {
            "D13": [
                {"properties": properties}
                for properties in (
                    {"delivery_mode": 7},
                    {"dilvery_mode": 2},
                    {"headers": {}},
                    ["content_type"],
                    None,
                )
            ]
        },
        "bad_property",
    )
    + cases({"D17": [{"at_most_once": 1}, {"at_most_once": "yes"}]}, "bad_flag")
    + cases({"D18": [{"key": 5}, {"key": SURROGATE}]}, "bad_key")
    + rows(
        ("D16", {"ttl": "-1s"}, "negative_delay"),
        ("D16", {"ttl": "5"}, "bad_time"),
        ("T14", {"delay": None}, "time_required"),
        ("T15", {"at": "2030-01-01T00:00:00Z"}, "time_ambiguous"),
    ),
)
def test_a_bad_option_is_refused(fields: Any, code: str) -> None:
    assert refusal(**fields).code == code


@pytest.mark.parametrize("partition", cases({"D15": [-5, 2**31, 1.0, "1", True]}))
def test_a_bad_partition_is_refused(partition: Any) -> None:
    assert refusal(KAFKA, properties={"partition": partition}).code == "bad_partition"


@pytest.mark.parametrize(
    ("name", "code"),
    [
        *(("priority", "bad_priority"), ("at_most_once", "bad_flag"), ("id", "bad_id")),
        *(("key", "bad_key"), ("ttl", "too_far"), ("delay", "too_far")),
    ],
)
def test_an_integer_too_long_to_be_printed_is_refused_like_any_other(name: str, code: str) -> None:
    assert refusal(**{name: 10**5000}).code == code
    assert refusal(KAFKA, properties={"partition": 10**5000}).code == "bad_partition"
    assert refusal(headers={"n": 10**5000}).code == "header_out_of_range"
    assert refusal(properties={"delivery_mode": 10**5000}).code == "bad_property"


def test_the_longest_delay_is_accepted_and_one_millisecond_more_is_not() -> None:
    limits = Limits(delay_ms=90_000)
    assert when(90, None, limits) == "+90000"
    with pytest.raises(MessageError) as refused:
        when("90001ms", None, limits)
    assert refused.value.code == "too_far"


def test_a_property_that_the_kind_lacks_is_refused() -> None:
    assert refusal(KAFKA, properties={"content_type": "a"}).code == "bad_property"
    assert refusal("redis:stream", properties={"partition": 1}).code == "bad_property"


def test_options_are_kept() -> None:
    accepted, record = taken(KAFKA, key="k", ttl="1h", at_most_once=True, priority=255)
    assert (accepted.shard_key, accepted.rank, accepted.when) == (b"k", 0, "+60000")
    assert (record.key, record.ttl_ms, record.at_most_once) == (b"k", 3_600_000, True)
    assert taken(KAFKA, properties={"partition": 99})[1].partition == 99  # D15: the broker knows
    assert taken(priority=0)[0].rank == 255


def test_an_expiration_shorter_than_the_delay_is_taken() -> None:
    _, record = taken(properties={"expiration": "5"}, delay="1h")  # D12: it counts from the publish
    assert record.properties is not None


@given(st.binary() | st.text(alphabet=st.characters(codec="utf-8")) | st.none())
def test_a_key_is_bytes(key: bytes | str | None) -> None:
    assert check_key(key) == (key.encode() if isinstance(key, str) else key)


FIELDS = ("delay", "at", "id", "key", "headers", "properties", "priority", "ttl", "at_most_once")


@given(ANYTHING, ANYTHING, st.dictionaries(st.sampled_from(FIELDS), ANYTHING, max_size=2))
def test_any_message_is_taken_or_refused(
    destination: Any, body: Any, fields: dict[str, Any]
) -> None:
    for to in (destination, RABBITMQ, KAFKA):
        try:
            taken(to, body, **fields)
        except MessageError as exc:
            assert exc.code
            assert exc.detail.isprintable()


def test_a_key_has_the_same_limit_as_a_body() -> None:
    def accepted(key: bytes) -> Accepted:
        message = Message("kafka:a", b"x", delay=1, key=key)
        return accept(message, {"kafka": "kafka"}, Limits(body_bytes=100))

    assert accepted(b"k" * 100).shard_key == b"k" * 100
    with pytest.raises(MessageError, match="key_too_large.*101 bytes"):
        accepted(b"k" * 101)
