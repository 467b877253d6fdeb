"""Our own bytes on redis-py's connections: each reply belongs to its call, come what may."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pytest
import redis
import redis.asyncio
from redis.exceptions import NoScriptError, ResponseError

from delaybridge.redis_wire import AsyncWire, Wire
from tests.integration.proxy import FaultProxy
from tests.servers.process import free_port
from tests.waiting import wait_until_async

TIMEOUT_S = 0.3


@pytest.fixture
async def proxy(redis_url: str) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(free_port(), urlsplit(redis_url).port or 6379) as proxy:
        yield proxy


@pytest.fixture
async def wire(proxy: FaultProxy) -> AsyncIterator[AsyncWire]:
    client = redis.asyncio.Redis(port=proxy.port, protocol=2)
    wire = AsyncWire(client.connection_pool, TIMEOUT_S)
    yield wire
    await wire.close()
    await client.aclose()


async def test_replies_come_in_order_and_errors_are_values(wire: AsyncWire) -> None:
    large = b"x" * 2**20
    found = await wire.call(
        [
            ("ECHO", large),
            ("EVALSHA", "0" * 40, 0),
            ("CLIENT GETNAME",),
            ("INCR", "{no such", "key"),
            ("ECHO", 7),
        ]
    )
    assert (found[0], found[2], found[4]) == (large, None, b"7")
    assert isinstance(found[1], NoScriptError)
    assert isinstance(found[3], ResponseError)
    assert await wire.call([]) == []


async def test_calls_at_once_do_not_mix(wire: AsyncWire) -> None:
    async def echo(text: bytes) -> None:
        for _ in range(50):
            assert await wire.call([("ECHO", text)] * 3) == [text] * 3

    await asyncio.gather(*(echo(b"%d" % n) for n in range(20)))


async def test_the_reply_of_a_cancelled_call_is_nobody_s(wire: AsyncWire) -> None:
    for _ in range(20):
        waiting = asyncio.create_task(wire.call([("BLPOP", "never filled", 0.05), ("ECHO", "a")]))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await wire.call([("ECHO", "b")]) == [b"b"]


async def test_a_call_that_outlives_the_wire_closes_its_connection(
    wire: AsyncWire, proxy: FaultProxy
) -> None:
    waiting = asyncio.create_task(wire.call([("BLPOP", "never filled", 0.1), ("ECHO", "a")]))
    await wait_until_async(lambda: proxy.connections == 1, TIMEOUT_S, "it is under way")
    await wire.close()
    assert await waiting == [None, b"a"]
    await wait_until_async(lambda: proxy.connections == 0, TIMEOUT_S, "it is closed")


async def test_no_answer_is_a_time_out_and_what_comes_late_is_nobody_s(wire: AsyncWire) -> None:
    with pytest.raises(redis.TimeoutError):
        await wire.call([("BLPOP", "never filled", 2 * TIMEOUT_S)])
    assert await wire.call([("ECHO", "b")]) == [b"b"]


async def test_a_connection_that_was_closed_is_not_used_again(
    wire: AsyncWire, redis_url: str
) -> None:
    (number,) = await wire.call([("CLIENT ID",)])
    async with redis.asyncio.Redis.from_url(redis_url) as other:
        await other.client_kill_filter(_id=str(number))
    for _ in range(5):  # the news of it may be on its way
        try:
            (another,) = await wire.call([("CLIENT ID",)])
        except redis.ConnectionError:
            continue
        assert another != number
        return
    pytest.fail("no connection was made anew")


async def test_an_unreachable_server_leaves_nothing_behind() -> None:
    client = redis.asyncio.Redis(port=free_port(), protocol=2)
    wire = AsyncWire(client.connection_pool, TIMEOUT_S)
    with pytest.raises((redis.ConnectionError, OSError)):
        await wire.call([("PING",)])
    await wire.close()
    await client.aclose()


def test_ordinary_code(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url, protocol=2, socket_timeout=TIMEOUT_S) as client:
        wire = Wire(client.connection_pool)
        found = wire.call([("ECHO", "a"), ("EVALSHA", "0" * 40, 0), ("ECHO", "b")])
        assert (found[0], found[2]) == (b"a", b"b")
        assert isinstance(found[1], NoScriptError)
        with pytest.raises(redis.TimeoutError):
            wire.call([("BLPOP", "never filled", 2 * TIMEOUT_S)])
        assert wire.call([("ECHO", "c")]) == [b"c"]
        assert wire.call([]) == []
