"""Workers keep the ledger and Redis in agreement: what left is told, what is lost comes back."""

from __future__ import annotations

import asyncio
import logging
import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py

from delaybridge import Client
from delaybridge.events import LeaseAcquired
from delaybridge.ledger.comparing import rebuilt
from delaybridge.ledger.comparing.healing import Sealed
from delaybridge.ledger.reconciling.reconciling import Reconciling
from delaybridge.message import Answer, Limits
from delaybridge.scan.leases.session import Session
from delaybridge.store.calls import Calls
from delaybridge.store.namespace import history_alarm
from delaybridge.store.protocol.keys import bucket_key
from delaybridge.store.protocol.verbs import bucket_of, plain
from tests.rigs.crew import BUCKETS, CALM, Arrived, Crew
from tests.rigs.ledgers import LedgerProbe, made
from tests.rigs.waiting import until_async
from tests.servers.postgres import PostgresServer
from tests.servers.redis import ON_EVERY_REDIS, RedisServer

TO = "memory:q"
SOON = {"reconcile_s": 1.0}
WATCHED = {"ttl_ms": 60_000, "renew_ms": 400}  # missed at once; it outlives a starved machine


@pytest.fixture
async def crew(
    server: RedisServer, namespace: str, arrived: Arrived, ledger_url: str
) -> AsyncIterator[Crew]:
    crew = Crew(server.url, namespace, ledger=ledger_url)
    yield crew
    await crew.close()


def admin(server: RedisServer) -> redis_py.Redis:
    return redis_py.Redis.from_url(server.url)


async def states_are(ledger: LedgerProbe, **wanted: int) -> None:
    await until_async(lambda: ledger.states() == wanted, lambda: f"{wanted}")


async def delayed_are(crew: Crew, count: int) -> None:
    async def are() -> bool:
        return (await crew.client.stats()).delayed == count

    await until_async(are, f"{count} messages are in Redis")


async def alarm_ended(crew: Crew, caplog: pytest.LogCaptureFixture) -> None:
    """It was noted, and nobody had to clear it."""
    await until_async(lambda: "alarm_ended" in caplog.text, "it ends with the rebuild")

    async def is_over() -> bool:
        return not (await crew.client.stats()).setbacks

    await until_async(is_over, "all of it")


async def test_what_left_is_told(crew: Crew, arrived: Arrived, ledger: LedgerProbe) -> None:
    crew.start(lease=CALM)
    ids = await crew.schedule(300, seconds=0.5)
    await crew.client.schedule(TO, b"x", delay="1h", id="later")
    await arrived.all(ids)
    await states_are(ledger, published=300, delayed=1)
    steps = ledger.ask("SELECT worker, count(*) FROM transition GROUP BY worker")
    assert steps == [("w", 300)]
    await crew.stop()


@pytest.mark.slow_with("mariadb", "sqlite")
async def test_what_leaves_while_it_is_looked_for_is_told_with_the_next(
    crew: Crew, ledger: LedgerProbe, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, number, kept = Reconciling._seal, bucket_of(b"x", BUCKETS), set[str]()
    marks: Any = {number: "after it was claimed and fired"}

    async def seal(self: Reconciling, session: Session) -> Sealed | None:
        sealed = await original(self, session)
        if session.bucket.number == number and session.ready and not kept:
            kept.add(await crew.client.schedule(TO, b"x", delay=0, id="x"))
            await until_async(lambda: self._happened.messages, "it is settled")
        elif session.bucket.number == number:
            self.marks = lambda: marks
        return sealed

    monkeypatch.setattr(Reconciling, "_seal", seal)
    crew.start(lease=CALM)
    await states_are(ledger, published=1)
    await crew.stop()


@pytest.mark.slow_with("mariadb", "sqlite")
async def test_a_wiped_redis_is_rebuilt(
    crew: Crew,
    server: RedisServer,
    arrived: Arrived,
    ledger: LedgerProbe,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    crew.start(lease=WATCHED)
    first = await crew.schedule(50, seconds=0.2)
    await arrived.all(first)
    await states_are(ledger, published=50)
    ids = await crew.schedule(200, seconds=0.5, first_s=1800)  # within the hot window
    await crew.client.cancel(ids[0])
    with admin(server) as connection:
        connection.flushall()
    assert await crew.client.cancel(ids[1]) is Answer.CANCELLED
    await delayed_are(crew, 198)
    stats = await crew.client.stats()
    assert stats.ledger is not None and not stats.ledger.silent

    def restored() -> int:  # maybe in several parts, of the buckets that it took together
        return sum(map(int, re.findall(r"ledger_rebuilt restored=(\d+) seconds=", caplog.text)))

    await alarm_ended(crew, caplog)
    # 199 if the rows were read before the second cancel, which then took effect on Redis.
    await until_async(lambda: restored() in (198, 199), lambda: f"{restored()} are restored")
    await asyncio.gather(*(crew.client.reschedule(id, delay=0) for id in ids[2:]))
    await arrived.all(ids[2:])
    await states_are(ledger, published=248, cancelled=2)
    assert arrived.twice == []
    assert not {*ids[:2]} & arrived.at_ms.keys()
    await crew.stop()


@pytest.mark.slow_with("mariadb", "sqlite")
async def test_the_alarm_of_what_the_ledger_did_not_have_stays(
    crew: Crew, server: RedisServer, namespace: str, ledger: LedgerProbe
) -> None:
    def without_a_ledger() -> None:
        with Client(server.url, namespace=namespace, brokers={"memory": "memory://"}) as client:
            for _ in range(3):
                client.schedule(TO, b"x", delay="1h")

    (known,) = await crew.schedule(1, seconds=0.1, first_s=1800)
    await asyncio.to_thread(without_a_ledger)
    crew.start(lease=WATCHED)
    await delayed_are(crew, 4)
    past = crew.workers["w"].past
    await until_async(lambda: sum(past._had().values()) == 3, lambda: f"{past._had()}")
    with admin(server) as connection:
        connection.flushall()
    assert await crew.client.cancel(known) is Answer.CANCELLED  # makes the namespace again

    async def left() -> bool:
        await crew.store.complete(rebuilt.end_rebuilt(namespace, crew.store.node_of))
        are_rebuilt = await crew.store.complete(
            rebuilt._rebuilt(namespace, {None: 0}, crew.store.node_of)
        )
        found = (await crew.client.stats()).setbacks
        is_told = history_alarm.setbacks_text(found).endswith("cannot rebuild: 3 messages")
        stay = all(each.is_for_good or each.bucket is None for each in found)
        return are_rebuilt[None] and is_told and stay

    await until_async(left, "all buckets are rebuilt, and what was lost is still told")
    assert await left()
    await crew.stop()


@pytest.mark.slow_with("mariadb", "sqlite")
async def test_an_older_past_of_the_same_run_is_put_right(
    crew: Crew, server: RedisServer, namespace: str, ledger: LedgerProbe
) -> None:
    """An old master that takes over again, for one: it names itself as compared."""
    crew.start(lease=WATCHED)
    await crew.shared("w")
    await crew.client.schedule(TO, b"x", id="x", delay="1h")
    number, known = bucket_of(b"x", BUCKETS), crew.workers["w"].past.known
    await until_async(lambda: known[number].scheduled == 1, "its worker has seen it")
    kept, lease = f"{{{namespace}:{number}}}:*", bucket_key(namespace, number, "lease").encode()
    with admin(server) as connection:
        before = {key: connection.dump(key) for key in connection.keys(kept) if key != lease}
        assert await crew.client.cancel("x") is Answer.CANCELLED
        await until_async(lambda: known[number].cancelled == 1, "its worker has seen that, too")
        await states_are(ledger, cancelled=1)
        for key, value in before.items():
            connection.restore(key, 0, value, replace=True)  # type: ignore[arg-type]
    await delayed_are(crew, 0)
    await crew.stop()


@pytest.mark.slow_with("mariadb", "sqlite")
async def test_an_older_past_is_put_right_before_anything_goes_out(
    crew: Crew,
    server: RedisServer,
    arrived: Arrived,
    ledger: LedgerProbe,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    ids = await crew.schedule(100, seconds=0.2, first_s=1.5)
    cancelled = await crew.schedule(20, seconds=0.2, first_s=4)
    moved = await crew.schedule(20, seconds=0.2, first_s=4)
    with admin(server) as connection:
        connection.save()
    kept = server.folder / "kept.rdb"
    await asyncio.to_thread(shutil.copy, server.folder / "dump.rdb", kept)
    answers = [await crew.client.cancel(id) for id in cancelled]
    assert {*answers} == {Answer.CANCELLED}
    for id in moved:
        assert await crew.client.reschedule(id, delay="1h") is Answer.RESCHEDULED
    crew.start(lease=WATCHED)  # only now: until here all of them wait, however late they are
    await arrived.all(ids)
    await states_are(ledger, published=100, cancelled=20, delayed=20)
    late = await crew.schedule(50, seconds=0.2, first_s=5)
    await asyncio.to_thread(server.kill)
    await asyncio.to_thread(shutil.copy, kept, server.folder / "dump.rdb")
    await asyncio.to_thread(server.start)
    await alarm_ended(crew, caplog)
    await arrived.all(late)
    await states_are(ledger, published=150, cancelled=20, delayed=20)
    assert not {*cancelled, *moved} & arrived.at_ms.keys()
    assert {(await crew.client.get(id)).due_ms for id in moved} == {
        ledger.due_ms(id) for id in moved
    }
    assert arrived.twice == []
    await crew.stop()


async def test_deleted_keys_come_back(
    crew: Crew, server: RedisServer, namespace: str, ledger: LedgerProbe
) -> None:
    crew.start(ledger=SOON, lease=CALM)
    keys = [f"{{{namespace}:{number}}}" for number in (1, 2)]
    with admin(server) as connection:

        def are_verified() -> bool:  # else that comparison would bring them back
            found = [connection.hget(f"{key}:marks", "healed") for key in keys]
            return all(each and not each.startswith(b"?") for each in found)

        await until_async(are_verified, "both buckets were compared when they were taken")
        await crew.schedule(101, seconds=1, first_s=3000)
        ledger.ask("UPDATE message SET created_ms = created_ms - 60000")
        assert connection.delete(*(f"{key}:{kind}" for key in keys for kind in ("due", "messages")))
    await delayed_are(crew, 101)
    await crew.stop()


async def test_messages_without_a_row_are_counted(
    crew: Crew, redis_url: str, ledger: LedgerProbe
) -> None:
    crew.start(ledger=SOON)
    await crew.client.schedule(TO, b"x", delay="1h")
    ledger.ask("DELETE FROM message")

    async def are_counted() -> bool:
        drift = (await crew.client.stats()).ledger
        return drift is not None and drift.without_row == 1

    await until_async(are_counted, "it is counted")
    await crew.stop()


async def test_while_the_database_is_down_messages_go_out(
    server: RedisServer, namespace: str, arrived: Arrived
) -> None:
    from delaybridge.errors import LedgerUnavailable

    with PostgresServer() as database:
        crew = Crew(server.url, namespace, ledger=made(database.url), timeout_s=5.0)
        try:
            crew.start(lease=CALM)
            await until_async(lambda: sum(1 for _ in crew.heard(LeaseAcquired)) == BUCKETS)
            ids = await crew.schedule(50, seconds=1, first_s=3)
            await asyncio.to_thread(database.pause)
            with pytest.raises(LedgerUnavailable):
                await crew.client.schedule(TO, b"x", delay="1h", id="refused")
            await arrived.all(ids)
            assert min(arrived.late_ms) >= 0
            with pytest.raises(LedgerUnavailable):  # who knows
                await crew.client.get("refused")

            async def is_told() -> bool:
                drift = (await crew.client.stats()).ledger
                return drift is not None and bool(drift.silent)

            await until_async(is_told, "workers say that it is silent")
            await asyncio.to_thread(database.resume)
            probe = LedgerProbe(database.url)
            await until_async(lambda: probe.states()["published"] == 50)
            probe.close()
            assert not await crew.client.get("refused")
            await crew.client.schedule(TO, b"x", delay="1h", id="accepted")
            await crew.stop()
        finally:
            await crew.close()


@ON_EVERY_REDIS
@pytest.mark.slow_with("single")
async def test_on_every_redis(
    redis_url: str, namespace: str, arrived: Arrived, tmp_path: Path
) -> None:
    url = made(f"sqlite:///{tmp_path / 'ledger.db'}")
    crew, probe = Crew(redis_url, namespace, ledger=url), LedgerProbe(url)
    try:
        ids = await crew.schedule(64, seconds=0.2, first_s=4)
        calls = Calls(namespace, None, None, Limits())
        for bucket in (await crew.store.complete(calls.open()))[:8]:
            await crew.store.run([plain("DEL", bucket.key(key)) for key in ("due", "messages")])
        assert await crew.client.cancel(ids[0]) is Answer.CANCELLED
        crew.start(ledger=SOON, lease=CALM)
        await arrived.all(ids[1:])
        await states_are(probe, published=63, cancelled=1)
        assert arrived.twice == []
        await crew.stop()
    finally:
        await crew.close()
        probe.close()
