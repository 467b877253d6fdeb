"""Calls on connections taken from redis-py: in any trouble, each reply reaches its own call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis
import redis.asyncio
from redis.exceptions import NoScriptError, OutOfMemoryError, ResponseError

from delaybridge import Client
from delaybridge.errors import StoreUnavailable
from delaybridge.store.protocol.scripts import packed
from delaybridge.store.redis.async_wire import AsyncWire
from delaybridge.store.redis.errors import NotNow, WrongServer
from delaybridge.store.redis.wire import Wire
from tests.rigs.fault_proxy import FaultProxy
from tests.rigs.waiting import DEADLINE_S, until, until_async
from tests.servers.process import free_port

TIMEOUT_S = 0.1  # of a call to which no answer comes


def some(*commands: tuple[object, ...]) -> list[bytes]:
    return [packed(*words) for words in commands]


ID = some(("CLIENT", "ID"))
UNANSWERED = some(("BLPOP", "never filled", 60))


@pytest.fixture
async def proxy(redis_url: str) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(free_port(), urlsplit(redis_url).port or 6379) as proxy:
        yield proxy


@pytest.fixture
async def wire(proxy: FaultProxy) -> AsyncIterator[AsyncWire]:
    client = redis.asyncio.Redis(port=proxy.port, protocol=2)
    wire = AsyncWire(client.connection_pool, DEADLINE_S)
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


async def test_the_reply_to_a_cancelled_call_goes_to_no_other_call(wire: AsyncWire) -> None:
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
    await until_async(lambda: proxy.connections == 1, "it is under way")
    await wire.close()
    assert await waiting == [None, b"a"]
    await until_async(lambda: proxy.connections == 0, "it is closed")


async def test_a_missing_answer_is_a_time_out_and_a_late_one_goes_to_no_other_call(
    wire: AsyncWire,
) -> None:
    with pytest.raises(redis.TimeoutError):
        await wire.call(UNANSWERED, TIMEOUT_S)
    assert await wire.call(some(("ECHO", "b"))) == [b"b"]


async def test_a_connection_that_was_closed_is_not_used_again(
    wire: AsyncWire, redis_url: str
) -> None:
    (number,) = await wire.call(some(("CLIENT", "ID")))
    async with redis.asyncio.Redis.from_url(redis_url) as other:
        await other.client_kill_filter(_id=str(number))
    for _ in range(5):  # the close may not have arrived yet
        try:
            (another,) = await wire.call(some(("CLIENT", "ID")))
        except redis.ConnectionError:
            continue
        assert another != number
        return
    pytest.fail("no new connection was made")


# the synchronous wire


@pytest.fixture
def ordinary(redis_url: str) -> Iterator[Wire]:
    with redis.Redis.from_url(redis_url, protocol=2) as client:
        wire = Wire(client.connection_pool, DEADLINE_S)
        yield wire
        wire.close()


def test_a_synchronous_wire_does_the_same(ordinary: Wire) -> None:
    large = b"x" * 2**20
    found = ordinary.call(some(("ECHO", large), ("EVALSHA", "0" * 40, 0), ("ECHO", "b")))
    assert (found[0], found[2]) == (large, b"b")
    assert isinstance(found[1], NoScriptError)
    with pytest.raises(redis.TimeoutError):
        list(ordinary.replies(UNANSWERED, TIMEOUT_S))
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


def test_a_forked_process_opens_its_own_connection(ordinary: Wire) -> None:
    def tell(theirs: Connection) -> None:
        theirs.send([ordinary.call(some(("CLIENT", "ID"))) for _ in range(2)])

    (number,) = ordinary.call(some(("CLIENT", "ID")))
    forking = get_context("fork")
    ours, theirs = forking.Pipe()
    child = forking.Process(target=tell, args=(theirs,))
    child.start()
    assert ours.poll(DEADLINE_S)
    one, two = ours.recv()
    child.join()
    assert one == two != [number]
    assert ordinary.call(some(("CLIENT", "ID"))) == [number]


# connections are bounded; further calls wait


def test_a_thread_waits_for_a_connection_no_longer_than_for_an_answer(redis_url: str) -> None:
    with redis.Redis.from_url(f"{redis_url}?max_connections=1", protocol=2) as client:
        wire = Wire(client.connection_pool, TIMEOUT_S)
        with ThreadPoolExecutor(1) as thread:
            busy = thread.submit(lambda: list(wire.replies(some(("BLPOP", "f", "60")), 60.0)))
            until(lambda: wire._free.empty(), "it is under way")
            with pytest.raises(redis.TimeoutError, match="no connection became free"):
                wire.call(some(("ECHO", "b")))
            client.rpush("f", "filled")
            assert busy.result() == [[b"f", b"filled"]]
        with pytest.raises(redis.TimeoutError, match="no answer"):
            wire.call(UNANSWERED)
        assert list(wire.replies(some(("ECHO", "b")), DEADLINE_S)) == [b"b"]
        wire.close()


async def test_a_task_waits_for_a_connection_no_longer_than_for_an_answer(redis_url: str) -> None:
    url = f"{redis_url}?max_connections=1"
    async with redis.asyncio.Redis.from_url(url, protocol=2) as client:
        wire = AsyncWire(client.connection_pool, TIMEOUT_S)
        busy = asyncio.create_task(wire.call(some(("BLPOP", "f", 60)), DEADLINE_S))
        await asyncio.sleep(0)
        given_up = asyncio.create_task(wire.call(some(("ECHO", "a"))))
        await asyncio.sleep(0)
        given_up.cancel()
        with pytest.raises(redis.TimeoutError, match="no connection became free"):
            await wire.call(some(("ECHO", "b")))
        await client.rpush("f", "filled")
        assert await busy == [[b"f", b"filled"]]
        with pytest.raises(redis.TimeoutError, match="no answer"):
            await wire.call(UNANSWERED)
        assert await wire.call(some(("ECHO", "b")), DEADLINE_S) == [b"b"]
        await wire.close()


# a server that is the wrong one, or refuses for now


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        ("READONLY You can't write against a read only replica.", WrongServer),
        ("READONLY You can't write ... script: 5fe4, on @user_script:12.", WrongServer),
        (
            "ERR Error running script (call to f_5fe4): @user_script:12: @user_script: 12: "
            "-READONLY You can't write against a read only replica.",
            WrongServer,
        ),
        ("LOADING Redis is loading the dataset in memory", WrongServer),
        ("MASTERDOWN Link with MASTER is down", WrongServer),
        ("UNBLOCKED force unblock from blocking operation", WrongServer),
        ("CLUSTERDOWN The cluster is down", WrongServer),
        ("BUSY Redis is busy running a script.", NotNow),
        ("MISCONF Redis is configured to save RDB snapshots", NotNow),
        ("ERR Error running script (call to f_5fe4): @user_script: 1: -MISCONF Redis is", NotNow),
        ("NOREPLICAS Not enough good replicas to write.", NotNow),
        (
            "ERR Error running script (call to f_5fe4): @user_script: 1: -OOM command",
            OutOfMemoryError,
        ),
        ("ERR Error running script (call to f_5fe4): @user_script: 1: no such", ResponseError),
        ("BUSYGROUP Consumer Group name already exists", ResponseError),
    ],
)
def test_each_error_reply_has_its_meaning(
    ordinary: Wire, redis_url: str, reply: str, kind: type[Exception]
) -> None:
    """Check that a wrong server's reply closes every connection, also the idle ones."""
    busy = some(("EVAL", f'return redis.error_reply("{reply}")', 0))
    with ThreadPoolExecutor(2) as threads:
        before = {one for (one,) in threads.map(lambda _: ordinary.call(ID), range(8))}
    (found,) = ordinary.call(busy)
    assert type(found) is kind
    with ThreadPoolExecutor(2) as threads:
        after = {one for (one,) in threads.map(lambda _: ordinary.call(ID), range(8))}
    assert before.isdisjoint(after) == (kind is WrongServer)


async def test_a_wrong_server_s_reply_closes_idle_and_busy_connections_of_an_async_wire(
    wire: AsyncWire, proxy: FaultProxy
) -> None:
    idle = await asyncio.gather(*(wire.call(ID) for _ in range(3)))
    busy = asyncio.create_task(wire.call([*some(("BLPOP", "never filled", 0.1)), *ID]))
    await asyncio.sleep(0)
    await wire.call(some(("EVAL", 'return redis.error_reply("READONLY no")', 0)))
    before = {one for (one,) in idle} | {(await busy)[1]}
    after = await asyncio.gather(*(wire.call(ID) for _ in range(4)))
    assert before.isdisjoint(one for (one,) in after)
    await until_async(lambda: proxy.connections == 4, "the others are closed")


def test_after_a_time_out_idle_connections_are_not_used(ordinary: Wire) -> None:
    with ThreadPoolExecutor(2) as threads:
        before = {one for (one,) in threads.map(lambda _: ordinary.call(ID), range(8))}
    with pytest.raises(redis.TimeoutError):
        list(ordinary.replies(UNANSWERED, TIMEOUT_S))
    assert ordinary.call(ID)[0] not in before


def test_a_password_in_a_file_is_read_at_each_connect(
    redis_url: str, namespace: str, tmp_path: Path
) -> None:
    file, user = tmp_path / "password", f"u-{namespace}"
    location = redis_url.partition("://")[2].rpartition("@")[2]
    url = f"redis://{user}@{location}?password_file={file}"
    with redis.Redis.from_url(redis_url) as admin, Client(url) as client:
        with (
            Client(url, timeout_s=1) as impatient,
            pytest.raises(StoreUnavailable, match="password cannot be read"),
        ):
            impatient.get("nothing")
        for password in ("first", "s@c/nd:"):
            rights: dict[str, Any] = {"keys": ["*"], "channels": ["*"], "commands": ["+@all"]}
            admin.acl_setuser(user, True, reset=True, passwords=[f"+{password}"], **rights)
            file.write_text(f"{password}\n")
            admin.client_kill_filter(user=user)
            assert client.get("nothing") is None
        admin.acl_deluser(user)
