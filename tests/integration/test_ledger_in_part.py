"""Some of Redis is wiped, as one master of a Cluster may be: what belongs together comes together.

The namespace's record, rules and alarm are on one master; buckets are on that one and on others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable

import pytest
import redis

from delaybridge.message import Answer
from tests.rigs.crew import BUCKETS, Arrived, Crew
from tests.rigs.waiting import until_async
from tests.servers.redis import RedisServer

PAUSED, OPEN = "memory:paused", "memory:q"
WATCHED = {"ttl_ms": 60_000, "renew_ms": 400}


@pytest.fixture
async def crew(
    server: RedisServer, namespace: str, arrived: Arrived, ledger_url: str
) -> AsyncIterator[Crew]:
    async with Crew(server.url, namespace, ledger=ledger_url) as crew:
        yield crew


def lost_with_record(namespace: str) -> list[str]:
    """The keys of the namespace, and those of some buckets."""
    return [f"{{{namespace}}}:*", *(f"{{{namespace}:{number}}}:*" for number in range(5))]


def lost_without(namespace: str) -> list[str]:
    """The keys of all buckets but some."""
    return [f"{{{namespace}:{number}}}:*" for number in range(5, BUCKETS)]


def wipe(admin: redis.Redis, patterns: list[str]) -> None:
    """In one step, as a master loses them."""
    keys = [key for pattern in patterns for key in admin.keys(pattern)]
    assert admin.delete(*keys) == len(keys) > len(patterns)


@pytest.mark.slow_with("mariadb*", "sqlite*")
@pytest.mark.parametrize("lost", [lost_with_record, lost_without])
async def test_all_comes_once_and_what_is_paused_waits(
    crew: Crew,
    admin: redis.Redis,
    namespace: str,
    arrived: Arrived,
    lost: Callable[[str], list[str]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    crew.start(lease=WATCHED)
    await crew.shared("w")
    await crew.client.destinations.pause(PAUSED)
    await crew.obeys_pause(PAUSED)
    ids = await crew.schedule(3 * BUCKETS, seconds=0.1, first_s=1800)
    assert await crew.client.cancel(ids[0]) is Answer.CANCELLED
    stay = [await crew.client.schedule(PAUSED, b"x", delay=0) for _ in range(BUCKETS)]
    await crew.parked(len(stay))
    wipe(admin, lost(namespace))
    await until_async(lambda: "alarm_ended" in caplog.text, "it is rebuilt")
    assert await crew.client.cancel(ids[1]) is Answer.CANCELLED
    await asyncio.gather(*(crew.client.reschedule(id, delay=0) for id in ids[2:]))
    await arrived.all(ids[2:])
    await crew.parked(len(stay))
    await crew.client.destinations.resume(PAUSED)
    await crew.settled()
    assert {id for id, _ in arrived.attempts} == {*ids[2:], *(each.id for each in stay)}
    assert arrived.twice == []
    await crew.stop()
