"""Accepted and refused messages: rows I, B, H and D of bad-input.md 5.2, as the client takes them.

Rows of other surfaces (HTTP, ingest, the broker's own answer) are tested where they live. T is in
test_times.py, what an AMQP table carries in test_amqp.py.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delaybridge.accept.accept import Accepted, accept, check_id, check_key, when
from delaybridge.accept.destination import parse_destination
from delaybridge.amqp.header import decode_table
from delaybridge.errors import DecodeError, MessageError
from delaybridge.message import (
    OWN_HEADERS,
    Destination,
    Limits,
    Message,
    Record,
    decode_record,
    encode_record,
)
from delaybridge.store.record import (
    BACKDATED,
    HEAD_SIZE,
    HEAD_VERSION,
    Tried,
    parse_tried,
    split_record,
)

KINDS = {name: name for name in ("rabbitmq", "kafka", "redis", "kombu")} | {"eu": "rabbitmq"}
LIMITS = Limits()
RABBITMQ, KAFKA = "rabbitmq:orders/close", "kafka:orders"
SURROGATE = "\ud800"


def taken(destination: Any = RABBITMQ, body: Any = b"", **fields: Any) -> tuple[Accepted, Record]:
    accepted = accept(Message(destination, body, **{"delay": 60} | fields), KINDS, LIMITS)
    return accepted, decode_record(accepted.payload)


def refusal(*args: Any, **fields: Any) -> MessageError:
    with pytest.raises(MessageError) as caught:
        taken(*args, **fields)
    assert len(caught.value.detail) <= 200
    assert caught.value.detail.isprintable()
    return caught.value


def rows(*found: tuple[Any, ...]) -> list[Any]:
    """Parametrised cases named after the row's number and the input."""
    return [pytest.param(*case, id=f"{row} {_shown(case[0])}") for row, *case in found]


def _shown(value: object) -> str:
    """The value as text, the same in every process: pytest-xdist compares the names of tests."""
    return re.sub(r" at 0x\w+", "", ascii(value))[:32]


# I: ids


@pytest.mark.parametrize(
    "id",
    rows(
        ("I1", ""),
        ("I2", "a" * 256),
        ("I3", "€" * 86),
        ("I4", "a\nb"),
        ("I4", "a\r\nb"),
        ("I4", "a\n"),
        ("I5", "a\0b"),
        ("I6", "\x1b[2J"),
        ("I7", "\x7f"),
        ("I7", "\x9b"),
        ("I8", "a\u2028b"),
        ("I8", "a\u2029b"),
        ("I9", "abc\u202egnp.exe"),
        ("I10", SURROGATE),
        ("I11", b"\xff\xfe"),
        ("I11", b"bytes"),
        ("I12", " a"),
        ("I12", "a "),
        ("I12", "\ta"),
        ("I12", "a\u00a0"),
        ("I24", 5),
        ("I24", True),
        ("I24", ["a"]),
        ("I24", 5.0),
        ("I24", ("a",)),
    ),
)
def test_a_bad_id_is_refused_before_any_io(id: Any) -> None:
    refused = refusal(id=id)
    assert (refused.code, refused.field) == ("bad_id", "id")
    with pytest.raises(MessageError, match="bad_id"):
        check_id(id)


@pytest.mark.parametrize(
    "id",
    rows(
        ("I2", "a" * 255),
        ("I3", "€" * 85),
        ("I12", "a b"),
        ("I13", "{x}"),
        ("I14", "'); redis.call('FLUSHALL') --"),
        ("I15", '") return 1 --'),
        ("I15", "]] .. os.exit()"),
        ("I16", "*"),
        ("I16", "?[a-z]"),
        ("I17", "../../etc/passwd"),
        ("I17", "%2e%2e%2f"),
        ("I18", "<script>alert(1)</script>"),
        ("I19", "' OR 1=1 --"),
        ("I20", "S|x"),
        ("I20", "a|b"),
        ("I20", "0"),
        ("I20", "é日本語🙂"),
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
    "body",
    rows(
        ("B8", SURROGATE),
        ("B9", 5),
        ("B9", {"a": 1}),
        ("B9", ["a"]),
        ("B9", True),
        ("B9", object),
    ),
)
def test_a_body_that_is_neither_bytes_nor_text_is_refused(body: Any) -> None:
    assert refusal(body=body).code == "bad_body"


# H: headers


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


@pytest.mark.parametrize(
    ("headers", "code", "destinations"),
    rows(
        ("H1", {f"n{i}": "v" for i in range(65)}, "too_many_headers", BOTH),
        ("H2", {f"n{i}": "v" * 1000 for i in range(33)}, "headers_too_large", BOTH),
        ("H3", {"": "v"}, "bad_header", BOTH),
        ("H4", {"n" * 256: "v"}, "bad_header", BOTH),
        ("H4", {"€" * 86: "v"}, "bad_header", BOTH),
        ("H5", {"a\0b": "v"}, "bad_header", BOTH),
        ("H5", {"a\nb": "v"}, "bad_header", BOTH),
        ("H6", {5: "v"}, "bad_header", BOTH),
        ("H6", {b"n": "v"}, "bad_header", BOTH),
        ("H6", {None: "v"}, "bad_header", BOTH),
        ("H6", "name=value", "bad_header", BOTH),
        ("H6", 5, "bad_header", BOTH),
        ("H6", [("a",)], "bad_header", BOTH),
        ("H6", [("a", "b", "c")], "bad_header", BOTH),
        ("H6", [5], "bad_header", BOTH),
        ("H7", {"delaybridge-delay": "5s"}, "reserved_header", BOTH),
        ("H7", {"delaybridge-": "v"}, "reserved_header", BOTH),
        ("H8", {"n": float("nan")}, "non_finite", AMQP),
        ("H8", {"n": float("-inf")}, "non_finite", AMQP),
        ("H8", {"n": [{"m": float("inf")}]}, "non_finite", AMQP),
        ("H8", {"n": float("nan")}, "unsupported_header_type", PLAIN),
        ("H9", {"n": 1.5}, "unsupported_header_type", PLAIN),
        ("H9", {"n": 1}, "unsupported_header_type", PLAIN),
        ("H9", {"n": True}, "unsupported_header_type", PLAIN),
        ("H10", {"n": 2**63}, "header_out_of_range", AMQP),
        ("H10", {"n": -(2**63) - 1}, "header_out_of_range", AMQP),
        ("H11", {"n": SURROGATE}, "bad_header", BOTH),
        ("H11", {SURROGATE: "v"}, "bad_header", BOTH),
        ("H11", {"n": {SURROGATE: "v"}}, "bad_header", AMQP),
        ("H13", {"n": {1, 2}}, "unsupported_header_type", BOTH),
        ("H13", {"n": (1, 2)}, "unsupported_header_type", BOTH),
        ("H13", {"n": object()}, "unsupported_header_type", BOTH),
        ("H14", {"n": nested(5)}, "nested_too_deep", AMQP),
        ("H15", cyclic(), "nested_too_deep", AMQP),
        ("H15", cyclic(), "unsupported_header_type", PLAIN),
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
    assert record.headers == (
        ("b", "é".encode()),
        ("a", b"\xff"),
        ("b", None),
        ("x-delay", b"5"),
    )


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


# D: destinations and options


@pytest.mark.parametrize(
    ("destination", "code"),
    rows(
        ("D1", "rabitmq:orders/close", "unknown_destination"),
        ("D1", "us:orders/close", "unknown_destination"),
        ("D1", "RabbitMQ:orders/close", "unknown_destination"),
        ("D2", "", "bad_destination"),
        ("D2", "rabbitmq", "bad_destination"),
        ("D2", ":", "unknown_destination"),
        ("D2", "rabbitmq:", "bad_destination"),
        ("D2", "rabbitmq:/", "bad_destination"),
        ("D2", "rabbitmq:orders", "bad_destination"),
        ("D2", "kafka:", "bad_destination"),
        ("D2", "redis:", "bad_destination"),
        ("D2", None, "bad_destination"),
        ("D2", 5, "bad_destination"),
        ("D2", b"kafka:orders", "bad_destination"),
        ("D3", f"rabbitmq:{'e' * 256}/k", "bad_destination"),
        ("D3", f"rabbitmq:{'€' * 86}/k", "bad_destination"),
        ("D3", "rabbitmq:a\0b/k", "bad_destination"),
        ("D3", "rabbitmq:a%00b/k", "bad_destination"),
        ("D3", "rabbitmq:%ff/k", "bad_destination"),
        ("D3", f"rabbitmq:{SURROGATE}/k", "bad_destination"),
        ("D4", f"rabbitmq:e/{'k' * 256}", "bad_destination"),
        ("D4", f"rabbitmq:e/{SURROGATE}", "bad_destination"),
        ("D4", f"rabbitmq:/{'q' * 256}", "bad_destination"),
        ("D5", "kafka:.", "bad_destination"),
        ("D5", "kafka:..", "bad_destination"),
        ("D5", f"kafka:{'t' * 250}", "bad_destination"),
        ("D5", "kafka:a b", "bad_destination"),
        ("D5", "kafka:é", "bad_destination"),
        ("D5", "kafka:a/b", "bad_destination"),
        ("D5", "kafka:a\n", "bad_destination"),
        ("D5", "kafka:٥", "bad_destination"),
        ("D6", "http://169.254.169.254/latest", "unknown_destination"),
        ("D6", "amqp://guest:guest@host/vhost", "unknown_destination"),
        ("D6", "rabbitmq://host/x", "unknown_destination"),
        ("D6", "kafka://host:9092", "unknown_destination"),
        ("D6", "kafka:http://host/x", "bad_destination"),
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


@pytest.mark.parametrize(
    ("fields", "code"),
    rows(
        ("D10", {"priority": -1}, "bad_priority"),
        ("D10", {"priority": 256}, "bad_priority"),
        ("D10", {"priority": 300}, "bad_priority"),
        ("D10", {"priority": 1.5}, "bad_priority"),
        ("D10", {"priority": "high"}, "bad_priority"),
        ("D10", {"priority": True}, "bad_priority"),
        ("D10", {"priority": None}, "bad_priority"),
        ("D10", {"properties": {"priority": 256}}, "bad_priority"),
        ("D11", {"properties": {"expiration": "-1"}}, "bad_expiration"),
        ("D11", {"properties": {"expiration": "abc"}}, "bad_expiration"),
        ("D11", {"properties": {"expiration": 5000}}, "bad_expiration"),
        ("D13", {"properties": {"delivery_mode": 7}}, "bad_property"),
        ("D13", {"properties": {"dilvery_mode": 2}}, "bad_property"),
        ("D13", {"properties": {"headers": {}}}, "bad_property"),
        ("D13", {"properties": ["content_type"]}, "bad_property"),
        ("D13", {"properties": None}, "bad_property"),
        ("D16", {"ttl": "-1s"}, "negative_delay"),
        ("D16", {"ttl": "5"}, "bad_time"),
        ("D17", {"at_most_once": 1}, "bad_flag"),
        ("D17", {"at_most_once": "yes"}, "bad_flag"),
        ("D18", {"key": 5}, "bad_key"),
        ("D18", {"key": SURROGATE}, "bad_key"),
        ("T14", {"delay": None}, "time_required"),
        ("T15", {"at": "2030-01-01T00:00:00Z"}, "time_ambiguous"),
    ),
)
def test_a_bad_option_is_refused(fields: Any, code: str) -> None:
    assert refusal(**fields).code == code


@pytest.mark.parametrize(
    ("partition", "code"),
    rows(
        ("D15", -5, "bad_partition"),
        ("D15", 2**31, "bad_partition"),
        ("D15", 1.0, "bad_partition"),
        ("D15", "1", "bad_partition"),
        ("D15", True, "bad_partition"),
    ),
)
def test_a_bad_partition_is_refused(partition: Any, code: str) -> None:
    assert refusal(KAFKA, properties={"partition": partition}).code == code


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


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.decimals()
    | st.datetimes(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=8,
)


@given(st.sampled_from([RABBITMQ, KAFKA, "redis:s"]), st.dictionaries(st.text(), ANYTHING))
def test_any_headers_are_taken_or_refused(destination: str, headers: dict[str, Any]) -> None:
    try:
        taken(destination, headers=headers)
    except MessageError as exc:
        assert exc.detail.isprintable()


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


# records, as they lie in the store

RECORDS = st.builds(
    Record,
    destination=st.text(alphabet=st.characters(codec="utf-8")),
    body=st.none() | st.binary(),
    headers=st.binary()
    | st.lists(
        st.tuples(st.text(alphabet=st.characters(codec="utf-8")), st.none() | st.binary())
    ).map(tuple),
    properties=st.none() | st.tuples(st.integers(0, 2**16 - 1), st.binary(), st.binary()),
    key=st.none() | st.binary(),
    partition=st.none() | st.integers(0, 2**31 - 1),
    ttl_ms=st.none() | st.integers(0, 2**53),
    at_most_once=st.booleans(),
)


@given(RECORDS)
def test_a_record_is_read_back_as_it_was(record: Record) -> None:
    assert decode_record(encode_record(record)) == record
    assert record.size >= len(record.body or b"")


@given(st.binary())
def test_bytes_that_are_not_a_record_are_a_decode_error(data: bytes) -> None:
    try:
        decode_record(data)
    except DecodeError as exc:
        assert exc.code == "undecodable"


@given(RECORDS, st.data())
def test_a_damaged_record_is_read_or_a_decode_error(record: Record, data: st.DataObject) -> None:
    encoded = bytearray(encode_record(record))
    place = data.draw(st.integers(0, len(encoded) - 1))
    encoded[place] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(encoded)))
    for damaged in (bytes(encoded), bytes(encoded[:cut])):
        try:
            decode_record(damaged)
        except DecodeError:
            pass


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x90",
        msgspec.msgpack.encode(["d"]),
        msgspec.msgpack.encode({"destination": "d", "body": b""}),
        msgspec.msgpack.encode(["d", "text", b"", None, None, None, None, "yes"]),
        msgspec.msgpack.encode([b"\xff", b"", b""]),
        b"\xdd\xff\xff\xff\xff",
        b"\x91" * 5000,
        encode_record(Record("d", b""))[:1].replace(b"\x98", b"\x99")
        + encode_record(Record("d", b""))[1:]
        + b"\x91" * 100_000,
        b"\x92\xa1\xff\xc4\x00",
    ],
)
def test_hostile_bytes_are_a_decode_error(data: bytes) -> None:
    with pytest.raises(DecodeError, match="undecodable"):
        decode_record(data)


def test_a_record_of_a_later_version_with_more_fields_is_read() -> None:
    later = msgspec.msgpack.encode(["d", b"", b"", None, None, None, None, False, "more"])
    assert decode_record(later).destination == "d"


@given(st.binary(max_size=40))
def test_an_unknown_head_is_a_decode_error(data: bytes) -> None:
    try:
        _, payload = split_record(data)
    except DecodeError as exc:
        assert exc.code == "undecodable"
    else:
        assert len(data) >= HEAD_SIZE
        assert data[0] in (HEAD_VERSION, BACKDATED)
        assert payload == data[HEAD_SIZE : len(data) if data[0] == HEAD_VERSION else -8]


@pytest.mark.parametrize(
    ("text", "tried"),
    [
        (b"", Tried()),
        (b"0:1:", Tried(0, True)),
        (b"16:0:1800000000000", Tried(16, False, 1_800_000_000_000)),
    ],
)
def test_the_note_of_failures_is_read_back(text: bytes, tried: Tried) -> None:
    assert parse_tried(text) == tried


def test_a_key_has_the_same_limit_as_a_body() -> None:
    def accepted(key: bytes) -> Accepted:
        message = Message("kafka:a", b"x", delay=1, key=key)
        return accept(message, {"kafka": "kafka"}, Limits(body_bytes=100))

    assert accepted(b"k" * 100).shard_key == b"k" * 100
    with pytest.raises(MessageError, match="key_too_large.*101 bytes"):
        accepted(b"k" * 101)
