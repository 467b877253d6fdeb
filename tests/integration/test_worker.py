"""Workers as they run: on time, idle, sharing buckets and names; on the test's own loop."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import redis as redis_py

from delaybridge.events import LeaseLost, Published
from delaybridge.scan.leases.fleet import NameTaken
from delaybridge.scan.scanner import Scanner
from delaybridge.settings.settings import Settings
from delaybridge.store.namespace import registry
from delaybridge.store.protocol import keys
from delaybridge.worker import scan_run
from delaybridge.worker import worker as worker_module
from delaybridge.worker.service import Identity
from tests.rigs.crew import BUCKETS, CALM, SELDOM, TTL_MS, Arrived, Crew
from tests.rigs.scanner import GatedStore
from tests.rigs.waiting import DEADLINE_S, until_async
from tests.servers.redis import ON_EVERY_REDIS

# Once a second: the rules, the events, the counts of buckets, a sample, what recurs.
PULSE = ("HGETALL", "PUBLISH", "HMGET", "ZRANGEBYSCORE", "TIME", "ZCARD")
OF_ONE_BUCKET = 4  # ZCARD of its messages by state, each bucket in its turn
IDLE_RENEW_MS = 500
UNHURRIED = {"drain_timeout_s": 3600}  # a twentieth of it is to give leases back at the end


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
    crew: Crew, arrived: Arrived, namespace: str, waiting: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    crew.start(lease=SELDOM | {"renew_ms": IDLE_RENEW_MS})
    await crew.shared("w")
    await arrived.all(await crew.schedule(1, seconds=1))  # it has looked into every bucket
    await crew.settled()

    async def has_counted_each() -> bool:
        fields = [f"b{number}" for number in range(BUCKETS)]
        return None not in await crew.store.redis.hmget(keys.series(namespace), fields)

    if waiting:  # what it wakes is over before anybody counts
        await crew.client.schedule("memory:q", b"x", delay=300 * 86_400)
    await until_async(has_counted_each)
    passes, scan = [], Scanner.scan

    def count(scanner: Scanner, now_ms: int) -> int | None:
        passes.append(now_ms)
        return scan(scanner, now_ms)

    monkeypatch.setattr(Scanner, "scan", count)
    sent = await asyncio.to_thread(_commands_about, crew.url, namespace)
    assert len(passes) <= 3, "it sleeps, but for renewals"
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
        await crew.start(burst=True, lease=CALM)
    assert set(due) <= arrived.at_ms.keys()
    assert arrived.twice == []
    stats = await crew.client.stats()
    assert stats.delayed == sum(id not in arrived.at_ms for id in later)
    assert stats.in_flight == 0
    assert stats.workers == []


@ON_EVERY_REDIS
@pytest.mark.slow_with("single")
async def test_workers_share_fairly_few_buckets_move_and_nothing_is_lost_or_doubled(
    crew: Crew, arrived: Arrived
) -> None:
    crew.start("a", lease=CALM)
    crew.start("b", lease=CALM)
    await crew.shared("a", "b")
    ids = await crew.schedule(1000, seconds=2)
    before = {b.bucket: b.owner for b in (await crew.client.stats()).buckets}
    crew.start("c", lease=CALM)
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
    crew.start(lease=CALM, scan=UNHURRIED)
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
    task = crew.start(lease={"ttl_ms": 10_000, "renew_ms": 500}, scan=UNHURRIED)
    await until_async(lambda: stores and stores[0].stuck, "it looks at the leases")
    stores[0].let_go("acquire")
    stores[0].hold("acquire")
    await crew.shared("w")  # in Redis; the worker does not know yet
    crew.workers.pop("w").stop()
    await asyncio.sleep(0)
    stores[0].let_go("acquire")
    await task
    assert await crew.shares() == {}
    assert (await crew.client.stats()).workers == []


async def test_a_name_in_use_is_refused_after_one_lease(
    crew: Crew, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "delaybridge")
    began_s = time.monotonic()
    now_s = began_s
    monkeypatch.setattr(worker_module, "time", SimpleNamespace(monotonic=lambda: now_s))
    crew.start("w", lease=CALM)
    await crew.shared("w")
    other = Crew(crew.url, crew.namespace)
    task = other.start("w", lease=CALM)

    async def asked(times: int) -> None:
        await until_async(lambda: task.done() or caplog.text.count("name_taken") >= times)

    await asked(1)
    now_s = began_s + 0.9 * SELDOM["ttl_ms"] / 1000
    await asked(3)
    assert not task.done()
    now_s = began_s + SELDOM["ttl_ms"] / 1000 + 2
    with pytest.raises(NameTaken):
        await task
    await other.client.close()
    await crew.stop()


async def test_a_worker_waits_for_the_name_of_a_dead_one_with_a_longer_lease(crew: Crew) -> None:
    about = Identity.of_this_process("w").info
    dead = registry.announce(crew.namespace, "w", "0" * 16, 4 * TTL_MS, about)
    await crew.store.run_one(dead)
    crew.start("w")
    await crew.shared("w")
    await crew.stop()


async def test_a_drain_without_confirms_ends_in_time_and_the_messages_are_retried(
    crew: Crew, arrived: Arrived, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of the time for a drain a second is for the confirms, and minutes are for Redis' answers.
    monkeypatch.setattr(scan_run, "_CONFIRMS", 1 / 3600)
    crew.start(lease=CALM, scan=UNHURRIED, retry={"base_ms": 10})
    await crew.shared("w")
    arrived.brokers[0].hold = True
    (id,) = await crew.schedule(1, seconds=1)
    await arrived.all([id])
    await crew.stop()
    stored = await crew.client.get(id)
    assert stored is not None
    assert (stored.state, stored.attempts, stored.maybe_delivered) == ("delayed", 1, True)
    assert await crew.shares() == {}
    crew.start(lease=CALM)
    await crew.settled()
    assert arrived.attempts == [(id, 1), (id, 2)]
    await crew.stop()
