"""How a message from a delay exchange is read: its delay, its other instructions, what is kept."""

from __future__ import annotations

import struct
from datetime import UTC, datetime
from typing import Any

import pytest

from delaybridge.amqp.decoding import decode_table, split_content_header
from delaybridge.amqp.encoding import encode_table
from delaybridge.ingest.entries import Change, Quarantine, Schedule
from delaybridge.ingest.rabbitmq.messages import Immediate, RawMessage
from delaybridge.message import Destination, Limits, OnConflict
from tests.rigs.raw_messages import STAMP, delivered, raw, read, reader, record_of


def check_quarantined(entry: Any, code: str, message: RawMessage) -> Quarantine:
    """Check that it was kept whole, with this reason."""
    assert isinstance(entry, Quarantine), entry
    assert entry.reason.startswith(f"ingress:{code} "), entry.reason
    assert len(entry.reason) < 300
    assert entry.stamp == STAMP
    record, content = record_of(entry), split_content_header(message.header)
    assert record.destination.startswith("rabbitmq:x/")
    assert (record.headers, record.body) == (content.table, message.body)
    assert record.properties == (content.flags, content.before, content.after)
    return entry


# x-delay, row by row of the table of bad input


def integer(kind: bytes, layout: str, value: int = 5000) -> bytes:
    return raw("x-delay", kind, struct.pack(layout, value))


def text(value: bytes, kind: bytes = b"S") -> bytes:
    return raw("x-delay", kind, struct.pack(">I", len(value)) + value)


def double(value: float) -> bytes:
    return raw("x-delay", b"d", struct.pack(">d", value))


@pytest.mark.parametrize(
    ("table", "delay_ms"),
    [
        pytest.param(integer(b"I", ">i"), 5000, id="A1 int32"),
        pytest.param(integer(b"l", ">q"), 5000, id="A2 int64"),
        pytest.param(text(b"5000"), 5000, id="A3 text"),
        pytest.param(double(5000.0), 5000, id="A7 double"),
        pytest.param(double(1.9), 2, id="A8"),
        pytest.param(text(b"1.5"), 2, id="A8 text"),
        pytest.param(integer(b"l", ">q", 2**32 - 1), 2**32 - 1, id="A14"),
        pytest.param(integer(b"l", ">q", 2**32), 2**32, id="A15"),
        pytest.param(integer(b"l", ">q", 2**32 + 7), 2**32 + 7, id="A15 more"),
        pytest.param(integer(b"i", ">I"), 5000, id="A17 unsigned"),
        pytest.param(integer(b"s", ">h"), 5000, id="A17 short"),
        pytest.param(integer(b"u", ">H"), 5000, id="A17 unsigned short"),
        pytest.param(integer(b"b", ">b", 100), 100, id="A17 byte"),
        pytest.param(integer(b"B", ">B", 200), 200, id="A17 unsigned byte"),
        pytest.param(raw("x-delay", b"f", struct.pack(">f", 5000)), 5000, id="A7 float"),
        pytest.param(raw("x-delay", b"D", struct.pack(">Bi", 0, 5000)), 5000, id="A18 scale 0"),
        pytest.param(raw("x-delay", b"D", struct.pack(">Bi", 1, 50001)), 5001, id="A18 scale 1"),
        pytest.param(text(b"5000", b"x"), 5000, id="A21 byte array"),
    ],
)
def test_every_valid_delay_is_understood(table: bytes, delay_ms: int) -> None:
    entry = read(delivered(table))
    assert isinstance(entry, Schedule)
    assert entry.accepted.when == f"+{delay_ms}"
    assert record_of(entry).headers == table, "the plugin's consumers see x-delay"


@pytest.mark.parametrize(
    ("table", "code"),
    [
        pytest.param(text(b"abc"), "bad_time", id="A4"),
        pytest.param(text(b""), "bad_time", id="A5"),
        pytest.param(text(b" 5000"), "bad_time", id="A6"),
        pytest.param(double(float("nan")), "bad_time", id="A9 NaN"),
        pytest.param(double(float("inf")), "bad_time", id="A9 Inf"),
        pytest.param(raw("x-delay", b"t", b"\x01"), "bad_time", id="A10"),
        pytest.param(integer(b"l", ">q", 2**63 - 1), "too_far", id="A16"),
        pytest.param(integer(b"T", ">Q"), "bad_time", id="A19"),
        pytest.param(integer(b"T", ">Q", 2**64 - 1), "too_far", id="A19 no calendar has it"),
        pytest.param(raw("x-delay", b"A", b"\0\0\0\0"), "bad_time", id="A20 list"),
        pytest.param(raw("x-delay", b"F", b"\0\0\0\0"), "bad_time", id="A20 table"),
        pytest.param(text(b"abc", b"x"), "bad_time", id="A21 no digits"),
        pytest.param(
            text(struct.pack(">q", 5000), b"x"), "binary_number", id="A21 a binary number"
        ),
        pytest.param(text(b"\xff\xfe"), "bad_time", id="A4 no text"),
        pytest.param(
            integer(b"I", ">i") + raw("delaybridge-due", b"l", struct.pack(">q", 2 * 10**12)),
            "time_ambiguous",
            id="A23",
        ),
    ],
)
def test_an_invalid_delay_is_quarantined(table: bytes, code: str) -> None:
    message = delivered(table)
    entry = check_quarantined(read(message), code, message)
    if code == "bad_time" and table[8:9] == b"T":
        assert "delaybridge-due" in entry.reason


@pytest.mark.parametrize(
    "table",
    [
        pytest.param(raw("x-delay", b"V", b""), id="A11 void"),
        pytest.param(integer(b"I", ">i", -5000), id="A12 negative"),
        pytest.param(integer(b"I", ">i", 0), id="A13 zero"),
        pytest.param(raw("x-delay", b"t", b"\x00"), id="A10 false"),
        pytest.param(raw("X-Delay", b"I", struct.pack(">i", 5000)), id="A22 another case"),
        pytest.param(b"", id="A24 an empty table"),
        pytest.param(None, id="A24 no table"),
    ],
)
def test_a_message_without_a_delay_is_published_at_once(table: bytes | None) -> None:
    entry = read(delivered(table))
    assert isinstance(entry, Immediate)
    assert entry.destination == Destination("rabbitmq", "rabbitmq", "x", "some.key")
    assert entry.record.headers == (table or b"")


@pytest.mark.parametrize("name", ["x-opt-delivery-time", "delaybridge-due"])
def test_a_due_time_in_whole_seconds_is_not_early(name: str) -> None:
    """RabbitMQ turns AMQP 1.0's milliseconds into seconds; it leaves a number alone."""
    last_ms = 2 * 10**12 - 1
    seconds = raw(name, b"T", struct.pack(">Q", last_ms // 1000))
    number = raw(name, b"l", struct.pack(">q", last_ms))
    for table in (seconds, number):
        assert read(delivered(table)).accepted.when == str(last_ms)


def test_each_header_named_almost_like_an_instruction_is_counted() -> None:  # A22
    mine = reader()
    for _ in range(3):
        read(delivered({"X-Delay": 5000}), mine)
    read(delivered({"x-delay": 5000}), mine)
    assert mine.near_misses == 3


# the message
def test_headers_beyond_the_limit_are_quarantined() -> None:  # A25
    for headers in (
        {"x-delay": 5, "big": "x" * 100_000},
        {"x-delay": 5} | {f"h{i}": 1 for i in range(64)},
    ):
        message = delivered(headers)
        code = "headers_too_large" if "big" in headers else "too_many_headers"
        check_quarantined(read(message), code, message)


@pytest.mark.parametrize("id", [b"\xff" * 255, b"", b"a\nb", b" a", b"a\0", "\u202e".encode()])
def test_an_invalid_message_id_is_quarantined(id: bytes) -> None:  # A26
    message = delivered({"x-delay": 5}, message_id=id)
    check_quarantined(read(message), "bad_id", message)


def test_a_message_without_an_id_gets_a_new_one_or_the_one_it_had() -> None:  # A27
    message = delivered({"x-delay": 5})
    first, second = read(message), read(message)
    assert len(first.accepted.id) == 26
    assert first.accepted.id != second.accepted.id
    assert reader().read(message, STAMP, "had").accepted.id == "had"
    mine = delivered({"x-delay": 5}, message_id="mine")
    assert reader().read(mine, STAMP, "had").accepted.id == "mine"


def test_an_id_header_wins_over_the_message_id() -> None:
    entry = read(delivered({"x-delay": 5, "delaybridge-id": "a"}, message_id="b"))
    assert entry.accepted.id == "a"
    assert entry.accepted.shard_key == b"a"
    assert record_of(entry).headers == encode_table([("x-delay", 5)])


def test_a_redelivered_message_reads_the_same() -> None:  # A29
    # RabbitMQ adds counts when a quorum queue delivers a message again.
    headers = {"a": 1, "x-delay": 5}
    counts = {"x-acquired-count": 2, "x-delivery-count": 2**40}
    first = read(delivered(headers, message_id="m"))
    again = read(delivered(headers | counts, message_id="m", redelivered=True))
    assert again == first
    # At the first delivery they are the producer's: it may have read the message from a queue.
    his = read(delivered(headers | counts, message_id="m"))
    assert dict(decode_table(record_of(his).headers)) == headers | counts


def test_a_quarantined_message_is_kept_as_the_producer_sent_it() -> None:  # A29
    message = delivered({"x-delay": "abc"})
    counted = delivered({"x-delay": "abc", "x-delivery-count": 1}, redelivered=True)
    check_quarantined(read(counted), "bad_time", message)


@pytest.mark.parametrize(
    "destination", ["rabbitmq:x.delay/key", "rabbitmq:x.delay/", "rabbitmq:/x.delay"]
)
def test_a_message_for_its_own_source_is_quarantined(destination: str) -> None:  # A32
    message = delivered({"x-delay": 5, "delaybridge-destination": destination})
    check_quarantined(read(message, reader(allowed=("*",))), "self_loop", message)


def test_the_same_name_at_another_broker_is_another_exchange() -> None:  # A32
    headers = {"x-delay": 5, "delaybridge-destination": "eu:x.delay/k"}
    entry = read(delivered(headers), reader(allowed=("eu:*",)))
    assert record_of(entry).destination == "eu:x.delay/k"


@pytest.mark.parametrize("key", [b"\xff\xfe", b"a" * 250 + b"\xc3"])
def test_a_routing_key_that_is_not_utf_8_is_quarantined(key: bytes) -> None:  # A33
    message = delivered({"x-delay": 5}, key=key)
    check_quarantined(read(message), "bad_destination", message)


@pytest.mark.parametrize("key", [b"", b"#", b"*.a", b"a/b?c#d%20", "€".encode(), b"k" * 255])
def test_any_routing_key_in_utf_8_is_kept(key: bytes) -> None:  # A33
    for delay in (5, 0):
        entry = read(delivered({"x-delay": delay}, key=key))
        assert record_of(entry).destination == "rabbitmq:x/" + key.decode()


@pytest.mark.parametrize(
    "properties",
    [
        pytest.param({"content_type": "application/x-python-serialize"}, id="A34"),
        pytest.param({"content_encoding": "gzip"}, id="A35"),
        pytest.param({"content_encoding": "\u00e9\u0000"}, id="A35 unknown"),
        pytest.param({"expiration": "0", "priority": 255, "user_id": "guest"}, id="A36"),
        pytest.param({"timestamp": 2**63 - 1, "delivery_mode": 1}, id="A36 timestamp"),
        pytest.param({"timestamp": datetime(1970, 1, 1, tzinfo=UTC), "type": b"\xff"}, id="A36 0"),
    ],
)
def test_properties_are_kept_as_bytes(properties: dict[str, Any]) -> None:
    message = delivered({"x-delay": 5}, b"\x80\x04\x95", **properties)
    record = record_of(read(message))
    content = split_content_header(message.header)
    assert record.properties == (content.flags, content.before, content.after)
    assert record.body == b"\x80\x04\x95"


@pytest.mark.parametrize("delay", [5, 0])
def test_an_empty_body_is_kept(delay: int) -> None:  # A37
    assert record_of(read(delivered({"x-delay": delay}, b""))).body == b""


@pytest.mark.parametrize("delay", [5, 0])
def test_a_body_beyond_the_limit_is_quarantined_whole(delay: int) -> None:  # A38
    mine = reader(limits=Limits(body_bytes=10))
    message = delivered({"x-delay": delay}, b"x" * 11)
    check_quarantined(read(message, mine), "body_too_large", message)
    assert not isinstance(read(delivered({"x-delay": delay}, b"x" * 10), mine), Quarantine)


# the other instructions


def test_a_cancel_names_its_message_by_header_or_message_id() -> None:
    for headers, properties in (
        ({"delaybridge-cancel": True, "delaybridge-id": "m"}, {}),
        ({"delaybridge-cancel": "true"}, {"message_id": "m"}),
    ):
        entry = read(delivered(headers, **properties))
        assert entry == Change("m", None, STAMP)


def test_a_reschedule_and_a_conflict_policy_are_read_from_headers() -> None:
    headers = {"delaybridge-reschedule": True, "delaybridge-id": "m", "delaybridge-delay": "1h"}
    assert read(delivered(headers)) == Change("m", None, STAMP, when="+3600000")
    for policy in (OnConflict.KEEP, OnConflict.REPLACE):
        asked = {"delaybridge-on-conflict": str(policy), "delaybridge-delay": "1h"}
        assert read(delivered(asked)).policy is policy
        now = read(delivered({"delaybridge-on-conflict": str(policy)}))
        assert isinstance(now, Schedule)  # it is due now, but pending messages must be looked at


def test_a_cancel_without_an_id_is_quarantined() -> None:
    message = delivered({"delaybridge-cancel": True})
    check_quarantined(read(message), "bad_id", message)


def test_a_header_may_name_another_allowed_destination() -> None:
    headers = {"x-delay": 5, "delaybridge-destination": "rabbitmq:audit/all"}
    assert record_of(read(delivered(headers), reader(allowed=("rabbitmq:audit",)))).destination == (
        "rabbitmq:audit/all"
    )
    message = delivered(headers)
    check_quarantined(read(message), "destination_not_allowed", message)


def test_a_message_for_another_broker_goes_through_the_store_even_if_due_now() -> None:
    entry = read(delivered({"delaybridge-destination": "eu:audit/k"}), reader(allowed=("eu:*",)))
    assert isinstance(entry, Schedule)
    assert entry.accepted.when == "+0"


def test_delaybridge_s_headers_are_removed_and_x_delay_stays() -> None:
    headers = {
        "a": 1,
        "delaybridge-attempt": 1,
        "delaybridge-due-ms": 2**41,
        "delaybridge-id": "m",
        "x-delay": 5,
        "z": [None],
    }
    kept = {"a": 1, "x-delay": 5, "z": [None]}
    assert record_of(read(delivered(headers))).headers == encode_table(kept.items())


def test_a_message_for_another_delay_exchange_is_not_delayed_twice() -> None:
    entry = read(delivered({"a": 1, "x-delay": 5, "z": 1}), reader(target="y.delay"))
    assert record_of(entry).headers == encode_table([("a", 1), ("z", 1)])


@pytest.mark.parametrize("delay", [5, 0, None])
def test_remembered_headers_are_read_as_the_first_time(delay: int | None) -> None:
    mine = reader()
    for key in (b"a", b"b", b"a"):
        entry = read(delivered({"x-delay": delay, "delaybridge-id": "m"}, key=key), mine)
        assert record_of(entry).destination == f"rabbitmq:x/{key.decode()}"
        assert isinstance(entry, Schedule) is bool(delay)
