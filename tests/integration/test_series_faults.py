"""The series while something breaks: a worker dies, Redis is full, moves, loses answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from delaybridge.store.redis.store import Store
from tests.rigs.crew import CALM, SELDOM, Arrived, Crew
from tests.rigs.fleet import Fleet
from tests.rigs.lossy_proxy import LossyProxy
from tests.rigs.redis_troubles import Pair, moving
from tests.rigs.stall import Stall
from tests.rigs.waiting import until, until_async
from tests.servers.redis import RedisServer


async def sums(crew: Crew) -> Counter[str]:
    """All that the seconds hold."""
    found: Counter[str] = Counter()
    for point in (await crew.client.series("1s")).points:
        found.update({} if point is None else point.counts)
    return found


def counted(crew: Crew, **wanted: int) -> Callable[[], Awaitable[bool]]:
    async def is_counted() -> bool:
        found = await sums(crew)
        for name, number in wanted.items():
            assert found[name] <= number, f"{name} counted twice"
        return all(found[name] == number for name, number in wanted.items())

    return is_counted


async def watching(crew: Crew, *names: str) -> None:
    """Wait until these workers have looked at every bucket, so that nothing is missed."""

    async def looked() -> bool:
        recent = await crew.client.rates()
        known = await crew.store.redis.hkeys(f"{{{crew.namespace}}}:series")
        buckets = [field for field in known if field.startswith(b"b")]
        return not recent.silent and not recent.missing and len(buckets) == 16

    await crew.shared(*names)
    await until_async(looked, "every bucket is watched")


def test_a_killed_worker_takes_only_its_last_second_with_it(
    redis_url: str, namespace: str, tmp_path: Path, stall: Stall
) -> None:
    with Fleet(tmp_path, redis_url, namespace) as fleet, closing(Store(redis_url)) as store:
        doomed = fleet.start("a", settled=False)
        fleet.start("b", settled=False)
        fleet.wait_shared("a", "b")

        def watched() -> bool:
            known = store.redis.hkeys(f"{{{namespace}}}:series")
            buckets = [field for field in known if field.startswith(b"b")]
            return len(buckets) == 16 and not fleet.client.rates().silent

        until(watched, "every bucket is watched")
        ids = fleet.schedule(900, seconds=3)
        until(lambda: len(fleet.published()) > 200, "under load")
        doomed.kill()
        fleet.wait_published(ids)
        fleet.wait_settled()

        def points() -> Counter[str]:
            found: Counter[str] = Counter()
            for point in fleet.client.series("1s").points:
                found.update({} if point is None else point.counts)
            return found

        until(lambda: points()["scheduled"] == 900, "all are counted")
        # It tells once a second, and could not tell of the last one or two.
        published = fleet.published()
        its_own_ms = [record.at_ms for record in published if record.pid == doomed.pid]
        since_ms = max(its_own_ms) - 2000 - stall.worst_ms
        untold = sum(at_ms > since_ms for at_ms in its_own_ms)
        until(lambda: points()["published"] >= len(published) - untold, "nearly all")
        assert points()["published"] <= 900 + len(fleet.twice())
        assert points()["scheduled"] == 900


async def test_lost_answers_count_nothing_twice(
    crew: Crew, arrived: Arrived, redis_url: str
) -> None:
    with LossyProxy(urlsplit(redis_url).port or 0) as proxy:
        crew.start("w1", url=proxy.url, lease=SELDOM)
        await watching(crew, "w1")
        ids = await crew.schedule(150, seconds=3)
        for lost in range(2, 14, 2):
            proxy.drop_next_replies(2)
            await until_async(lambda at=lost: proxy.dropped >= at, "lost")
        await arrived.all(ids)
        await until_async(counted(crew, published=150, scheduled=150), "counted")


@pytest.mark.slow
async def test_a_full_redis_stops_the_series_and_no_worker(arrived: Arrived) -> None:
    with RedisServer() as server:
        crew = Crew(server.url, "ns")
        try:
            crew.start("w1", lease=CALM)
            await watching(crew, "w1")
            ids = await crew.schedule(60, seconds=0.2, first_s=1.5)
            await crew.store.redis.config_set("maxmemory", 1)

            async def told() -> bool:
                (worker,) = (await crew.client.stats()).workers
                return "out of memory" in str(worker.failing.get("series"))

            await until_async(told, "the worker says why")
            await arrived.all(ids)

            async def silent() -> bool:
                return "out of memory" in (await crew.client.rates()).silent.get("w1", "")

            await until_async(silent, "it is no longer counted as reporting")
            await crew.store.redis.config_set("maxmemory", 0)
            await until_async(counted(crew, published=60), "recorded later")
        finally:
            await crew.close()


@pytest.mark.slow
async def test_the_series_go_on_after_a_failover_and_count_nothing_twice(
    pair: Pair, arrived: Arrived
) -> None:
    async with moving(pair) as (proxy, move):
        crew = Crew(f"redis://127.0.0.1:{proxy.port}/0", "ns")
        try:
            crew.start("w1", lease=SELDOM)
            await watching(crew, "w1")
            await arrived.all(await crew.schedule(80, seconds=0.3))
            await until_async(counted(crew, published=80), "counted")
            await move()
            await arrived.all(await crew.schedule(40, seconds=0.3))
            await until_async(counted(crew, published=120, scheduled=120), "all are counted")
        finally:
            await crew.close()
