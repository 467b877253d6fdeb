"""The front as a proxy: what other proxies got wrong, with frames as no library sends them."""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Iterator

import pika
import pytest

from delaybridge.amqp.frames import BODY, HEADER, METHOD
from tests.rigs import raw_amqp as amqp
from tests.rigs.bridge import rabbitmq_channel
from tests.rigs.fronts import FakeBroker, Fronting, Pair, read, read_all
from tests.rigs.raw_amqp import Ended, RawClient
from tests.rigs.waiting import until
from tests.servers.process import LOOPBACK

NO_REDIS = "redis://127.0.0.1:1/0"  # none is needed to pass anything on
BOUND = 64 * 2**20  # bytes on the way, of both sockets' buffers and the front's own
GOODBYE = b"\0\xc8" + amqp.short("") + b"\0\0\0\0"


@pytest.fixture(scope="module")
def front(rabbitmq_url: str) -> Iterator[Fronting]:
    """One front for all; at the end none of its clients may be left."""
    with Fronting(NO_REDIS, rabbitmq_url, "front") as front:
        yield front
        until(lambda: front.connections == 0, "no connection is left")
        until(lambda: not front.service._tasks, "no task is left")


@pytest.fixture(scope="module")
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as broker:
        yield broker


@pytest.fixture(scope="module")
def before(broker: FakeBroker) -> Iterator[Fronting]:
    """A front before the fake broker."""
    with Fronting(NO_REDIS, broker.url, "front") as front:
        yield front


@pytest.fixture
def queue(rabbitmq_url: str, namespace: str) -> str:
    with rabbitmq_channel(rabbitmq_url) as channel:
        channel.queue_declare(namespace, durable=True)
    return namespace


def port_of(url: str) -> int:
    return pika.URLParameters(url).port


def heartbeats(client: RawClient, count: int) -> None:
    """Read this many heartbeats, and answer each."""
    for each in client.frames():
        if each.kind == amqp.HEARTBEAT[0]:
            client.sock.sendall(amqp.HEARTBEAT)
            count -= 1
        if not count:
            return


def message(client: RawClient) -> tuple[bytes, list[int]]:
    """The body of the next delivery, and the sizes of its frames."""
    client.wait(amqp.DELIVER)
    frames = client.frames()
    size = struct.unpack(">Q", next(frames).arguments[4:12])[0]
    pieces: list[bytes] = []
    while sum(map(len, pieces)) < size:
        pieces.append(next(frames).arguments)
    return b"".join(pieces), [len(each) for each in pieces]


def test_heartbeats_are_end_to_end_so_a_quiet_consumer_stays_and_a_dead_one_is_closed(
    front: Fronting, queue: str
) -> None:
    with RawClient(front.port) as quiet, RawClient(front.port) as dead:
        for client in (quiet, dead):
            client.open(heartbeat=1).open_channel()
        quiet.consume(1, queue, prefetch=1)
        heartbeats(quiet, 8)  # twice as long as RabbitMQ waits for one
        with pytest.raises(Ended):
            for _ in dead.frames():
                pass
        with amqp.opened(front.port) as client:
            client.sock.sendall(amqp.publish(1, "", queue, b"after all"))
            assert message(quiet)[0] == b"after all"


def test_each_client_has_its_own_frame_size(front: Fronting, queue: str) -> None:
    body = bytes(range(256)) * 1200
    for to, of in ((131_072, 8192), (8192, 131_072)):
        with (
            amqp.opened(front.port, frame_max=to) as publisher,
            amqp.opened(front.port, frame_max=of) as consumer,
        ):
            publisher.sock.sendall(amqp.publish(1, "", queue, body, frame_max=to))
            consumer.send(1, amqp.CONSUME, b"\0\0" + amqp.short(queue) + b"\0\2" + amqp.table())
            received, sizes = message(consumer)
            assert received == body
            assert max(sizes) <= of - 8


def test_every_publish_is_confirmed_wherever_the_stream_is_cut(front: Fronting, queue: str) -> None:
    channels, each = (1, 2, 3), 40
    with RawClient(front.port) as client:
        client.open()
        for channel in channels:
            client.open_channel(channel, confirms=True)
        data = b"".join(
            amqp.publish(channel, "", queue, b"x" * number)
            for number in range(each)
            for channel in channels
        )
        for at in range(0, len(data), 7):
            client.sock.sendall(data[at : at + 7])
        confirmed = dict.fromkeys(channels, 0)
        while set(confirmed.values()) != {each}:
            ack = client.wait(amqp.ACK, amqp.CHANNEL_CLOSE)
            assert ack.id == amqp.ACK
            tag = struct.unpack(">Q", ack.arguments[:8])[0]
            confirmed[ack.channel] = max(confirmed[ack.channel], tag)


def test_when_one_side_closes_so_does_the_other_after_all_that_was_sent(
    before: Fronting, broker: FakeBroker
) -> None:
    sent = amqp.frame(BODY, 1, b"x" * 500_000) * 2
    sent = sent[: len(sent) - 9]  # the last frame is cut off
    for closes in ("client", "broker"):
        with Pair(before, broker) as pair:
            one, other = pair.client, pair.broker
            if closes == "broker":
                one, other = other, one
            one.sendall(sent)
            one.close()
            assert read_all(other) == sent
    with Pair(before, broker) as pair:  # a broker that was killed
        pair.broker.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        pair.broker.close()
        assert read_all(pair.client) == b""
    until(lambda: before.connections == 0, "no connection is left")


def fill(sock: socket.socket, data: bytes, most: int) -> int:
    """Send these bytes again and again, until the other side takes no more; how many it took."""
    sock.setblocking(False)
    sent = 0
    while sent < most and select.select([], [sock], [], 0.5)[1]:
        sent += sock.send(data[sent % len(data) :])
    sock.settimeout(60)
    return sent


def test_a_reader_that_stands_still_costs_bounded_memory_and_both_may_at_once(
    before: Fronting, broker: FakeBroker
) -> None:
    data = b"".join(amqp.frame(BODY, channel, bytes([channel]) * 4000) for channel in range(256))
    with Pair(before, broker) as pair:
        up = fill(pair.client, data, 4 * BOUND)
        down = fill(pair.broker, data, 4 * BOUND)
        assert max(up, down) < BOUND
        with Pair(before, broker) as another:  # nobody else is held up
            another.client.sendall(amqp.HEARTBEAT)
            assert read(another.broker, 8) == amqp.HEARTBEAT
        for sock, sent in ((pair.client, down), (pair.broker, up)):
            assert read(sock, sent) == (data * (sent // len(data) + 1))[:sent]


def test_a_close_in_the_middle_of_a_publish_is_answered_and_no_message_comes_of_it(
    front: Fronting, queue: str
) -> None:
    whole = amqp.publish(1, "", queue, b"y" * 10_000, frame_max=4096)
    for cut in (len(whole) // 2, whole.index(b"\xce") + 1, 30):
        with amqp.opened(front.port) as client:  # its socket is closed
            client.sock.sendall(whole[:cut])
    with amqp.opened(front.port) as client:  # after a whole frame: a close is allowed
        client.sock.sendall(whole[: whole.index(b"\xce") + 1])
        assert client.call(0, amqp.CLOSE, GOODBYE).id == amqp.CLOSE_OK
    with amqp.opened(front.port) as client:  # its channel is closed: not allowed there
        client.sock.sendall(whole[: whole.index(b"\xce") + 1])
        assert client.call(1, amqp.CHANNEL_CLOSE, GOODBYE).code == 505
    with amqp.opened(front.port) as client:
        client.sock.sendall(amqp.publish(1, "", queue, b"whole"))
        client.consume(1, queue, prefetch=9)
        assert message(client)[0] == b"whole"


def content(flags: bytes, size: int = 1) -> bytes:
    start = amqp.method(1, amqp.PUBLISH, b"\0\0" + amqp.short("") + amqp.short("nowhere") + b"\0")
    return start + amqp.frame(HEADER, 1, struct.pack(">HHQ", 60, 0, size) + flags)


MALFORMED = {
    "flags without an end": content(b"\xff" * 400) + amqp.frame(BODY, 1, b"x"),
    "flags that say more than there is": content(b"\xff\xfe") + amqp.frame(BODY, 1, b"x"),
    "a header without its method": amqp.frame(HEADER, 1, b"\0\x3c" + bytes(12)),
    "a body without its header": amqp.frame(BODY, 1, b"x"),
    "a body that is too long": content(b"\0\0") + amqp.frame(BODY, 1, b"xyz"),
    "a method in the middle of a content": content(b"\0\0") + amqp.method(1, amqp.CONFIRM, b"\0"),
    "another end of a frame": amqp.frame(BODY, 1, b"x")[:-1] + b"\xcd",
    "a frame of no kind": amqp.frame(9, 1, b"x"),
    "a method of no class": amqp.method(1, (99, 1)),
    "a method without an id": amqp.frame(METHOD, 1, b"\0\x28"),
    "an empty method": amqp.frame(METHOD, 1, b""),
    "a frame of 4 GiB": b"\x01\0\1\xff\xff\xff\xff\0\x28\0\x0a",
    "a declare that is cut off": amqp.method(1, amqp.DECLARE, b"\0\0\x40x"),
    "a declare with a table that is cut off": amqp.method(
        1, amqp.DECLARE, b"\0\0\1x" + amqp.short("x-delayed-message") + b"\2\0\0\0\x40\x0e"
    ),
    "a bind that is cut off": amqp.method(1, amqp.QUEUE_BIND, b"\0\0\1q\xff"),
    "a delete that is cut off": amqp.method(1, (40, 20), b"\0"),
    "a name that is no text": amqp.method(1, amqp.QUEUE_BIND, b"\0\0\1q\1\xff\0\0\0\0\0\0"),
    "a method on a channel that is not open": amqp.method(7, amqp.DECLARE, amqp.declare("x", "y")),
    "garbage": bytes(range(256)) * 8,
}  # fmt: skip


def answer(port: int, data: bytes) -> object:
    """What comes for this: a close, its code and the start of its text, or nothing."""
    with amqp.opened(port) as client:
        client.sock.sendall(data + amqp.method(2, amqp.CHANNEL_OPEN, b"\0"))
        try:
            for each in client.frames():
                if each.id in (amqp.CLOSE, amqp.CHANNEL_CLOSE):
                    return each.id, each.code, each.text[:12]
                if each.id == (20, 11):
                    return "accepted"
        except OSError:
            return "the end"
    raise AssertionError("unreachable")


def test_malformed_frames_are_answered_as_by_the_broker_and_end_nothing_else(
    front: Fronting, rabbitmq_url: str
) -> None:
    with amqp.opened(front.port) as bystander:
        differ = {}
        for name, data in MALFORMED.items():
            direct, passed = answer(port_of(rabbitmq_url), data), answer(front.port, data)
            if direct != passed:
                differ[name] = direct, passed
        assert differ == {}
        assert bystander.call(1, amqp.CONFIRM, b"\0").id == (85, 11)


@pytest.mark.parametrize("first", [b"AMQP\0\1\0\0", b"AMQP\3\1\0\0", b"GET / HTTP/1.1\r\n"])
def test_another_protocol_gets_the_header_of_amqp_0_9_1_as_from_a_broker(
    front: Fronting, first: bytes
) -> None:
    with socket.create_connection((LOOPBACK, front.port), timeout=60) as sock:
        sock.sendall(first)
        assert read_all(sock) == amqp.PROTOCOL


def test_another_protocol_may_be_passed_on_unread(broker: FakeBroker) -> None:
    with (
        Fronting(NO_REDIS, broker.url, "front", other_protocols="pass") as front,
        socket.create_connection((LOOPBACK, front.port), timeout=60) as sock,
    ):
        sent = b"AMQP\3\1\0\0" + bytes(range(256))
        sock.sendall(sent)
        other = broker.accept()
        assert read(other, len(sent)) == sent
        other.sendall(sent[::-1])
        assert read(sock, len(sent)) == sent[::-1]
