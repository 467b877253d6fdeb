"""Clients while Redis does not answer, or is full."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any

import pytest
import redis

from delaybridge import AsyncClient, Message
from delaybridge.errors import ConfigError, StoreError, StoreFull, StoreUnavailable
from delaybridge.message import Answer, Limits, OnConflict
from delaybridge.store.calls import Calls
from delaybridge.store.messages.scheduling import Receipt
from delaybridge.store.namespace import registry
from delaybridge.store.redis.store import Store
from tests.rigs.bucket import TTL_MS, World
from tests.rigs.flavours import FLAVOURS, TO, Maker
from tests.rigs.lossy_proxy import LossyProxy
from tests.rigs.stall import Stall
from tests.rigs.waiting import until_async
from tests.servers.process import LOOPBACK, free_port
from tests.servers.redis import VERSIONS, RedisServer

# Redis does not answer: StoreUnavailable, in time


TIMEOUT_S, LONG_S = 0.5, 2.0
CALLS: dict[str, Callable[[Any], Any]] = {
    "schedule": lambda client: client.schedule(TO, b"", delay=60),
    "schedule_many": lambda client: client.schedule_many([Message(TO, b"", delay=60)] * 3),
    "cancel": lambda client: client.cancel("x"),
    "reschedule": lambda client: client.reschedule("x", delay=5),
    "get": lambda client: client.get("x"),
    "pending": lambda client: client.pending(),
    "dead": lambda client: client.dead(),
    "kick": lambda client: client.dead.kick("x"),
    "discard": lambda client: client.dead.discard("x"),
    "stats": lambda client: client.stats(),
}


async def is_unavailable_in_time(call: Any, stall: Stall, timeout_s: float = TIMEOUT_S) -> None:
    """A further try would take another half of the time-out."""
    started_s = time.monotonic()
    with pytest.raises(StoreUnavailable):
        await call
    took_s = time.monotonic() - started_s
    assert took_s < timeout_s + 0.2 + 3 * stall.worst_s  # to connect, to send, to give up


async def connected(client: Any) -> None:
    """A stalled machine may take longer than a time-out to connect."""

    async def is_answered() -> bool:
        with suppress(StoreUnavailable):
            return await client.get("x") is None
        return False

    await until_async(is_answered, "Redis answers")


@pytest.mark.parametrize("name", CALLS)
async def test_a_refused_connection_is_reported_within_the_timeout(
    make: Maker, name: str, stall: Stall
) -> None:
    client = make(f"redis://{LOOPBACK}:{free_port()}/0", timeout_s=TIMEOUT_S)
    await is_unavailable_in_time(CALLS[name](client), stall)


@pytest.mark.parametrize("name", CALLS)
async def test_missing_replies_are_reported_within_the_timeout(
    make: Maker, proxy: LossyProxy, name: str, stall: Stall
) -> None:
    client = make(proxy.url, timeout_s=TIMEOUT_S)
    await connected(client)
    proxy.swallowing = True
    await is_unavailable_in_time(CALLS[name](client), stall)


@pytest.mark.usefixtures("stall")  # which may make it wait in vain for an answer, too
async def test_after_missing_replies_the_next_call_is_answered(
    make: Maker, proxy: LossyProxy
) -> None:
    client = make(proxy.url, timeout_s=LONG_S)
    await connected(client)
    proxy.swallowing = True
    with pytest.raises(StoreUnavailable):
        await client.cancel("x")
    proxy.swallowing = False
    assert await client.cancel("y") == Answer.UNKNOWN


async def test_a_hanging_redis_is_reported_within_the_timeout_and_used_again_afterwards(
    make: Maker, own_server: RedisServer, own: redis.Redis, stall: Stall
) -> None:
    client = make(own_server.url, timeout_s=LONG_S)
    await client.schedule(TO, b"", delay=60, id="x")
    own_server.pause()
    try:
        await is_unavailable_in_time(client.cancel("x"), stall, LONG_S)
    finally:
        own_server.resume()
    assert await client.get("y") is None


async def test_connections_that_keep_breaking_are_reported_within_the_timeout(
    make: Maker, proxy: LossyProxy, stall: Stall
) -> None:
    client = make(proxy.url, timeout_s=TIMEOUT_S)
    await connected(client)
    proxy.drop_next_replies(10**6)
    await is_unavailable_in_time(client.cancel("x"), stall)
    assert proxy.dropped > 1


async def test_a_call_whose_reply_is_lost_still_returns_its_answer(
    make: Maker, proxy: LossyProxy
) -> None:
    client = make(proxy.url)
    await client.get("x")
    proxy.drop_next_replies(1)
    assert await client.schedule(TO, b"", delay=60, id="x") == "created"
    proxy.drop_next_replies(1)
    assert await client.cancel("x") == Answer.CANCELLED
    assert proxy.dropped == 2


async def test_a_server_that_is_not_redis_is_an_error_and_not_a_hang(make: Maker) -> None:
    with socket.create_server((LOOPBACK, 0)) as listener:
        thread = threading.Thread(target=_answer_in_http, args=(listener,), daemon=True)
        thread.start()
        client = make(f"redis://{LOOPBACK}:{listener.getsockname()[1]}/0", timeout_s=TIMEOUT_S)
        with pytest.raises(StoreError):
            await client.get("x")
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def _answer_in_http(listener: socket.socket) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection:
            connection.recv(100)
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


async def test_the_error_for_a_wrong_password_does_not_contain_it(make: Maker) -> None:
    with RedisServer(["--requirepass", "right"]) as server:
        url = server.url.replace("redis://", "redis://:wr0ng-secret@")
        with pytest.raises(StoreError, match="access refused") as got:
            await make(url).get("x")
        assert "wr0ng" not in str(got.value)
        assert not isinstance(got.value, StoreUnavailable)
        allowed = make(server.url.replace("redis://", "redis://:right@"))
        assert await allowed.get("x") is None


@pytest.mark.parametrize("url", ["", "http://h:1", "redis://h:99999/0", "redis://h:p"])
def test_an_invalid_url_is_a_config_error(url: str) -> None:
    for flavour in FLAVOURS:
        with pytest.raises(ConfigError, match="redis"):
            flavour(url)


# Redis is full: StoreFull, no message is stored in part, and workers continue


@pytest.fixture(params=VERSIONS)
def full_server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    if (binary := VERSIONS[request.param]()) is None:
        pytest.skip("no such server here")
    with RedisServer(binary=binary) as server:
        yield server


def fill(server: RedisServer) -> None:
    """Leave no memory for any write that may need some."""
    with redis.Redis(host=LOOPBACK, port=server.port) as connection:
        connection.config_set("maxmemory", connection.info("memory")["used_memory"] // 2)


async def test_a_full_redis_stores_no_message_but_still_cancels_and_reschedules(
    make: Maker, full_server: RedisServer
) -> None:
    early = make(full_server.url)
    for id in ("x", "y", "z"):
        await early.schedule(TO, b"body", delay=0, id=id)
    fill(full_server)
    late = make(full_server.url)
    for client in (early, late):
        with pytest.raises(StoreFull):
            await client.schedule(TO, b"body", delay=60, id="more")
        with pytest.raises(StoreFull):
            await client.schedule(TO, b"other", delay=60, id="y", on_conflict=OnConflict.REPLACE)
    assert await late.get("more") is None
    assert (await late.get("y")).body == b"body"
    assert await late.reschedule("y", delay=60) == Answer.RESCHEDULED
    assert await early.cancel("y") == Answer.CANCELLED
    assert await late.cancel("z") == Answer.CANCELLED


async def test_a_new_worker_does_all_its_work_on_a_full_redis(
    make: Maker, full_server: RedisServer
) -> None:
    client = make(full_server.url, namespace="full")
    await client.schedule_many([Message(TO, b"", delay=0, id=f"m{n}", key="x") for n in range(8)])
    with (
        closing(Store(full_server.url)) as store,
        World.of_key(store, full_server.url, "full", b"x") as dead,
    ):
        dead.owner().claim()
        fill(full_server)
        _work_on_a_full_store(dead, full_server.url)
        stats = await client.stats()
    assert (stats.delayed, stats.in_flight, stats.parked, stats.dead) == (0, 0, 0, 1)


def _work_on_a_full_store(world: World, url: str) -> None:
    """A worker's whole life: it starts, takes over a bucket, and its copies end in every way."""
    with closing(Store(url)) as store:
        store.complete(Calls("full", None, None, Limits()).open())
        store.run([registry.announce("full", "worker", "0" * 16, TTL_MS, b"{}")])
    owner = world.successor()
    copies = owner.claim()
    owner.fire(copies[-1].score)
    owner.settle(*copies[:2])
    assert world.run(owner.settling_once(copies[2])) == {copies[2].id}
    owner.retry(copies[3], delay_ms=5)
    owner.retry(copies[4])
    owner.park(copies[5])
    world.run(owner.unparking())
    owner.bury(copies[6])
    world.run(owner.bucket.renew(owner.token, TTL_MS))
    assert world.kick(copies[6].id) == Answer.KICKED
    again = owner.claim()
    owner.bury(copies[7])
    owner.fire(again[-1].score)
    owner.settle(*again)
    world.run(owner.bucket.release(owner.token))


LARGE = [Message(TO, bytes(100_000), delay=60, id=f"m{n}") for n in range(64)]


def leave_room(connection: redis.Redis) -> None:
    """Leave memory for about half of the messages above."""
    connection.config_set("maxmemory", connection.info("memory")["used_memory"] + 3_000_000)


async def test_only_callers_whose_messages_redis_refused_get_store_full(
    together: AsyncClient, own: redis.Redis
) -> None:
    leave_room(own)
    answers = await asyncio.gather(
        *(together.schedule(TO, m.body, delay=60, id=m.id) for m in LARGE), return_exceptions=True
    )
    there = [await together.get(m.id or "") for m in LARGE]
    assert {type(answer) for answer in answers} == {Receipt, StoreFull}
    assert [found is not None for found in there] == [answer == "created" for answer in answers]


async def test_store_full_says_how_many_messages_of_a_call_were_not_stored(
    make: Maker, own_url: str, own: redis.Redis
) -> None:
    client = make(own_url)
    await client.schedule_many([Message(TO, b"", delay=60, id=f"f{n}") for n in range(200)])
    leave_room(own)
    with pytest.raises(StoreFull) as got:
        await client.schedule_many(LARGE)
    missing = [await client.get(m.id) for m in LARGE].count(None)
    assert f" {missing} of 64 messages" in str(got.value)
    refused = [m for m in LARGE if await client.get(m.id) is None]
    with pytest.raises(StoreFull, match="nothing was written"):
        await client.schedule_many(refused)


async def test_a_full_redis_after_a_lost_reply_leaves_the_outcome_unknown(
    make: Maker, proxy: LossyProxy, own_server: RedisServer
) -> None:
    client = make(proxy.url)
    await client.schedule(TO, b"", delay=60, id="x", key="x")
    proxy.drop_next_replies(1)
    proxy.on_drop = lambda: fill(own_server)
    with pytest.raises(StoreUnavailable, match="may have been stored"):
        await client.schedule(TO, b"", delay=60, id="y", key="x")
    assert (await client.get("y")).id == "y"
