"""RabbitMQ's outcomes under every interleaving a broker may choose, and the frames we write.

A real broker cannot be told when to ack, nack, return and close, so here a script plays it.
"""

from __future__ import annotations

import asyncio
import random
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pika import frame as pika_frame
from pika import spec

from delaybridge.amqp.connection import WireConnection, returned_id
from delaybridge.amqp.encoder import Encoder
from delaybridge.amqp.header import content_header, encode_properties, encode_table
from delaybridge.errors import ConfigError
from delaybridge.message import Delivery, Destination, Record
from delaybridge.publish import CONFIRMED, Fault, Outcome, PublishOptions, Verdict
from delaybridge.publish.rabbitmq import publisher
from delaybridge.publish.rabbitmq.channel import CAREFUL_MESSAGES, ExchangeLine, Unconfirmed
from delaybridge.publish.reports import Reports

LOST = Outcome(Verdict.UNKNOWN, "connection_lost: test", Fault.BROKER)
CLOSED = Outcome(Verdict.REFUSED, "not_connected: test", Fault.BROKER)


def delivery(id: str, body: bytes = b"body", key: str = "key", **record: Any) -> Delivery:
    """A delivery to exchange `x`."""
    destination = Destination("rabbitmq", "rabbitmq", "x", key)
    return Delivery(id, Record(str(destination), body, **record), destination, 1_800_000_000_000, 1)


class OutcomeRecorder:
    """Records outcomes; each delivery must be reported once."""

    def __init__(self) -> None:
        self.outcomes: dict[Delivery, Outcome] = {}

    def add(self, deliveries: Iterable[Delivery], outcome: Outcome) -> None:
        """In the place of `Reports.add`."""
        for one in deliveries:
            assert one not in self.outcomes, f"{one.id}: reported twice"
            self.outcomes[one] = outcome


class Channel:
    """A line, and the broker's side of it: tags and their deliveries."""

    def __init__(self) -> None:
        self.recorder = OutcomeRecorder()
        self.line = ExchangeLine(self.recorder)  # type: ignore[arg-type]
        self.tags: list[Delivery] = []
        self.settled: set[int] = set()
        self.returned: set[Delivery] = set()
        self.acked: set[Delivery] = set()
        self.nacked: set[Delivery] = set()
        self.written: list[Delivery] = []

    def unsettled(self) -> list[int]:
        """Tags that the broker has not settled."""
        return [tag for tag in range(1, len(self.tags) + 1) if tag not in self.settled]

    def publish(self, deliveries: Sequence[Delivery]) -> None:
        """Hand over, and write what may be written."""
        self.line.add(deliveries)
        self.pump()

    def pump(self) -> None:
        """Write what may be written now."""
        while batch := self.line.next_batch():
            self.line.wrote(batch, 0.0)
            self.tags += batch
            self.written += batch
            outstanding = [self.tags[tag - 1].id for tag in self.unsettled()]
            assert len(outstanding) == len(set(outstanding)), "one id twice on a channel"

    def settle(self, tag: int, multiple: bool, is_ack: bool) -> None:
        """The broker acks or nacks."""
        for one in self.unsettled() if tag <= len(self.tags) else []:  # else it was never written
            if one == tag or (multiple and (one <= tag or tag == 0)):
                self.settled.add(one)
                (self.acked if is_ack else self.nacked).add(self.tags[one - 1])
        self.line.settle(tag, multiple, confirmed=is_ack)
        self.pump()

    def give_back(self, tag: int) -> None:
        """The broker returns; its ack comes later."""
        self.returned.add(self.tags[tag - 1])
        self.line.returned(self.tags[tag - 1].id, "312 NO_ROUTE")

    def end(self) -> None:
        """The channel is gone; the next one counts from 1."""
        self.tags, self.settled = [], set()
        self.pump()

    def reason(self, one: Delivery) -> str:
        """First word of the reason."""
        return self.recorder.outcomes[one].reason.split(":")[0]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.lists(st.integers(0, 6), min_size=1, max_size=8)),
        st.tuples(st.sampled_from(["ack", "nack"]), st.tuples(st.integers(0, 30), st.booleans())),
        st.tuples(st.just("return"), st.integers(0, 30)),
        st.tuples(st.just("close"), st.sampled_from([403, 404, 406, 541])),
        st.tuples(st.sampled_from(["lose", "suspect", "expire"]), st.none()),
    ),
    max_size=40,
)


def play(channel: Channel, steps: list[tuple[str, Any]]) -> list[Delivery]:
    """Do the steps, end everything, and return all deliveries in the order given."""
    handed: list[Delivery] = []
    for verb, what in steps:
        open_tags = channel.unsettled()
        if verb == "publish":
            batch = [delivery(f"id-{number}") for number in what]
            handed += batch
            channel.publish(batch)
        elif verb in ("ack", "nack"):
            channel.settle(what[0], what[1], verb == "ack")
        elif verb == "return" and open_tags:
            channel.give_back(open_tags[what % len(open_tags)])
        elif verb == "close":
            channel.line.closed_by_broker(what, "TEXT")
            channel.end()
        elif verb in ("lose", "suspect", "expire"):
            channel.line.lost(LOST, is_suspicious=verb == "suspect")
            channel.end()
    channel.line.lost(LOST)
    channel.line.refuse_waiting(CLOSED)
    return handed


class TestExchangeLine:
    @given(STEPS)
    def test_each_delivery_is_reported_once_and_truthfully(
        self, steps: list[tuple[str, Any]]
    ) -> None:
        channel = Channel()
        handed = play(channel, steps)
        assert set(channel.recorder.outcomes) == set(handed)
        for one, outcome in channel.recorder.outcomes.items():
            is_settled = one in channel.acked or one in channel.nacked
            if outcome == CLOSED:
                assert one not in channel.written
            elif one in channel.returned:
                assert outcome.reason == "unroutable: 312 NO_ROUTE"
            elif outcome == CONFIRMED:
                assert one in channel.acked
            elif outcome.verdict is Verdict.REFUSED:
                assert not is_settled
            else:
                assert one not in channel.acked
        assert channel.line.is_idle

    @given(STEPS)
    def test_deliveries_are_written_in_the_order_given(self, steps: list[tuple[str, Any]]) -> None:
        channel = Channel()
        handed = play(channel, steps)
        written = [one for one in handed if one in set(channel.written)]
        assert channel.written == written

    def test_the_first_message_of_a_channel_goes_alone(self) -> None:
        channel = Channel()
        channel.publish([delivery(str(n)) for n in range(10)])
        assert len(channel.tags) == 1
        channel.settle(1, False, True)
        assert len(channel.tags) == 10

    def test_a_return_before_its_ack_is_unroutable_and_its_neighbours_are_confirmed(self) -> None:
        channel = Channel()
        batch = [delivery(str(n)) for n in range(10)]
        channel.publish(batch)
        channel.settle(1, False, True)
        channel.give_back(5)
        channel.give_back(7)
        assert batch[4] not in channel.recorder.outcomes
        channel.settle(10, True, True)
        refused = [n for n, one in enumerate(batch, 1) if channel.reason(one) == "unroutable"]
        assert refused == [5, 7]
        assert channel.recorder.outcomes[batch[4]].fault is Fault.MESSAGE

    def test_a_second_message_with_an_id_waits_for_the_first_and_so_do_all_after_it(self) -> None:
        channel = Channel()
        channel.publish([delivery("warm")])
        channel.settle(1, False, True)
        channel.publish([delivery("a"), delivery("b"), delivery("a"), delivery("c")])
        assert [one.id for one in channel.tags] == ["warm", "a", "b"]
        channel.settle(2, False, True)
        assert [one.id for one in channel.tags] == ["warm", "a", "b", "a", "c"]

    @pytest.mark.parametrize(
        ("code", "text", "reason", "fault"),
        [
            (404, "NOT_FOUND - no exchange", "exchange_missing", Fault.MESSAGE),
            (406, "PRECONDITION_FAILED - size", "precondition_failed", Fault.MESSAGE),
            (403, "write access to exchange refused", "access_refused", Fault.DESTINATION),
            (403, "write access to topic 'a' refused", "access_refused", Fault.MESSAGE),
        ],
    )
    def test_a_message_alone_on_a_closed_channel_is_refused(
        self, code: int, text: str, reason: str, fault: Fault
    ) -> None:
        channel = Channel()
        poison = delivery("poison")
        channel.publish([poison, delivery("next")])
        channel.line.closed_by_broker(code, text)
        outcome = channel.recorder.outcomes[poison]
        assert (outcome.verdict, outcome.fault) == (Verdict.REFUSED, fault)
        assert outcome.reason.startswith(f"{reason}: {code} ")

    @pytest.mark.parametrize("code", [501, 541, 320])
    def test_after_a_close_code_that_proves_nothing_the_message_is_unknown(self, code: int) -> None:
        channel = Channel()
        one = delivery("one")
        channel.publish([one])
        channel.line.closed_by_broker(code, "INTERNAL_ERROR")
        assert channel.recorder.outcomes[one].verdict is Verdict.UNKNOWN

    def test_a_lone_unconfirmed_message_that_was_not_the_last_written_is_unknown(self) -> None:
        channel = Channel()
        batch = [delivery(str(n)) for n in range(3)]
        channel.publish(batch)
        channel.settle(1, False, True)
        channel.settle(3, False, True)
        channel.line.closed_by_broker(406, "PRECONDITION_FAILED")
        assert channel.recorder.outcomes[batch[1]].verdict is Verdict.UNKNOWN

    def test_a_poison_message_is_found_when_its_window_comes_back(self) -> None:
        channel = Channel()
        batch = [delivery(str(n)) for n in range(100)]
        channel.publish(batch)
        channel.settle(1, False, True)
        channel.line.closed_by_broker(406, "PRECONDITION_FAILED")
        channel.end()
        assert {channel.recorder.outcomes[one].verdict for one in batch[1:]} == {Verdict.UNKNOWN}
        # Others are published meanwhile; then the window is published again. Number 50 is bad.
        others = [delivery(f"other-{n}") for n in range(CAREFUL_MESSAGES + 1)]
        channel.publish(others)
        for tag in range(1, len(others) + 1):
            channel.settle(tag, False, True)
        again = [delivery(str(n)) for n in range(1, 100)]
        channel.publish(again)
        while again[49] not in channel.recorder.outcomes:
            assert len(channel.unsettled()) == 1
            if channel.tags[-1] is again[49]:
                channel.line.closed_by_broker(406, "PRECONDITION_FAILED")
                channel.end()
            else:
                channel.settle(len(channel.tags), False, True)
        assert channel.recorder.outcomes[again[49]].verdict is Verdict.REFUSED
        while tags := channel.unsettled():
            channel.settle(tags[0], False, True)
        verdicts = Counter(channel.recorder.outcomes[one].verdict for one in again)
        assert verdicts == {Verdict.CONFIRMED: 98, Verdict.REFUSED: 1}

    def test_messages_that_were_only_slow_go_together_again(self) -> None:
        channel = Channel()
        channel.publish([delivery(str(n)) for n in range(10)])
        channel.line.lost(LOST)
        channel.end()  # the nine others
        channel.settle(1, False, True)
        assert len(channel.tags) == 9

    def test_acks_for_settled_or_unwritten_messages_are_ignored(self) -> None:
        channel = Channel()
        channel.publish([delivery("a")])
        for tag, multiple in [(5, False), (5, True), (1, False), (1, False), (1, True), (0, False)]:
            channel.line.settle(tag, multiple, confirmed=True)
        assert list(channel.recorder.outcomes.values()) == [CONFIRMED]


class TestUnconfirmed:
    def test_the_oldest_time_is_that_of_the_first_unsettled_batch(self) -> None:
        unconfirmed = Unconfirmed()
        assert unconfirmed.oldest_s() is None
        for start in range(3):
            unconfirmed.wrote([delivery(f"{start}-{n}") for n in range(2)], float(start))
        assert unconfirmed.oldest_s() == 0.0
        unconfirmed.take(1, multiple=False)
        assert unconfirmed.oldest_s() == 0.0
        unconfirmed.take(3, multiple=True)
        assert unconfirmed.oldest_s() == 1.0
        unconfirmed.take(0, multiple=True)
        assert unconfirmed.oldest_s() is None

    def test_a_long_lived_channel_keeps_no_settled_messages(self) -> None:
        unconfirmed = Unconfirmed()
        straggler = delivery("straggler")
        unconfirmed.wrote([delivery("first"), straggler], 0.0)
        for tag in range(3, 20_003):
            unconfirmed.wrote([delivery(str(tag))], float(tag))
            assert [one.id for one in unconfirmed.take(tag, multiple=False)] == [str(tag)]
        assert unconfirmed.take(2, multiple=True)[1] is straggler
        assert len(unconfirmed._slots) == 0
        assert len(unconfirmed) == 0


class TestReports:
    async def test_outcomes_are_reported_together_after_the_turn_grouped_by_outcome(self) -> None:
        calls: list[tuple[list[str], Outcome]] = []
        reports = Reports(lambda ds, outcome: calls.append(([d.id for d in ds], outcome)))
        reports.add([delivery("a")], CONFIRMED)
        reports.add([delivery("x")], LOST)
        reports.add([delivery("b")], CONFIRMED)
        assert calls == []
        await asyncio.sleep(0)
        assert calls == [(["a", "b"], CONFIRMED), (["x"], LOST)]

    async def test_a_report_that_raises_does_not_affect_the_others(self) -> None:
        calls: list[Outcome] = []

        def report(_: Sequence[Delivery], outcome: Outcome) -> None:
            calls.append(outcome)
            if outcome == CONFIRMED:
                raise RuntimeError("a bug in the scanner")

        reports = Reports(report)
        reports.add([delivery("a")], CONFIRMED)
        reports.add([delivery("b")], LOST)
        with pytest.raises(RuntimeError):
            reports.flush()
        for _ in range(3):
            await asyncio.sleep(0)
        assert calls == [CONFIRMED, LOST]


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
        monkeypatch.setattr("delaybridge.amqp.encoder._KEPT", 10)
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
        """Recorded."""
        self.events.append(("ack" if is_ack else "nack", tag, multiple))

    def on_return(self, id: str, reason: str) -> None:
        """Recorded."""
        self.events.append(("return", id, reason))


def marshal(channel: int, method: Any) -> bytes:
    """A method frame as a broker sends it."""
    return bytes(pika_frame.Method(channel, method).marshal())


class TestReading:
    @given(st.lists(st.integers(1, 60), max_size=30), st.integers(0, 1))
    @settings(deadline=None)
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
            self._unread, self.bytes_received = b"", 0

        def _pass_to_pika(self, data: bytes) -> None:
            passed.extend(data)

    return Unopened()


class TestUrl:
    def make(self, url: str) -> Any:
        """A publisher that was not connected."""
        return publisher(
            "rabbitmq",
            url,
            report=lambda *_: None,
            on_change=lambda: None,
            options=PublishOptions(heartbeat_s=15, blocked_connection_timeout_s=20.0),
        )

    def test_options_are_defaults_that_the_url_overrides(self) -> None:
        parameters = self.make("amqp://u:p@h/v?heartbeat=30").parameters
        assert (parameters.heartbeat, parameters.blocked_connection_timeout) == (30, 20.0)
        assert self.make("amqp://u:p@h/v").parameters.heartbeat == 15

    def test_tls_verifies_certificate_and_host(self) -> None:
        context = self.make("amqps://u:p@h/v").parameters.ssl_options.context
        assert context.check_hostname
        assert context.verify_mode.name == "CERT_REQUIRED"

    def test_no_password_is_shown(self) -> None:
        made = self.make("amqp://user:s3cret@host:5673/%2F")
        assert "s3cret" not in made.describe()
        assert "host:5673/%2F" in made.describe()

    @pytest.mark.parametrize(
        "url", ["amqp://u:s3cret@h/v?nonsense=1", "amqp://u:s3cret@h:99999/v", "amqp://s3cret@h"]
    )
    def test_a_bad_url_is_refused_without_showing_it(self, url: str) -> None:
        with pytest.raises(ConfigError) as caught:
            self.make(url)
        assert "s3cret" not in str(caught.value)

    async def test_before_the_connection_everything_is_refused(self) -> None:
        recorder = OutcomeRecorder()
        made = publisher(
            "rabbitmq",
            "amqp://h",
            report=recorder.add,
            on_change=lambda: None,
            options=PublishOptions(),
        )
        one = delivery("a")
        made.publish([one])
        await asyncio.sleep(0)
        outcome = recorder.outcomes[one]
        assert (outcome.verdict, outcome.fault) == (Verdict.REFUSED, Fault.BROKER)
