"""Faults that a worker meets: of brokers, of its own parts, of Redis and of Redis' clock."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
import redis as redis_py

from delaybridge.backoff import Backoff
from delaybridge.client import AsyncClient
from delaybridge.errors import StoreUnavailable, StoreWiped
from delaybridge.events import BucketDamaged, Claimed, ClockStepped, LeaseLost, ScannerFailed
from delaybridge.message import Limits, Message
from delaybridge.store.calls import Calls
from delaybridge.store.namespace import registry
from delaybridge.store.protocol import keys
from delaybridge.store.redis.store import AsyncStore
from delaybridge.worker import worker as worker_module
from delaybridge.worker.scan_run import ScanRun
from tests.rigs.crew import BUCKETS, CALM, SELDOM, Arrived, Crew
from tests.rigs.fault_proxy import FaultProxy
from tests.rigs.stall import Stall
from tests.rigs.waiting import DEADLINE_S, ended, until_async
from tests.servers.clock import ClockedRedis
from tests.servers.process import free_port
from tests.servers.redis import RedisServer

LATE_MS = 1000
AHEAD_MS = 200_000  # more than any deadline, and less than a lease
ADDRESSES = {"amqp": "x/key", "kafka": "topic", "redis": "stream", "kombu": "queue"}
SCHEMES = {"kombu": "kombu+redis"}


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.usefixtures("stall")  # repeated if it stood still until the silent ones gave up
async def test_brokers_unavailable_at_the_start_delay_neither_leases_nor_other_destinations(
    crew: Crew, arrived: Arrived, silent_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "delaybridge")
    ports = {"refused": free_port(), "silent": silent_port}
    unavailable = {
        f"{how}-{kind}": f"{SCHEMES.get(kind, kind)}://127.0.0.1:{port}"
        for how, port in ports.items()
        for kind in ADDRESSES
    }

    def silent_were_tried() -> bool:
        return "broker_unavailable name=silent-" in caplog.text

    async with AsyncClient(crew.url, namespace=crew.namespace, brokers=unavailable) as client:
        for name in unavailable:
            await client.schedule(f"{name}:{ADDRESSES[name.partition('-')[2]]}", b"", delay=0)
    ids = await crew.schedule(20, seconds=0.2)
    task = crew.start(brokers={"memory": "memory://", **unavailable})
    await arrived.all(ids)
    assert not silent_were_tried()
    await crew.parked(len(unavailable))

    arrived.fail_next = True
    ids = await crew.schedule(20, seconds=0.2)
    await arrived.all(ids)
    assert len(crew.heard(ScannerFailed)) == 1
    assert not silent_were_tried(), "nor when the scanner is restarted"
    assert not task.done()
    await crew.stop()
    assert "Exception in callback" not in caplog.text


async def test_a_worker_announces_its_brokers_and_what_is_paused_and_damaged(crew: Crew) -> None:
    crew.start(lease=CALM)
    await crew.shared("w")
    await crew.client.destinations.pause("memory:q")
    await crew.store.redis.set(keys.bucket_key(crew.namespace, 3, "attempts"), "not a hash")
    await crew.schedule(100, seconds=0.1)

    async def announced() -> bool:
        told, _ = await crew.store.run(registry.fleet(crew.namespace))
        about = json.loads(told[b"w"][told[b"w"].index(b"{") :])
        assert (about["brokers"], about["parked"], about["failing"]) == ({"memory": None}, {}, {})
        return about["paused"] == ["memory:q"] and [*about["damaged"]] == ["3"]

    await until_async(announced, "it tells the fleet")
    await crew.stop()


async def test_a_publisher_that_raises_costs_the_leases_briefly_and_no_message(
    crew: Crew, arrived: Arrived
) -> None:
    crew.start(lease=CALM)
    await crew.shared("w")
    ids = await crew.schedule(300, seconds=1)
    await arrived.all(ids[:50])
    arrived.fail_next = True
    ids += await crew.schedule(50, seconds=0.1)  # should all the others be out already
    await arrived.all(ids)  # no lease was left to run out
    await crew.settled()
    assert [event.reason for event in crew.heard(ScannerFailed)] == ["RuntimeError: told to fail"]
    assert min(arrived.late_ms) >= 0
    await crew.stop()


async def test_a_failing_script_is_retried_until_it_succeeds(crew: Crew, arrived: Arrived) -> None:
    crew.start()
    await crew.shared("w")
    broken = keys.bucket_key(crew.namespace, 3, "attempts")
    redis = crew.store.redis
    await redis.set(broken, "not a hash")
    ids = await crew.schedule(200, seconds=1)
    await until_async(lambda: crew.heard(BucketDamaged), "it fails")
    await redis.delete(broken)
    await arrived.all(ids)
    await crew.settled()
    assert f"{broken} is not a hash" in crew.heard(BucketDamaged)[0].reason
    assert not crew.heard(ScannerFailed)
    await crew.stop()


async def test_earlier_failures_do_not_slow_the_restart_of_a_scanner_that_ran_well(
    crew: Crew, arrived: Arrived, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits_s: list[float] = []

    class Recording(Backoff):
        def next_s(self, worked_s: float = 0.0) -> float:
            waits_s.append(super().next_s(worked_s))
            return waits_s[-1]

    monkeypatch.setattr(worker_module, "Backoff", Recording)
    monkeypatch.setattr(worker_module, "STEADY_S", 0.0)
    crew.start()
    for _ in range(3):
        arrived.fail_next = True
        (id,) = await crew.schedule(1, seconds=1)
        await arrived.all([id])
    assert len(crew.heard(ScannerFailed)) == 3
    assert waits_s == waits_s[:1] * 3
    await crew.stop()


async def test_a_run_that_cannot_begin_leaves_no_connection_open(crew: Crew) -> None:
    task = crew.start()
    await crew.shared("w")
    worker, calls = crew.workers["w"], Calls(crew.namespace, None, None, Limits())
    await crew.store.complete(calls.open())
    nowhere = AsyncStore(f"redis://127.0.0.1:{free_port()}/0", timeout_s=0.1)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with pytest.raises(StoreUnavailable):
            await ScanRun(worker, nowhere, calls).run()
    # Fewer than one of each run: the worker beside it may open another one at any time.
    assert len(os.listdir("/proc/self/fd")) < before + 5
    await nowhere.close()
    assert not task.done()
    await crew.stop()


@pytest.fixture
async def clocked(
    clocked_redis: ClockedRedis, namespace: str, arrived: Arrived
) -> AsyncIterator[Crew]:
    """A crew on a Redis whose clock the test sets."""
    crew = Crew(clocked_redis.url, namespace)
    yield crew
    await crew.close()


async def test_steps_of_the_store_s_clock_are_followed_and_logged(
    clocked: Crew, clocked_redis: ClockedRedis, arrived: Arrived
) -> None:
    ids = await clocked.schedule(100, seconds=0.05, first_s=AHEAD_MS / 2000)
    clocked.start(lease=CALM, scan={"claim_ahead_ms": 2 * AHEAD_MS})
    await until_async(lambda: _claimed(clocked) == len(ids), "all on the wheel")
    clocked_redis.set_clock(-AHEAD_MS)
    await until_async(lambda: clocked.heard(ClockStepped), "it is followed")
    marker = await clocked.client.schedule("memory:q", b"x", delay=0.1)
    await arrived.all([marker.id])
    assert arrived.at_ms.keys() == {marker.id}
    clocked_redis.set_clock(AHEAD_MS)
    await arrived.all(ids)
    steps_ms = [event.step_ms for event in clocked.heard(ClockStepped)]
    assert steps_ms == pytest.approx([-AHEAD_MS, 2 * AHEAD_MS], rel=0.1)
    # By that clock nothing is early; by this machine's it is as far off as the other clock is.
    assert min(arrived.at_ms[id] - arrived.due_ms[id] for id in ids) >= -AHEAD_MS
    assert clocked.heard(LeaseLost) == arrived.twice == []
    await clocked.stop()


async def test_a_delay_scheduled_just_after_the_clock_was_set_back_is_not_shortened(
    clocked: Crew, clocked_redis: ClockedRedis, arrived: Arrived
) -> None:
    clocked.start(lease={"ttl_ms": 20_000, "renew_ms": 10_000})  # no announcement tells of it
    await clocked.shared("w")
    clocked_redis.set_clock(-60_000)
    receipts = await clocked.client.schedule_many(
        [Message("memory:q", b"x", delay=1.9) for _ in range(50)]
    )
    await arrived.all([receipt.id for receipt in receipts])
    assert min(arrived.late_ms) >= 60_000
    await clocked.stop()


async def test_a_dead_worker_s_buckets_and_name_are_freed_although_the_clock_was_set_back(
    clocked: Crew, clocked_redis: ClockedRedis
) -> None:
    task = clocked.start("w")
    await clocked.shared("w")
    await ended(task)
    clocked_redis.set_clock(-3_600_000)
    clocked.start("w")
    await clocked.shared("w")
    await clocked.stop()


def _claimed(crew: Crew) -> int:
    return sum(event.messages for event in crew.heard(Claimed))


async def test_a_wiped_namespace_stops_the_worker_before_it_renews(crew: Crew) -> None:
    with RedisServer() as server:
        task = crew.start(url=server.url, lease=SELDOM)
        client = redis_py.Redis.from_url(server.url)
        await until_async(lambda: client.keys("*:lease"), "it holds a lease")
        client.flushall()
        client.close()
        with pytest.raises(StoreWiped):
            await asyncio.wait_for(task, DEADLINE_S)


@pytest.fixture
def durable() -> Iterator[RedisServer]:
    """A Redis of this test's own that keeps what it was told."""
    with RedisServer(["--appendonly", "yes", "--appendfsync", "everysec"]) as server:
        yield server


@pytest.mark.parametrize("fault", ["killed", "stopped", "unreachable"])
@pytest.mark.slow_with("stopped", "unreachable")
async def test_workers_resume_by_themselves_after_redis_was_down(
    durable: RedisServer, namespace: str, arrived: Arrived, stall: Stall, fault: str
) -> None:
    async with FaultProxy(free_port(), durable.port) as proxy:
        crew = Crew(durable.url, namespace)
        try:
            for name in "ab":
                crew.start(name, url=f"redis://127.0.0.1:{proxy.port}/0")
            await crew.shared("a", "b")
            ids = await crew.schedule(600, seconds=3)
            await arrived.all(ids[:100])
            before_ms = max(arrived.late_ms)
            async with _down(fault, durable, proxy):
                await until_async(lambda: _lost(crew) == BUCKETS, "no lease is renewed in time")
            await arrived.all(ids)
            await crew.settled()
            assert min(arrived.late_ms) >= 0
            await crew.shared("a", "b")
            after = await crew.schedule(50, seconds=0.2)
            await arrived.all(after)
            after_ms = max(arrived.at_ms[id] - arrived.due_ms[id] for id in after)
            assert after_ms < before_ms + LATE_MS + stall.worst_ms
        finally:
            await crew.close()


def _lost(crew: Crew) -> int:
    """The buckets whose leases were not renewed in time."""
    lost = [event for event in crew.heard(LeaseLost) if event.reason == "not renewed in time"]
    return len({event.bucket for event in lost})


@asynccontextmanager
async def _down(fault: str, server: RedisServer, proxy: FaultProxy) -> AsyncIterator[None]:
    """Redis is unavailable."""
    if fault == "killed":
        await asyncio.to_thread(server.kill)
        yield
        await asyncio.to_thread(server.start)
    elif fault == "stopped":
        server.pause()
        yield
        server.resume()
    else:
        proxy.mode = "blackhole"
        yield
        proxy.mode = "pass"
        proxy.reset()


async def test_a_worker_that_ends_while_redis_is_down_leaves_no_task_waiting_for_it(
    namespace: str,
) -> None:
    with RedisServer() as server:
        crew = Crew(server.url, namespace)
        before = asyncio.all_tasks()
        crew.start(lease={"ttl_ms": 10_000}, scan={"drain_timeout_s": 0.5})
        await crew.shared("w")
        server.pause()
        await crew.stop()
        left = {task.get_name(): task for task in asyncio.all_tasks() - before}
        server.resume()
        await crew.close()
    assert left == {}
