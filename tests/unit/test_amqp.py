"""AMQP header tables and property lists: every type, every refusal, and pika as the witness."""

from __future__ import annotations

import math
import struct
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pika
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pika import data as pika_data

from delaybridge.amqp.header import (
    content_header,
    decode_properties,
    decode_table,
    encode_properties,
    encode_table,
    split_content_header,
)
from delaybridge.errors import DecodeError, MessageError
from tests.rigs.header_tables import TABLES


def refusal(headers: dict[Any, Any]) -> MessageError:
    """What `encode_table` raises for the headers."""
    with pytest.raises(MessageError) as caught:
        encode_table(headers.items())
    return caught.value


def nested(depth: int) -> Any:
    """A value inside `depth` lists."""
    return [nested(depth - 1)] if depth else 1


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
        [
            (math.nan, "non_finite"),
            (math.inf, "non_finite"),
            (-math.inf, "non_finite"),
            (Decimal("NaN"), "non_finite"),
            (Decimal("Infinity"), "non_finite"),
            (2**63, "header_out_of_range"),
            (-(2**63) - 1, "header_out_of_range"),
            pytest.param(10**5000, "header_out_of_range", id="huge"),
            ("\ud800", "bad_header"),
            ({"\ud800": 1}, "bad_header"),
            ({"": 1}, "bad_header"),
            ({1: 1}, "bad_header"),
            ({"n" * 256: 1}, "bad_header"),
            ({"€" * 86: 1}, "bad_header"),
            ({1, 2}, "unsupported_header_type"),
            ((1, 2), "unsupported_header_type"),
            (object(), "unsupported_header_type"),
            (1j, "unsupported_header_type"),
            ([object()], "unsupported_header_type"),
            (nested(5), "nested_too_deep"),
            (datetime(2030, 1, 1), "zone_required"),
            (datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC), "header_out_of_range"),
            (
                datetime(9999, 12, 31, 23, 59, 59, tzinfo=timezone(timedelta(hours=-14))),
                "header_out_of_range",
            ),
            (Decimal("1E-256"), "header_out_of_range"),
            (Decimal(2**31), "header_out_of_range"),
            (Decimal("1E+999999"), "header_out_of_range"),
            (["x" * 200_000], "headers_too_large"),
        ],
    )
    def test_values_that_amqp_cannot_carry_are_refused_by_name(self, value: Any, code: str) -> None:
        error = refusal({"h": value})
        assert (error.code, error.field) == (code, "h")

    @pytest.mark.parametrize("name", ["", "n" * 256, "\ud800", 5, None])
    def test_a_bad_name_is_refused(self, name: Any) -> None:
        assert refusal({name: 1}).code == "bad_header"

    def test_a_name_of_255_bytes_is_accepted(self) -> None:
        assert encode_table([("€" * 85, None)])[0] == 255

    def test_four_levels_are_accepted(self) -> None:
        assert decode_table(encode_table([("h", nested(4))])) == [("h", nested(4))]

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
        ("properties", "code", "field"),
        [
            ({"priority": -1}, "bad_priority", "priority"),
            ({"priority": 256}, "bad_priority", "priority"),
            ({"priority": 1.5}, "bad_priority", "priority"),
            ({"priority": "high"}, "bad_priority", "priority"),
            ({"priority": True}, "bad_priority", "priority"),
            ({"expiration": "-1"}, "bad_expiration", "expiration"),
            ({"expiration": "abc"}, "bad_expiration", "expiration"),
            ({"expiration": 5}, "bad_expiration", "expiration"),
            ({"expiration": ""}, "bad_expiration", "expiration"),
            ({"expiration": "٥"}, "bad_expiration", "expiration"),
            ({"expiration": "1_000"}, "bad_expiration", "expiration"),
            ({"expiration": str(2**32)}, "bad_expiration", "expiration"),
            ({"expiration": "9" * 10_000}, "bad_expiration", "expiration"),
            ({"delivery_mode": 7}, "bad_property", "delivery_mode"),
            ({"delivery_mode": True}, "bad_property", "delivery_mode"),
            ({"delivery_mode": "2"}, "bad_property", "delivery_mode"),
            ({"reply_to": "amq.rabbitmq.reply-to"}, "bad_property", "reply_to"),
            ({"reply_to": b"amq.rabbitmq.reply-to.g1h2"}, "bad_property", "reply_to"),
            ({"correlation_id": "c" * 256}, "bad_property", "correlation_id"),
            ({"correlation_id": "\ud800"}, "bad_property", "correlation_id"),
            ({"correlation_id": 5}, "bad_property", "correlation_id"),
            ({"timestamp": -1}, "bad_property", "timestamp"),
            ({"timestamp": 2**63}, "bad_property", "timestamp"),
            ({"timestamp": 1.5}, "bad_property", "timestamp"),
            pytest.param({"timestamp": 10**5000}, "bad_property", "timestamp", id="huge"),
            pytest.param({"priority": 10**5000}, "bad_priority", "priority", id="huge2"),
            pytest.param({"delivery_mode": 10**5000}, "bad_property", "delivery_mode", id="huge3"),
            pytest.param({"expiration": 10**5000}, "bad_expiration", "expiration", id="huge4"),
            ({"timestamp": datetime(2030, 1, 1)}, "zone_required", "timestamp"),
            ({"headers": {}}, "bad_property", "properties"),
            ({5: 5}, "bad_property", "properties"),
        ],
    )
    def test_properties_that_the_broker_would_refuse_are_refused(
        self, properties: dict[Any, Any], code: str, field: str
    ) -> None:
        with pytest.raises(MessageError) as caught:
            encode_properties(properties)
        assert (caught.value.code, caught.value.field) == (code, field)

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
