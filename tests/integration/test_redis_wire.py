"""Our own bytes on redis-py's connections: each reply belongs to its call, come what may."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from multiprocessing.connection import Connection
from urllib.parse import urlsplit

import pytest
import redis
import redis.asyncio
from redis.exceptions import NoScriptError, ResponseError

from delaybridge.redis_wire import AsyncWire, Wire, packed
from tests.integration.proxy import FaultProxy
from tests.servers.process import free_port
from tests.waiting import wait_until_async

TIMEOUT_S = 0.3


def some(*commands: tuple[object, ...]) -> list[bytes]:
    return [packed(*words) for words in commands]


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
        some(
            ("ECHO", large),
            ("EVALSHA", "0" * 40, 0),
            ("CLIENT", "GETNAME"),
            ("INCR", "{no such", "key"),
            ("ECHO", 7),
        )
    )
    assert (found[0], found[2], found[4]) == (large, None, b"7")
    assert isinstance(found[1], NoScriptError)
    assert isinstance(found[3], ResponseError)
    assert await wire.call([]) == []


async def test_calls_at_once_do_not_mix(wire: AsyncWire) -> None:
    async def echo(text: bytes) -> None:
        for _ in range(50):
            assert await wire.call(some(*[("ECHO", text)] * 3)) == [text] * 3

    await asyncio.gather(*(echo(b"%d" % n) for n in range(20)))


async def test_the_reply_of_a_cancelled_call_is_nobody_s(wire: AsyncWire) -> None:
    for _ in range(20):
        commands = some(("BLPOP", "never filled", 0.05), ("ECHO", "a"))
        waiting = asyncio.create_task(wire.call(commands))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await wire.call(some(("ECHO", "b"))) == [b"b"]


async def test_a_call_that_outlives_the_wire_closes_its_connection(
    wire: AsyncWire, proxy: FaultProxy
) -> None:
    waiting = asyncio.create_task(wire.call(some(("BLPOP", "never filled", 0.1), ("ECHO", "a"))))
    await wait_until_async(lambda: proxy.connections == 1, TIMEOUT_S, "it is under way")
    await wire.close()
    assert await waiting == [None, b"a"]
    await wait_until_async(lambda: proxy.connections == 0, TIMEOUT_S, "it is closed")


async def test_no_answer_is_a_time_out_and_what_comes_late_is_nobody_s(wire: AsyncWire) -> None:
    with pytest.raises(redis.TimeoutError):
        await wire.call(some(("BLPOP", "never filled", 2 * TIMEOUT_S)))
    assert await wire.call(some(("ECHO", "b"))) == [b"b"]


async def test_a_connection_that_was_closed_is_not_used_again(
    wire: AsyncWire, redis_url: str
) -> None:
    (number,) = await wire.call(some(("CLIENT", "ID")))
    async with redis.asyncio.Redis.from_url(redis_url) as other:
        await other.client_kill_filter(_id=str(number))
    for _ in range(5):  # the news of it may be on its way
        try:
            (another,) = await wire.call(some(("CLIENT", "ID")))
        except redis.ConnectionError:
            continue
        assert another != number
        return
    pytest.fail("no connection was made anew")


async def test_an_unreachable_server_leaves_nothing_behind() -> None:
    client = redis.asyncio.Redis(port=free_port(), protocol=2)
    wire = AsyncWire(client.connection_pool, TIMEOUT_S)
    with pytest.raises((redis.ConnectionError, OSError)):
        await wire.call(some(("PING",)))
    await wire.close()
    await client.aclose()


# ordinary code


@pytest.fixture
def ordinary(redis_url: str) -> Iterator[Wire]:
    with redis.Redis.from_url(redis_url, protocol=2, socket_timeout=TIMEOUT_S) as client:
        wire = Wire(client.connection_pool)
        yield wire
        wire.close()


def test_ordinary_code(ordinary: Wire) -> None:
    large = b"x" * 2**20
    found = ordinary.call(some(("ECHO", large), ("EVALSHA", "0" * 40, 0), ("ECHO", "b")))
    assert (found[0], found[2]) == (large, b"b")
    assert isinstance(found[1], NoScriptError)
    with pytest.raises(redis.TimeoutError):
        ordinary.call(some(("BLPOP", "never filled", 2 * TIMEOUT_S)))
    assert ordinary.call(some(("ECHO", "c"))) == [b"c"]


def test_threads_do_not_mix(ordinary: Wire) -> None:
    def echo(text: bytes) -> bool:
        return all(ordinary.call(some(("ECHO", text))) == [text] for _ in range(100))

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(echo, [b"%d" % n for n in range(8)]))


def test_a_connection_that_the_server_closed_is_noticed_before_it_is_used(
    ordinary: Wire, redis_url: str
) -> None:
    (number,) = ordinary.call(some(("CLIENT", "ID")))
    with redis.Redis.from_url(redis_url) as other:
        other.client_kill_filter(_id=str(number))
        others = [client["id"] for client in other.client_list()]
        assert str(number) not in others
    (another,) = ordinary.call(some(("CLIENT", "ID")))
    assert another != number


def test_a_process_that_is_forked_has_a_connection_of_its_own(ordinary: Wire) -> None:
    def tell(theirs: Connection) -> None:
        theirs.send([ordinary.call(some(("CLIENT", "ID"))) for _ in range(2)])

    (number,) = ordinary.call(some(("CLIENT", "ID")))
    forking = get_context("fork")
    ours, theirs = forking.Pipe()
    child = forking.Process(target=tell, args=(theirs,))
    child.start()
    assert ours.poll(5)
    one, two = ours.recv()
    child.join()
    assert one == two != [number]
    assert ordinary.call(some(("CLIENT", "ID"))) == [number]


def test_an_unreachable_server_leaves_nothing_behind_of_ordinary_code() -> None:
    client = redis.Redis(port=free_port(), protocol=2)
    with pytest.raises((redis.ConnectionError, OSError)):
        Wire(client.connection_pool).call(some(("PING",)))
