"""Workers as they run: their buckets, how they end, and faults of workers and of Redis.

Half of these run a `Worker` on the test's own loop with a broker in memory, the others real
processes with a file for a broker.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import termios
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import pytest
import redis as redis_py

from delaybridge import Client
from delaybridge.backoff import Backoff
from delaybridge.client import AsyncClient
from delaybridge.errors import StoreUnavailable, StoreWiped
from delaybridge.events import (
    BucketDamaged,
    Claimed,
    ClockStepped,
    LeaseLost,
    Published,
    ScannerFailed,
)
from delaybridge.message import Limits, Message
from delaybridge.scan.fleet import NameTaken
from delaybridge.settings.settings import Settings
from delaybridge.store import keys, registry
from delaybridge.store.calls import Calls
from delaybridge.store.keys import bucket_of
from delaybridge.store.store import AsyncStore
from delaybridge.worker import worker as worker_module
from delaybridge.worker.scan_run import ScanRun
from delaybridge.worker.service import Identity
from tests.rigs import recorder
from tests.rigs.crew import BUCKETS, SELDOM, TTL_MS, Arrived, Crew
from tests.rigs.fault_proxy import FaultProxy
from tests.rigs.fleet import Fleet
from tests.rigs.scanner import GatedStore
from tests.rigs.stall import Stall
from tests.rigs.waiting import DEADLINE_S, quiet, until, until_async
from tests.servers.clock import ClockedRedis
from tests.servers.process import free_port
from tests.servers.redis import ON_EVERY_REDIS, RedisServer

LATE_MS = 1000
# Once a second: the rules, the events, the counts of buckets, a sample, what recurs.
PULSE = ("HGETALL", "PUBLISH", "HMGET", "ZRANGEBYSCORE", "TIME", "ZCARD")
OF_ONE_BUCKET = 4  # ZCARD of its messages by state, each bucket in its turn
IDLE_RENEW_MS = 500
AHEAD_MS = 200_000  # more than any deadline, and less than a lease
UNSETTLED_MS = 300

FleetFactory = Callable[..., Fleet]


@pytest.fixture
def fleet_of(redis_url: str, namespace: str, tmp_path: Path) -> Iterator[FleetFactory]:
    """Makes a fleet on the namespace of the test; its processes are gone when the test is."""
    fleets: list[Fleet] = []

    def make(url: str = redis_url, **options: Any) -> Fleet:
        fleets.append(Fleet(tmp_path, url, namespace, **options))
        return fleets[-1]

    yield make
    for fleet in fleets:
        fleet.__exit__()


@pytest.fixture
def fleet(fleet_of: FleetFactory) -> Fleet:
    return fleet_of()


@pytest.fixture
def patient(fleet_of: FleetFactory) -> Fleet:
    """What waits for a lease of this fleet to run out misses every deadline."""
    return fleet_of(ttl_ms=SELDOM["ttl_ms"])


# on time, and idle


@ON_EVERY_REDIS
async def test_a_delay_of_5_ms_is_on_time_while_the_scanner_sleeps(
    crew: Crew, arrived: Arrived
) -> None:
    crew.start(lease=SELDOM)
    await crew.shared("w")
    for _ in range(20):
        receipt = await crew.client.schedule("memory:q", b"x", delay=0.005)
        await arrived.all([receipt.id])
    assert min(arrived.late_ms) >= 0
    await crew.stop()


async def test_a_message_moved_to_the_front_wakes_the_scanner_as_well(
    crew: Crew, arrived: Arrived
) -> None:
    crew.start(lease=SELDOM)
    await crew.shared("w")
    ids = await crew.schedule(20, seconds=1, first_s=3600)
    for id in ids:
        assert await crew.client.reschedule(id, delay=0.005) == "rescheduled"
        await arrived.all([id])
    assert min(arrived.late_ms) >= 0
    await crew.stop()


@pytest.mark.parametrize("ahead_ms", [0, 100, 2000])
async def test_nothing_is_early_or_late_whatever_the_claim_ahead(
    crew: Crew, arrived: Arrived, ahead_ms: int
) -> None:
    scan = {"claim_ahead_ms": ahead_ms, "fire_lead_ms": min(ahead_ms, 5)}
    crew.start(lease=SELDOM, scan=scan)
    await crew.shared("w")
    ids = await crew.schedule(300, seconds=1)
    await arrived.all(ids)
    assert min(arrived.late_ms) >= 0
    assert arrived.twice == []
    await crew.stop()


async def test_a_message_due_long_ago_is_not_late_when_it_is_published_at_once(
    crew: Crew, arrived: Arrived
) -> None:
    crew.start()
    await crew.shared("w")
    long_ago = datetime(2020, 1, 1, tzinfo=UTC)
    receipt = await crew.client.schedule("memory:q", b"x", at=long_ago)
    await arrived.all([receipt.id])
    await crew.settled()
    assert arrived.due_ms[receipt.id] == int(long_ago.timestamp() * 1000)
    years_ms = arrived.late_ms[0]
    assert crew.heard(Published)[0].late_ms < years_ms / 1000
    await crew.stop()


async def test_a_back_off_is_on_time_while_the_scanner_sleeps(crew: Crew, arrived: Arrived) -> None:
    from delaybridge.publish import Outcome, Verdict

    crew.start(lease=SELDOM, retry={"base_ms": 100, "jitter": 0.0})
    await crew.shared("w")
    arrived.brokers[0].next_outcomes.append(Outcome(Verdict.UNKNOWN, "nack"))
    (id,) = await crew.schedule(1, seconds=1)
    await until_async(lambda: len(arrived.attempts) == 2, "tried again")
    assert arrived.attempts == [(id, 1), (id, 2)]
    assert arrived.late_ms[0] >= 100
    await crew.stop()


@pytest.mark.parametrize("waiting", [False, True], ids=["empty", "a message next year"])
async def test_an_idle_worker_of_16_buckets_sends_one_command_per_bucket_and_renewal(
    crew: Crew, arrived: Arrived, namespace: str, waiting: bool
) -> None:
    crew.start(lease={"ttl_ms": 10_000, "renew_ms": IDLE_RENEW_MS})
    await crew.shared("w")
    await arrived.all(await crew.schedule(1, seconds=1))  # it has looked into every bucket
    await crew.settled()

    async def has_counted_each() -> bool:
        fields = [f"b{number}" for number in range(BUCKETS)]
        return None not in await crew.store.redis.hmget(keys.series(namespace), fields)

    await until_async(has_counted_each)
    if waiting:
        await crew.client.schedule("memory:q", b"x", delay=300 * 86_400)
    sent = await asyncio.to_thread(_commands_about, crew.url, namespace)
    names = ("}:series ", "}:birth", "}:recurring ")
    pulse = [c for _, c in sent if c.startswith(PULSE) or any(name in c for name in names)]
    beats = sum(command.startswith("PUBLISH") for command in pulse)
    assert len(pulse) <= (BUCKETS + len(PULSE) + OF_ONE_BUCKET) * (beats + 1), pulse
    seen: dict[str, list[float]] = {}  # the first key of a script -> when it ran
    for at_s, command in sent:
        if command not in pulse:
            seen.setdefault(command.split()[3], []).append(at_s)
    assert len(seen) <= BUCKETS + 1, "its buckets, and the fleet"
    pauses_s = [after - before for at_s in seen.values() for before, after in pairwise(at_s)]
    assert min(pauses_s) >= IDLE_RENEW_MS / 1000 - 0.001, "one of a renewal, by Redis' clock"
    # By default it renews every 4 s: fewer than 5 commands a second.
    assert (BUCKETS + 1) * 1000 / Settings().lease.renew_ms < 5
    await crew.stop()


def _commands_about(url: str, namespace: str) -> list[tuple[float, str]]:
    """What clients, but no scripts, ask about a namespace, with the time, in three renewals."""
    client = redis_py.Redis.from_url(url)
    found: list[tuple[float, str]] = []
    with client.monitor() as monitor:
        while sum("}:workers " in command for _, command in found) < 4:
            heard = monitor.next_command()
            if heard["client_type"] != "lua" and namespace in heard["command"]:
                found.append((heard["time"], heard["command"]))
    client.close()
    return found


async def test_a_burst_ends_when_nothing_is_due_and_leaves_the_rest(
    crew: Crew, arrived: Arrived
) -> None:
    due = await crew.schedule(500, seconds=1, first_s=-1)
    later = await crew.schedule(20, seconds=10, first_s=1.5)  # some of them within sight
    async with asyncio.timeout(DEADLINE_S):
        await crew.start(burst=True)
    assert set(due) <= arrived.at_ms.keys()
    assert arrived.twice == []
    stats = await crew.client.stats()
    assert stats.delayed == sum(id not in arrived.at_ms for id in later)
    assert stats.in_flight == 0
    assert stats.workers == []


# brokers unavailable at the start

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
    await until_async(lambda: parked(crew, len(unavailable)), "the others are parked")

    arrived.fail_next = True
    ids = await crew.schedule(20, seconds=0.2)
    await arrived.all(ids)
    assert len(crew.heard(ScannerFailed)) == 1
    assert not silent_were_tried(), "nor when the scanner is restarted"
    assert not task.done()
    await crew.stop()
    assert "Exception in callback" not in caplog.text


async def parked(crew: Crew, count: int) -> bool:
    return (await crew.client.stats()).parked == count


# shares


@ON_EVERY_REDIS
async def test_workers_share_fairly_few_buckets_move_and_nothing_is_lost_or_doubled(
    crew: Crew, arrived: Arrived
) -> None:
    lease = SELDOM | {"renew_ms": 500}
    crew.start("a", lease=lease)
    crew.start("b", lease=lease)
    await crew.shared("a", "b")
    ids = await crew.schedule(1000, seconds=2)
    before = {b.bucket: b.owner for b in (await crew.client.stats()).buckets}
    crew.start("c", lease=lease)
    await crew.shared("a", "b", "c")
    after = {b.bucket: b.owner for b in (await crew.client.stats()).buckets}
    moved = [bucket for bucket, owner in before.items() if after[bucket] != owner]
    assert len(moved) <= 8, "5 or 6 must"
    await crew.stop("a")
    await crew.shared("b", "c")
    await arrived.all(ids)
    await crew.settled()
    assert arrived.twice == []
    assert min(arrived.late_ms) >= 0
    assert {attempt for _, attempt in arrived.attempts} == {1}
    assert crew.heard(LeaseLost) == []
    await crew.stop("b")
    await crew.stop("c")


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 8, 13, 21, 34, 55])
async def test_a_worker_stopped_while_it_starts_leaves_no_lease_behind(
    crew: Crew, turns: int
) -> None:
    await crew.client.stats()
    crew.start()
    for _ in range(20 * turns):
        await asyncio.sleep(0)
    await crew.stop()
    stats = await crew.client.stats()
    assert [bucket for bucket in stats.buckets if bucket.owner is not None] == []
    assert stats.workers == []


async def test_a_lease_granted_while_the_worker_ends_is_given_back(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores: list[GatedStore] = []

    def store_of(url: str, *, timeout_s: float, **others: Any) -> GatedStore:
        stores.append(GatedStore(url, timeout_s=timeout_s))
        stores[-1].hold("acquire")
        return stores[-1]

    monkeypatch.setattr(worker_module, "AsyncStore", store_of)
    task = crew.start(lease={"ttl_ms": 10_000, "renew_ms": 500})
    await crew.shared("w")  # in Redis; the worker does not know yet
    crew.workers.pop("w").stop()
    await asyncio.sleep(0)
    stores[0].let_go("acquire")
    await task
    assert await crew.shares() == {}
    assert (await crew.client.stats()).workers == []


async def test_a_name_in_use_is_refused_after_one_lease(crew: Crew) -> None:
    crew.start("w")
    await crew.shared("w")
    other = Crew(crew.url, crew.namespace)
    began_s = time.monotonic()
    with pytest.raises(NameTaken):
        await other.start("w")
    assert time.monotonic() - began_s >= TTL_MS / 1000
    await other.client.close()
    await crew.stop()


async def test_the_name_of_a_dead_worker_is_free_after_one_lease(crew: Crew) -> None:
    task = crew.start("w")
    await crew.shared("w")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    again = crew.start("w")
    await crew.shared("w")
    assert not again.done()
    await crew.stop()


async def test_a_worker_waits_for_the_name_of_a_dead_one_with_a_longer_lease(crew: Crew) -> None:
    about = Identity.of_this_process("w").info
    dead = registry.announce(crew.namespace, "w", "0" * 16, 4 * TTL_MS, about)
    await crew.store.run_one(dead)
    crew.start("w")
    await crew.shared("w")
    await crew.stop()


# what goes wrong inside


async def test_a_worker_announces_its_brokers_and_what_is_paused_and_damaged(crew: Crew) -> None:
    crew.start()
    await crew.shared("w")
    await crew.client.pause("memory:q")
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
    crew.start(lease=SELDOM | {"renew_ms": 500})
    await crew.shared("w")
    ids = await crew.schedule(300, seconds=1)
    await arrived.all(ids[:50])
    arrived.fail_next = True
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
        (id,) = await crew.schedule(1, seconds=1)
        arrived.fail_next = True
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
    assert len(os.listdir("/proc/self/fd")) == before
    await nowhere.close()
    assert not task.done()
    await crew.stop()


# Redis' clock is set


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
    clocked.start(lease=SELDOM | {"renew_ms": 500}, scan={"claim_ahead_ms": 2 * AHEAD_MS})
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
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    clocked_redis.set_clock(-3_600_000)
    clocked.start("w")
    await clocked.shared("w")
    await clocked.stop()


def _claimed(crew: Crew) -> int:
    return sum(event.messages for event in crew.heard(Claimed))


# the end


async def test_a_drain_without_confirms_ends_in_time_and_the_messages_are_retried(
    crew: Crew, arrived: Arrived
) -> None:
    publish = {"confirm_timeout_s": 1.0, "blocked_connection_timeout_s": 1.0, "heartbeat_s": 1}
    crew.start(scan={"drain_timeout_s": 2.0}, publish=publish, retry={"base_ms": 10})
    await crew.shared("w")
    arrived.brokers[0].hold = True
    (id,) = await crew.schedule(1, seconds=1)
    await arrived.all([id])
    await crew.stop()
    stored = await crew.client.get(id)
    assert stored is not None
    assert (stored.state, stored.attempts, stored.maybe_delivered) == ("delayed", 1, True)
    assert await crew.shares() == {}
    crew.start()
    await crew.settled()
    assert arrived.attempts == [(id, 1), (id, 2)]
    await crew.stop()


# faults of Redis


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


# processes


@ON_EVERY_REDIS
def test_a_killed_worker_s_buckets_are_taken_over_within_one_lease(
    fleet: Fleet, stall: Stall
) -> None:
    doomed = fleet.start("a", settled=False)
    # It would renew, and look at the fleet, long after every deadline.
    seldom = {"LEASE__TTL_MS": "600000", "LEASE__RENEW_MS": "300000"}
    other = fleet.start("b", settled=False, **seldom)
    fleet.wait_shared("a", "b")
    ids = fleet.schedule(450, seconds=1.5)
    until(lambda: len(fleet.published()) > 100, "under load")
    orphans = {bucket for bucket, owner in fleet.owners().items() if owner == "a"}
    doomed.kill()
    fleet.wait_shared("b")
    fleet.wait_published(ids)
    fleet.wait_settled()
    assert fleet.early() == []
    published = fleet.published()
    died_ms = max(record.at_ms for record in published if record.pid == doomed.pid)
    doubled = set(fleet.twice())
    first_ms = [record.at_ms for record in published if record.id in doubled]
    assert died_ms - min(first_ms, default=died_ms) < UNSETTLED_MS + stall.worst_ms
    assert {record.pid for record in published if record.id in doubled} <= {doomed.pid, other.pid}
    orphaned_ms, others_ms = _latest_ms(published, orphans)
    assert orphaned_ms < others_ms + 1000 + LATE_MS + stall.worst_ms, "a lease, and little more"


def _latest_ms(published: list[recorder.Record], of: set[int]) -> tuple[float, float]:
    """The worst lateness in these buckets, and in the others."""
    late_ms: dict[bool, list[float]] = {True: [], False: []}
    for record in published:
        is_of = bucket_of(record.id.encode(), BUCKETS) in of
        late_ms[is_of].append(record.at_ms - record.due_ms)
    return max(late_ms[True]), max(late_ms[False])


def test_a_worker_paused_for_longer_than_its_lease_publishes_nothing_stale(
    fleet: Fleet,
) -> None:
    paused = fleet.start("a", settled=False)
    fleet.start("b", settled=False)
    fleet.wait_shared("a", "b")
    ids = fleet.schedule(200, seconds=1, first_s=1.5)
    until(lambda: fleet.client.stats().in_flight > 100, "claimed")
    paused.signal(signal.SIGSTOP)
    until(lambda: paused.is_stopped, "it is paused")
    before = {record.id for record in fleet.published() if record.pid == paused.pid}
    assert len(before) < 50, "others are on its wheel"
    fleet.wait_published(ids)
    fleet.wait_settled()
    paused.signal(signal.SIGCONT)
    fleet.wait_shared("a", "b")
    more = fleet.schedule(100, seconds=0.5)
    fleet.wait_published(more)
    by_it = {record.id for record in fleet.published() if record.pid == paused.pid}
    assert by_it & {*ids} == before
    assert {*fleet.twice()} <= before, "what it had not settled when it was paused"
    assert fleet.early() == []
    until(lambda: "lease_lost" in paused.log, "logged, a moment later")


def test_sigterm_drains_under_load_without_a_gap_or_a_duplicate(patient: Fleet) -> None:
    leaving = patient.start("a", settled=False)
    patient.start("b", settled=False)
    patient.wait_shared("a", "b")
    ids = patient.schedule(600, seconds=2)
    until(lambda: len(patient.published()) > 200, "under load")
    leaving.signal(signal.SIGTERM)
    assert leaving.wait() == 0
    patient.wait_published(ids)
    patient.wait_settled()
    assert patient.twice() == []
    assert patient.early() == []
    assert {record.attempt for record in patient.published()} == {1}


@pytest.mark.parametrize("processes", [1, 2])
def test_sigterm_while_redis_is_down_ends_in_time_and_reports_leases_not_given_back(
    fleet_of: FleetFactory, processes: int
) -> None:
    with RedisServer() as server:
        # A step that waited for Redis by itself would take a minute.
        fleet = fleet_of(
            server.url, ttl_ms=600_000, REDIS__TIMEOUT_S="60", SCAN__DRAIN_TIMEOUT_S="2"
        )
        worker = fleet.start("a", "--processes", str(processes), settled=processes == 1)
        if processes == 2:
            fleet.wait_shared("a-0", "a-1")
        server.pause()
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 1
        assert "not_drained" in worker.log or "were not released" in worker.log
        server.resume()


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


@pytest.mark.parametrize(
    ("fault", "processes"), [("closed pipe", 1), ("full disk", 1), ("full disk", 2)]
)
def test_a_worker_keeps_working_when_its_log_cannot_be_written(
    fleet: Fleet, fault: str, processes: int
) -> None:
    with unwritable(fault) as stderr:
        worker = fleet.start("a", "--processes", str(processes), stderr=stderr)
    fleet.wait_published(fleet.schedule(20, seconds=0.1))
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


def test_a_command_whose_output_cannot_be_written_reports_by_its_exit_code() -> None:
    command = [sys.executable, "-m", "delaybridge", "stats", "--no-such-option"]
    for fault in ("closed pipe", "full disk"):
        with unwritable(fault) as stderr:
            assert subprocess.run(command, stderr=stderr, check=False).returncode == 2


def unwritable(fault: str) -> IO[bytes]:
    """A file that takes nothing."""
    if fault == "full disk":
        return open("/dev/full", "wb", buffering=0)
    read_end, write_end = os.pipe()
    os.close(read_end)
    return os.fdopen(write_end, "wb", buffering=0)


def test_a_second_sigterm_ends_at_once_and_the_next_owner_publishes_again(fleet: Fleet) -> None:
    fleet.hold()
    worker = fleet.start("a", SCAN__DRAIN_TIMEOUT_S="3600")
    (id,) = fleet.schedule(1, seconds=1)
    fleet.wait_published([id])
    worker.signal(signal.SIGTERM)
    until(lambda: "draining" in worker.log, "it drains")
    assert worker.running
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 130
    fleet.let_go()
    fleet.start("b")
    fleet.wait_settled()
    assert [record.attempt for record in fleet.published()] == [1, 2]


def test_a_name_in_use_ends_the_second_worker_with_its_exit_code(fleet: Fleet) -> None:
    fleet.start("a")
    second = fleet.start("a", settled=False)
    assert second.wait() == 4


def test_a_parent_replaces_a_killed_child_and_frees_its_buckets_at_once(patient: Fleet) -> None:
    parent = patient.start("p", "--processes", "3", settled=False)
    patient.wait_shared("p-0", "p-1", "p-2")
    ids = patient.schedule(600, seconds=2)
    until(lambda: len(patient.published()) > 100, "under load")
    first, *others = parent.children()
    os.kill(first, signal.SIGKILL)
    until(lambda: len({*parent.children()} - {first}) == 3, "it is replaced")
    assert set(others) < set(parent.children())
    patient.wait_published(ids)
    patient.wait_settled()
    assert patient.early() == []
    parent.signal(signal.SIGTERM)
    assert parent.wait() == 0
    assert patient.owners() == {}


def test_a_parent_s_sigterm_drains_all_its_children(patient: Fleet) -> None:
    parent = patient.start("p", "--processes", "3", settled=False)
    patient.wait_shared("p-0", "p-1", "p-2")
    patient.schedule(1000, seconds=20)
    until(lambda: len(patient.published()) > 20, "under load")
    children = parent.children()
    parent.signal(signal.SIGTERM)
    assert parent.wait() == 0
    assert not any(_runs(pid) for pid in children)
    assert patient.owners() == {}
    stats = patient.client.stats()
    assert (stats.in_flight, stats.workers) == (0, [])
    assert stats.delayed == 1000 - len(patient.published())
    assert patient.twice() == []


@pytest.mark.parametrize("after_ms", [0, 60, 120, 200, 300])
def test_a_sigterm_while_children_are_being_started_ends_them_all(
    patient: Fleet, after_ms: int
) -> None:
    parent = patient.start("p", "--processes", "4", settled=False)
    until(lambda: parent.children(), "the first child", interval_s=0.002)
    quiet(after_ms / 1000)  # the moment is the parameter
    parent.signal(signal.SIGTERM)
    assert parent.wait() == 0
    assert patient.owners() == {}


def test_children_whose_parent_is_killed_drain_and_release(patient: Fleet) -> None:
    parent = patient.start("p", "--processes", "2", settled=False)
    patient.wait_shared("p-0", "p-1")
    patient.schedule(1000, seconds=20)
    until(lambda: len(patient.published()) > 20, "under load")
    children = parent.children()
    parent.kill()
    until(lambda: not any(_runs(pid) for pid in children), "the children end")
    assert patient.owners() == {}, "given back, and not left to run out"
    assert patient.client.stats().in_flight == 0
    assert patient.twice() == []


def test_a_child_that_dies_while_redis_is_down_does_not_end_the_others(
    fleet_of: FleetFactory,
) -> None:
    with RedisServer() as server:
        fleet = fleet_of(server.url)
        parent = fleet.start("p", "--processes", "2", settled=False)
        fleet.wait_shared("p-0", "p-1")
        ids = fleet.schedule(100, seconds=1, first_s=3)
        server.pause()
        os.kill(parent.children()[0], signal.SIGKILL)
        until(lambda: parent.log.count("worker_died") > 1, "its replacement dies, too")
        server.resume()
        fleet.wait_shared("p-0", "p-1")
        fleet.wait_published(ids)
        assert parent.running
        fleet.client.close()


def test_a_wiped_store_ends_a_parent_and_the_namespace_is_not_created_again(
    fleet_of: FleetFactory, namespace: str
) -> None:
    with RedisServer() as server:
        fleet = fleet_of(server.url, BUCKETS="4")
        parent = fleet.start("p", "--processes", "2", settled=False)
        client = redis_py.Redis.from_url(server.url)
        until(lambda: _holders(client) == {"p-0", "p-1"}, "both hold buckets")
        client.flushall()
        assert parent.wait() != 0
        assert client.get(keys.birth(namespace)) is None
        client.close()


def _holders(client: redis_py.Redis) -> set[str]:
    """The workers that hold leases; asked without a `Client`, which would create the namespace."""
    tokens = [client.get(key) or b"" for key in client.keys("*:lease")]
    return {token.decode().partition(":")[0] for token in tokens}


def _runs(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False


# settings that change


@pytest.mark.parametrize("processes", [1, 2])
def test_brokers_are_added_replaced_and_removed_while_the_worker_keeps_its_leases(
    fleet_of: FleetFactory, tmp_path: Path, redis_url: str, namespace: str, processes: int
) -> None:
    config = tmp_path / "settings.toml"
    config.touch()
    fleet = fleet_of(ttl_ms=SELDOM["ttl_ms"], CONFIG=str(config))
    worker = fleet.start("w", "--processes", str(processes))
    fleet.wait_shared(*(("w",) if processes == 1 else ("w-0", "w-1")))
    with Client(redis_url, namespace=namespace, brokers={"eu": "memory://"}) as client:
        before = client.stats().buckets

        def written(text: str, say: str) -> None:
            """Write the file, send SIGHUP, and wait until every process has logged `say`."""
            config.write_text(text)
            seen = worker.log.count(say)
            worker.signal(signal.SIGHUP)
            until(lambda: worker.log.count(say) >= seen + processes, say)

        def arrived(place: Path) -> list[str]:
            return [record.id for record in recorder.read(place)]

        def schedule() -> list[str]:
            return [client.schedule("eu:q", b"", delay=0, key="one").id for _ in range(20)]

        parked = lambda: client.stats().parked  # noqa: E731
        first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
        ids = schedule()
        until(lambda: parked() == 20, "parked: no worker has the broker")
        written(f'[brokers]\neu = "recorder://{first}"\n', "reloaded changed_brokers=eu")
        until(lambda: arrived(first) == ids, "all arrive, in order")
        written(f'[brokers]\neu = "recorder://{second}"\n', "reloaded changed_brokers=eu")
        ids = schedule()
        until(lambda: arrived(second) == ids, "all arrive elsewhere, in order")
        written("", "reloaded changed_brokers=eu")
        ids += schedule()
        until(lambda: parked() == 20, "parked: the broker is gone")

        config.write_text("[brokers]\neu = 'amqp://h/?foo=1'\n")
        worker.signal(signal.SIGHUP)
        refused = "reload_refused reason=\"brokers.eu: 'foo' is not an option of a RabbitMQ URL"
        until(lambda: refused in worker.log, "refused, with the reason")
        fleet.wait_published(fleet.schedule(10, seconds=0.1))
        assert parked() == 20

        written(f'[brokers]\neu = "recorder://{second}"\n', "reloaded changed_brokers=eu")
        until(lambda: arrived(second) == ids, "the rest arrives, in order")
        after = client.stats().buckets
    assert [bucket.owner for bucket in after] == [bucket.owner for bucket in before]
    assert "scanner_failed" not in worker.log
    assert processes > 1 or "lease_released" not in worker.log  # two share when they start
    assert worker.log.count("broker_connected name=file ") == processes, "the other one stayed"
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


@pytest.mark.parametrize("processes", ["1", "2"])
def test_closing_the_terminal_drains_and_ends_the_worker(
    redis_url: str, namespace: str, tmp_path: Path, processes: str
) -> None:
    ours, theirs = pty.openpty()
    log = tmp_path / "w.log"
    command = [sys.executable, "-m", "delaybridge", "--redis", redis_url, "--namespace", namespace]
    command += ["--broker", "memory://", "scan", "--processes", processes]
    with log.open("wb") as file, subprocess.Popen(
        command,
        stdin=theirs, stdout=file, stderr=file,
        start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    ) as process:  # fmt: skip
        os.close(theirs)
        owned = lambda: log.read_text().count("lease_acquired")  # noqa: E731
        until(lambda: owned() > 0, "it holds buckets")
        os.close(ours)
        assert process.wait(DEADLINE_S) == 0
    assert "draining" in log.read_text()
