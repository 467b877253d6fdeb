"""Redis comes back with an older past, or empty: noticed within 5 s, and told until cleared."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable

import pytest
import redis as redis_py

from delaybridge import Client
from delaybridge.errors import StoreWiped
from delaybridge.events import StoreWentBack
from delaybridge.ledger.comparing.rebuilt import end_rebuilt
from delaybridge.store.calls import Calls
from delaybridge.store.namespace import history_alarm, registry
from delaybridge.store.namespace.history_alarm import Setback
from delaybridge.store.protocol import keys
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.verbs import plain
from delaybridge.store.redis.store import Store
from tests.rigs.command_line import Run
from tests.rigs.crew import SELDOM, Arrived, Crew
from tests.rigs.waiting import DEADLINE_S, until_async
from tests.servers.process import LOOPBACK
from tests.servers.redis import RedisServer


@pytest.fixture
def flags(server: RedisServer, namespace: str) -> list[str]:
    return ["--redis", server.url, "--namespace", namespace]


def admin(server: RedisServer) -> redis_py.Redis:
    return redis_py.Redis(host=LOOPBACK, port=server.port)


async def roll_back(server: RedisServer, between: Callable[[], Awaitable[None]]) -> None:
    """Redis restarts with a snapshot from before `between`."""
    with admin(server) as connection:
        connection.save()
    kept = server.folder / "kept.rdb"
    await asyncio.to_thread(shutil.copy, server.folder / "dump.rdb", kept)
    await between()
    await asyncio.to_thread(server.kill)
    await asyncio.to_thread(shutil.copy, kept, server.folder / "dump.rdb")
    await asyncio.to_thread(server.start)


async def test_a_restored_snapshot_is_noticed_with_the_buckets_and_what_is_missing(
    server: RedisServer, namespace: str, arrived: Arrived, run: Run
) -> None:
    crew = Crew(server.url, namespace)
    try:
        crew.start(lease=SELDOM)  # its pulse sees it, not a renewal
        await crew.settled()
        first = await crew.schedule(20, seconds=0.2)
        await arrived.all(first)

        def between() -> None:
            with Client(server.url, namespace=namespace, brokers={"memory": "memory://"}) as client:
                for _ in range(30):
                    client.schedule("memory:q", b"x", delay="1h")

        async def seen() -> None:
            await asyncio.to_thread(between)
            past = crew.workers["w"].past
            await until_async(
                lambda: sum(marks.scheduled for marks in past.known.values()) == 50,
                "the worker has counted them",
            )

        await roll_back(server, seen)
        await until_async(
            lambda: sum(e.missing for e in crew.heard(StoreWentBack)) == 30, "the worker says it",
        )  # fmt: skip
        await arrived.all(await crew.schedule(20, seconds=0.2))  # and it goes on
        await until_async(lambda: _kept(server, namespace), "it is kept")
        health = await asyncio.to_thread(run, "--json", "health")
        assert health.code == 1
        (fault,) = (text for text in health.objects[0]["faults"] if "older state" in text)
        assert "at least 30 scheduled messages" in fault
        assert "older state" in (await asyncio.to_thread(run, "stats")).out
        assert "FAIL  store: Redis went" in (await asyncio.to_thread(run, "doctor")).out
        assert (await asyncio.to_thread(run, "alarm", "show")).code == 1
        assert (await asyncio.to_thread(run, "alarm", "clear")).out == "cleared\n"
        assert (await asyncio.to_thread(run, "health")).code == 0
        await crew.stop()
    finally:
        await crew.close()


def _kept(server: RedisServer, namespace: str) -> int:
    with admin(server) as connection:
        return int(connection.hlen(keys.alarms(namespace)))


def test_what_is_lost_for_good_does_not_end_a_later_alarm_of_its_bucket(
    store: Store, redis_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = history_alarm._read
    with Client(redis_url, namespace=namespace, buckets=1) as client:
        (bucket,) = client.run(Calls.open)
        noticed = [Setback(2, "w", 0, rowless=3), Setback(3, "w", 0, 12, 9)]
        (about, *_) = store.run(
            [registry.info("server", bucket.key("lease"))]
            + [history_alarm.note(namespace, each) for each in noticed]
        )
        compared = f"{about['run_id']}:w:random:5"  # before it went back to turn 9
        store.run([plain("HSET", bucket.key("marks"), "healed", compared)])
        for is_last in (False, True):  # Redis gives them in any order
            monkeypatch.setattr(
                history_alarm, "_read",
                lambda reply, is_last=is_last: sorted(
                    read(reply), key=lambda each: each.is_for_good is is_last
                ),
            )  # fmt: skip
            assert store.complete(end_rebuilt(namespace, store.node_of)) == []


async def test_after_a_wipe_no_worker_starts_until_somebody_says_so(
    server: RedisServer, namespace: str, arrived: Arrived, run: Run
) -> None:
    crew = Crew(server.url, namespace)
    try:
        task = crew.start("a", lease=SELDOM)
        await crew.shared("a")  # it has met the namespace
        with admin(server) as connection:
            connection.flushall()
        with Client(server.url, namespace=namespace, brokers={"memory": "memory://"}) as client:
            await asyncio.to_thread(client.schedule, "memory:q", b"x", delay=0.1, id="new")
        with pytest.raises(StoreWiped):
            await asyncio.wait_for(task, DEADLINE_S)
        again = crew.start("b")
        with pytest.raises(StoreWiped, match="delaybridge alarm clear"):
            await asyncio.wait_for(again, DEADLINE_S)
        health = await asyncio.to_thread(run, "health")
        assert "was wiped, seen by" in health.out
        assert (await asyncio.to_thread(run, "alarm", "clear")).code == 0
        crew.start("c")
        await arrived.all(["new"])
        await crew.stop("c")
    finally:
        await crew.close()


def test_an_alarm_ends_with_the_rebuild_of_its_bucket_and_a_wipe_with_that_of_all(
    store: Store, redis_url: str, namespace: str
) -> None:
    with Client(redis_url, namespace=namespace, buckets=2) as client:
        first, second = client.run(Calls.open)
        noticed = [Setback(1, "w"), Setback(1, "w", 0, 9, 4), Setback(1, "w", 1, 9, 4)]
        (about, *_) = store.run(
            [registry.info("server"), *(history_alarm.note(namespace, each) for each in noticed)]
        )

        def ended(bucket: Bucket, healed: str) -> list[int | None]:
            """Those that end once the last comparison of the bucket was this one."""
            store.run([plain("HSET", bucket.key("marks"), "healed", healed)])
            found = store.complete(end_rebuilt(namespace, store.node_of))
            return sorted((each.bucket for each in found), key=str)

        run_id = about["run_id"]
        assert ended(first, "") == []
        assert ended(first, f"{run_id}:w:random:4") == [], "before it went back"
        assert ended(first, f"{run_id}:w:random:5") == [0]
        assert ended(second, f"other{run_id}:w:random:5") == [], "before Redis was started again"
        assert ended(second, "?w:random:5") == [], "it is under way"
        assert {each.bucket for each in client.stats().setbacks} == {None, 1}
        assert ended(second, f"{run_id}:w:random:5") == [1, None]
        assert not client.stats().setbacks
        noticed = [Setback(2, "w"), Setback(2, "w", 0, 9, 4, rowless=3), Setback(3, "w", 0, 9, 4)]
        store.run([history_alarm.note(namespace, each) for each in noticed])
        assert ended(first, f"{run_id}:w:random:5") == [0]
        stay = client.stats().setbacks
        assert {(each.bucket, each.rowless) for each in stay} == {(None, 0), (0, 3)}, "for good"
