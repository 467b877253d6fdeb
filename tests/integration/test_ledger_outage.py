"""Redis is wiped while the ledger's database is away: workers stay, wait, and go on."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import pytest
import redis as redis_py
from sqlalchemy import make_url

from delaybridge.errors import LedgerUnavailable
from delaybridge.events import LeaseAcquired, ScannerFailed
from delaybridge.ingest.process import Ingester
from delaybridge.ledger.reconciling import reconciling
from delaybridge.ledger.reconciling.reconciling import Reconciling
from delaybridge.ledger.sql.opening import open_ledger
from delaybridge.ledger.sql.records import Records
from delaybridge.operate.troubles.found import Thresholds, troubles
from delaybridge.store.protocol.layout import Epoch, Layout
from delaybridge.store.protocol.recorder import Ledger
from delaybridge.store.protocol.verbs import Work, bucket_of
from delaybridge.worker import history_check
from delaybridge.worker.service import Identity
from tests.rigs.crew import BUCKETS, Arrived, Crew, ledger_part
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
def database(database_server: PostgresServer) -> Iterator[PostgresServer]:
    with closing(LedgerProbe(database_server.url)) as probe:
        probe.ask("TRUNCATE message, transition, namespace")
    yield database_server
    if not database_server.is_ready():
        database_server.start()


@pytest.fixture
async def crew(
    server: RedisServer,
    namespace: str,
    arrived: Arrived,
    database: PostgresServer,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Crew]:
    monkeypatch.setattr(history_check, "_SURE_BEATS", 1)
    async with Crew(server.url, namespace, ledger=database.url) as crew:
        yield crew


def read_only(url: str) -> str:
    """The URL of the same database, which refuses writes now."""
    made = make_url(url)
    if made.get_backend_name() == "postgresql":
        with closing(LedgerProbe(url)) as probe:
            probe.ask(f"ALTER DATABASE {made.database} SET default_transaction_read_only = on")
        return url
    if made.get_backend_name() == "sqlite":
        return f"sqlite:///file:{made.database}?mode=ro&uri=true"
    by_default = {"init_command": "SET SESSION TRANSACTION READ ONLY"}
    return made.update_query_dict(by_default).render_as_string(hide_password=False)


def flush(server: RedisServer) -> None:
    with redis_py.Redis.from_url(server.url) as connection:
        connection.flushall()


def claimed_from(crew: Crew) -> list[int]:
    """The buckets that may be claimed."""
    runs: list[Any] = [worker.current_run for worker in crew.workers.values()]
    sessions = [session for run in runs if run for session in run._shifts.sessions()]
    return [session.bucket.number for session in sessions if session.may_claim]


async def waiting_are(crew: Crew, count: int) -> None:
    """So many buckets are held, and wait for the ledger; no worker has ended."""

    async def are() -> bool:
        assert not any(task.done() for task in crew.tasks.values()), "workers stay"
        found = (await crew.client.stats()).ledger
        reports = [worker.report().ledger for worker in crew.workers.values()]
        waiting = sum(each["waiting"] for each in reports if each)
        return found is not None and found.waiting == waiting == count

    await until_async(are, f"{count} buckets wait")


async def made_due(crew: Crew, ids: Sequence[str]) -> None:
    """Once all is compared: a call during a comparison may be refused."""
    await until_async(lambda: {*claimed_from(crew)} == {*range(BUCKETS)}, "all is compared")
    await asyncio.gather(*(crew.client.reschedule(id, delay=0) for id in ids))


async def test_workers_wait_for_both_and_go_on(
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
    await until_async(lambda: len(claimed_from(crew)) == BUCKETS, "all are compared")
    ids = await crew.schedule(48, seconds=0.1, first_s=1800)
    await asyncio.to_thread(database.kill)
    known = len(crew.heard(LeaseAcquired))
    for _ in range(2):
        flush(server)
        await waiting_are(crew, BUCKETS)
    assert len(crew.heard(LeaseAcquired)) == known, "none is claimed, also if Redis refused it"
    found = troubles(await crew.client.stats(), thresholds=Thresholds(0))
    told = [each.what for each in found if each.about == "ledger"]
    assert [each.partition(", ")[0] for each in told] == [
        "16 buckets wait to be compared with the ledger"
    ]
    assert claimed_from(crew) == [], "nobody could say what was cancelled"
    await until_async(lambda: "buckets_wait" in caplog.text, "it is said")
    assert "ledger_answers" not in caplog.text, "nobody has seen that"
    await asyncio.to_thread(database.start)
    await made_due(crew, ids)
    await arrived.all(ids)
    await until_async(lambda: "ledger_answers" in caplog.text, "it is asked again")
    assert arrived.twice == []
    await crew.stop("a")
    await crew.stop("b")


async def test_whole_buckets_go_on_meanwhile(
    crew: Crew, server: RedisServer, namespace: str, arrived: Arrived, database: PostgresServer
) -> None:
    """As of a Cluster, one of whose masters is wiped: with the namespace's record and its rules."""
    await crew.client.destinations.pause("memory:paused")
    crew.start(lease=WATCHED)
    await until_async(lambda: len(claimed_from(crew)) == BUCKETS, "all are compared")
    lost = [id for id in map(str, range(100)) if bucket_of(id.encode(), BUCKETS) == 1]
    await asyncio.gather(*(crew.client.schedule(TO, b"x", id=id, delay=1800) for id in lost))
    held = [(await crew.client.schedule("memory:paused", b"x", delay=0.5)).id for _ in range(16)]
    ids = await crew.schedule(64, seconds=0.1, first_s=0.5)
    await asyncio.to_thread(database.kill)
    with redis_py.Redis.from_url(server.url) as connection:
        of_both = (f"{{{namespace}}}:*", f"{{{namespace}:1}}:*")
        connection.delete(*(key for each in of_both for key in connection.keys(each)))
    await waiting_are(crew, 1)
    whole = {*range(BUCKETS)} - {1}
    await until_async(lambda: {*claimed_from(crew)} == whole, "the others are claimed from")
    await arrived.all([id for id in ids if bucket_of(id.encode(), BUCKETS) in whole])
    await asyncio.to_thread(database.start)
    await made_due(crew, lost)
    await arrived.all(lost)
    assert not {*arrived.at_ms} & {*held}
    await crew.client.destinations.resume("memory:paused")
    await arrived.all(held)
    await crew.stop()


async def test_a_worker_that_starts_then_waits_and_goes_on(
    crew: Crew,
    server: RedisServer,
    arrived: Arrived,
    database: PostgresServer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    ids = await crew.schedule(8, seconds=0.1)
    await asyncio.to_thread(database.kill)
    flush(server)
    crew.start("a", lease=WATCHED)
    crew.start("b", lease=WATCHED)
    ingester = Ingester(crew.workers["a"].settings, Identity.of_this_process("c"), routes=())
    ingesting = asyncio.create_task(ingester.work())
    all_three = [*crew.workers.values(), ingester]
    await until_async(lambda: all(each.report().awaits for each in all_three), "they wait")
    assert "namespace_awaited" in caplog.text
    await crew.stop("a")
    await asyncio.to_thread(database.start)
    await arrived.all(ids)
    await until_async(lambda: not ingester.report().awaits, "it reads")
    assert not crew.workers["b"].report().awaits
    assert arrived.twice == []
    ingester.stop()
    await ingesting
    await crew.stop("b")


async def test_a_database_that_answered_nothing_is_asked_again(database: PostgresServer) -> None:
    """All of its connections, also by calls that were cancelled: no thread waits for ever."""
    others, look = {*threads()}, Work(lambda on: None)
    async with FaultProxy(free_port(), database.port) as proxy:
        url = database.url.replace(f":{database.port}/", f":{proxy.port}/")
        ledger = open_ledger(url, timeout_s=0.1)
        await until_async(lambda: five(ledger, look), "it has connected")
        proxy.mode = "blackhole"
        calls = [asyncio.create_task(ledger.run_async(look)) for _ in range(5)]
        await until_async(lambda: proxy.swallowed >= 5, "they are asked")
        for call in calls[:3]:
            call.cancel()
        ends = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(each) for each in ends} == {LedgerUnavailable, asyncio.CancelledError}
        proxy.mode = "pass"
        await until_async(lambda: five(ledger, look), "it answers")
        proxy.mode, before = "blackhole", proxy.swallowed
        call = asyncio.create_task(ledger.run_async(look))
        await until_async(lambda: proxy.swallowed > before, "it is asked")
        call.cancel()
        ledger.close()
        await until_async(lambda: {*threads()} <= others, "no thread is left")


async def five(ledger: Ledger, look: Work[None]) -> bool:
    """Whether five calls at once are answered."""
    ends = await asyncio.gather(*(ledger.run_async(look) for _ in range(5)), return_exceptions=True)
    return ends == [None] * 5


def threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name.startswith("ledger")]


def test_a_ledger_that_takes_no_writes_does_not_answer(ledger_url: str, namespace: str) -> None:
    records = Records(namespace)
    with closing(open_ledger(ledger_url)) as ledger:
        ledger.run(Work(partial(records.settle, layout=Layout((Epoch(0, 1),)), birth="b")))
        ledger.run(Work(records.touch))
        again = Work(partial(records.settle, layout=Layout((Epoch(0, 2),)), birth="c"))
        assert ledger.run(again) == (Layout((Epoch(0, 1),)), "b")
    with closing(open_ledger(read_only(ledger_url))) as ledger:
        ledger.run(Work(lambda on: None))
        with pytest.raises(LedgerUnavailable):
            ledger.run(Work(records.touch))


async def test_a_lease_that_is_lost_during_its_comparison_ends_only_its_session(
    crew: Crew, arrived: Arrived, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis went back meanwhile, too: the bucket stays in doubt until the next comparison."""
    original, doubted = reconciling.restore_missing, list[bool]()

    def restored(bucket: Any, *args: Any) -> Any:
        found = yield from original(bucket, *args)
        run: Any = crew.workers["w"].current_run
        if bucket.number == 1:
            doubt = crew.workers["w"].past.doubt
            doubted.append(1 in doubt)
            if len(doubted) == 1:
                doubt.add(1)
                (session,) = (s for s in run._shifts.sessions() if s.bucket.number == 1)
                run._shifts.lost(session, "this test ends it")
                ledger_part(crew)._reconciling._forget_sessions()
        return found

    monkeypatch.setattr(reconciling, "restore_missing", restored)
    crew.start()
    await until_async(lambda: len(doubted) == 2, "it is compared again")
    ids = await crew.schedule(32, seconds=0.1)
    await arrived.all(ids)
    assert doubted == [False, True]
    assert crew.heard(ScannerFailed) == []
    await crew.stop()


async def test_all_buckets_wait_for_one_answer(
    crew: Crew,
    server: RedisServer,
    arrived: Arrived,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Of a database that answers nothing: each would wait as long, one after another."""
    ids = await crew.schedule(16, seconds=0.1)
    flush(server)
    ask, is_up, answers, asked = Reconciling._ask, False, asyncio.Event(), list[Reconciling]()

    async def asks(self: Reconciling) -> None:
        asked.append(self)
        await answers.wait()
        if not is_up:
            raise LedgerUnavailable("ledger: no answer in time")
        await ask(self)

    monkeypatch.setattr(Reconciling, "_ask", asks)
    crew.start(lease=WATCHED)
    await waiting_are(crew, BUCKETS)
    assert len(asked) == 1
    answers.set()
    await until_async(lambda: "buckets_wait" in caplog.text, "it is said")
    assert re.findall(r"buckets_wait buckets=(\d+)", caplog.text) == [str(BUCKETS)]
    is_up = True
    await arrived.all(ids)
    await crew.stop()
