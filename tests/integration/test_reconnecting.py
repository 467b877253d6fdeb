"""Redis is down, refuses, resets, hangs or moves: connections are bounded, and come back."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import os
import socket
import struct
import threading
import traceback
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from delaybridge import AsyncClient
from delaybridge.accept.accept import Accepted
from delaybridge.errors import StoreError, StoreUnavailable
from delaybridge.message import Answer
from delaybridge.store.protocol.scripts import packed
from delaybridge.store.protocol.verbs import RedisCommand
from delaybridge.store.redis.async_wire import AsyncWire
from delaybridge.store.redis.store import AsyncStore
from delaybridge.store.redis.wire import Wire
from tests.rigs.flavours import TO, Maker, Threaded
from tests.rigs.redis_troubles import Pair, endless_script, is_busy, moving, refuse_writes
from tests.rigs.waiting import DEADLINE_S, PATIENCE_S, until_async
from tests.servers.process import LOOPBACK, free_port
from tests.servers.redis import RedisServer

RECONNECTS = 1000  # in each mode more than the connections that a pool allows
PING = [packed("PING")]
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Fickle:
    """A server that answers one PING per connection, or behaves as `mode` says.

    mode: "up" answers once and closes; "refusing" answers that there are too many clients;
    "resetting" resets. accepted, open: the number of connections so far, and now.
    """

    def __init__(self) -> None:
        self.mode, self.accepted = "up", 0
        self._listener = socket.create_server((LOOPBACK, 0), backlog=1000)
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.accepted += 1
                with connection, contextlib.suppress(OSError):
                    if self.mode == "up":
                        connection.recv(100)
                        connection.sendall(b"+PONG\r\n")
                    elif self.mode == "refusing":
                        connection.sendall(b"-ERR max number of clients reached\r\n")
                        connection.shutdown(socket.SHUT_WR)
                        connection.recv(100)
                    else:
                        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


@pytest.fixture
def fickle() -> Iterator[Fickle]:
    server = Fickle()
    yield server
    server.close()


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def options(**fields: Any) -> dict[str, Any]:
    """Connections without redis-py's greeting, which would cost two thirds of the time."""
    return {"host": LOOPBACK, "protocol": 2, "driver_info": None, **fields}


NEVER, ASYNC_NEVER = Retry(NoBackoff(), 0), AsyncRetry(NoBackoff(), 0)


REFUSED = {redis.ConnectionError, ConnectionResetError, BrokenPipeError}
MODES = ("up", "refusing", "resetting", "down")


@pytest.mark.parametrize("kind", [Wire, AsyncWire])
async def test_a_wire_reconnects_a_thousand_times(
    fickle: Fickle, kind: type[Wire | AsyncWire]
) -> None:
    pool: Any = redis.ConnectionPool(**options(port=fickle.port, retry=NEVER))
    if kind is AsyncWire:
        pool = redis.asyncio.ConnectionPool(**options(port=fickle.port, retry=ASYNC_NEVER))
    wire = kind(pool, DEADLINE_S)
    nothing = free_port()  # the first opens a file that stays open
    before = open_files()
    for mode in MODES:
        fickle.mode = mode
        pool.connection_kwargs["port"] = nothing if mode == "down" else fickle.port
        answers = {await _answer(wire) for _ in range(RECONNECTS // 4)}
        assert answers <= REFUSED | {"up"}, mode
        assert ("up" in answers) == (mode == "up")
    fickle.mode, pool.connection_kwargs["port"] = "up", fickle.port
    assert await _answer(wire) == "up"
    await awaited(wire.close())
    await until_async(lambda: open_files() <= before, "every connection is closed")


async def awaited(answer: Any) -> Any:
    return await answer if inspect.isawaitable(answer) else answer


async def _answer(wire: Wire | AsyncWire) -> Any:
    try:
        (reply,) = await awaited(wire.call(PING))
    except (redis.RedisError, OSError) as exc:
        reply = exc
    return "up" if reply == b"PONG" else type(reply)


# the same through clients, on real servers


async def test_a_client_outlives_every_connection_that_is_killed(
    make: Maker, server: RedisServer, admin: redis.Redis
) -> None:
    client = make(server.url)
    for n in range(150):
        assert await client.schedule(TO, b"", delay=60, id=f"x{n}") == "created"
        admin.client_kill_filter(_type="normal", skipme=True)
    assert len(admin.client_list()) == 1


async def test_a_client_works_at_once_when_redis_is_back(make: Maker, server: RedisServer) -> None:
    client = make(f"{server.url}?max_connections=3", timeout_s=4.0)
    assert await client.get("x") is None
    server.kill()
    with pytest.raises(StoreUnavailable):  # after more attempts than the connections allowed
        await client.schedule(TO, b"", delay=60)
    server.start()
    client.client._store.timeout_s = PATIENCE_S  # a stalled machine is no outage
    assert await client.schedule(TO, b"", delay=60) == "created"


async def test_connections_are_bounded_and_further_calls_wait(
    make: Maker, server: RedisServer, admin: redis.Redis
) -> None:
    client = Threaded(make(f"{server.url}?max_connections=3", timeout_s=60.0).client)
    found = await asyncio.gather(*(client.stats() for _ in range(30)))
    assert [stats.delayed for stats in found] == [0] * 30
    assert len(admin.client_list()) <= 1 + 3


# replies that say "not this server" or "not now"


async def test_after_a_planned_fail_over_a_client_follows_the_address(
    make: Maker, pair: Pair
) -> None:
    async with moving(pair) as (proxy, move):
        client = Threaded(make(f"redis://{LOOPBACK}:{proxy.port}/0").client)
        assert await client.schedule(TO, b"", delay=60, id="x") == "created"
        await asyncio.gather(*(client.get("x") for _ in range(5)))  # idle connections
        await move()
        assert await client.schedule(TO, b"", delay=60, id="y") == "created"
        assert await client.cancel("x") == Answer.CANCELLED


async def test_after_a_planned_fail_over_reads_go_to_the_new_server(
    make: Maker, pair: Pair
) -> None:
    old, new = pair
    async with moving(pair) as (proxy, move):
        # each with its own connection, which has been used already
        url = f"redis://{LOOPBACK}:{proxy.port}/0"
        readers = [Threaded(make(url).client) for _ in range(3)]
        assert await readers[0].schedule(TO, b"", delay=60, id="x") == "created"
        assert [(await reader.stats()).delayed for reader in readers] == [1, 1, 1]
        await move()
        with redis.Redis(host=LOOPBACK, port=old.port) as demoted:
            demoted.replicaof(LOOPBACK, free_port())  # it gets nothing from the new server
        assert await make(new.url).cancel("x") == Answer.CANCELLED
        one, other, third = readers
        assert await one.get("x") is None
        assert (await other.pending()).items == []
        assert (await third.stats()).delayed == 0


async def test_a_server_that_stays_the_wrong_one_is_reported_with_its_reason(
    make: Maker, server: RedisServer, admin: redis.Redis
) -> None:
    client, hasty = make(server.url), make(server.url, timeout_s=2.0)
    await client.schedule(TO, b"", delay=60, id="x")
    admin.replicaof(LOOPBACK, free_port())

    async def says_why() -> bool:
        """A stalled machine may not answer at all; then it is asked again."""
        with pytest.raises(StoreUnavailable) as found:
            await hasty.schedule(TO, b"", delay=60, id="y")
        return "not ready: READONLY" in str(found.value)

    async def is_back() -> bool:
        with contextlib.suppress(StoreUnavailable):
            return await hasty.get("x") is not None
        return False

    await until_async(says_why, "the reason is told")
    admin.replicaof("NO", "ONE")
    await until_async(is_back, "it is used again")
    assert await client.schedule(TO, b"", delay=60, id="y") == "created"


async def test_a_call_waits_while_redis_is_busy_with_a_script(
    make: Maker, server: RedisServer, admin: redis.Redis
) -> None:
    client = make(server.url)
    await client.schedule(TO, b"", delay=60, id="x")
    admin.config_set("lua-time-limit", 5)
    with redis.Redis(host=LOOPBACK, port=server.port) as other:
        busy = asyncio.create_task(asyncio.to_thread(endless_script, other))
        await until_async(lambda: is_busy(admin), "it is busy")
        killing = threading.Timer(0.3, admin.script_kill)
        killing.start()
        assert await client.schedule(TO, b"", delay=60, id="y") == "created"
        await busy
        killing.join()


async def test_a_call_waits_while_redis_cannot_write_its_file(
    make: Maker, server: RedisServer, admin: redis.Redis
) -> None:
    client = make(server.url)
    await client.schedule(TO, b"", delay=60, id="x")
    refuse_writes(server, admin)
    allowing = threading.Timer(0.3, admin.config_set, ["stop-writes-on-bgsave-error", "no"])
    allowing.start()
    assert await client.schedule(TO, b"", delay=60, id="y") == "created"
    allowing.join()
    admin.config_set("save", "")  # or it would refuse to stop


async def test_scripts_that_are_flushed_as_soon_as_they_are_loaded_are_loaded_again(
    make: Maker, server: RedisServer, admin: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = make(server.url)
    flushed = 0

    def split(requests: Any) -> tuple[list[bytes], list[bytes]]:
        asked = list(requests)
        return [r for r in asked if b"LOAD" in r[:40]], [r for r in asked if b"LOAD" not in r[:40]]

    def flush(loads: list[bytes]) -> None:
        nonlocal flushed
        if loads and flushed < 3:
            flushed += 1
            admin.script_flush()

    replies, async_call = Wire.replies, AsyncWire.call

    def flushing(self: Wire, requests: Any, wait_s: float | None) -> list[Any]:
        loads, rest = split(requests)
        loaded = [*replies(self, loads)] if loads else []
        flush(loads)
        return [*loaded, *replies(self, rest)]

    async def async_flushing(self: AsyncWire, requests: Any, wait_s: float | None) -> list[Any]:
        loads, rest = split(requests)
        loaded = await async_call(self, loads) if loads else []
        flush(loads)
        return loaded + (await async_call(self, rest) if rest else [])

    monkeypatch.setattr(Wire, "replies", flushing)
    monkeypatch.setattr(AsyncWire, "call", async_flushing)
    assert await client.schedule(TO, b"", delay=60, id="x") == "created"
    assert flushed == 3


async def test_a_user_without_the_right_to_load_scripts_gets_an_error_that_says_so(
    make: Maker, server: RedisServer, admin: redis.Redis
) -> None:
    admin.acl_setuser(
        "bridge", enabled=True, passwords=["+secret"], keys="*", channels="*",
        categories=["+@all"], commands=["-script|load"],
    )  # fmt: skip
    client = make(server.url.replace("redis://", "redis://bridge:secret@"))
    with pytest.raises(StoreError, match="access refused.*script") as got:
        await client.schedule(TO, b"", delay=60)
    assert not isinstance(got.value, StoreUnavailable)


class _Watched(list[bytes]):
    """Arguments to which a test can hold a weak reference."""


async def test_the_bytes_that_a_call_sent_are_freed_with_its_error() -> None:
    """While Redis is down calls are tried again and again; what they sent must not pile up."""
    gc.collect()
    gc.disable()
    try:
        store = AsyncStore(f"redis://{LOOPBACK}:{free_port()}/0", timeout_s=0.2)
        arguments = _Watched([b"x" * 1000])
        alive = weakref.ref(arguments)
        sent = [RedisCommand("ECHO", (), arguments, bytes, is_plain=True)]
        del arguments
        with contextlib.suppress(StoreUnavailable):
            await store.run(sent)
        del sent
        assert alive() is None
        await store.close()
    finally:
        gc.enable()


async def test_the_error_of_many_callers_has_a_short_traceback() -> None:
    """They share it, and each may log it: the frames of the others must not pile up in it."""
    client = AsyncClient(f"redis://{LOOPBACK}:{free_port()}/0", timeout_s=0.2)
    accepted = Accepted("x", b"x", "+1000", 255, b"")
    calls: list[Any] = [client.schedule(TO, b"", delay=60) for _ in range(30)]
    calls += [client.schedule_accepted([(b"abcd", accepted)]) for _ in range(30)]
    errors = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(error, StoreUnavailable) for error in errors)
    assert all(len(traceback.extract_tb(error.__traceback__)) < 10 for error in errors)
    await client.close()
