"""With a ledger, rules and recurring definitions outlive Redis: nothing that is paused fires."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py

from delaybridge import Client
from delaybridge.store.protocol import keys
from tests.rigs.command_line import Run
from tests.rigs.crew import CALM, Arrived, Crew, ledger_part
from tests.rigs.ledgers import LedgerProbe, made
from tests.rigs.waiting import until_async
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer

PAUSED, OPEN = "memory:paused", "memory:open"
BROKERS = {"memory": "memory://"}
WATCHED = {"ttl_ms": 60_000, "renew_ms": 400}


@pytest.fixture
async def crew(
    server: RedisServer, namespace: str, arrived: Arrived, ledger_url: str
) -> AsyncIterator[Crew]:
    crew = Crew(server.url, namespace, ledger=ledger_url)
    yield crew
    await crew.close()


def admin(server: RedisServer) -> redis_py.Redis:
    return redis_py.Redis.from_url(server.url)


async def is_paused(crew: Crew, place: str) -> bool:
    (found,) = (await crew.client.destinations(place)).places
    return found.rule.paused


@pytest.mark.slow_with("mariadb", "sqlite")
async def test_a_destination_that_is_paused_stays_so_when_redis_is_wiped(
    crew: Crew, server: RedisServer, arrived: Arrived, ledger: LedgerProbe
) -> None:
    crew.start(lease=WATCHED)
    await crew.client.destinations.pause(PAUSED)
    await crew.obeys_pause(PAUSED)
    await crew.client.schedule(PAUSED, b"x", delay=0, id="stays")
    await crew.parked(1)
    with admin(server) as connection:
        connection.flushall()
    await crew.client.schedule(OPEN, b"x", delay=0, id="marker")
    await arrived.all(["marker"])
    await crew.parked(1)
    assert await is_paused(crew, PAUSED)
    assert "stays" not in arrived.at_ms
    await crew.client.destinations.resume(PAUSED)
    await arrived.all(["stays"])
    assert not arrived.twice
    await crew.stop()


@pytest.mark.slow_with("mariadb", "postgres")
async def test_a_pause_that_an_older_redis_does_not_have_is_obeyed_before_anything_goes_out(
    crew: Crew, server: RedisServer, arrived: Arrived, ledger: LedgerProbe
) -> None:
    await crew.client.schedule(PAUSED, b"x", delay=1, id="stays")
    await crew.client.destinations.pause("memory:resumed")
    await crew.client.schedule("memory:resumed", b"x", delay=1, id="goes")
    await crew.client.recurring.add("removed", OPEN, "x", every="1s")
    with admin(server) as connection:
        connection.save()
    kept = server.folder / "kept.rdb"
    await asyncio.to_thread(shutil.copy, server.folder / "dump.rdb", kept)
    await crew.client.destinations.pause(PAUSED)
    await crew.client.destinations.resume("memory:resumed")
    await crew.client.recurring.add("later", OPEN, "x", every="300d")
    await crew.client.recurring.remove("removed")
    await asyncio.to_thread(server.kill)
    await asyncio.to_thread(shutil.copy, kept, server.folder / "dump.rdb")
    await asyncio.to_thread(server.start)
    crew.start(lease=CALM)  # it knows nothing but what Redis and the ledger say
    await arrived.all(["goes"])
    await crew.parked(1)
    assert await is_paused(crew, PAUSED)
    assert [one.name for one in await crew.client.recurring.list()] == ["later"]
    assert {*arrived.at_ms} == {"goes"}, "no run of what was removed"
    await crew.stop()


@pytest.mark.slow_with("mariadb", "postgres")
async def test_rules_that_were_deleted_by_hand_come_back_and_nobody_obeyed_that(
    crew: Crew, server: RedisServer, arrived: Arrived, namespace: str, ledger: LedgerProbe
) -> None:
    crew.start(lease=CALM)
    await crew.client.destinations.pause(PAUSED)
    await crew.client.schedule(PAUSED, b"x", delay=0, id="stays")
    await crew.client.recurring.add("daily", OPEN, "x", cron="0 3 * * *")
    await crew.parked(1)
    with admin(server) as connection:
        connection.delete(keys.destinations(namespace), keys.recurring(namespace))

    async def are_back() -> bool:
        return await is_paused(crew, PAUSED) and bool(await crew.client.recurring.list())

    await until_async(are_back, "both are back")
    await crew.client.schedule(OPEN, b"x", delay=0, id="marker")
    await arrived.all(["marker"])
    await crew.parked(1)
    assert "stays" not in arrived.at_ms
    await crew.stop()


async def test_a_pause_while_the_database_is_down_is_obeyed_and_recorded_when_it_answers(
    server: RedisServer, namespace: str, arrived: Arrived
) -> None:
    with PostgresServer() as database:
        crew = Crew(server.url, namespace, ledger=made(database.url))
        probe = LedgerProbe(database.url)
        try:
            crew.start(lease=CALM)
            await crew.client.schedule(PAUSED, b"x", delay="1h", id="stays")
            await asyncio.to_thread(database.stop)
            await crew.client.destinations.pause(PAUSED)
            await crew.obeys_pause(PAUSED)

            async def is_told() -> bool:
                drift = (await crew.client.stats()).ledger
                return drift is not None and drift.lag > 0

            await until_async(is_told, "the worker says that the ledger lacks it")
            await asyncio.to_thread(database.start)
            await until_async(
                lambda: (
                    probe.ask("SELECT name FROM control WHERE value IS NOT NULL")
                    == [(f"paused:{PAUSED}".encode(),)]
                )
            )
            await crew.client.reschedule("stays", delay=0)
            await crew.parked(1)
            assert not arrived.at_ms
            await crew.stop()
        finally:
            probe.close()
            await crew.close()


async def test_a_worker_that_knows_of_a_pause_records_it_though_redis_and_the_database_failed(
    server: RedisServer, namespace: str, arrived: Arrived
) -> None:
    with PostgresServer() as database:
        crew = Crew(server.url, namespace, ledger=made(database.url))
        try:
            crew.start(lease=WATCHED)
            await crew.client.schedule(PAUSED, b"x", delay="1h", id="stays")
            await asyncio.to_thread(database.stop)
            await crew.client.destinations.pause(PAUSED)
            await until_async(lambda: ledger_part(crew).unrecorded, "the worker has seen it")
            with admin(server) as connection:
                connection.flushall()
            await until_async(lambda: ledger_part(crew).destinations.agree is False)
            await asyncio.to_thread(database.start)

            async def is_back() -> bool:
                return await crew.client.get("stays") is not None and await is_paused(crew, PAUSED)

            await until_async(is_back, "all is rebuilt")
            await crew.stop()
        finally:
            await crew.close()


def test_a_look_at_an_emptied_redis_makes_the_namespace_as_the_ledger_knows_it(
    redis_url: str, namespace: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = made(f"sqlite:///{tmp_path / 'ledger.db'}")
    kept: dict[str, Any] = {"durability": "ledger", "ledger": ledger}
    with Client(redis_url, namespace=namespace, buckets=64, **kept) as client:
        client.stats()
    monkeypatch.setenv("DELAYBRIDGE_DURABILITY", "ledger")
    monkeypatch.setenv("DELAYBRIDGE_LEDGER__URL", ledger)
    monkeypatch.setenv("DELAYBRIDGE_BUCKETS", "64")
    with redis_py.Redis.from_url(redis_url) as connection:
        for command in ("health", "stats"):
            before = connection.getdel(keys.birth(namespace))
            assert before is not None
            run(command)
            assert connection.get(keys.birth(namespace)) == before
