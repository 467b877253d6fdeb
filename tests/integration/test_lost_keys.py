"""Buckets that lost keys, and the worker that takes them: what docs/faults.md says of each key."""

from __future__ import annotations

import redis.asyncio

from delaybridge.ingest.entries import Quarantine
from delaybridge.ingest.storing import store_entries
from delaybridge.message import Record, encode_record
from delaybridge.operate.notices.repairs import Orphans
from delaybridge.store.protocol import keys, verbs
from delaybridge.store.redis.store import Store
from tests.rigs.bucket import World
from tests.rigs.crew import BUCKETS, CALM, Arrived, Crew
from tests.rigs.waiting import until_async

LOST = {
    0: ("due",),
    1: ("mirror",),
    2: ("parked",),
    3: ("dead",),
    4: ("messages",),
    5: ("due", "messages"),
    6: ("dead", "dead_reason"),
    7: (),
}
"""Bucket -> the keys that it loses."""
EACH = 3
PAUSED = "memory:paused"


def ids_of(bucket: int, what: str) -> list[str]:
    """Ids of messages in that bucket."""
    ids = (f"{what}{number}" for number in range(10_000))
    found = (id for id in ids if verbs.bucket_of(id.encode(), BUCKETS) == bucket)
    return [next(found) for _ in range(EACH)]


DELAYED = {bucket: ids_of(bucket, "delayed") for bucket in LOST}
CLAIMED = {bucket: ids_of(bucket, "claimed") for bucket in LOST}
PARKED = {bucket: ids_of(bucket, "parked") for bucket in LOST}
DEAD = {bucket: ids_of(bucket, "dead") for bucket in LOST}


async def fill(crew: Crew, store: Store) -> None:
    """Put messages of every state into each bucket, and end its worker."""
    client = crew.client
    await client.destinations.pause(PAUSED)
    crew.start(lease=CALM)
    await crew.obeys_pause(PAUSED)
    for id in sum(PARKED.values(), []):
        await client.schedule(PAUSED, b"x", delay=0, id=id)
    await crew.parked(len(LOST) * EACH)
    await crew.stop()
    record = encode_record(Record("memory:q", b"x"))
    buried = [Quarantine(id, b"1234", record, "ingress:odd") for id in sum(DEAD.values(), [])]
    await client.run(lambda calls: store_entries(calls, buried))
    for id in sum(CLAIMED.values(), []):
        await client.schedule("memory:q", b"x", delay=0, id=id)
    for bucket in LOST:
        claim(store, crew, CLAIMED[bucket][0])
    for id in sum(DELAYED.values(), []):
        await client.schedule("memory:q", b"x", delay=0, id=id)


def claim(store: Store, crew: Crew, id: str) -> None:
    """A worker claims everything of the bucket, and dies."""
    world = World.of_key(store, crew.url, crew.namespace, id.encode())
    assert len(world.owner().claim()) == EACH
    world.end_lease()
    world.store.close()


async def lose(client: redis.asyncio.Redis, namespace: str) -> None:
    for bucket, names in LOST.items():
        for name in names:
            await client.delete(keys.bucket_key(namespace, bucket, name))


async def test_a_worker_that_takes_buckets_without_some_keys_mends_what_can_be_mended(
    redis_url: str, namespace: str, store: Store, arrived: Arrived
) -> None:
    async with Crew(redis_url, namespace) as crew:
        await fill(crew, store)
        await lose(crew.store.redis, namespace)
        crew.start(lease=CALM)
        kept = [bucket for bucket, names in LOST.items() if "messages" not in names]
        due = [id for bucket in kept for id in DELAYED[bucket] + CLAIMED[bucket]]
        await arrived.all([*due, *DEAD[6]])  # without reasons dead messages are tried again
        await crew.client.destinations.resume(PAUSED)
        await arrived.all([id for bucket in kept for id in PARKED[bucket]])
        assert not arrived.twice
        await until_async(lambda: is_quiet(crew), "nothing is left")
        stats = await crew.client.stats()
        assert {bucket: each._replace(at_ms=0) for bucket, each in stats.mended.items()} == {
            0: Orphans(due=EACH),
            1: Orphans(due=EACH),
            2: Orphans(due=EACH),
            3: Orphans(dead=EACH),
            4: Orphans(bare=2 * EACH),
            5: Orphans(bare=EACH),
            6: Orphans(due=EACH),
        }
        dead = {each.id for each in (await crew.client.dead(limit=1000)).items}
        listed = [DEAD[b] for b in (0, 1, 2, 3, 4, 5, 7)] + [PARKED[4], DELAYED[4], CLAIMED[4]]
        listed += [PARKED[5], CLAIMED[5]]  # those that were delayed are gone without a trace
        assert dead == {*sum(listed, [])}
        await crew.stop()


async def is_quiet(crew: Crew) -> bool:
    stats = await crew.client.stats()
    return stats.delayed + stats.in_flight + stats.parked == 0
