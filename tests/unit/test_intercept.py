"""What all drop-ins share, as far as it needs no server."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import aio_pika
import pika
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pika.adapters.blocking_connection import BlockingChannel as PlainChannel

from delaybridge import Answer, Client, Receipt
from delaybridge.accept.accept import Accepted, accept
from delaybridge.amqp.decoding import check_content, split_content_header
from delaybridge.errors import ConfigError, DecodeError, MessageError
from delaybridge.intercept import Timing, broker_of, destination, timing_of, without_instructions
from delaybridge.intercept.amqp import schedule_arguments
from delaybridge.intercept.kafka_reports import Produced, Waiting
from delaybridge.intercept.pika import BlockingChannel, delaying
from delaybridge.message import ContentHeader, Limits, Message, MessagePlan, decode_record

KINDS = {"rabbitmq": "rabbitmq", "kafka": "kafka", "kombu": "kombu"}
HOUR = timedelta(hours=1)
AT = datetime(2030, 1, 2, tzinfo=UTC)
AT_AND_ID = {"x-opt-delivery-time": int(AT.timestamp() * 1000), "delaybridge-id": "i"}
TWO_TIMES = {"x-delay": 5, "delaybridge-due": AT}


@pytest.fixture
def client() -> Iterator[Client]:
    with Client() as client:
        yield client


class TestTiming:
    @pytest.mark.parametrize(
        "headers",
        [
            None,
            {},
            [],
            {"a": 1},
            {"x-delay": 0},
            {"x-delay": -1},
            {"x-delay": None},
            {"delaybridge-id": "i"},
            {"delaybridge-cancel": True},
            {"delaybridge-destination": "kafka:t"},
            [("a", b"1")],
        ],
        ids=str,
    )
    def test_a_message_without_a_time_is_not_delayed(self, headers: Any) -> None:
        assert timing_of(headers, None, None) is None

    @pytest.mark.parametrize(
        ("headers", "delay", "deliver_at", "timing"),
        [
            (None, 0, None, Timing(0, None, None)),
            (None, "15m", None, Timing("15m", None, None)),
            (None, None, AT, Timing(None, AT, None)),
            ({"a": 1, "delaybridge-id": "i"}, 5, None, Timing(5, None, "i")),
            ({"x-delay": 3_600_000}, None, None, Timing(HOUR, None, None)),
            ([("delaybridge-delay", b"1h")], None, None, Timing(HOUR, None, None)),
            ({"x-delay": 0}, HOUR, None, Timing(HOUR, None, None)),
            ({"x-opt-delivery-delay": 3_600_000}, None, None, Timing(HOUR, None, None)),
            ({"delaybridge-due": AT.isoformat()}, None, None, Timing(None, AT, None)),
            (AT_AND_ID, None, None, Timing(None, AT, "i")),
        ],
        ids=str,
    )
    def test_a_time_is_found_in_arguments_and_headers(
        self, headers: Any, delay: Any, deliver_at: Any, timing: Timing
    ) -> None:
        assert timing_of(headers, delay, deliver_at) == timing

    @pytest.mark.parametrize(
        ("headers", "delay", "deliver_at", "code", "field"),
        [
            (None, 1, AT, "time_ambiguous", "delay"),
            ({"x-delay": 5}, None, AT, "time_ambiguous", "delay"),
            (TWO_TIMES, None, None, "time_ambiguous", "delaybridge-due"),
            ({"delaybridge-cancel": True}, 5, None, "reserved_header", "delaybridge-cancel"),
            (None, None, datetime(2030, 1, 1), "zone_required", "deliver_at"),
        ],
        ids=str,
    )
    def test_bad_and_ambiguous_times_are_refused(
        self, headers: Any, delay: Any, deliver_at: Any, code: str, field: str
    ) -> None:
        with pytest.raises(MessageError) as caught:
            timing_of(headers, delay, deliver_at)
        assert (caught.value.code, caught.value.field) == (code, field)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("destination", "kafka:t"),
            ("cancel", True),
            ("reschedule", True),
            ("key", "k"),
            ("priority", 9),
            ("ttl", "1h"),
            ("at-most-once", True),
            ("on-conflict", "replace"),
        ],
    )
    def test_headers_that_only_ingest_supports_are_refused(self, name: str, value: Any) -> None:
        with pytest.raises(MessageError) as caught:
            timing_of({"x-delay": 5, f"delaybridge-{name}": value}, None, None)
        assert (caught.value.code, caught.value.field) == ("reserved_header", f"delaybridge-{name}")

    @pytest.mark.parametrize(
        ("delay", "time"),
        [(5, {}), (None, {"x-delay": 5}), (None, {"x-opt-delivery-time": 2 * 10**12})],
    )
    def test_headers_may_give_a_retry_plan(self, delay: Any, time: dict[str, Any]) -> None:
        timing = timing_of({"delaybridge-max-attempts": 3, **time}, delay, None)
        assert timing is not None
        assert timing.retry == MessagePlan(max_attempts=3)

    def test_only_headers_for_delaybridge_are_removed(self) -> None:
        headers = {"a": 1, "delaybridge-id": "i", "x-delay": 5, "Delaybridge-x": 2}
        assert without_instructions(headers) == [("a", 1), ("x-delay", 5), ("Delaybridge-x", 2)]
        assert without_instructions(None) == []


class TestBroker:
    @pytest.mark.parametrize(
        ("brokers", "name", "found"),
        [
            (None, None, "rabbitmq"),
            ({"eu": "amqp://h", "k": "kafka://h:1"}, None, "eu"),
            ({"eu": "amqp://h", "us": "amqps://h"}, "us", "us"),
        ],
    )
    def test_the_broker_is_the_only_one_of_its_kind_or_the_one_named(
        self, brokers: Any, name: str | None, found: str
    ) -> None:
        with Client(brokers=brokers) as client:
            assert broker_of(client, "rabbitmq", name) == found

    @pytest.mark.parametrize(
        ("brokers", "name", "remedy"),
        [
            ({"k": "kafka://h:1"}, None, "DELAYBRIDGE_BROKERS__RABBITMQ=URL"),
            ({"k": "kafka://h:1"}, "k", "DELAYBRIDGE_BROKERS__RABBITMQ=URL"),
            ({"eu": "amqp://h", "us": "amqp://h"}, None, "eu, us; give broker=NAME"),
            ({"eu": "amqp://h", "us": "amqp://h"}, "k", "'k' is not one of them"),
        ],
    )
    def test_any_other_broker_is_a_config_error_with_its_remedy(
        self, brokers: Any, name: str | None, remedy: str
    ) -> None:
        with Client(brokers=brokers) as client, pytest.raises(ConfigError, match=remedy):
            broker_of(client, "rabbitmq", name)

    def test_a_destination_is_escaped(self) -> None:
        assert destination("rabbitmq", "eu", "a/b%c", "x/y") == "eu:a%2Fb%25c/x/y"
        assert destination("rabbitmq", "eu", "", "q") == "eu:/q"
        assert destination("kafka", "k", "t") == "k:t"


def content(properties: pika.BasicProperties) -> ContentHeader:
    start = split_content_header(b"\0\x3c" + bytes(10) + b"".join(properties.encode()))
    assert isinstance(start, ContentHeader)
    return start


class TestContentHeader:
    """A content header as `schedule` accepts it."""

    def stored(self, properties: pika.BasicProperties) -> Any:
        accepted = accept(
            Message("rabbitmq:/q", b"x", delay=1, properties=content(properties)), KINDS, Limits()
        )
        return decode_record(accepted.payload)

    @given(
        st.dictionaries(
            st.text("abc", min_size=1, max_size=3),
            st.recursive(
                st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=9),
                lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.just("k"), inner),
                max_leaves=9,
            ),
            max_size=5,
        ),
        st.none() | st.text(max_size=20),
    )
    def test_the_bytes_of_the_library_are_kept(
        self, headers: dict[str, Any], text: str | None
    ) -> None:
        properties = pika.BasicProperties(headers=headers, app_id=text, content_type=text)
        record = self.stored(properties)
        assert (record.headers, record.properties) == (
            content(properties).table,
            (content(properties).flags, content(properties).before, content(properties).after),
        )

    @pytest.mark.parametrize(
        ("properties", "code"),
        [
            ({"headers": {"delaybridge-id": "i"}}, "reserved_header"),
            ({"headers": {"delaybridge-delay": "1s"}}, "reserved_header"),
            ({"headers": {"a\n": 1}}, "bad_header"),
            ({"headers": {str(n): n for n in range(65)}}, "too_many_headers"),
            ({"headers": {"a": "x" * 40_000}}, "headers_too_large"),
            ({"expiration": "soon"}, "bad_expiration"),
            ({"delivery_mode": 0}, "bad_property"),
        ],
        ids=str,
    )
    def test_an_encoded_header_obeys_the_rules_of_schedule(
        self, properties: Any, code: str
    ) -> None:
        with pytest.raises(MessageError) as caught:
            self.stored(pika.BasicProperties(**properties))
        assert caught.value.code == code

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), [1, {"a": float("-inf")}]])
    def test_a_number_that_would_end_a_connection_is_refused(self, value: Any) -> None:
        properties = aio_pika.Message(b"", headers={"a": value}).properties
        header = split_content_header(b"\0\x3c" + bytes(10) + properties.marshal())
        with pytest.raises(MessageError) as caught:
            check_content(header)
        assert (caught.value.code, caught.value.field) == ("non_finite", "a")

    @given(st.binary(max_size=60), st.integers(0, 2**16), st.binary(max_size=60))
    def test_any_bytes_are_accepted_or_refused(
        self, table: bytes, flags: int, after: bytes
    ) -> None:
        header = ContentHeader(0, flags, after, table, after)
        try:
            accept(Message("rabbitmq:/q", b"", delay=1, properties=header), KINDS, Limits())
        except MessageError as exc:
            assert exc.detail.isprintable()

    def test_a_broken_table_is_a_decode_error(self) -> None:
        with pytest.raises(DecodeError):
            check_content(ContentHeader(0, 0, b"", b"\x01aS\x00", b""))

    @pytest.mark.parametrize(
        ("to", "headers"), [("kafka:t", ()), ("kombu:q", ()), ("rabbitmq:/q", {"a": 1})]
    )
    def test_an_encoded_header_is_for_rabbitmq_and_complete(self, to: str, headers: Any) -> None:
        header = content(pika.BasicProperties())
        message = Message(to, b"", delay=1, headers=headers, properties=header)
        with pytest.raises(MessageError, match="bad_property"):
            accept(message, KINDS, Limits())


class TestArguments:
    @pytest.mark.parametrize(
        ("of_header", "message_id", "id"),
        [
            (None, None, None),
            (None, "", None),
            (None, b"", None),
            (None, "m", "m"),
            (None, "é".encode(), "é"),
            ("h", "m", "h"),
            ("h", b"\xff", "h"),
        ],
    )
    def test_the_id_is_that_of_the_header_else_the_message_id(
        self, client: Client, of_header: Any, message_id: Any, id: Any
    ) -> None:
        timing = Timing(1, None, of_header)
        found = schedule_arguments(client, None, timing, "x/y", "k", message_id, b"\0\0")
        assert (found["id"], found["destination"]) == (id, "rabbitmq:x%2Fy/k")

    def test_an_id_that_is_not_text_is_refused(self, client: Client) -> None:
        with pytest.raises(MessageError, match="bad_id"):
            schedule_arguments(client, None, Timing(1, None, None), "", "q", b"\xff", b"\0\0")


class TestDelayingAPikaChannel:
    """The class of a channel changes, not the object; and a kind of channel changes once."""

    def test_a_channel_of_a_subclass_keeps_its_class(self) -> None:
        class Own(PlainChannel):  # type: ignore[misc]  # pika has no types
            """Mine."""

        first, second = (delaying(Own.__new__(Own)) for _ in range(2))
        assert isinstance(first, Own)
        assert type(first) is type(second)
        assert type(first).__name__ == "Own"
        assert delaying(first) is first
        assert type(delaying(first)) is type(second)

    def test_a_channel_of_pika_s_own_class_becomes_ours(self) -> None:
        channel = delaying(PlainChannel.__new__(PlainChannel))
        assert type(channel) is BlockingChannel

    def test_a_delay_in_a_header_stays_in_the_properties_of_the_caller(self) -> None:
        stored: list[dict[str, Any]] = []
        client = Client(brokers={"rabbitmq": "amqp://h"})

        def schedule(**arguments: Any) -> Receipt:
            stored.append(arguments)
            return Receipt(Answer.CREATED, "id", 0, 0)

        client.schedule = schedule  # type: ignore[assignment, method-assign]
        channel = delaying(PlainChannel.__new__(PlainChannel), client=client)
        mine = pika.BasicProperties(headers={"delaybridge-delay": "1m", "a": 1})
        for _ in range(2):  # with the same object, as producers do
            channel.basic_publish("x", "k", b"body", mine)
        assert mine.headers == {"delaybridge-delay": "1m", "a": 1}
        assert [each["delay"] for each in stored] == [timedelta(minutes=1)] * 2

    def test_basic_publish_accepts_every_argument_of_pika(self) -> None:
        ours = list(inspect.signature(BlockingChannel.basic_publish).parameters)
        of_pika = inspect.signature(PlainChannel.basic_publish).parameters
        assert ours == [*of_pika, "delay", "deliver_at"]


def test_a_delay_counts_from_produce_however_long_redis_was_away() -> None:
    produced = Produced("t", b"", None, -1, [], None, False)
    at = "1900000000000"
    for when, called in (("+60000", ["+60000", "+58500", "+0"]), (at, [at] * 3)):
        waiting = Waiting(Accepted("i", b"i", when, 0, b""), b"1234", 100.0, produced)
        assert [waiting.call(now_s)[1].when for now_s in (100.0, 101.5, 170.0)] == called


def test_a_decimal_is_stored_as_pika_would_send_it() -> None:
    header = content(pika.BasicProperties(headers={"d": Decimal("1.500")}))
    assert check_content(header) == [("d", Decimal("1.5"))]
