"""Workers whose Redis moves, is busy, cannot write, forgets scripts, or stops talking to them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pytest
import redis

from delaybridge.events import LeaseLost, ScannerFailed
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.verbs import bucket_of
from delaybridge.store.redis.store import AsyncStore
from tests.rigs.crew import BUCKETS, CALM, SELDOM, Arrived, Crew
from tests.rigs.fault_proxy import FaultProxy
from tests.rigs.redis_troubles import Pair, endless_script, is_busy, moving, refuse_writes
from tests.rigs.waiting import quiet_async, until_async
from tests.servers.process import LOOPBACK, free_port
from tests.servers.redis import RedisServer


@pytest.fixture
async def proxy(redis_url: str) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(free_port(), urlsplit(redis_url).port or 6379) as proxy:
        yield proxy


async def soon(crew: Crew, arrived: Arrived) -> None:
    """A message due in a moment arrives before a renewal could find it."""
    receipt = await crew.client.schedule("memory:q", b"x", delay=0.005)
    await arrived.all([receipt.id])


# wake-ups: each way of finding a message, without the other


async def test_a_lost_subscription_is_renewed_and_every_bucket_checked(
    crew: Crew, arrived: Arrived, proxy: FaultProxy, namespace: str
) -> None:
    """No renewal comes to help."""
    crew.start(url=f"redis://{LOOPBACK}:{proxy.port}/0", lease=SELDOM)
    await crew.shared("w")
    await soon(crew, arrived)
    proxy.mode = "refuse"
    proxy.reset()
    receipt = await crew.client.schedule("memory:q", b"x", delay=0.005)
    proxy.mode = "pass"
    await arrived.all([receipt.id])
    await soon(crew, arrived)
    await crew.stop()


async def test_a_subscription_that_goes_silent_is_noticed(
    crew: Crew, arrived: Arrived, proxy: FaultProxy, caplog: pytest.LogCaptureFixture
) -> None:
    crew.start(url=f"redis://{LOOPBACK}:{proxy.port}/0", lease=SELDOM)
    await crew.shared("w")
    await soon(crew, arrived)
    assert proxy.swallow_subscriptions() == 1
    await soon(crew, arrived)
    assert "wake_ups_lost" in caplog.text
    assert crew.heard(LeaseLost) == []
    await crew.stop()


@pytest.fixture
def deaf(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody hears a wake-up."""

    async def listen(self: AsyncStore, channel: str) -> AsyncIterator[str | None]:
        yield None
        await asyncio.Event().wait()

    monkeypatch.setattr(AsyncStore, "listen", listen)


@pytest.mark.usefixtures("deaf")
async def test_a_renewal_finds_the_messages_of_a_claim_that_was_executed_late(
    crew: Crew, arrived: Arrived, redis_url: str, namespace: str
) -> None:
    crew.start(lease=CALM)
    await crew.shared("w")
    with redis.Redis.from_url(redis_url) as client:
        claimed = None
        while not claimed or not claimed.ids:  # unless a renewal was faster
            receipt = await crew.client.schedule("memory:q", b"x", delay=0.005)
            bucket = Bucket(namespace, bucket_of(receipt.id.encode(), BUCKETS), "")
            token = client.get(bucket.key("lease")).decode()
            have = int(client.hget(bucket.key("marks"), "claimed"))
            ttl_ms = CALM["ttl_ms"]
            late = bucket.claim(token, ttl_ms, have, ahead_ms=1000, limit=9, max_bytes=999)
            claimed = await crew.store.run_one(late)
    await arrived.all([receipt.id])
    await crew.stop()


@pytest.mark.usefixtures("deaf")
async def test_without_any_wake_up_a_renewal_finds_due_messages(
    crew: Crew, arrived: Arrived
) -> None:
    crew.start()
    await crew.shared("w")
    for _ in range(3):
        await soon(crew, arrived)
    await crew.stop()


# Redis moves, is busy, cannot write


@pytest.mark.slow_with("6.2")
async def test_after_a_planned_fail_over_a_worker_follows_the_address(
    pair: Pair, namespace: str, arrived: Arrived
) -> None:
    async with moving(pair) as (proxy, move):
        crew = Crew(f"redis://{LOOPBACK}:{proxy.port}/0", namespace)
        try:
            crew.start(lease=SELDOM)
            await crew.shared("w")
            ids = await crew.schedule(50, seconds=2, first_s=1)
            await move()
            await soon(crew, arrived)
            await soon(crew, arrived)
            await arrived.all(ids)
            assert min(arrived.late_ms) >= 0
            assert crew.heard(ScannerFailed) == []
        finally:
            await crew.close()


@pytest.fixture
async def lone(server: RedisServer, namespace: str, arrived: Arrived) -> AsyncIterator[Crew]:
    """A worker on a Redis of its own."""
    crew = Crew(server.url, namespace)
    crew.start(lease={"ttl_ms": 30_000, "renew_ms": 200})
    await crew.shared("w")
    yield crew
    await crew.close()


async def test_a_worker_keeps_its_leases_while_redis_is_busy_with_a_script(
    lone: Crew, arrived: Arrived, server: RedisServer, admin: redis.Redis
) -> None:
    ids = await lone.schedule(100, seconds=1, first_s=0.3)
    admin.config_set("lua-time-limit", 5)
    with redis.Redis(host=LOOPBACK, port=server.port) as other:
        busy = asyncio.create_task(asyncio.to_thread(endless_script, other))
        await until_async(lambda: is_busy(admin), "it is busy")
        await quiet_async(0.7)  # longer than a call is sent again
        admin.script_kill()
        await busy
    await arrived.all(ids)
    await lone.settled()
    assert lone.heard(ScannerFailed) == lone.heard(LeaseLost) == arrived.twice == []


async def test_a_worker_keeps_its_leases_while_redis_cannot_write_its_file(
    lone: Crew, arrived: Arrived, server: RedisServer, admin: redis.Redis
) -> None:
    ids = await lone.schedule(100, seconds=1, first_s=0.3)
    refuse_writes(server, admin)
    await quiet_async(0.7)
    admin.config_set("stop-writes-on-bgsave-error", "no")
    admin.config_set("save", "")
    await arrived.all(ids)
    await lone.settled()
    assert lone.heard(ScannerFailed) == lone.heard(LeaseLost) == arrived.twice == []


async def test_a_worker_keeps_working_while_scripts_are_flushed_all_the_time(
    lone: Crew, arrived: Arrived, server: RedisServer
) -> None:
    ids = await lone.schedule(200, seconds=1)
    ended = threading.Event()
    flushing = asyncio.create_task(asyncio.to_thread(_flush_until, ended, server.port))
    await arrived.all(ids)
    ended.set()
    await flushing
    await lone.settled()
    assert lone.heard(ScannerFailed) == lone.heard(LeaseLost) == arrived.twice == []


def _flush_until(ended: threading.Event, port: int) -> None:
    with redis.Redis(host=LOOPBACK, port=port) as connection:
        while not ended.wait(0.001):
            connection.script_flush()


async def test_what_a_restarted_redis_has_forgotten_to_be_delivered_comes_again(
    arrived: Arrived, namespace: str
) -> None:
    """A settle that was lost leaves its message in the mirror of a session that goes on."""
    with RedisServer(["--appendonly", "yes"]) as server, redis.Redis(port=server.port) as own:
        crew = Crew(server.url, namespace)
        crew.start(lease={"ttl_ms": 20_000, "renew_ms": 200})
        await crew.shared("w")
        receipt = await crew.client.schedule("memory:q", b"x", delay=3600)
        buckets = await crew.client.run(lambda calls: calls.open())
        bucket = buckets[receipt.bucket]
        # As after its claim: what was told later is forgotten.
        own.zrem(bucket.key("due"), receipt.id)
        own.zadd(bucket.key("mirror"), {receipt.id: own.hget(bucket.key("marks"), "turn")})
        server.restart()
        await until_async(lambda: own.zcard(bucket.key("due")) == 1, "it is reclaimed")
        assert not own.exists(bucket.key("mirror"))
        await crew.shared("w")
        assert not crew.heard(LeaseLost) and not crew.heard(ScannerFailed)
        await crew.close()
