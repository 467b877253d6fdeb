"""AMQP header tables and property lists: every type, every refusal, and pika as the witness."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pika
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pika import data as pika_data

from delaybridge.amqp.decoding import decode_properties, decode_table, split_content_header
from delaybridge.amqp.encoding import encode_properties, encode_table
from delaybridge.amqp.frames import content_header
from delaybridge.errors import DecodeError, MessageError
from tests.rigs.accepting import cases
from tests.rigs.header_tables import TABLES

HUGE = 10**5000  # Python prints no such number


def refusal(headers: dict[Any, Any]) -> MessageError:
    with pytest.raises(MessageError) as caught:
        encode_table(headers.items())
    return caught.value


def nested(depth: int) -> Any:
    return [nested(depth - 1)] if depth else 1


def refused(*field: str, **values: Sequence[Any]) -> list[Any]:
    """Cases of a value, its code and its field, by the code."""
    return [case for code, some in values.items() for case in cases({code: some}, code, *field)]


class TestEncodeTable:
    @given(TABLES)
    def test_decoding_an_encoded_table_gives_the_same_values_in_order(
        self, headers: dict[str, Any]
    ) -> None:
        decoded = decode_table(encode_table(headers.items()))
        assert decoded == list(headers.items())
        assert [type(value) for _, value in decoded] == [type(v) for v in headers.values()]

    @given(TABLES)
    def test_pika_reads_the_same_names_and_types(self, headers: dict[str, Any]) -> None:
        encoded = encode_table(headers.items())
        read, end = pika_data.decode_table(struct.pack(">I", len(encoded)) + encoded, 0)
        assert end == len(encoded) + 4
        assert list(read) == list(headers)

    @pytest.mark.parametrize(
        "value",
        [
            "text",
            "é€",
            b"\x00\xff",
            True,
            False,
            5,
            -(2**31),
            2**31,
            -(2**63),
            None,
            Decimal("1.5"),
            Decimal(12),
            datetime(2030, 1, 1, tzinfo=UTC),
            [1, "a", [None]],
            {"a": {"b": 1}},
        ],
    )
    def test_the_bytes_equal_pikas_where_pika_is_right(self, value: Any) -> None:
        pieces: list[bytes] = []
        pika_data.encode_table(pieces, {"h": value})
        assert encode_table([("h", value)]) == b"".join(pieces)[4:]

    @pytest.mark.parametrize("value", [1.9, -0.0, 5e-324, 1.7976931348623157e308])
    def test_a_float_stays_a_double(self, value: float) -> None:
        encoded = encode_table([("h", value)])
        assert encoded == b"\x01hd" + struct.pack(">d", value)

    def test_a_decimal_keeps_its_scale(self) -> None:
        ((_, value),) = decode_table(encode_table([("h", Decimal("1.50"))]))
        assert str(value) == "1.50"

    def test_a_zone_is_converted_and_a_fraction_dropped(self) -> None:
        time = datetime(2030, 1, 1, 2, 0, 0, 999_999, tzinfo=timezone(timedelta(hours=2)))
        assert decode_table(encode_table([("h", time)])) == [
            ("h", datetime(2030, 1, 1, tzinfo=UTC))
        ]

    @pytest.mark.parametrize(
        ("value", "code"),
        refused(
            non_finite=[math.nan, math.inf, -math.inf, Decimal("NaN"), Decimal("Infinity")],
            header_out_of_range=[
                *(2**63, -(2**63) - 1, HUGE),
                *(Decimal("1E-256"), Decimal(2**31), Decimal("1E+999999")),
                datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC),
                datetime(9999, 12, 31, 23, 59, 59, tzinfo=timezone(timedelta(hours=-14))),
            ],
            bad_header=["\ud800", *({n: 1} for n in ("\ud800", "", 1, "n" * 256, "€" * 86))],
            unsupported_header_type=[{1, 2}, (1, 2), object(), 1j, [object()]],
            nested_too_deep=[nested(5)],
            zone_required=[datetime(2030, 1, 1)],
            headers_too_large=[["x" * 200_000]],
        ),
    )
    def test_values_that_amqp_cannot_carry_are_refused_by_name(self, value: Any, code: str) -> None:
        error = refusal({"h": value})
        assert (error.code, error.field) == (code, "h")

    def test_a_name_of_255_bytes_is_accepted(self) -> None:
        assert encode_table([("€" * 85, None)])[0] == 255

    def test_a_dict_or_list_that_contains_itself_is_refused(self) -> None:
        circle: dict[str, Any] = {}
        circle["self"] = circle
        ring: list[Any] = []
        ring.append(ring)
        assert refusal({"h": circle}).code == "nested_too_deep"
        assert refusal({"h": ring}).code == "nested_too_deep"

    def test_small_lists_that_multiply_are_refused_before_they_grow(self) -> None:
        level: list[Any] = ["x"] * 1000
        for _ in range(3):
            level = [level] * 1000
        assert refusal({"h": level}).code == "headers_too_large"

    def test_a_name_given_twice_is_refused(self) -> None:
        with pytest.raises(MessageError) as caught:
            encode_table([("a", 1), ("b", 1), ("a", 1)])
        assert (caught.value.code, caught.value.field) == ("duplicate_header", "a")


class TestDecodeTable:
    @pytest.mark.parametrize(
        ("encoded", "value"),
        [
            (b"t\x01", True),
            (b"b\xff", -1),
            (b"B\xff", 255),
            (b"s\xff\xff", -1),
            (b"U\xff\xff", -1),
            (b"u\xff\xff", 65535),
            (b"I\xff\xff\xff\xff", -1),
            (b"i\xff\xff\xff\xff", 2**32 - 1),
            (b"l" + b"\xff" * 8, -1),
            (b"L" + b"\xff" * 8, -1),
            (b"f" + struct.pack(">f", 1.5), 1.5),
            (b"d" + struct.pack(">d", 1.9), 1.9),
            (b"D\x02\x00\x00\x00\x96", Decimal("1.50")),
            (b"S\x00\x00\x00\x01\xff", b"\xff"),
            (b"x\x00\x00\x00\x01a", b"a"),
            (b"T" + (1700000000000).to_bytes(8, "big"), 1700000000000),  # ms, sent by mistake
            (b"T" + b"\xff" * 8, 2**64 - 1),
            (b"V", None),
            (b"A\x00\x00\x00\x00", []),
            (b"F\x00\x00\x00\x04\x01a" + b"t\x00", {"a": False}),
        ],
    )
    def test_every_type_of_rabbitmq(self, encoded: bytes, value: Any) -> None:
        assert decode_table(b"\x01h" + encoded) == [("h", value)]

    def test_a_name_given_twice_is_shown_twice(self) -> None:
        assert decode_table(b"\x01hV\x01ht\x01") == [("h", None), ("h", True)]

    def test_a_name_that_is_not_utf8_is_escaped(self) -> None:
        assert decode_table(b"\x01\xffV") == [("\\xff", None)]

    @pytest.mark.parametrize(
        "encoded",
        [b"\x05h", b"\x01h", b"\x01hZ", b"\x01hI\x00", b"\x01hS\x00\x00\x00\x05a", b"\x01hS\x00"],
    )
    def test_broken_bytes_raise_decode_error(self, encoded: bytes) -> None:
        with pytest.raises(DecodeError):
            decode_table(encoded)

    def test_nesting_is_bounded(self) -> None:
        data = b"V"
        for _ in range(10_000):
            data = b"A" + struct.pack(">I", len(data)) + data
        with pytest.raises(DecodeError):
            decode_table(b"\x01h" + data)

    @given(st.binary(max_size=200))
    def test_any_bytes_are_decoded_or_refused(self, data: bytes) -> None:
        try:
            decode_table(data)
        except DecodeError:
            pass


SHORT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60).filter(
    lambda text: len(text.encode()) <= 255
)
PROPERTIES = st.fixed_dictionaries(
    {},
    optional={
        "content_type": SHORT,
        "content_encoding": SHORT,
        "delivery_mode": st.sampled_from([1, 2]),
        "priority": st.integers(0, 255),
        "correlation_id": SHORT,
        "reply_to": SHORT,
        "expiration": st.integers(0, 2**32 - 1).map(str),
        "message_id": SHORT,
        "timestamp": st.integers(0, 2**63 - 1),
        "type": SHORT,
        "user_id": SHORT,
        "app_id": SHORT,
        "cluster_id": SHORT,
    },
)


class TestProperties:
    @given(PROPERTIES)
    def test_decoding_gives_the_encoded_values(self, properties: dict[str, Any]) -> None:
        assert decode_properties(*encode_properties(properties)) == properties

    @given(PROPERTIES)
    def test_the_bytes_equal_pikas(self, properties: dict[str, Any]) -> None:
        flags, before, after = encode_properties(properties)
        theirs = b"".join(pika.BasicProperties(**properties).encode())
        assert struct.pack(">H", flags) + before + after == theirs

    @pytest.mark.parametrize(
        ("value", "code", "field"),
        [
            *refused("priority", bad_priority=[-1, 256, 1.5, "high", True, HUGE]),
            *refused(
                "expiration",
                bad_expiration=[
                    *("-1", "abc", 5, "", "٥", "1_000", str(2**32), "9" * 10_000, HUGE)
                ],
            ),
            *refused("delivery_mode", bad_property=[7, True, "2", HUGE]),
            *refused(
                "reply_to", bad_property=["amq.rabbitmq.reply-to", b"amq.rabbitmq.reply-to.g1h2"]
            ),
            *refused("correlation_id", bad_property=["c" * 256, "\ud800", 5]),
            *refused(
                "timestamp",
                bad_property=[-1, 2**63, 1.5, HUGE],
                zone_required=[datetime(2030, 1, 1)],
            ),
        ],
    )
    def test_properties_that_the_broker_would_refuse_are_refused(
        self, value: Any, code: str, field: str
    ) -> None:
        with pytest.raises(MessageError) as caught:
            encode_properties({field: value})
        assert (caught.value.code, caught.value.field) == (code, field)

    @pytest.mark.parametrize("name", ["headers", 5])
    def test_a_name_that_is_no_property_is_refused(self, name: Any) -> None:
        with pytest.raises(MessageError, match="^properties: bad_property: "):
            encode_properties({name: {}})

    def test_an_unknown_name_is_refused_with_the_nearest_known_one(self) -> None:
        with pytest.raises(MessageError, match="did you mean 'content_type'"):
            encode_properties({"contenttype": "text/plain"})

    def test_none_is_absent(self) -> None:
        assert encode_properties({"type": None, "priority": None}) == (0, b"", b"")

    def test_pikas_delivery_mode_bytes_and_datetimes_are_accepted(self) -> None:
        encoded = encode_properties(
            {
                "delivery_mode": pika.DeliveryMode.Persistent,
                "correlation_id": b"\xff",
                "timestamp": datetime(1970, 1, 1, 0, 1, tzinfo=UTC),
            }
        )
        assert decode_properties(*encoded) == {
            "delivery_mode": 2,
            "correlation_id": b"\xff",
            "timestamp": 60,
        }

    def test_properties_cut_short_raise_decode_error(self) -> None:
        flags, before, after = encode_properties({"message_id": "abc"})
        with pytest.raises(DecodeError):
            decode_properties(flags, before, after[:-1])


OURS = (b"some-id", 1_800_000_000_000, 3)


class TestContentHeader:
    @given(TABLES, PROPERTIES)
    def test_stored_headers_are_unchanged_and_three_are_added(
        self, headers: dict[str, Any], properties: dict[str, Any]
    ) -> None:
        properties.pop("user_id", None)
        table = encode_table(headers.items())
        payload = content_header(table, encode_properties(properties), 77, *OURS)
        size, flags, before, sent, after = split_content_header(payload)
        assert size == 77
        assert sent.startswith(table)
        assert decode_table(sent[len(table) :]) == [
            ("delaybridge-id", "some-id"),
            ("delaybridge-due-ms", 1_800_000_000_000),
            ("delaybridge-attempt", 3),
        ]
        assert decode_properties(flags, before, after) == {"delivery_mode": 2, **properties}

    def test_pika_reads_it(self) -> None:
        table = encode_table([("a", 1)])
        properties = encode_properties({"content_type": "text/plain", "app_id": "app"})
        payload = content_header(table, properties, 5, *OURS)
        read = pika.BasicProperties().decode(payload, 12)
        assert read.headers == {
            "a": 1,
            "delaybridge-id": "some-id",
            "delaybridge-due-ms": 1_800_000_000_000,
            "delaybridge-attempt": 3,
        }
        assert (read.content_type, read.app_id, read.delivery_mode) == ("text/plain", "app", 2)

    def test_a_transient_message_stays_transient(self) -> None:
        properties = encode_properties({"delivery_mode": 1})
        parts = split_content_header(content_header(b"", properties, 0, *OURS))
        assert decode_properties(parts.flags, parts.before, parts.after) == {"delivery_mode": 1}

    @pytest.mark.parametrize(("login", "kept"), [(b"me", True), (b"you", False), (b"", False)])
    def test_a_foreign_user_id_is_left_out(self, login: bytes, kept: bool) -> None:
        properties = encode_properties({"type": "t", "user_id": "me", "app_id": "a"})
        parts = split_content_header(content_header(b"", properties, 0, *OURS, login))
        read = decode_properties(parts.flags, parts.before, parts.after)
        assert read == {
            "delivery_mode": 2,
            "type": "t",
            **({"user_id": "me"} if kept else {}),
            "app_id": "a",
        }

    @given(st.binary(max_size=80))
    def test_any_bytes_are_split_or_refused(self, payload: bytes) -> None:
        try:
            split_content_header(payload)
        except DecodeError:
            pass
