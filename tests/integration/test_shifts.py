"""A worker on a Redis Cluster: each node's buckets are served apart from those of the others."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from delaybridge.events import ClockStepped
from delaybridge.message import Limits
from delaybridge.store.calls import Calls
from delaybridge.store.protocol import keys
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.verbs import bucket_of
from tests.rigs.crew import CALM, Arrived, Crew
from tests.rigs.stall import Stall
from tests.rigs.waiting import until_async
from tests.servers.clock import SOURCE
from tests.servers.cluster import ClusterNode, ClusterSite, slot_of
from tests.servers.preloaded import library

LEASE = {"ttl_ms": 3000, "renew_ms": 500}
LATE_MS = 2000
A_MINUTE_S = 60.0  # the longest time-out: what waits for it misses every deadline
AHEAD_MS = 3000
IN_FLIGHT_S = 1.0
MOVED_BUCKETS = 6


@pytest.fixture
def site() -> Iterator[ClusterSite]:
    """Three masters of one's own, without replicas."""
    with ClusterSite(replicas=0) as site:
        yield site


@pytest.fixture
async def crew(site: ClusterSite, namespace: str, arrived: Arrived) -> AsyncIterator[Crew]:
    crew = Crew(site.url, namespace)
    crew.start(lease=CALM, redis={"url": site.url, "timeout_s": A_MINUTE_S})
    await crew.shared("w")
    yield crew
    await crew.close()


async def buckets_of(crew: Crew) -> list[Bucket]:
    """The buckets of its namespace."""
    return await crew.store.complete(Calls(crew.namespace, None, None, Limits()).open())


async def nodes_of(crew: Crew) -> list[str]:
    """The node of each bucket."""
    return [crew.store.node_of(bucket.key("due")) for bucket in await buckets_of(crew)]


def late_ms(arrived: Arrived, nodes: list[str], *, but: ClusterNode) -> list[float]:
    """The lateness of the messages of all nodes but one, in order."""
    return sorted(
        arrived.at_ms[id] - due_ms
        for id, due_ms in arrived.due_ms.items()
        if nodes[bucket_of(id.encode(), len(nodes))] != but.address
    )


@pytest.mark.parametrize("of_namespace", [False, True], ids=["", "the namespace's own"])
@pytest.mark.slow_with("the*")
async def test_a_silent_node_delays_only_its_own_buckets(
    crew: Crew, arrived: Arrived, site: ClusterSite, of_namespace: bool
) -> None:
    nodes = await nodes_of(crew)
    own = site.master_of(keys.birth(crew.namespace))
    silent = next(node for node in site.masters if (node is own) is of_namespace)
    ids = await crew.schedule(1500, seconds=5, first_s=1.5)
    await until_async(lambda: len(arrived.at_ms) > 50, "the first arrive")
    silent.pause()
    others = {id for id in ids if nodes[bucket_of(id.encode(), len(nodes))] != silent.address}
    await until_async(lambda: others <= arrived.at_ms.keys(), "the others arrive meanwhile")
    silent.resume()
    await arrived.all(ids)
    assert min(arrived.late_ms) >= 0
    await crew.settled()
    await crew.stop()


async def test_a_master_that_fails_over_delays_its_buckets_by_little_more_than_that(
    namespace: str, arrived: Arrived, stall: Stall
) -> None:
    with ClusterSite() as site:
        async with Crew(site.url, namespace) as crew:
            crew.start(lease=LEASE)
            await crew.shared("w")
            nodes = await nodes_of(crew)
            dead = site.masters[1]
            slot = site.slots_of(dead)[0]
            ids = await crew.schedule(1500, seconds=5, first_s=1.5)
            await until_async(lambda: len(arrived.at_ms) > 50, "the first arrive")
            site.wait_in_sync()
            dead.kill()
            began_s = time.monotonic()
            await asyncio.to_thread(site.wait_for_other_master, dead, slot)
            over_ms = (time.monotonic() - began_s) * 1000
            await arrived.all(ids)
            late = late_ms(arrived, nodes, but=dead)
            assert late[0] >= 0
            assert max(arrived.late_ms) < over_ms + late[-1] + LATE_MS + stall.worst_ms
            await crew.settled()
            await crew.stop()


async def test_buckets_whose_slots_move_under_load_lose_nothing_and_are_never_early(
    crew: Crew, arrived: Arrived, site: ClusterSite, stall: Stall
) -> None:
    nodes = await nodes_of(crew)
    ids = await crew.schedule(1500, seconds=4, first_s=1.5)
    source, target = site.masters[0], site.masters[2]
    await until_async(lambda: len(arrived.at_ms) > 50, "the first arrive")
    await asyncio.to_thread(site.reshard, site.slots_of(source), target)
    await arrived.all(ids)
    await crew.settled()
    assert min(arrived.late_ms) >= 0
    others_ms = late_ms(arrived, nodes, but=source)[-1]
    assert max(arrived.late_ms) < others_ms + LATE_MS + stall.worst_ms
    assert not arrived.twice
    await crew.stop()


@pytest.mark.slow
async def test_each_bucket_obeys_the_clock_of_its_own_node(
    namespace: str, arrived: Arrived, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = ClusterSite(replicas=0)
    ahead = site.nodes[1]
    set_ahead(ahead, monkeypatch)
    with site:
        async with Crew(site.url, namespace) as crew:
            crew.start(lease=LEASE)
            await crew.shared("w")
            buckets, nodes = await buckets_of(crew), await nodes_of(crew)
            ids = await crew.schedule(900, seconds=3, first_s=1 + AHEAD_MS / 1000)
            await until_async(lambda: len(arrived.at_ms) > 50, "the first arrive")
            # The shift of the bucket's old node must not take the other clock for its own.
            moved = next(
                number for number, node in enumerate(nodes) if node == site.nodes[0].address
            )
            nodes[moved] = ahead.address
            await asyncio.to_thread(site.reshard, [slot_of(buckets[moved].key("due"))], ahead)
            await until_async(lambda: len(arrived.at_ms) > 300, "more arrive")
            await asyncio.to_thread(site.reshard, site.slots_of(ahead), site.nodes[2])
            # What was fired in the moment of the move may still come, by the other clock.
            after = await crew.schedule(300, seconds=1, first_s=IN_FLIGHT_S)
            await arrived.all(ids + after)
            assert late_ms(arrived, nodes, but=ahead)[0] >= 0
            assert min(arrived.late_ms) >= -AHEAD_MS
            assert min(arrived.at_ms[id] - arrived.due_ms[id] for id in after) >= 0
            # While the keys of a slot are under way, the other node may answer for them.
            assert len(crew.heard(ClockStepped)) <= MOVED_BUCKETS * 2
            await crew.settled()
            await crew.stop()


def set_ahead(node: ClusterNode, patch: pytest.MonkeyPatch) -> None:
    """Start this node with a clock that is ahead of all others."""
    file = node.folder / "offset"
    file.write_bytes((AHEAD_MS * 1000).to_bytes(8, sys.byteorder, signed=True))
    preload = {"LD_PRELOAD": str(library(SOURCE)), "TEST_CLOCK": str(file)}
    environment = {**node.environment(), **preload}
    patch.setattr(node, "environment", lambda: environment)
