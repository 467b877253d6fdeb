"""Workers bring cold messages into Redis by its clock; one whose own differs says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis as redis_py

from delaybridge.events import ClockDiffers, LeaseAcquired
from delaybridge.store.protocol.keys import bucket_key
from delaybridge.store.protocol.verbs import bucket_of
from tests.rigs.command_line import Run
from tests.rigs.crew import BUCKETS, CALM, Crew
from tests.rigs.ledgers import LedgerProbe, made
from tests.rigs.waiting import until_async
from tests.servers.clock import ClockedRedis

HOUR_MS = 3_600_000
WINDOW_S = 120.0


@pytest.fixture
def url(tmp_path: Path) -> str:
    return made(f"sqlite:///{tmp_path / 'ledger.db'}")


@pytest.fixture
def flags(clocked_redis: ClockedRedis, namespace: str) -> list[str]:
    return ["--redis", clocked_redis.url, "--namespace", namespace]


@pytest.fixture
async def crew(clocked_redis: ClockedRedis, namespace: str, url: str) -> AsyncIterator[Crew]:
    crew = Crew(clocked_redis.url, namespace, ledger=url, hot_window_s=WINDOW_S)
    yield crew
    await crew.close()


@pytest.mark.parametrize("ahead_ms", [HOUR_MS, -HOUR_MS])
async def test_a_worker_whose_clock_differs_promotes_in_time_and_says_so(
    crew: Crew, clocked_redis: ClockedRedis, url: str, run: Run, ahead_ms: int
) -> None:
    clocked_redis.set_clock(-ahead_ms)
    ids = (f"later{n}" for n in range(1000))
    later = next(id for id in ids if bucket_of(id.encode(), BUCKETS) == bucket_of(b"soon", BUCKETS))
    for id, delay_s in (("soon", WINDOW_S + 2), (later, WINDOW_S + 600)):
        await crew.client.schedule("memory:q", b"x", delay=delay_s, id=id)
    ledger = LedgerProbe(url)
    tiers = "SELECT id, tier FROM message ORDER BY due_ms"
    try:
        assert ledger.ask(tiers) == [("soon", 2), (later, 2)]
        ledger.ask("UPDATE message SET due_ms = due_ms - 3000 WHERE id = 'soon'")
        crew.start(lease=CALM, ledger={"hot_window_s": WINDOW_S, "reconcile_s": WINDOW_S / 2})
        await until_async(lambda: ledger.ask(tiers)[0] == ("soon", 1), "it is in Redis")
        assert ledger.ask(tiers) == [("soon", 1), (later, 2)]
        assert len(crew.heard(ClockDiffers)) == 1
        assert crew.heard(ClockDiffers)[0].ahead_ms == pytest.approx(ahead_ms, rel=0.1)
        said = f"the clock of w is 1h {'ahead of' if ahead_ms > 0 else 'behind'} Redis'"
        await until_async(lambda: crew.workers["w"].current_run, "it works")
        assert said in (await asyncio.to_thread(run, "doctor")).out
        assert said in (await asyncio.to_thread(run, "health")).out
        await crew.stop()
    finally:
        ledger.close()


async def test_a_worker_whose_clock_is_behind_restores_what_vanished(
    crew: Crew, clocked_redis: ClockedRedis, url: str, namespace: str
) -> None:
    clocked_redis.set_clock(HOUR_MS)
    crew.start(lease=CALM, ledger={"reconcile_s": 1.0})
    await until_async(lambda: len(crew.heard(LeaseAcquired)) == BUCKETS, "it has all buckets")
    await crew.client.schedule("memory:q", b"x", delay=60, id="x")
    ledger = LedgerProbe(url)
    ledger.ask("UPDATE message SET created_ms = created_ms - 60000")
    ledger.close()
    number = bucket_of(b"x", BUCKETS)
    with redis_py.Redis.from_url(clocked_redis.url) as connection:
        gone = [bucket_key(namespace, number, name) for name in ("due", "messages")]
        assert connection.delete(*gone) == 2

        def is_back() -> bool:
            return connection.exists(*gone) == 2

        await until_async(is_back, "it is restored")
    await crew.stop()
