"""A connection to Redis on uvloop: a write after its end is a lost connection, nothing worse."""

from __future__ import annotations

import asyncio
import gc
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from delaybridge.errors import DelayBridgeError, StoreUnavailable
from delaybridge.store.protocol.verbs import plain
from delaybridge.store.redis.async_wire import StreamConnection
from delaybridge.store.redis.store import AsyncStore
from delaybridge.worker.service import loop_factory

PING = b"*1\r\n$4\r\nPING\r\n"


class Transport(asyncio.Transport):
    """One whose server answers nothing by itself. is_lost: as uvloop's, once it is closed."""

    def __init__(self, *, is_lost: bool = False) -> None:
        super().__init__()
        self.is_lost = is_lost

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Of the connection, which reads no bytes by itself."""
        self.protocol: Any = protocol

    def is_closing(self) -> bool:
        return self.is_lost

    def write(self, data: Any) -> None:
        if self.is_lost:  # asyncio's would drop the bytes
            raise closed()


def connected(transport: Transport) -> StreamConnection:
    made: Any = redis.asyncio.Connection()
    made._reader, made._writer = asyncio.StreamReader(), SimpleNamespace(transport=transport)
    return StreamConnection(made, 60.0, 0)


def closed() -> RuntimeError:
    return RuntimeError("unable to perform operation on <TCPTransport closed=True>")


async def test_a_write_to_a_closed_connection_is_a_lost_connection() -> None:
    with pytest.raises(redis.ConnectionError):
        await connected(Transport(is_lost=True)).call([PING])


async def test_a_call_has_its_answer_though_nothing_else_holds_its_task() -> None:
    transport, found = Transport(), list[Any]()

    async def call() -> None:
        found.extend(await connected(transport).call([PING]))

    asyncio.create_task(call())
    await asyncio.sleep(0)
    gc.collect()
    transport.protocol.data_received(b"+PONG\r\n")
    await asyncio.sleep(0)
    assert found == [b"PONG"]


async def test_replies_come_in_pieces_and_what_comes_unasked_ends_a_connection() -> None:
    connection = connected(Transport())
    call = asyncio.create_task(connection.call([PING, PING]))
    for piece in (b"+PO", b"NG\r\n", b"+ONE\r\n"):
        await asyncio.sleep(0)
        assert not call.done()
        connection.take_bytes(piece)
    assert await call == [b"PONG", b"ONE"]
    assert connection.is_open
    connection.take_bytes(b"-ERR of no call\r\n")
    assert not connection.is_open
    with pytest.raises(redis.ConnectionError):
        await connection.call([PING])


async def test_bytes_that_come_meanwhile_prolong_the_wait_and_silence_ends_it() -> None:
    connection = connected(Transport())
    with pytest.raises(redis.TimeoutError, match=r"no answer within 0\.001 s"):
        await connection.call([PING], 0.001)
    connection = connected(Transport())
    call = asyncio.create_task(connection.call([PING, PING], 60))
    await asyncio.sleep(0)
    connection._until_s = 0.0
    connection.take_bytes(b"+PONG\r\n")
    connection.check_time()  # too early: it waits for the rest
    connection.take_bytes(b"+PONG\r\n")
    assert len(await call) == 2
    call = asyncio.create_task(connection.call([PING]))
    await asyncio.sleep(0)
    connection.note_loss(ConnectionResetError("reset"))
    with pytest.raises(ConnectionResetError):
        await call
    assert not connection.is_open


def test_a_call_goes_on_though_the_time_of_an_earlier_one_is_up_this_moment() -> None:
    async def expect() -> None:
        connection = connected(Transport())
        connection._expect_by(0.0)  # uvloop's handle for it does not tell its time
        connection._expect_by(60.0)
        connection.note_loss(None)

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(expect())


@pytest.fixture
def closes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers accept a connection, and reset it before the handshake is written."""

    async def connect(self: redis.asyncio.Connection) -> None:
        raise closed()

    monkeypatch.setattr(redis.asyncio.Connection, "connect", connect)


@pytest.mark.usefixtures("closes_at_once")
async def test_a_connection_that_is_closed_during_its_handshake_is_a_lost_connection() -> None:
    store = AsyncStore("redis://127.0.0.1", timeout_s=0.1)
    with pytest.raises(StoreUnavailable):
        await store.run([plain("PING", parse=str)])


@pytest.mark.usefixtures("closes_at_once")
async def test_a_subscription_that_is_closed_while_it_is_made_is_made_again() -> None:
    failures: asyncio.Queue[DelayBridgeError] = asyncio.Queue()

    async def listen() -> None:
        async for _ in AsyncStore("redis://127.0.0.1").listen("channel", failures.put_nowait):
            pass

    listening = asyncio.create_task(listen())
    failure = asyncio.create_task(failures.get())
    await asyncio.wait([listening, failure], return_when=asyncio.FIRST_COMPLETED)
    assert not listening.done()
    assert isinstance(failure.result(), StoreUnavailable)
    listening.cancel()
