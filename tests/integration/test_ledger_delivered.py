"""What workers delivered does not come again, though neither Redis nor the ledger knows it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis as redis_py

from delaybridge.events import LeaseAcquired
from delaybridge.ledger.comparing import healing
from delaybridge.ledger.comparing.healing import Sealed
from delaybridge.ledger.reconciling import reconciling
from delaybridge.ledger.reconciling.happened import Burial, Happened
from delaybridge.ledger.reconciling.reconciling import Reconciling
from delaybridge.ledger.recording.recorder import LedgerRecorder
from delaybridge.ledger.sql.records import Records
from delaybridge.ledger.sql.rows import DEAD, IN_FLIGHT, Step
from delaybridge.message import Message, new_id
from delaybridge.scan.leases.fleet import Membership
from delaybridge.scan.leases.session import Session
from delaybridge.settings.durability import Durability, Keeping
from delaybridge.store.namespace import registry
from delaybridge.store.protocol import keys
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.record import STAMP
from delaybridge.store.protocol.recorder import Ledger, open_recorder
from delaybridge.store.protocol.replies import Fleet
from delaybridge.store.protocol.verbs import bucket_of
from tests.rigs.bucket_session import copy_of, new_session
from tests.rigs.crew import BUCKETS, CALM, Arrived, Crew, ledger_part, sessions_of
from tests.rigs.ledgers import LedgerProbe, made
from tests.rigs.waiting import DEADLINE_S, until_async
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer

TO = "memory:q"
COUNT, TTL_MS = 200, 60_000


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


def wipe(server: RedisServer, kept: str = "") -> None:
    with redis_py.Redis.from_url(server.url) as connection:
        connection.delete(*(key for key in connection.keys() if key != kept.encode()))


async def deliver_during_an_outage(
    crew: Crew, arrived: Arrived, database: PostgresServer, **leases: dict[str, int]
) -> None:
    """Deliver messages, every other one at most once, of which the ledger hears nothing."""
    for name, lease in leases.items():
        crew.start(name, lease=lease)
    await until_async(lambda: len(crew.heard(LeaseAcquired)) >= BUCKETS, "they hold all buckets")
    await crew.shared(*leases)
    at = datetime.now(UTC) + timedelta(seconds=1)
    messages = [
        Message(TO, b"x", at=at, id=new_id(), at_most_once=bool(n % 2)) for n in range(COUNT)
    ]
    later = [Message(TO, b"x", delay="30m", id=f"later{n}") for n in range(20)]
    await crew.client.schedule_many([*messages, *later])
    await asyncio.to_thread(database.kill)
    await arrived.all([message.id for message in messages])
    await in_redis(crew, 20)


async def in_redis(crew: Crew, delayed: int) -> None:
    async def are() -> bool:
        stats = await crew.client.stats()
        return (stats.delayed, stats.in_flight) == (delayed, 0)

    await until_async(are, f"{delayed} messages are in Redis, and none is in flight")


async def all_is_rebuilt_and_nothing_comes_twice(
    crew: Crew, arrived: Arrived, database: PostgresServer, dead: int = 0
) -> None:
    probe = LedgerProbe(database.url)
    try:

        def states() -> object:
            return probe.states()

        wanted = Counter(published=COUNT, delayed=20 - dead, dead=dead)
        await until_async(lambda: states() == wanted, lambda: f"{states()}")
        await in_redis(crew, 20 - dead)
        await crew.client.schedule(TO, b"x", delay=0.1, id="marker")
        await arrived.all(["marker"])
        assert arrived.twice == []
    finally:
        probe.close()


@pytest.mark.parametrize("is_taken_first", [True, pytest.param(False, marks=pytest.mark.slow)])
async def test_what_was_delivered_during_an_outage_before_a_wipe_does_not_come_again(
    crew: Crew,
    server: RedisServer,
    arrived: Arrived,
    database: PostgresServer,
    is_taken_first: bool,
) -> None:
    """Also if buckets are taken before the database is back, and wait for it."""
    await deliver_during_an_outage(crew, arrived, database, w=CALM)
    number, happened = bucket_of(b"later0", BUCKETS), ledger_part(crew).happened
    with redis_py.Redis.from_url(server.url) as connection:
        record = connection.hget(keys.bucket_key(crew.namespace, number, "messages"), "later0")
    step = Step("later0", IN_FLIGHT, DEAD, 1, "w", number, error="unroutable")
    happened.dead.append(Burial(step, int.from_bytes(record[STAMP], "big")))  # type: ignore[index]
    before = sessions_of(crew, "w")
    wipe(server, keys.birth(crew.namespace) if is_taken_first else "")
    if is_taken_first:
        await until_async(
            lambda: len({*sessions_of(crew, "w")} - {*before}) == BUCKETS, "it has all"
        )
    await asyncio.to_thread(database.start)
    await all_is_rebuilt_and_nothing_comes_twice(crew, arrived, database, dead=1)
    assert (await crew.client.stats()).dead == 1
    await crew.stop()


@pytest.mark.slow  # the order of two workers; the test above has what is told
async def test_nor_does_it_if_another_worker_rebuilds_its_bucket(
    crew: Crew,
    server: RedisServer,
    arrived: Arrived,
    database: PostgresServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await deliver_during_an_outage(crew, arrived, database, a=CALM, b=CALM)
    asked, done = asyncio.Event(), asyncio.Event()
    first, second = (ledger_part(crew, name).happened for name in "ab")
    announce = Membership._announce

    async def announce_later(self: Membership) -> Fleet | None:  # so the other gets all buckets
        await (done.wait() if self.name == "b" else asyncio.sleep(0))
        return await announce(self)

    async def tell(ledger: Ledger, records: Records, bucket: int) -> None:
        await Happened.tell(first, ledger, records, bucket)
        if bucket in second.buckets:
            asked.set()

    async def tell_later(*what: Any) -> None:
        await asked.wait()
        await Happened.tell(second, *what)

    monkeypatch.setattr(reconciling, "_OTHERS_TELL_S", 10.0)  # also on a starved machine
    monkeypatch.setattr(Membership, "_announce", announce_later)
    monkeypatch.setattr(first, "tell", tell)
    monkeypatch.setattr(second, "tell", tell_later)
    wipe(server, kept=keys.birth(crew.namespace))
    await until_async(lambda: len(sessions_of(crew, "a")) == BUCKETS, "it has all buckets")
    await asyncio.to_thread(database.start)
    await all_is_rebuilt_and_nothing_comes_twice(crew, arrived, database)
    done.set()
    await crew.stop("a")
    await crew.stop("b")


@pytest.mark.slow_with("mariadb", "postgres")
async def test_only_what_is_still_to_come_as_it_was_delivered_is_told(
    redis_url: str, namespace: str, ledger_url: str, ledger: LedgerProbe
) -> None:
    """By another due time it was moved since, and comes again."""
    crew = Crew(redis_url, namespace, 1, ledger=ledger_url)
    try:
        names = ("delivered", "moved", "cancelled", "again", "other call")
        for name in names:
            await crew.client.schedule(TO, b"x", delay="1h", id=name)
        rows = ledger.ask("SELECT id, due_ms, stamp FROM message")
        session, happened = new_session(0), Happened("w")
        copies = [copy_of(session, id, due_ms, stamp) for id, due_ms, stamp in rows]
        copies[-1].stamp = b"none"
        await crew.client.reschedule("moved", delay="2h")
        await crew.client.cancel("cancelled")
        await crew.client.cancel("again")
        await crew.client.schedule(TO, b"x", delay="1h", id="again")
        happened.left(0, copies, 123)
        recorder = open_recorder(
            Durability(Keeping.LEDGER), ledger_url, namespace, DEADLINE_S, 3600
        )
        assert isinstance(recorder, LedgerRecorder)
        for _ in range(2):  # its answer may be lost
            await happened.tell(recorder.ledger, recorder.records, 0)
            happened.left(0, copies, 123)
        recorder.ledger.close()
        assert {name: ledger.state(name) for name in names} == {
            "delivered": "published", "moved": "delayed", "cancelled": "cancelled",
            "again": "delayed", "other call": "delayed",
        }  # fmt: skip
        steps = ledger.ask("SELECT id, worker, at_ms FROM transition")
        assert steps == [("delivered", "w", 123)]
    finally:
        await crew.close()


@pytest.mark.slow  # as after a wipe, but that it is dropped
async def test_what_was_delivered_during_an_outage_and_is_there_again_is_dropped(
    crew: Crew, server: RedisServer, arrived: Arrived, database: PostgresServer
) -> None:
    """Redis comes back with an older past."""
    crew.start(lease={"ttl_ms": 4000})
    await until_async(lambda: len(crew.heard(LeaseAcquired)) >= BUCKETS, "all are compared")
    ids = await crew.schedule(100, seconds=0.1, first_s=3)
    with redis_py.Redis.from_url(server.url) as connection:
        names = [key for key in connection.keys("{*") if not key.endswith(b":lease")]
        before = {name: connection.dump(name) for name in names}
        await asyncio.to_thread(database.kill)
        await arrived.all(ids)
        await in_redis(crew, 0)
        known = crew.workers["w"].past.known

        def is_known() -> bool:
            marks = [keys.bucket_key(crew.namespace, number, "marks") for number in range(BUCKETS)]
            turns = [int(connection.hget(name, "turn") or 0) for name in marks]
            return [known[number].turn for number in range(BUCKETS)] == turns

        await until_async(is_known, "its worker would notice")
        for name, value in before.items():
            connection.restore(name, 0, value, replace=True)  # type: ignore[arg-type]
    await asyncio.to_thread(database.start)
    probe = LedgerProbe(database.url)
    try:
        await until_async(lambda: probe.states() == {"published": 100}, "the ledger has them")
        await in_redis(crew, 0)
        assert arrived.twice == []
    finally:
        probe.close()
    await crew.stop()


async def test_a_wipe_while_the_ledger_is_told_makes_nothing_come_twice(
    crew: Crew, server: RedisServer, arrived: Arrived, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What left was sealed, and is gone before it is read."""
    original, wiped = Reconciling._seal, asyncio.Event()

    async def seal(self: Reconciling, session: Session) -> Sealed | None:
        sealed = await original(self, session)
        if session.ready and not wiped.is_set() and self._happened.last(session.bucket.number):
            wipe(server)
            wiped.set()
        return sealed

    monkeypatch.setattr(Reconciling, "_seal", seal)
    crew.start(lease=CALM)
    await crew.client.schedule(TO, b"x", delay=0.1, id="x")
    await wiped.wait()
    await crew.client.schedule(TO, b"x", delay=0.1, id="marker")  # makes the namespace again
    await arrived.all(["x", "marker"])
    happened = ledger_part(crew).happened
    await until_async(lambda: not happened.messages, "the ledger has both")
    await in_redis(crew, 0)
    assert arrived.twice == []
    await crew.stop()


async def taken(crew: Crew) -> tuple[Reconciling, Session]:
    """The ledger's side of a worker, and a session of the only bucket that it verified."""
    store = crew.client._store
    assert isinstance(store.recorder, LedgerRecorder)
    ((_, birth),) = await store.run([registry.read_birth(crew.namespace)])
    bucket = Bucket(crew.namespace, 0, birth)
    lease = await store.run_one(bucket.acquire("w:1", TTL_MS))
    session = Session(bucket, str(lease.token), lease.turn, TTL_MS, 0.0)
    site = Reconciling(store, store.recorder, Happened("w"))
    assert await site.verify(session)
    return site, session


@pytest.fixture
async def single(redis_url: str, namespace: str, ledger_url: str) -> AsyncIterator[Crew]:
    crew = Crew(redis_url, namespace, 1, ledger=ledger_url)
    yield crew
    await crew.close()


@pytest.mark.slow_with("mariadb", "postgres")
async def test_what_an_older_server_has_not_seen_leave_is_told_at_once(
    single: Crew, ledger: LedgerProbe
) -> None:
    """Another server took over, and has the lease; the worker tells what left before it notices."""
    await single.client.schedule(TO, b"x", delay="1h", id="x")
    site, session = await taken(single)
    stamp, due_ms = ledger.ask("SELECT stamp, due_ms FROM message")[0]
    site._happened.left(0, [copy_of(session, "x", due_ms, stamp)], 123)  # and Redis forgot it
    session.server = "the one before"
    await site._tell(session)
    assert ledger.state("x") == "published"
    assert site._happened.messages == 0


@pytest.mark.slow_with("mariadb", "postgres")
async def test_a_wipe_while_it_is_told_what_left_refuses_the_session(
    single: Crew, redis_url: str, ledger: LedgerProbe, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = healing.left

    def left(bucket: Bucket, *args: Any) -> Any:
        with redis_py.Redis.from_url(redis_url) as connection:
            connection.delete(*map(bucket.key, keys.BUCKET_KEYS))
        return original(bucket, *args)

    await single.client.schedule(TO, b"x", delay="1h", id="x")
    site, session = await taken(single)
    await single.client.cancel("x")
    again = Session(session.bucket, session.token, 1, TTL_MS, 0.0)
    again.was_mended = True
    monkeypatch.setattr(healing, "left", left)
    assert await site.verify(again) is False
    assert ledger.state("x") == "cancelled"
