"""Redis is wiped while the ledger's database is away or slow: workers stay, wait, and go on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import closing

import pytest
import redis as redis_py

from delaybridge.doctor.checks import problems
from delaybridge.metrics.gauges import gauges_of
from delaybridge.metrics.health import ready
from delaybridge.metrics.reader import Reader
from delaybridge.settings.settings import Settings
from delaybridge.store.keys import birth
from delaybridge.worker import past
from tests.rigs.crew import BUCKETS, Arrived, Crew
from tests.rigs.fault_proxy import FaultProxy
from tests.rigs.ledgers import LedgerProbe, made
from tests.rigs.waiting import until_async
from tests.servers.postgres import PostgresServer
from tests.servers.process import free_port
from tests.servers.redis import RedisServer

TO = "memory:q"
WATCHED = {"ttl_ms": 60_000, "renew_ms": 400}


@pytest.fixture(scope="module")
def database_server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        made(server.url)
        yield server


@pytest.fixture
def database(database_server: PostgresServer) -> PostgresServer:
    with closing(LedgerProbe(database_server.url)) as probe:
        probe.ask("TRUNCATE message, transition, namespace")
    return database_server


@pytest.fixture
async def crew(
    server: RedisServer,
    namespace: str,
    arrived: Arrived,
    database: PostgresServer,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Crew]:
    monkeypatch.setattr(past, "_SURE_BEATS", 1)
    crew = Crew(server.url, namespace, ledger=database.url)
    yield crew
    await crew.close()
    if not database.is_ready():
        database.start()


def flush(server: RedisServer) -> None:
    with redis_py.Redis.from_url(server.url) as connection:
        connection.flushall()


async def all_wait(crew: Crew, *names: str) -> None:
    """Every bucket is held again, and none is claimed."""

    async def do() -> bool:
        for name in names:
            assert not crew.tasks[name].done(), "workers stay"
        found = await crew.client.stats()
        return found.ledger is not None and found.ledger.waiting == BUCKETS

    await until_async(do, "every bucket is held, and waits")


async def test_a_worker_waits_for_both_and_goes_on(
    crew: Crew,
    server: RedisServer,
    arrived: Arrived,
    database: PostgresServer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    crew.start("a", lease=WATCHED)
    crew.start("b", lease=WATCHED)
    await crew.shared("a", "b")
    ids = await crew.schedule(48, seconds=0.1, first_s=1.0)
    await asyncio.to_thread(database.kill)
    for _ in range(2):
        flush(server)
        await all_wait(crew, "a", "b")
    assert not arrived.at_ms
    assert "ledger_answers" not in caplog.text
    assert "buckets_wait" in caplog.text
    await asyncio.to_thread(database.start)
    await arrived.all(ids)
    await until_async(lambda: "ledger_answers" in caplog.text, "said when it was seen")
    assert arrived.twice == []
    await crew.stop("a")
    await crew.stop("b")
