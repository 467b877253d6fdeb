"""A stream of deliveries: read wherever it is cut, and each message acknowledged once."""

from __future__ import annotations

import struct

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace

from delaybridge.amqp.walker import FrameReader
from delaybridge.ingest.entries import Quarantine
from delaybridge.ingest.rabbitmq.channel import Tags
from delaybridge.ingest.rabbitmq.connection import Deliveries, IntakeConnection, size_of
from delaybridge.ingest.rabbitmq.messages import RawMessage
from tests.rigs.raw_messages import STAMP, delivered, reader

# deliveries in pieces


def frames(message: RawMessage, sizes: list[int]) -> list[tuple[int, bytes]]:
    """A delivery as frames, its body cut into pieces of these sizes."""
    consumer, exchange, key = (
        bytes([len(name)]) + name for name in (b"ctag1.x", b"x.delay", message.routing_key)
    )
    tag = struct.pack(">QB", message.tag, message.redelivered)
    method = b"\x00\x3c\x00\x3c" + consumer + tag + exchange + key
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
                deliveries.method(payload[4:])
            else:
                take = deliveries.header if kind == 2 else deliveries.body
                counted += take(payload)
    assert deliveries.messages == sent
    assert deliveries.size == counted == sum(map(size_of, sent))
    assert len(arrivals) == 1, "the waiting task is told once, and takes all"


class Stream(IntakeConnection):
    """Only the reading part of a connection. passed: the frames for pika."""

    LEARN_MESSAGES = 1

    def __init__(self, channel: int, deliveries: Deliveries) -> None:
        self._deliveries, self._window_bytes, self.held_bytes = {channel: deliveries}, 10**9, 0
        self._is_paused, self._unread, self.bytes_received = False, b"", 0
        self._reader = FrameReader(self._pass_to_pika, self._take)
        self.passed: list[bytes] = []

    def _pass_to_pika(self, data: bytes) -> None:
        self.passed.append(data)

    def feed(self, stream: bytes, cuts: list[int]) -> None:
        at = 0
        for cut in [*cuts, len(stream)]:
            self._on_data_available(stream[at : at + cut])
            at += cut


def on_the_wire(messages: list[RawMessage], frame: int = 131_064) -> bytes:
    """Messages as channel 7 delivers them, their bodies in frames of at most so many bytes."""
    return b"".join(
        struct.pack(">BHI", kind, 7, len(payload)) + payload + b"\xce"
        for message in messages
        for kind, payload in frames(message, [frame] * (len(message.body) // frame))
    )


def cut(messages: list[RawMessage]) -> list[RawMessage]:
    """The messages without the shapes in which they came."""
    return [replace(message, shape=None) for message in messages]


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
        stream += on_the_wire([message], frame)
    deliveries = Deliveries(lambda: None)
    connection = Stream(7, deliveries)
    connection.feed(stream, cuts)
    assert cut(deliveries.messages) == sent
    assert b"".join(connection.passed) == b"".join(other)
    assert connection.bytes_received + sum(map(len, other)) == len(stream)
    assert connection.held_bytes == deliveries.size == sum(map(size_of, sent))


HEADERS = st.sampled_from([{"x-delay": 5}, {"x-delay": 6}, {"x-delay": 5, "n": 1}, None, {}])
PROPERTIES = st.sampled_from(
    [{}, {"delivery_mode": 2}, {"priority": 3}, {"correlation_id": "c"}, {"content_type": "text"}]
)
MESSAGES = st.builds(
    lambda headers, properties, id, **more: delivered(headers, **properties, **id, **more),
    *(HEADERS, PROPERTIES),
    st.sampled_from([{}, *({"message_id": id} for id in ("m", "order-17", "a b", "", "i" * 101))]),
    body=st.sampled_from([b"", b"body", b"b" * 300]),
    key=st.sampled_from([b"k", b"some.key", b"\xff"]),
    redelivered=st.sampled_from([False, False, True]),
)


@given(
    st.lists(st.tuples(MESSAGES, st.integers(1, 5)), max_size=6),
    st.lists(st.integers(1, 900)),
    st.integers(1, 3),
)
def test_messages_that_look_alike_are_read_as_if_each_came_alone(
    runs: list[tuple[RawMessage, int]], cuts: list[int], learn: int
) -> None:
    sent = [message for message, times in runs for _ in range(times)]
    sent = [replace(message, tag=tag) for tag, message in enumerate(sent, 1)]
    deliveries = Deliveries(lambda: None)
    connection = Stream(7, deliveries)
    connection.LEARN_MESSAGES = learn
    connection.feed(on_the_wire(sent), cuts)
    assert cut(deliveries.messages) == sent
    quick, careful = reader(), reader()
    for message in deliveries.messages:
        found = (
            quick.read(message, STAMP, "drawn"),
            careful.read_carefully(replace(message, shape=None), STAMP, "drawn"),
        )
        is_random = isinstance(found[0], Quarantine) and not found[0].own_id
        one, other = (replace(each, id="") if is_random else each for each in found)
        assert one == other


def test_what_arrives_looking_alike_is_cut_by_its_shape() -> None:
    sent = [delivered({"x-delay": 5}, b"b" * n, message_id="i" * n) for n in (3, 1, 2)]
    odd = delivered({"x-delay": 5}, key=b"other", message_id="m")
    deliveries = Deliveries(lambda: None)
    connection = Stream(7, deliveries)
    connection.feed(on_the_wire([*sent, odd, *sent]), [])
    alike = [message.shape is not None for message in deliveries.messages]
    assert alike == [False, True, True, False, False, True, True]
    connection.take_deliveries(7, deliveries)  # perhaps for another reader
    connection.feed(on_the_wire(sent), [])
    before, first, second = [message.shape for message in deliveries.messages[-4:-1]]
    assert before is not None and first is None and second is not before


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
            self.tags.done([tag])
        self.acknowledge()

    @rule()
    def acknowledge(self) -> None:
        upto, single = self.tags.take_tags(min(self.open, default=None), self.MOST)
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
TestAcknowledging.settings = settings(stateful_step_count=25, deadline=None)


def test_a_slow_message_does_not_hold_up_later_acknowledgements() -> None:
    tags = Tags()
    for tag in (2, 3, 4):
        tags.done([tag])
    assert tags.take_tags(1, 4) == (0, [])
    assert tags.take_tags(1, 3) == (0, [2, 3, 4])
    tags.done([1])
    assert tags.take_tags(None, 3) == (1, []), "the others are acknowledged already"
    tags.done([5])
    assert tags.take_tags(None, 3) == (5, [])
    assert tags.take_tags(None, 3) == (0, [])
