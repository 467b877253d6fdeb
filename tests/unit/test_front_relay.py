"""What a front changes in a stream is the same wherever the network cuts it."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Coroutine, Sequence
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from delaybridge.amqp.walker import Method
from delaybridge.front import methods
from delaybridge.front.counts import FrontCounts
from delaybridge.front.link import Refused
from delaybridge.front.relay import Relay
from delaybridge.settings.entrances import FrontSettings
from tests.rigs.waiting import until_async

CUTS = st.lists(st.integers(0, 60) | st.integers(0, 9000))
HEADER = struct.pack(">HHQH", 60, 0, 5000, 0)


class Socket:
    """A transport that keeps what is written to it."""

    def __init__(self) -> None:
        self.written, self.is_closed = b"", False

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.is_closed

    def pause_reading(self) -> None:
        """Nothing reads."""

    resume_reading = pause_reading


class Known:
    """The front's side of a vhost that knows one exchange."""

    names = {b"orders.due": b"orders"}

    def is_known(self, due: bytes) -> bool:
        return not due.startswith(b"asked")

    async def prepare(self, *_: Any) -> None:
        """The broker does not answer."""
        await asyncio.Event().wait()

    name_of = prepare


class Service:
    """What a relay is given by the service."""

    def __init__(self) -> None:
        self.settings, self.counts = FrontSettings(), FrontCounts(lambda _: None)
        self.vhosts = {"own": Known()}

    def begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return asyncio.create_task(work)

    def ended(self, _: Relay) -> None:
        """Nothing is kept of it."""


def relay() -> tuple[Relay, Socket, Socket]:
    """A relay with its sockets to the client and to the broker, past its handshake."""
    made = Relay(cast(Any, Service()), ("127.0.0.1", 1))
    made.exchanges.vhost, made.shown.state = cast(Any, Known()), "running"
    client, broker = Socket(), Socket()
    made.client.transport, made.broker.transport = client, broker
    return made, client, broker


def refused() -> tuple[Relay, Socket, bytes]:
    """A relay that has refused a method on channel 1, its broker's socket, and what that got."""
    made, _, broker = relay()
    made.channels.refuse(Method(1, methods.DECLARE, b"", b""), Refused(406, "no"))
    return made, broker, broker.written


def published(channel: int) -> bytes:
    """A message of two bodies, as a client sends it."""
    return methods.frame(channel, b"\x00\x3c\x00\x28", bytes(5)) + content(channel)


def delivery(exchange: bytes) -> bytes:
    """A message of two bodies, as a broker sends it."""
    start = b"\x08consumer" + struct.pack(">QB", 1, 0)
    name = bytes([len(exchange)]) + exchange
    return methods.frame(1, methods.DELIVER, start + name + b"\x0aorders.due") + content(1)


def content(channel: int) -> bytes:
    """A message's header and two bodies."""
    parts = (2, HEADER), (3, b"orders.due" * 50), (3, b"x" * 4500)
    return b"".join(
        struct.pack(">BHI", kind, channel, len(each)) + each + b"\xce" for kind, each in parts
    )


def cut(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    """The data in parts of these sizes, the rest at once."""
    parts = []
    for size in [*cuts, len(data)]:
        parts.append(data[:size])
        data = data[size:]
    return [part for part in parts if part]


@given(st.lists(st.sampled_from([b"orders.due", b"other.due", b"plain"]), max_size=5), CUTS)
def test_each_delivery_has_the_name_that_the_client_knows(
    exchanges: list[bytes], cuts: list[int]
) -> None:
    made, client, _ = relay()
    for part in cut(b"".join(map(delivery, exchanges)), cuts):
        made.broker.data_received(part)
    known = [Known.names.get(each, each) for each in exchanges]
    assert client.written == b"".join(map(delivery, known))


def test_a_delivery_that_is_cut_before_its_exchange_is_renamed() -> None:
    whole = delivery(b"orders.due")
    for at in range(1, 100):
        made, client, _ = relay()
        made.broker.data_received(whole[:at])
        made.broker.data_received(whole[at:])
        assert client.written == delivery(b"orders"), at


@given(CUTS)
def test_what_follows_on_a_refused_channel_is_dropped_until_it_is_closed(cuts: list[int]) -> None:
    made, broker, asked = refused()
    publish, other = published(1), published(2)
    closed = methods.frame(1, methods.CHANNEL_CLOSE_OK, b"")
    opened = methods.frame(1, methods.CHANNEL_OPEN, b"\0")
    for part in cut(publish + other + closed + opened + publish, cuts):
        made.client.data_received(part)
    assert broker.written == asked + other + opened + publish


@given(CUTS)
def test_what_the_front_inserts_comes_between_two_messages(cuts: list[int]) -> None:
    made, broker, asked = refused()
    dropped, other = published(1), published(2)
    inserted = methods.frame(1, methods.CHANNEL_CLOSE_OK, b"")
    made.client.data_received(other[:100])
    made.client.inject(inserted)
    for part in cut(other[100:] + dropped + other, cuts):
        made.client.data_received(part)
    assert broker.written == asked + other + inserted + other


def opened(vhost: bytes) -> bytes:
    return methods.frame(0, methods.OPEN, bytes([len(vhost)]) + vhost + b"\0\0")


async def test_the_front_does_nothing_for_a_client_that_the_broker_has_not_let_in() -> None:
    """Whatever it sends before: its login may be wrong, and the front has rights of its own."""
    declared = methods.declare(1, b"orders", methods.DELAYED_TYPE, 2, bytes(4))
    made, client, broker = relay()
    made.exchanges.vhost, made.shown.state = None, "opening"
    made.client.data_received(opened(b"/") + declared)
    assert broker.is_closed and client.is_closed and b"orders" not in broker.written
    assert not made.client.is_held

    made, _, _ = relay()
    made.exchanges.vhost, made.shown.state = None, "opening"
    made.client.data_received(opened(b"own") + opened(b"other"))
    made.broker.data_received(methods.frame(0, methods.OPEN_OK, b"\0"))
    assert made.shown.vhost == "own"
    made.client.data_received(declared)
    assert made.client.is_held


async def test_what_waits_is_dropped_when_the_broker_is_gone() -> None:
    declared = methods.declare(1, b"orders", methods.DELAYED_TYPE, 2, bytes(4))
    made, _, broker = relay()
    made.client.data_received(declared * 2)
    assert made.client.is_held
    broker.close()
    made.client.release()
    assert not made.client.is_held


async def test_a_refusal_lets_no_delivery_pass_whose_name_is_asked() -> None:
    made, client, _ = relay()
    made.client.data_received(methods.declare(1, b"new", methods.DELAYED_TYPE, 2, bytes(4)))
    made.broker.data_received(delivery(b"asked.due"))
    assert made.broker.is_held

    async def refusing() -> Method:
        raise Refused(406, "no")

    await made.exchanges._end(Method(1, methods.DECLARE, b"", b""), b"new", refusing())
    assert made.broker.is_held and not client.written


async def test_a_client_that_waits_is_disconnected_when_the_broker_closes_the_connection() -> None:
    made, client, broker = relay()
    made.exchanges._hold("declare", b"d", Method(1, methods.DECLARE, b"", b""), _ask(made))
    made.client.hold()
    close = methods.close(0, 320, "CONNECTION_FORCED")
    made.broker.data_received(close)
    await until_async(lambda: client.is_closed and broker.is_closed, "both are closed")
    assert client.written == close and not made.client.is_held


async def _ask(made: Relay) -> Method:
    return await made.exchanges._ask(b"declare")
