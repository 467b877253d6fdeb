"""Clients on a Redis Cluster and behind Sentinels: slots move, masters die, URLs are wrong."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, closing, suppress
from typing import Any

import pytest

from delaybridge import AsyncClient, Client, Message
from delaybridge.errors import StoreUnavailable
from delaybridge.message import Limits
from delaybridge.store.calls import Calls
from delaybridge.store.namespace import registry
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.keys import slot_of
from delaybridge.store.redis.servers import Clustered
from delaybridge.store.redis.store import AsyncStore, Store
from tests.rigs.flavours import FLAVOURS, TO, Awaited
from tests.rigs.waiting import DEADLINE_S, until, until_async
from tests.servers.cluster import ClusterNode, ClusterSite
from tests.servers.sentinel import SentinelSite

PENDING = "1h"


@pytest.fixture(scope="module")
def site() -> Iterator[ClusterSite]:
    """Three masters without replicas; every test leaves them running and sound."""
    with ClusterSite(replicas=0) as site:
        yield site


def opened(store: Store, namespace: str) -> list[Bucket]:
    """The buckets of a new namespace."""
    return store.complete(Calls(namespace, None, 16, Limits()).open())


async def use_every_bucket(client: Any) -> None:
    """One that was never used asks the namespace's server for the birth id."""
    some = [Message(TO, b"", delay=PENDING, id=f"n{number}") for number in range(200)]

    async def are_used() -> bool:
        with suppress(StoreUnavailable):  # a stalled machine, and a client of little patience
            return bool(await client.schedule_many(some))
        return False

    await until_async(are_used, "every bucket is used")


@pytest.mark.parametrize("flavour", FLAVOURS)
async def test_what_is_scheduled_while_half_of_the_slots_move_is_there_once(
    flavour: type[Client | AsyncClient], site: ClusterSite, namespace: str
) -> None:
    client = Awaited(flavour(site.url, namespace=namespace, timeout_s=DEADLINE_S))
    source, target, _ = site.masters
    slots = site.slots_of(source)
    moved = threading.Event()

    def move() -> None:
        try:
            site.reshard(slots[: len(slots) // 2], target)
        finally:
            moved.set()

    mover, answers = threading.Thread(target=move), Counter[str]()
    await client.schedule(TO, b"", delay=PENDING, id="first")
    mover.start()
    rounds = 0
    while not moved.is_set() or rounds < 5:
        ids = [f"{rounds}-{number}" for number in range(200)]
        made = [Message(TO, b"x", delay=PENDING, id=id) for id in ids]
        answers.update(await client.schedule_many(made))
        answers[await client.cancel(ids[0])] += 1
        rounds += 1
    mover.join()
    assert answers == {"created": 200 * rounds, "cancelled": rounds}
    assert (await client.stats()).delayed == 199 * rounds + 1
    await client.close()


def test_answers_are_in_the_order_of_their_commands_whichever_server_they_come_from(
    site: ClusterSite, namespace: str
) -> None:
    with closing(Store(site.url)) as store:
        buckets = opened(store, namespace)
        store.run([bucket.acquire(f"w:{bucket.number}", 60_000) for bucket in buckets])
        for chosen in (buckets[:1], buckets):
            asked = [c for b in chosen for c in (b.holder(), registry.store_time(), b.holder())]
            found = store.run(asked)
            assert found[::3] == found[2::3] == ["w"] * len(chosen)
            assert min(found[1::3]) > 10**15


def test_a_call_before_the_first_look_waits_for_it(
    site: ClusterSite, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    look, looks, goes_on = Clustered.refresh, threading.Event(), threading.Event()

    def slow(servers: Clustered[Any]) -> None:
        looks.set()
        assert goes_on.wait(DEADLINE_S)
        look(servers)

    monkeypatch.setattr(Clustered, "refresh", slow)
    with (
        Client(site.url, namespace=namespace, timeout_s=DEADLINE_S) as client,
        ThreadPoolExecutor() as thread,
    ):
        call = thread.submit(client.schedule, TO, b"", delay=PENDING)
        assert looks.wait(DEADLINE_S) and not call.done()
        goes_on.set()
        assert call.result() == "created"


def test_a_slot_that_is_half_moved_holds_up_its_bucket_alone(
    site: ClusterSite, namespace: str
) -> None:
    store = Store(site.url, timeout_s=DEADLINE_S)
    buckets = opened(store, namespace)
    client = Client(site.url, namespace=namespace, timeout_s=DEADLINE_S)
    hasty = Client(site.url, namespace=namespace, timeout_s=1)
    receipts = [client.schedule(TO, b"", delay=PENDING, id=f"m{n}") for n in range(100)]
    bucket = buckets[receipts[0].bucket]
    slot = slot_of(bucket.key("due"))
    source = site.owner_of(slot)
    target = next(node for node in site.masters if node is not source)
    site.begin_move([slot], source, target)
    site.move_keys(slot, source, target, most=1)

    def is_held_up() -> bool:
        """A stalled machine may not answer at all; then it is asked again."""
        with pytest.raises(StoreUnavailable) as found:
            hasty.schedule(TO, b"new", delay=PENDING, id="m0", on_conflict="replace")
        return "rehashing of slot" in str(found.value)

    until(is_held_up, "it is told that the slot moves")
    other = next(n for n, receipt in enumerate(receipts) if receipt.bucket != bucket.number)
    assert client.schedule(TO, b"", delay=PENDING, id=f"m{other}") == "duplicate"
    assert store.run([bucket.holder()]) == [None]  # one key: asked where it may be, by ASK
    site.move_keys(slot, source, target)
    site.end_move([slot], source, target)
    assert client.schedule(TO, b"new", delay=PENDING, id="m0", on_conflict="replace") == "replaced"
    for each in (hasty, client, store):
        each.close()


async def test_calls_for_other_servers_do_not_wait_for_one_that_hangs(
    site: ClusterSite, namespace: str
) -> None:
    async with AsyncClient(site.url, namespace=namespace, timeout_s=4) as client:
        await use_every_bucket(client)
        store = client._store
        buckets = await client.run(lambda calls: calls.open())
        hanging: ClusterNode = site.masters[1]
        hanging.pause()
        try:
            ends: dict[bool, list[float]] = {True: [], False: []}
            loop = asyncio.get_running_loop()

            async def one(id: str) -> None:
                since = loop.time()
                try:
                    receipt = await client.schedule(TO, b"", delay=PENDING, id=id)
                    node = store.node_of(buckets[receipt.bucket].key("due"))
                    assert node != hanging.address
                    ends[True].append(loop.time() - since)
                except StoreUnavailable:
                    ends[False].append(loop.time() - since)

            await asyncio.gather(*(one(f"m{number}") for number in range(60)))
        finally:
            hanging.resume()
        assert len(ends[True]) > 20 and len(ends[False]) > 5
        assert max(ends[True]) < min(ends[False])  # which wait for an answer
        until(lambda: hanging.client.ping())
        site.wait_until_healthy()
        assert (await client.stats()).delayed >= len(ends[True])


@pytest.mark.parametrize("flavour", FLAVOURS)
async def test_messages_without_an_id_go_to_buckets_whose_server_answers(
    flavour: type[Client | AsyncClient], site: ClusterSite, namespace: str
) -> None:
    client = Awaited(flavour(site.url, namespace=namespace, timeout_s=2))
    await use_every_bucket(client)
    hanging = site.masters[0]
    hanging.pause()
    failed, began_s = 0, time.monotonic()
    try:
        for _ in range(100):
            try:
                await client.schedule(TO, b"", delay=PENDING)
            except StoreUnavailable:
                failed += 1
    finally:
        hanging.resume()
    # One call in five seconds finds out whether it is back.
    assert failed <= 2 + (time.monotonic() - began_s) / 5
    await client.close()


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.slow_with("Client")
async def test_calls_wait_for_the_replica_that_takes_over(
    flavour: type[Client | AsyncClient], namespace: str
) -> None:
    with ClusterSite(replicas=1) as site:
        client = Awaited(flavour(site.url, namespace=namespace, timeout_s=DEADLINE_S))
        before = await client.schedule_many(
            [Message(TO, b"", delay=PENDING, id=f"m{number}") for number in range(300)]
        )
        site.wait_in_sync()
        site.masters[2].kill()
        again = await client.schedule_many(
            [Message(TO, b"", delay=PENDING, id=f"m{number}") for number in range(300)]
        )
        assert {*before} == {"created"} and {*again} == {"duplicate"}
        await client.close()


@pytest.mark.parametrize("end", ["kill", "pause"])
@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.slow_with("*-pause")
async def test_calls_wait_for_the_master_that_sentinels_choose(
    flavour: type[Client | AsyncClient], end: str, namespace: str
) -> None:
    with SentinelSite() as site:
        client = Awaited(flavour(site.url, namespace=namespace, timeout_s=DEADLINE_S))
        assert await client.schedule(TO, b"", delay=PENDING, id="a") == "created"
        site.wait_in_sync()
        getattr(site.master, end)()
        assert await client.schedule(TO, b"", delay=PENDING, id="a") == "duplicate"
        assert await client.schedule(TO, b"", delay=PENDING, id="b") == "created"
        await client.close()


async def test_wake_ups_come_from_the_buckets_own_server_until_it_gives_them_away(
    site: ClusterSite, namespace: str
) -> None:
    store, asynchronous = Store(site.url), AsyncStore(site.url)
    buckets = opened(store, namespace)
    await asynchronous.run([registry.store_time()])
    bucket = buckets[3]
    node = store.node_of(bucket.key("due"))
    mine = [b.wake.removeprefix("+") for b in buckets if store.node_of(b.key("due")) == node]
    assert bucket.wake.startswith("+{") and len(mine) >= 2
    async with aclosing(asynchronous.listen_sharded(node, mine)) as heard:
        assert [await anext(heard) for _ in mine] == [None] * len(mine)
        site.master_of(bucket.key("due")).client.execute_command(
            "SPUBLISH", bucket.wake.removeprefix("+"), "3 1234"
        )
        assert await anext(heard) == "3 1234"
        source = site.master_of(bucket.key("due"))
        target = next(other for other in site.masters if other is not source)
        site.reshard([slot_of(bucket.key("due"))], target)
        assert [text async for text in heard] == []
    await asynchronous.close()
    store.close()


def test_a_forked_process_follows_the_masters_too(namespace: str) -> None:
    with (
        SentinelSite() as site,
        Client(site.url, namespace=namespace, timeout_s=DEADLINE_S) as client,
    ):
        client.schedule(TO, b"", delay=PENDING, id="a")
        site.wait_in_sync()
        read, write = os.pipe()
        if (child := os.fork()) == 0:
            try:
                os.read(read, 1)  # until the master is gone
                os._exit(client.schedule(TO, b"", delay=PENDING, id="a") != "duplicate")
            finally:
                os._exit(2)
        site.master.kill()
        os.write(write, b"x")
        assert os.waitpid(child, 0)[1] == 0
        os.close(read)
        os.close(write)
