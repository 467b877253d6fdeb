"""A connection to Redis on uvloop: a write after its end is a lost connection, nothing worse."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis

from delaybridge.errors import DelayBridgeError, StoreUnavailable
from delaybridge.store.protocol.verbs import plain
from delaybridge.store.redis.async_wire import StreamConnection
from delaybridge.store.redis.store import AsyncStore


class ClosedWriter:
    """uvloop's, once the transport is closed; asyncio's would drop the bytes."""

    def write(self, data: bytes) -> None:
        raise closed()


def closed() -> RuntimeError:
    return RuntimeError("unable to perform operation on <TCPTransport closed=True>")


async def test_a_write_to_a_closed_connection_is_a_lost_connection() -> None:
    made: Any = redis.asyncio.Connection()
    made._reader, made._writer = asyncio.StreamReader(), ClosedWriter()
    with pytest.raises(redis.ConnectionError):
        await StreamConnection(made, 1.0, 0).call([b"*1\r\n$4\r\nPING\r\n"])


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
