"""What workers delivered does not come again, though neither Redis nor the ledger knows it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta

import pytest
import redis as redis_py

from delaybridge.events import LeaseAcquired
from delaybridge.message import Message, new_id
from tests.rigs.crew import BUCKETS, CALM, Arrived, Crew
from tests.rigs.ledgers import LedgerProbe, made
from tests.rigs.waiting import until_async
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer

TO = "memory:q"
COUNT = 200


@pytest.fixture
def database() -> Iterator[PostgresServer]:
    with PostgresServer() as found:
        yield found


@pytest.fixture
async def crew(
    server: RedisServer, namespace: str, arrived: Arrived, database: PostgresServer
) -> AsyncIterator[Crew]:
    crew = Crew(server.url, namespace, ledger=made(database.url))
    yield crew
    await crew.close()


def admin(server: RedisServer) -> redis_py.Redis:
    return redis_py.Redis.from_url(server.url)


async def deliver_during_an_outage(
    crew: Crew, arrived: Arrived, database: PostgresServer, *names: str
) -> None:
    """Deliver messages, every other one at most once, of which the ledger hears nothing."""
    for name in names:
        crew.start(name, lease=CALM)
    await until_async(lambda: len(crew.heard(LeaseAcquired)) >= BUCKETS, "they hold all buckets")
    await crew.shared(*names)
    at = datetime.now(UTC) + timedelta(seconds=2)
    messages = [
        Message(TO, b"x", at=at, id=new_id(), at_most_once=bool(n % 2)) for n in range(COUNT)
    ]
    later = [Message(TO, b"x", delay="30m", id=new_id()) for _ in range(20)]
    await crew.client.schedule_many([*messages, *later])
    await asyncio.to_thread(database.kill)
    await arrived.all([message.id for message in messages])
    await in_redis(crew, 20)


async def in_redis(crew: Crew, delayed: int) -> None:
    async def are() -> bool:
        stats = await crew.client.stats()
        is_whole = not stats.setbacks and all(bucket.owner for bucket in stats.buckets)
        return is_whole and (stats.delayed, stats.in_flight) == (delayed, 0)

    await until_async(are, f"{delayed} messages are in Redis, and none is in flight")


async def all_is_rebuilt_and_nothing_comes_twice(
    crew: Crew, arrived: Arrived, database: PostgresServer
) -> None:
    probe = LedgerProbe(database.url)
    try:

        def states() -> object:
            return probe.states()

        await until_async(
            lambda: states() == {"published": COUNT, "delayed": 20}, lambda: f"{states()}"
        )
        await in_redis(crew, 20)
        await crew.client.schedule(TO, b"x", delay=0.1, id="marker")
        await arrived.all(["marker"])
        assert arrived.twice == []
    finally:
        probe.close()


async def test_what_was_delivered_during_an_outage_before_a_wipe_does_not_come_again(
    crew: Crew, server: RedisServer, arrived: Arrived, database: PostgresServer
) -> None:
    await deliver_during_an_outage(crew, arrived, database, "w")
    with admin(server) as connection:
        connection.flushall()
    await asyncio.to_thread(database.start)
    await all_is_rebuilt_and_nothing_comes_twice(crew, arrived, database)
    await crew.stop()
