"""A bucket of a `Rig` that loses keys, or gets them back as they were long ago, and its mending."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from delaybridge.operate.notices import repairs
from delaybridge.operate.notices.repairs import Orphans
from delaybridge.store.namespace import orphans
from delaybridge.store.namespace.orphans import KeySizes
from delaybridge.store.protocol.keys import bucket_key
from tests.rigs.scanner import Rig


async def lose(rig: Rig, *names: str) -> None:
    """These keys of the bucket vanish."""
    await rig.store.redis.delete(*(bucket_key(rig.namespace, 0, name) for name in names))


async def compare(rig: Rig) -> bool:
    """The owner compares the keys; if they are unsound, the bucket is taken again."""
    session = rig.sessions[0]
    await rig.scanner.mending.compare()
    if session.alive:
        return True
    await retake(rig)
    return False


async def retake(rig: Rig) -> None:
    await rig.expire(0)
    await rig.take(0, f"w:{len(rig.lost)}")
    await rig.quiet()


async def look(rig: Rig) -> bool:
    """The owner looks at the whole bucket, page by page."""
    session = rig.sessions[0]
    for _ in range(2 * len(orphans.WALKED) + session.counts.pages(orphans.FIRST.limit)):
        await rig.scanner.mending.look_further()
    return session.alive


async def mended(rig: Rig) -> Orphans:
    session = rig.sessions[0]
    return repairs.orphans_of(*await rig.store.run_each(repairs.commands(session.bucket)))


async def counts(rig: Rig) -> KeySizes:
    session = rig.sessions[0]
    found = await rig.store.run_one(orphans.count(session.bucket, session.owner))
    assert found is not None
    return found


@asynccontextmanager
async def old(rig: Rig, *names: str) -> AsyncIterator[None]:
    """What happens to these keys meanwhile is undone: somebody restores a copy."""
    redis, keys = rig.store.redis, [bucket_key(rig.namespace, 0, name) for name in names]
    copies = [await redis.dump(key) for key in keys]
    yield
    for key, copy in zip(keys, copies, strict=True):
        await redis.delete(key)
        if copy is not None:
            await redis.restore(key, 0, copy)
