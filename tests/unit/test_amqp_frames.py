"""The frames that we write to RabbitMQ, and those that we read, however they are cut."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pika import frame as pika_frame
from pika import spec

from delaybridge.amqp.connection import WireConnection, returned_id
from delaybridge.amqp.encoding import encode_properties, encode_table
from delaybridge.amqp.frames import Encoder, content_header
from delaybridge.amqp.walker import FrameReader
from delaybridge.message import Delivery
from tests.rigs.amqp_channel import delivery


def frames(data: bytes) -> list[Any]:
    """pika's reading of the bytes."""
    found = []
    while data:
        size, read = pika_frame.decode_frame(data)
        assert size, "cut short"
        found.append(read)
        data = data[size:]
    return found


def answer(encode: Callable[[Delivery], bytes], one: Delivery) -> bytes | str:
    """The frames, or the reason why there are none."""
    try:
        return encode(one)
    except ValueError as exc:
        return str(exc)


class TestEncoder:
    def test_pika_reads_method_header_and_body(self) -> None:
        table = encode_table([("a", "b")])
        properties = encode_properties({"content_type": "text/plain"})
        one = delivery("id", b"hello", "é.key", headers=table, properties=properties)
        method, header, body = frames(Encoder(7, 131072, b"guest").frames(one))
        assert {method.channel_number, header.channel_number, body.channel_number} == {7}
        assert (method.method.exchange, method.method.routing_key) == ("x", "é.key")
        assert method.method.mandatory and not method.method.immediate
        assert header.body_size == 5
        assert header.properties.content_type == "text/plain"
        assert header.properties.headers["delaybridge-id"] == "id"
        assert body.fragment == b"hello"

    def test_a_record_without_headers_and_body_is_encoded(self) -> None:
        method, header = frames(Encoder(1, 131072, b"").frames(delivery("id", b"")))
        assert header.body_size == 0
        assert list(header.properties.headers) == [
            "delaybridge-id",
            "delaybridge-due-ms",
            "delaybridge-attempt",
        ]

    @pytest.mark.parametrize("size", [4088, 4089, 8176, 8177, 100_000])
    def test_a_body_is_cut_at_the_frame_size(self, size: int) -> None:
        body = bytes(n % 251 for n in range(size))
        data = Encoder(1, 4096, b"").frames(delivery("id", body))
        bodies = frames(data)[2:]
        assert b"".join(part.fragment for part in bodies) == body
        assert max(len(part.fragment) for part in bodies) == min(size, 4096 - 8)

    def test_headers_that_fill_the_frame_pass_and_one_byte_more_is_refused(self) -> None:
        def with_headers(size: int) -> Delivery:
            return delivery("id", headers=encode_table([("h", b"x" * size)]))

        encoder = Encoder(1, 4096, b"")

        def header_size(size: int) -> int:
            data = encoder.frames(with_headers(size))
            length, _ = pika_frame.decode_frame(data)  # the method
            (payload,) = struct.unpack_from(">I", data, length + 3)
            return int(payload)

        room = 4096 - 8 - header_size(0)
        assert header_size(room) == 4088
        with pytest.raises(ValueError, match="^headers_too_large: 4089 bytes"):
            encoder.frames(with_headers(room + 1))

    def test_a_body_above_the_brokers_limit_is_refused(self) -> None:
        with pytest.raises(ValueError, match="^message_too_large"):
            Encoder(1, 131072, b"").frames(delivery("id", bytes(16 * 1024 * 1024 + 1)))

    def test_a_publish_like_an_earlier_one_is_the_same_bytes_as_a_new_one(self) -> None:
        chosen = random.Random(1)
        properties: list[Any] = [None, (0, b"", b"")] + [
            encode_properties(some)
            for some in (
                {"delivery_mode": 1},
                {"content_type": "text/plain"},
                {"content_type": "text/plain", "priority": 3, "message_id": "1234"},
                {"delivery_mode": 2, "message_id": "5678", "app_id": "x"},
                {"user_id": "guest"},
                {"user_id": "other", "message_id": "1"},
            )
        ]
        tables = [b"", *(encode_table([("h", "x" * size)]) for size in (1, 2, 3900, 4000))]
        encoder = Encoder(9, 4096, b"guest")
        for _ in range(3000):
            one = delivery(
                chosen.choice(("a", "bb", "é" * 4, "c" * 255)),
                bytes(chosen.choice((0, 1, 2, 300, 4088, 4089, 9000))),
                chosen.choice(("", "key", "ö.key")),
                headers=chosen.choice(tables),
                properties=chosen.choice(properties),
            )
            one.due_ms = chosen.choice((0, 1, 1_800_000_000_000, 2**53))
            one.attempt = chosen.choice((1, 2, 2**31 - 1))
            assert answer(encoder.frames, one) == answer(Encoder(9, 4096, b"guest").new_frames, one)

    def test_what_an_encoder_keeps_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("delaybridge.amqp.frames._KEPT", 10)
        encoder = Encoder(1, 4096, b"")
        for n in range(100):
            encoder.frames(delivery("i" * n, bytes(n), f"key{n}"))
            kept = encoder._methods, encoder._shapes, encoder._sizes
            assert max(map(len, kept)) <= 10

    def test_the_added_id_is_found_in_a_returned_header_that_has_a_senders_id_too(self) -> None:
        # pika's decoder fails on a time stamp in milliseconds.
        odd = b"\x01tT" + (1_700_000_000_000).to_bytes(8, "big")
        table = odd + encode_table([("delaybridge-id", "theirs")])
        payload = content_header(table, None, 0, b"ours", 1, 1)
        assert returned_id(payload) == "ours"
        assert returned_id(payload[:20]) is None
        assert returned_id(b"") is None


class Heard:
    """A listener that records."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []

    def on_confirm(self, tag: int, multiple: bool, is_ack: bool) -> None:
        self.events.append(("ack" if is_ack else "nack", tag, multiple))

    def on_return(self, id: str, reason: str) -> None:
        self.events.append(("return", id, reason))


def marshal(channel: int, method: Any) -> bytes:
    """A method frame as a broker sends it."""
    return bytes(pika_frame.Method(channel, method).marshal())


class TestReading:
    @given(st.lists(st.integers(1, 60), max_size=30), st.integers(0, 1))
    def test_frames_are_read_however_they_are_cut(self, cuts: list[int], listening: int) -> None:
        header = content_header(b"", None, 3, b"back", 1, 1)
        data = b"".join(
            [
                marshal(1, spec.Basic.Ack(1, False)),
                marshal(0, spec.Connection.Blocked("low on memory")),
                marshal(1, spec.Basic.Nack(7, True)),
                marshal(1, spec.Basic.Return(312, "NO_ROUTE", "x", "k")),
                b"\x02\x00\x01" + len(header).to_bytes(4, "big") + header + b"\xce",
                b"\x03\x00\x01\x00\x00\x00\x03abc\xce",
                bytes(pika_frame.Heartbeat().marshal()),
                marshal(1, spec.Basic.Ack(8, True)),
                marshal(9, spec.Basic.Ack(8, True)),
            ]
        )
        heard, passed = Heard(), bytearray()
        connection = reader(passed)
        if listening:
            connection.listen(1, heard)
        for size in [*cuts, len(data)]:
            connection._on_data_available(data[:size])
            data = data[size:]
        assert [type(one) for one in frames(bytes(passed))] == [
            pika_frame.Method,
            pika_frame.Heartbeat,
        ]
        wanted = [
            ("ack", 1, False),
            ("nack", 7, True),
            ("return", "back", "312 NO_ROUTE"),
            ("ack", 8, True),
        ]
        assert heard.events == (wanted if listening else [])


def reader(passed: bytearray) -> WireConnection:
    """A connection that was never opened; what pika would read goes to `passed`."""

    class Unopened(WireConnection):
        def __init__(self) -> None:
            self._listeners, self._returning = {}, {}
            self._reader = FrameReader(self._pass_to_pika, self._take)
            self.bytes_received = 0

        def _pass_to_pika(self, data: bytes) -> None:
            passed.extend(data)

    return Unopened()
