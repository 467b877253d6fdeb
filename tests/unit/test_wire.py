"""A wire to a server that is replaced while a connection to it opens; forks; listening."""

from __future__ import annotations

import asyncio
import os
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from delaybridge.store.redis.async_wire import AsyncWire
from delaybridge.store.redis.store import AsyncStore
from delaybridge.store.redis.wire import Wire
from tests.rigs.waiting import PATIENCE_S


class FakeConnection:
    """redis-py's, which opens at once; what happens meanwhile is `meanwhile`. sent: all bytes."""

    def __init__(self, sent: list[bytes], meanwhile: Any, **_: Any) -> None:
        self._sent, self._meanwhile = sent, meanwhile
        self._parser = SimpleNamespace(parse_error=redis.ResponseError)
        self._reader, self._protocol = asyncio.StreamReader(), asyncio.Protocol()
        self._writer = SimpleNamespace(transport=self)

    def set_protocol(self, protocol: asyncio.Protocol) -> None:
        self._protocol = protocol

    def write(self, data: bytes) -> None:
        self._sent.append(data)
        self._protocol.data_received(b"+OK\r\n")

    def abort(self) -> None:
        self._sent.append(b"closed")

    def is_closing(self) -> bool:
        return False

    async def connect(self) -> None:
        self._meanwhile()


def a_wire(sent: list[bytes]) -> tuple[AsyncWire, list[Any]]:
    """A wire, and what is called while it opens a connection."""
    meanwhile: list[Any] = []
    options = {"sent": sent, "meanwhile": lambda: [each() for each in meanwhile]}
    pool = SimpleNamespace(max_connections=1, connection_class=FakeConnection)
    pool.connection_kwargs = options
    return AsyncWire(pool, PATIENCE_S), meanwhile


async def test_nothing_is_sent_to_a_server_that_was_replaced_while_a_connection_opened() -> None:
    sent: list[bytes] = []
    wire, meanwhile = a_wire(sent)
    meanwhile.append(lambda: wire.move_to("127.0.0.1", 2))
    with pytest.raises(redis.ConnectionError, match="replaced"):
        await wire.call([b"PING"])
    assert sent == [b"closed"]
    assert wire.waiting_s() == 0.0
    meanwhile.clear()
    assert await wire.call([b"PING"]) == [b"OK"]


async def test_a_connection_that_opens_while_idle_ones_are_closed_is_used() -> None:
    sent: list[bytes] = []
    wire, meanwhile = a_wire(sent)
    meanwhile.append(lambda: wire._connections.close_idle())
    assert await wire.call([b"PING"]) == [b"OK"]
    assert sent == [b"PING", b"closed"]  # but not again: it may lead to where they led


async def test_a_wire_to_a_former_master_keeps_no_connection() -> None:
    sent: list[bytes] = []
    wire, _ = a_wire(sent)
    wire.retire()
    assert await wire.call([b"PING"]) == [b"OK"]  # it was on its way when the masters changed
    assert sent == [b"PING", b"closed"]


def test_a_forked_process_uses_no_connection_of_its_parent(monkeypatch: Any) -> None:
    """Another thread may call while the first one makes the wire anew."""
    seen: list[bool] = []

    class Forked(Wire):
        def _slots(self, count: int) -> Any:
            seen.append(getattr(self, "_pid", None) == os.getpid())
            return super()._slots(count)

    wire = Forked(SimpleNamespace(max_connections=1), 1.0)
    parent = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: parent + 1)
    wire._begin()
    assert seen == [False, False]


async def test_nobody_listens_to_no_channels() -> None:
    """A node of a Cluster may have given all buckets away, and is still a master."""
    store = AsyncStore("redis://127.0.0.1:1/0")
    assert [text async for text in store.listen_sharded("", [])] == []
    await store.close()
