"""How a message from a delay exchange is read from its bytes, and when it is acknowledged."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace

from delaybridge.amqp.header import (
    HEADERS_FLAG,
    decode_table,
    encode_properties,
    encode_table,
    split_content_header,
)
from delaybridge.ingest.entries import Change, Quarantine, Schedule
from delaybridge.ingest.rabbitmq.channel import Tags
from delaybridge.ingest.rabbitmq.connection import Deliveries, IntakeConnection, size_of
from delaybridge.ingest.rabbitmq.messages import Immediate, MessageReader, RawMessage
from delaybridge.ingest.reach import AllowList
from delaybridge.message import Destination, Limits, OnConflict, Record, decode_record
from delaybridge.settings.routes import Route
from tests.rigs.header_tables import NAMES, TABLES

KINDS = {"rabbitmq": "rabbitmq", "eu": "rabbitmq", "kafka": "kafka"}
ROUTE = Route("rabbitmq", "rabbitmq", "x.delay", "x")
STAMP = b"\x01\x02\x03\x04"


def reader(
    *, allowed: tuple[str, ...] = (), limits: Limits | None = None, **route: Any
) -> MessageReader:
    """Reads the delay exchange x.delay; y.delay exists, too."""
    mine = ROUTE._replace(**route)
    return MessageReader(
        mine, KINDS, limits or Limits(), AllowList(allowed), ["x.delay", "y.delay"]
    )


def raw(name: str, kind: bytes, value: bytes) -> bytes:
    """One header as it is encoded in a table."""
    return bytes([len(name)]) + name.encode() + kind + value


def delivered(
    headers: dict[str, Any] | bytes | None = None,
    body: bytes = b"body",
    *,
    key: bytes = b"some.key",
    redelivered: bool = False,
    **properties: Any,
) -> RawMessage:
    """A message with these headers, or with this table."""
    flags, before, after = encode_properties(properties)
    table = b""
    if headers is not None:
        table = headers if isinstance(headers, bytes) else encode_table(headers.items())
        flags |= HEADERS_FLAG
        before += struct.pack(">I", len(table))
    header = struct.pack(">HHQH", 60, 0, len(body), flags) + before + table + after
    return RawMessage(1, redelivered, key, header, body)


def read(message: RawMessage, reader: MessageReader | None = None) -> Any:
    return (reader or _READER).read(message, STAMP)


_READER = reader()


def record_of(entry: Any) -> Record:
    if isinstance(entry, Immediate):
        return entry.record
    return decode_record(entry.payload)


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
    ("deaths", "is_loop"),
    [
        ([{"queue": "x.delay", "count": 3}], False),
        ([{"queue": "x.delay", "count": 4}], True),
        ([{"queue": "x.delay", "count": 2}, {"queue": "x.delay", "count": 2}], True),
        ([{"queue": "other", "count": 100}], False),
        ([{"queue": "x.delay"}] * 4, True),
        ([{"queue": "x.delay", "count": "many"}], False),
        (["x.delay"] * 9, False),
        ("x.delay", False),
        (None, False),
    ],
)
def test_a_message_that_returns_from_the_dead_letters_too_often_is_quarantined(
    deaths: Any, is_loop: bool
) -> None:  # A30
    message = delivered({"x-delay": 5, "x-death": deaths})
    entry = read(message)
    if is_loop:
        check_quarantined(entry, "loop", message)
    else:
        assert isinstance(entry, Schedule)


@pytest.mark.parametrize(
    "destination",
    ["rabbitmq:x.delay/key", "rabbitmq:x.delay/", "rabbitmq:/x.delay"],
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


INSTRUCTED = st.dictionaries(
    st.sampled_from(["delaybridge-id", "delaybridge-delay", "delaybridge-due-ms"]),
    st.sampled_from(["5000"]),
)
USABLE = TABLES.filter(
    lambda table: not any(n.lower().startswith(("delaybridge-", "x-")) for n in table)
)


@given(USABLE, INSTRUCTED, st.booleans(), st.binary(max_size=50), st.randoms())
def test_every_header_survives_byte_for_byte(
    table: dict[str, Any], ours: dict[str, Any], is_delayed: bool, body: bytes, random: Any
) -> None:
    if is_delayed and "delaybridge-delay" not in ours:
        table = table | {"x-delay": 5000}
    names = [*table, *ours]
    random.shuffle(names)
    message = delivered({name: (table | ours)[name] for name in names}, body, correlation_id="c")
    record = record_of(read(message, reader(limits=Limits(headers=99, headers_bytes=10**6))))
    assert record.headers == encode_table((n, table[n]) for n in names if n in table)
    content = split_content_header(message.header)
    assert record.properties == (content.flags, content.before, content.after)
    assert record.body == body


@given(st.binary(max_size=120), st.binary(max_size=20), st.binary(max_size=20), st.booleans())
def test_unreadable_bytes_are_quarantined(
    header: bytes, key: bytes, body: bytes, redelivered: bool
) -> None:
    entry = read(RawMessage(1, redelivered, key, header, body))
    if isinstance(entry, Quarantine):
        assert record_of(entry).body == body


def test_a_content_header_that_is_cut_short_is_quarantined() -> None:
    texts = ("content_type", "content_encoding", "correlation_id", "reply_to", "message_id")
    whole = delivered({"x-delay": 5}, priority=1, **dict.fromkeys(texts, "text"))
    for size in range(len(whole.header)):
        cut = replace(whole, header=whole.header[:size])
        assert isinstance(read(cut), Quarantine), size


@given(st.lists(st.tuples(NAMES, st.sampled_from(b"tbBsUuIilLfdDTVSxAF?")), max_size=4), st.data())
def test_tables_with_broken_entries_are_read_or_quarantined(
    names: list[tuple[str, int]], data: st.DataObject
) -> None:
    table = b"".join(
        bytes([len(name.encode())]) + name.encode() + bytes([kind]) + data.draw(st.binary())
        for name, kind in names
    )
    read(delivered(b"\x07x-delayI\0\0\0\x05" + table, message_id="m"))


# messages of a form seen before


PROPERTIES: list[dict[str, Any]] = [
    *({}, {"content_type": "text/plain"}, {"content_type": ""}, {"content_encoding": "gzip"}),
    *({"delivery_mode": 2}, {"priority": 9}, {"delivery_mode": 2, "priority": 9, "type": "t"}),
    *({"correlation_id": "c"}, {"correlation_id": ""}, {"reply_to": "r"}, {"expiration": "9"}),
    *({"timestamp": 2**40, "app_id": "app"}, {"content_type": "a", "content_encoding": "b"}),
]
HEADERS: list[dict[str, Any]] = [
    *({}, {"x-delay": 0}, {"x-delay": 2**39}, {"x-delay": "abc"}, {"X-Delay": 5}, {"trace": "00"}),
    *({"delaybridge-id": "other"}, {"delaybridge-key": "k"}, {"delaybridge-priority": 3}),
    *({"delaybridge-ttl": "1m"}, {"delaybridge-at-most-once": True}, {"x-delivery-count": 1}),
    *({"delaybridge-on-conflict": "keep"}, {"delaybridge-on-conflict": "replace"}),
    *({"delaybridge-destination": "rabbitmq:y/k"}, {"delaybridge-destination": "eu:y/k"}),
    *({"delaybridge-cancel": True}, {"delaybridge-reschedule": True}, {"x-delay": None}),
    *({"x-death": [{"queue": "x.delay", "count": 9}]}, {"h": "x" * 300}),
    {"x-delay": None, "delaybridge-due": 2 * 10**12},
    *({"delaybridge-max-attempts": 3}, {"delaybridge-backoff": "1s", "x-delay": 5}),
]
ODD_IDS = [b"order-17", b"m m", b" m", b"m ", b"", "é".encode(), b"\xff", b"a\nb", b"\x7f", None]


def variants(headers: dict[str, Any], properties: dict[str, Any]) -> Iterator[RawMessage]:
    """Two plain messages of one form, and then messages of it that are odd in one way."""
    yield delivered({"x-delay": 5}, message_id="m")  # with the same routing key
    make = partial(delivered, {"x-delay": 5} | headers, **properties)
    for id in (b"m", b"m", *ODD_IDS, b"i" * 100, b"i" * 101, b"i" * 255, b"m"):
        yield make() if id is None else make(message_id=id)
    for body, key in ((b"b" * 50, b"k"), (b"b" * 51, b"k"), (b"", b""), (b"b", b"\xff")):
        for _ in range(2):
            yield make(body, key=key, message_id="m")
    yield make(message_id="m", redelivered=True)
    whole = make(message_id="order-17")
    for size in range(len(whole.header)):
        yield replace(whole, header=whole.header[:size])


def comparable(entry: Any) -> Any:
    """The entry without an id drawn at random."""
    is_random = isinstance(entry, Quarantine) and not entry.own_id
    return replace(entry, id="") if is_random else entry


@pytest.mark.parametrize("headers", HEADERS, ids=str)
def test_messages_of_a_form_seen_before_are_read_the_same(headers: dict[str, Any]) -> None:
    allowed, limits = ("rabbitmq:y", "eu:*"), Limits(body_bytes=50, id_bytes=100)
    for properties in PROPERTIES:
        quick, careful = (reader(allowed=allowed, limits=limits) for _ in range(2))
        for message in variants(headers, properties):
            quickly = quick.read(message, STAMP, "known")
            carefully = careful.read_carefully(message, STAMP, "known")
            assert comparable(quickly) == comparable(carefully), message
        assert (quick.near_misses, quick.without_id) == (careful.near_misses, careful.without_id)


def test_a_message_of_a_form_seen_before_is_not_read_carefully() -> None:
    mine = reader()
    first, *others = (delivered({"x-delay": 5}, message_id=f"m{n}") for n in range(4))
    for message in (first, first):
        mine.read_carefully(message, STAMP)
    mine.read_carefully = None  # type: ignore[assignment, method-assign]
    assert [mine.read(each, STAMP).accepted.id for each in others] == ["m1", "m2", "m3"]


# deliveries in pieces


def frames(message: RawMessage, sizes: list[int]) -> list[tuple[int, bytes]]:
    """A delivery as frames, its body cut into pieces of these sizes."""
    consumer, exchange = b"ctag1.x", b"x.delay"
    method = b"".join(
        (
            b"\x00\x3c\x00\x3c",
            bytes([len(consumer)]),
            consumer,
            struct.pack(">QB", message.tag, message.redelivered),
            bytes([len(exchange)]),
            exchange,
            bytes([len(message.routing_key)]),
            message.routing_key,
        )
    )
    cut, start = [(1, method), (2, message.header)], 0
    for size in sizes:
        if start < len(message.body):
            cut.append((3, message.body[start : start + size]))
            start += size
    if start < len(message.body):
        cut.append((3, message.body[start:]))
    return cut


@given(
    st.lists(
        st.tuples(st.binary(max_size=60), st.binary(max_size=10), st.booleans()),
        min_size=1,
        max_size=4,
    ),
    st.lists(st.integers(1, 30)),
)
def test_deliveries_are_read_from_frames_of_any_size(
    contents: list[tuple[bytes, bytes, bool]], sizes: list[int]
) -> None:
    sent = [
        replace(delivered({"x-delay": 5}, body, key=key, redelivered=again), tag=2**40 + tag)
        for tag, (body, key, again) in enumerate(contents)
    ]
    arrivals: list[int] = []
    deliveries = Deliveries(lambda: arrivals.append(1))
    counted = 0
    for message in sent:
        for kind, payload in frames(message, sizes):
            if kind == 1:
                deliveries.method(b"--" + payload, 2)
            else:
                take = deliveries.header if kind == 2 else deliveries.body
                counted += take(payload)
    assert deliveries.messages == sent
    assert deliveries.size == counted == sum(map(size_of, sent))
    assert len(arrivals) == 1, "the waiting task is told once, and takes all"


class Stream(IntakeConnection):
    """Only the reading part of a connection. passed: the frames for pika."""

    def __init__(self, channel: int, deliveries: Deliveries) -> None:
        self._deliveries, self._window_bytes, self.held_bytes = {channel: deliveries}, 10**9, 0
        self._is_paused, self._unread, self.bytes_received = False, b"", 0
        self.passed: list[bytes] = []

    def _pass_to_pika(self, data: bytes) -> None:
        self.passed.append(data)


HEARTBEAT = b"\x08\0\0\0\0\0\0\xce"
CANCEL = b"\x01\0\x07\0\0\0\x08\x00\x3c\x00\x1e\x02ct\x01\xce"
BODY_SIZES = st.integers(0, 40) | st.integers(0, 70_000)


@given(
    st.lists(st.sampled_from([HEARTBEAT, CANCEL]) | BODY_SIZES, max_size=6),
    st.sampled_from([8, 100, 5000, 131_064]),
    st.lists(st.integers(1, 70_000) | st.integers(1, 40)),
)
def test_a_stream_is_read_the_same_wherever_it_is_cut(
    parts: list[bytes | int], frame: int, cuts: list[int]
) -> None:
    sent, other, stream = [], [], b""
    for tag, part in enumerate(parts, 1):
        if isinstance(part, bytes):
            other.append(part)
            stream += part
            continue
        body = bytes(i % 251 for i in range(part))
        message = replace(delivered({"x-delay": 5}, body, key=b"k"), tag=tag)
        sent.append(message)
        for kind, payload in frames(message, [frame] * (part // frame)):
            stream += struct.pack(">BHI", kind, 7, len(payload)) + payload + b"\xce"
    deliveries = Deliveries(lambda: None)
    connection = Stream(7, deliveries)
    at = 0
    for cut in [*cuts, len(stream)]:
        connection._on_data_available(stream[at : at + cut])
        at += cut
    assert deliveries.messages == sent
    assert connection.passed == other
    assert connection.bytes_received + sum(map(len, other)) == len(stream)
    assert connection.held_bytes == deliveries.size == sum(map(size_of, sent))


# acknowledging


class Broker:
    """RabbitMQ's side of a channel: an unknown tag closes it."""

    def __init__(self) -> None:
        self.unacked: list[int] = []

    def ack(self, tag: int, *, multiple: bool) -> None:
        assert tag in self.unacked, f"PRECONDITION_FAILED - unknown delivery tag {tag}"
        self.unacked = [t for t in self.unacked if (t > tag if multiple else t != tag)]


class Acknowledging(RuleBasedStateMachine):
    """Messages are done in any order; the broker hears of each once."""

    MOST = 3

    def __init__(self) -> None:
        super().__init__()
        self.tags, self.broker, self.last = Tags(), Broker(), 0
        self.open: set[int] = set()

    @rule(count=st.integers(1, 6))
    def deliver(self, count: int) -> None:
        fresh = range(self.last + 1, self.last + count + 1)
        self.open.update(fresh)
        self.broker.unacked += fresh
        self.last += count

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def done(self, data: st.DataObject) -> None:
        some = data.draw(st.lists(st.sampled_from(sorted(self.open)), min_size=1, unique=True))
        for tag in some:
            self.open.remove(tag)
            self.tags.done(tag)
        self.acknowledge()

    @rule()
    def acknowledge(self) -> None:
        upto, single = self.tags.take(self.MOST)
        if upto:
            self.broker.ack(upto, multiple=True)
        for tag in single:
            self.broker.ack(tag, multiple=False)

    @invariant()
    def nothing_is_acknowledged_that_is_not_done(self) -> None:
        assert self.open <= set(self.broker.unacked)

    @invariant()
    def finished_messages_do_not_wait_for_long(self) -> None:
        waiting = set(self.broker.unacked) - self.open
        assert len(waiting) < self.MOST
        assert bool(self.open) or not waiting
        assert all(tag > min(self.open) for tag in waiting)


TestAcknowledging = Acknowledging.TestCase
TestAcknowledging.settings = settings(max_examples=50, stateful_step_count=25, deadline=None)


def test_a_slow_message_does_not_hold_up_later_acknowledgements() -> None:
    tags = Tags()
    for tag in (2, 3, 4):
        tags.done(tag)
    assert tags.take(3) == (0, [2, 3, 4])
    tags.done(1)
    assert tags.take(3) == (1, []), "the others are acknowledged already"
    tags.done(5)
    assert tags.take(3) == (5, [])
    assert tags.take(3) == (0, [])
