"""schedule_many in parts: whatever breaks in the middle, each message is stored once, as it was."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import islice
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import pytest
import redis

from delaybridge import AsyncClient, Client, Message
from delaybridge.errors import MessageError
from delaybridge.message import Limits, decode_record
from delaybridge.store.protocol import keys, verbs
from delaybridge.store.protocol.record import split_record
from delaybridge.store.protocol.verbs import new_stamp
from delaybridge.store.redis.async_wire import AsyncWire
from delaybridge.store.redis.wire import Wire
from tests.rigs.flavours import TO, Maker


def mixed(count: int) -> list[Message]:
    """Messages of each sort: most are plain, some have an id, a key or headers of their own."""
    sorts: list[dict[str, Any]] = [{}, {}, {}, {"id": "m"}, {"key": "k"}, {"headers": {"a": "b"}}]
    chosen = [dict(sorts[n % len(sorts)]) for n in range(count)]
    for n, fields in enumerate(chosen):
        fields |= {"id": f"m{n}"} if "id" in fields else {}
    return [Message(TO, b"%d" % n, delay=60 + n % 2, **chosen[n]) for n in range(count)]


def stored(connection: redis.Redis, buckets: int = 16) -> dict[tuple[int, bytes], bytes]:
    """The payload of every message, by bucket and id."""
    return {
        (number, id): split_record(record)[1]
        for number in range(buckets)
        for id, record in connection.hgetall(
            keys.bucket_key("delaybridge", number, "messages")
        ).items()
    }


def check(
    connection: redis.Redis, messages: list[Message], receipts: Any, buckets: int = 16
) -> None:
    """Each message is stored once, in its bucket, under the id of its receipt."""
    assert Counter(receipts) == {"created": len(messages)}
    found = stored(connection, buckets)
    assert len(found) == len(messages)
    for message, receipt in zip(messages, receipts, strict=True):
        assert message.id in (None, receipt.id)
        payload = found[receipt.bucket, receipt.id.encode()]
        assert decode_record(payload).body == message.body
        shard_key = (receipt.id if message.key is None else str(message.key)).encode()
        assert receipt.bucket == verbs.bucket_of(shard_key, buckets)


def script_calls(connection: redis.Redis) -> int:
    found = connection.info("commandstats").get("cmdstat_evalsha", {"calls": 0})
    return int(found["calls"])


@pytest.mark.parametrize("count", [1, 19, 20, 129, 1000])
async def test_messages_of_every_sort_are_stored_once_and_answered_in_order(
    make: Maker, own_url: str, own: redis.Redis, count: int
) -> None:
    client, messages = make(own_url), mixed(count)
    check(own, messages, await client.schedule_many(iter(messages)))


def test_the_stored_records_are_those_of_the_careful_path(own_url: str, own: redis.Redis) -> None:
    messages = [Message(TO, b"%d" % n, delay=60, id=f"m{n}", priority=n % 3) for n in range(200)]
    found = []
    with Client(own_url) as client:
        for many in (
            lambda: client.schedule_accepted([(new_stamp(), client.accept(m)) for m in messages]),
            lambda: client.schedule_many(messages),
            lambda: [
                client.schedule(TO, m.body, delay=60, id=m.id, priority=m.priority)
                for m in messages
            ],
        ):
            own.flushall()
            check(own, messages, many())
            found.append(stored(own))
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("place", [0, 500, 999])
async def test_if_one_message_is_wrong_nothing_is_sent_and_the_first_is_named(
    make: Maker, own_url: str, own: redis.Redis, place: int
) -> None:
    client = make(own_url)
    await client.stats()
    before, messages = script_calls(own), mixed(1000)
    messages[place:] = [Message(TO, b"", delay=-1), *[Message("nowhere:x", b"")] * (999 - place)]
    with pytest.raises(MessageError) as refused:
        await client.schedule_many(messages)
    assert refused.value.code == "negative_delay"
    assert script_calls(own) == before


@pytest.mark.parametrize(("sent", "answered"), [(0, 0), (3, 0), (3, 2), (99, 0), (99, 5)])
async def test_after_a_lost_reply_the_same_bytes_are_sent_again(
    make: Maker,
    own_url: str,
    own: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    sent: int,
    answered: int,
) -> None:
    """The connection breaks after some requests were sent, and after some replies were read."""
    client, messages = make(own_url), mixed(1000)
    await client.schedule_many([Message(TO, b"", delay=60, id=f"f{n}") for n in range(200)])
    before = stored(own)
    tries: list[list[bytes]] = []
    replies, call = Wire.replies, AsyncWire.call

    def breaking(self: Wire, requests: Iterable[bytes], wait_s: float | None) -> Iterator[Any]:
        if not tries:
            tries.append(list(islice(requests, sent)))
            yield from list(replies(self, tries[0]))[:answered]
            raise redis.ConnectionError("broken")
        tries.append(list(requests))
        yield from replies(self, tries[-1])

    async def async_breaking(
        self: AsyncWire, requests: Iterable[bytes], wait_s: float | None
    ) -> list[Any]:
        if not tries:
            tries.append(list(islice(requests, sent)))
            await call(self, tries[0])
            raise redis.ConnectionError("broken")
        tries.append(list(requests))
        return await call(self, tries[-1])

    monkeypatch.setattr(Wire, "replies", breaking)
    monkeypatch.setattr(AsyncWire, "call", async_breaking)
    receipts = await client.schedule_many(messages)
    broken, again = tries
    assert len(broken) == min(sent, len(again)) and again[: len(broken)] == broken
    assert Counter(receipts) == {"created": 1000}
    assert len(stored(own)) == len(before) + 1000


async def test_a_namespace_that_is_deleted_meanwhile_is_made_again(
    make: Maker, own_url: str, own: redis.Redis
) -> None:
    """The second time with another number of buckets, for which other ids are drawn."""
    client, messages = make(own_url), mixed(500)
    check(own, messages, await client.schedule_many(messages))
    own.flushall()
    check(own, messages, await client.schedule_many(messages))
    own.flushall()
    await make(own_url, buckets=4).stats()
    check(own, messages, await client.schedule_many(messages), buckets=4)


async def test_large_bodies_go_in_script_calls_of_bounded_size(
    make: Maker, own_url: str, own: redis.Redis
) -> None:
    client = make(own_url, limits=Limits(body_bytes=2**20))
    await client.stats()
    before = script_calls(own)
    messages = [Message(TO, bytes([n]) * 2**20, delay=60, key="k") for n in range(10)]
    check(own, messages, await client.schedule_many(messages))
    assert script_calls(own) - before >= 4  # the first asks for the namespace's record


def test_threads_schedule_many_at_once(own_url: str, own: redis.Redis) -> None:
    messages = [Message(TO, b"%d" % n, delay=60) for n in range(300)]
    with closing(Client(own_url)) as client, ThreadPoolExecutor(8) as pool:
        parts = list(pool.map(lambda _: client.schedule_many(messages), range(8)))
    check(own, messages * 8, [receipt for part in parts for receipt in part])


def _schedule(client: Client, pipe: Connection) -> None:
    pipe.send([one.id for one in client.schedule_many([Message(TO, b"", delay=60)] * 200)])
    pipe.close()
    os._exit(0)


def test_a_forked_process_draws_ids_of_its_own(own_url: str, own: redis.Redis) -> None:
    forking, messages = get_context("fork"), [Message(TO, b"", delay=60)] * 200
    with Client(own_url) as client:
        ids = {one.id for one in client.schedule_many(messages)}
        ours, theirs = forking.Pipe()
        child = forking.Process(target=_schedule, args=(client, theirs))
        child.start()
        ids |= {one.id for one in client.schedule_many(messages)}
        ids |= set(ours.recv())
        child.join()
    assert len(ids) == len(stored(own)) == 600


async def test_other_tasks_run_while_an_async_client_sends_many(
    own_url: str, own: redis.Redis
) -> None:
    async with AsyncClient(own_url) as client:
        await client.stats()
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        task = asyncio.create_task(others())
        receipts = await client.schedule_many([Message(TO, bytes(1000), delay=60)] * 2000)
        task.cancel()
    assert Counter(receipts) == {"created": 2000} and turns > 20
