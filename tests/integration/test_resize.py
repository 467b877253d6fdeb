"""Another number of buckets, while messages are scheduled, cancelled and delivered."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

import pytest

from delaybridge.message import Message
from delaybridge.resize import resizing
from tests.rigs.crew import CALM, Arrived, Crew
from tests.rigs.waiting import until_async
from tests.servers.cluster import ClusterSite
from tests.servers.redis import default_binary


@pytest.fixture(scope="module")
def site() -> Iterator[ClusterSite]:
    if default_binary() is None:
        pytest.skip("no Redis to run a Cluster from")
    with ClusterSite(replicas=0) as site:
        yield site


@pytest.mark.parametrize(("before", "after"), [(2, 8), pytest.param(8, 2, marks=pytest.mark.slow)])
async def test_messages_move_and_none_is_lost_or_doubled(
    redis_url: str, namespace: str, arrived: Arrived, before: int, after: int
) -> None:
    await _resized(redis_url, namespace, arrived, before, after)


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(4, 16), (16, 4)])
async def test_they_move_on_a_cluster(
    site: ClusterSite, namespace: str, arrived: Arrived, before: int, after: int
) -> None:
    await _resized(site.url, namespace, arrived, before, after)


async def _resized(url: str, namespace: str, arrived: Arrived, before: int, after: int) -> None:
    async with Crew(url, namespace, before) as crew:
        for name in "ab":
            crew.start(name, buckets=before, lease=CALM)

        async def are_held() -> bool:
            return (await crew.shares()).total() == before

        await until_async(are_held, "all buckets are held")
        later = [f"later{n}" for n in range(300)]
        await crew.client.schedule_many(
            [Message("memory:q", b"x", id=id, delay="1h") for id in later]
        )
        jobs = ["job1", "job2", "job3"]
        for name in jobs:
            await crew.client.recurring.add(name, "memory:q", "x", every="1s", missed="all")
        ended = asyncio.Event()
        moving = asyncio.create_task(_traffic(crew, ended))
        await crew.client.run(lambda calls: resizing.begin(calls, after))

        async def is_over() -> bool:
            return (await crew.client.run(resizing.progress)).to is None

        await until_async(is_over, "the messages have moved", interval_s=0.5)
        ended.set()
        accepted, cancelled = await moving
        await arrived.all([*accepted])
        for name in jobs:
            await crew.client.recurring.remove(name)
            due_ms = [ms for id, ms in arrived.due_ms.items() if id.startswith(f"{name}@")]
            assert len(due_ms) > 2
            assert sorted(due_ms) == [*range(min(due_ms), max(due_ms) + 1, 1000)]
        assert not arrived.twice
        assert not cancelled & arrived.at_ms.keys()
        assert min(arrived.late_ms) >= 0
        for id in later:
            assert await crew.client.cancel(id) == "cancelled"
        assert (await crew.client.stats()).delayed == 0
        for name in "ab":
            await crew.stop(name)


async def _traffic(crew: Crew, ended: asyncio.Event) -> tuple[set[str], set[str]]:
    accepted, cancelled, n = set[str](), set[str](), 0
    while not ended.is_set():
        ids = [f"m{n + i}" for i in range(20)]
        n += 20
        answers = await crew.client.schedule_many(
            [Message("memory:q", b"x", id=id, delay=random.random() * 3) for id in ids]
        )
        accepted |= {id for id, one in zip(ids, answers, strict=True) if one == "created"}
        some = random.choice(ids)
        if await crew.client.cancel(some) == "cancelled":
            cancelled.add(some)
            accepted.discard(some)
        await asyncio.sleep(0)
    return accepted, cancelled
