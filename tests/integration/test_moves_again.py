"""Calls that are made again while messages move: each took effect once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import MagicMock

import pytest

from delaybridge.client import Client
from delaybridge.errors import StoreError
from delaybridge.message import Message
from delaybridge.operate.supervisor.supervisor import Supervisor
from delaybridge.scan.leases.damaged_buckets import DamagedBuckets
from delaybridge.settings.settings import Settings
from delaybridge.store.messages import pulling
from delaybridge.store.namespace import damage, registry
from delaybridge.store.protocol import keys, moves
from delaybridge.store.protocol.bucket import Item
from delaybridge.store.protocol.record import split_record
from delaybridge.store.protocol.verbs import Each, SourceOffsets, Steps, bucket_of, new_stamp, plain
from delaybridge.store.redis.store import AsyncStore
from tests.rigs.hand_mover import HandMover

TO, SOURCE = "kafka:t", "topic:0"
PAST = timedelta(minutes=1)


@pytest.fixture
def client(redis_url: str, namespace: str) -> Iterator[Client]:
    with Client(redis_url, namespace=namespace, buckets=1) as client:
        client.schedule_many([Message(TO, b"x", id=f"id{n}", delay=3600 + n) for n in range(9)])
        yield client


def stages(client: Client, count: int, hand: HandMover | None = None) -> Iterator[HandMover]:
    """A resize of the only bucket, a step at a time."""
    hand = hand or HandMover(client, count, limit=4)
    yield hand
    hand.begin(0)
    yield hand
    stamp = b""
    while (page := hand.lift(0, stamp).page) is not None:
        yield hand
        hand.land(0, page)
        stamp = page.stamp
        yield hand
    hand.empty(0)
    yield hand
    hand.finish()
    yield hand


def test_a_cancel_sent_again_has_the_same_answer_at_every_step(client: Client) -> None:
    bucket = client._calls.buckets[0]
    sent: list[Any] = []
    for n, hand in enumerate(stages(client, 4)):
        if n < 9:
            sent.append(bucket.cancel(new_stamp(), f"id{n}"))
        assert [hand.run(each) for each in sent] == ["cancelled"] * len(sent)
    assert n > 8


def test_records_that_are_read_again_are_not_scheduled_once_more(client: Client) -> None:
    """Also if what they scheduled has been cancelled meanwhile."""
    bucket = client._calls.buckets[0]
    asked: list[Any] = []
    ids: list[str] = []
    read: list[Any] = []
    for n, hand in enumerate(stages(client, 4)):
        mine = [f"r{n}-{i}" for i in range(4)]
        due = [60, 3600, 7200, 90]  # some before the cut, some after it
        some = [
            (new_stamp(), client.accept(Message(TO, b"x", id=id, delay=s)))
            for id, s in zip(mine, due, strict=True)
        ]
        offsets = SourceOffsets(SOURCE, range(4 * n, 4 * n + 4))
        command = bucket.schedule(some, source=offsets, first=True)
        if n < 12:
            read += zip(some, offsets.offsets, strict=True)
            answers = hand.run(command)
            assert [str(answer) for answer, _ in answers or ()] == ["created"] * 4
            asked.append(command)
            ids += mine
            assert client.cancel(mine[n % 4]) == "cancelled"
        for again in asked:
            hand.run(again)
        there = {each.id for each in client.pending(limit=500).items}
        gone = {f"r{k}-{k % 4}" for k in range(len(asked))}
        assert there & {*ids} == {*ids} - gone, n
    for (stamp, one), offset in read:  # in the new buckets, where it is known how far all was read
        there_now = client._calls.buckets[bucket_of(one.shard_key, 4)]
        hand.run(there_now.schedule([(stamp, one)], source=SourceOffsets(SOURCE, [offset])))
    assert {each.id for each in client.pending(limit=500).items} == there


@pytest.mark.parametrize("step", range(6))
def test_a_receipt_is_good_for_what_has_moved(client: Client, step: int) -> None:
    bucket = client._calls.buckets[0]
    client.schedule_many([Message("pull:t", b"x", id=f"p{n}", delay=0) for n in range(3)])
    hand = HandMover(client, 4)
    taken = hand.run(bucket.acquire("w:1", 60_000))
    token = taken.token
    assert token is not None
    claim = hand.run(bucket.claim(token, 60_000, taken.turn, ahead_ms=9, limit=9, max_bytes=10**6))
    assert claim is not None and len(claim.ids) == 3
    items = [
        (Item(id.decode(), claim.number, split_record(record)[0]), "pull:t")
        for id, record in zip(claim.ids, claim.records, strict=True)
    ]
    hand.run(pulling.offer(bucket, (token, 60_000), items))
    hand.run(bucket.release(token))
    kept, ended, back = client.topics.receive("t", limit=3, ttr="1h")
    for n, _ in enumerate(stages(client, 4, hand)):
        if n == step:
            assert client.topics.extend([kept], ttr="2h") == ["extended"]
            assert client.topics.finish([ended]) == ["finished"]
            assert client.topics.finish([(kept.id, f"0-{int(kept.receipt[2:]) + 1}")]) == [
                "unknown"
            ]
            assert client.topics.release([back], delay="1h") == ["released"]
    assert client.topics.finish([kept, ended, back]) == ["finished", "unknown", "unknown"]
    assert client.cancel(back.id) == "cancelled_maybe_delivered"
    assert client.get(kept.id) is client.get(ended.id) is None


def test_the_end_of_a_bucket_and_of_a_resize_can_be_sent_again(client: Client) -> None:
    *_, hand = stages(client, 4)
    assert hand.run(moves.begin(hand.bucket(0)))
    assert hand.run(moves.retire(hand.bucket(0)))
    hand.finish()
    assert len(client.pending().items) == 9


def test_calls_that_many_buckets_would_get_grow_old_where_they_are(client: Client) -> None:
    """Which of them a call was for is not known: a copy for each would fill Redis."""
    hand = HandMover(client, 4)
    hand.begin(0)
    seconds, micros = map(int, hand.run(plain("TIME", parse=list)))
    now_ms = seconds * 1000 + micros // 1000
    calls = [f"call{n}" for n in range(99)]
    words = [word for n, call in enumerate(calls) for word in (now_ms - n, call)]
    hand.run(plain("ZADD", keys.moving(hand.bucket(0).key("calls")), *words))

    def rest(now_ms: int) -> list[list[bytes]]:
        stamp, pages = b"", list[list[bytes]]()
        while (page := hand.lift(0, stamp, targets=1024, now_ms=now_ms).page) is not None:
            pages += [[each.id for each in page.entries if not each.is_message]]
            stamp = page.stamp
        return [page for page in pages if page]

    assert rest(now_ms + 1) == []
    pages = rest(now_ms + 600_000 - 9)
    assert sorted(map(len, pages[:-1])) == [2, 4, 4]
    assert {id for page in pages[:-1] for id in page} == {f"call{n}".encode() for n in range(10)}


def test_what_is_overdue_is_made_where_earlier_ones_are_until_the_gates_are_closed(
    client: Client,
) -> None:
    hand = HandMover(client, 4, limit=4)
    hand.begin(0)
    pages = list[moves.MovedPage]()
    while not pages or pages[-1].gate:
        page = hand.lift(0, pages[-1].stamp if pages else b"").page
        assert page is not None
        pages.append(page)
        client.schedule(TO, b"x", id=f"past{len(pages)}", at=datetime.now(UTC) - PAST)
        hand.land(0, page)
    gates = [page.gate for page in pages]
    closed = gates.index(b"0")
    assert closed > 2 and set(gates[closed:-1]) == {b"0"}
    late = [each.id.decode() for page in pages[closed:] for each in page.entries]
    assert sorted(late) == [f"past{n}" for n in range(1, closed + 1)]
    assert len(client.pending(limit=99).items) == 9 + len(pages)


async def test_a_bucket_that_was_retired_a_moment_ago_is_not_damaged(
    client: Client, redis_url: str
) -> None:
    store, said = AsyncStore(redis_url), list[object]()
    hand = HandMover(client, 4)
    bucket = hand.bucket(0)
    hand.empty(0)
    store.follower = hand.following
    (refused,) = await store.run_isolated([bucket.acquire("w:1", 60_000)])
    assert isinstance(refused, StoreError)
    found = DamagedBuckets(store, lambda: 0.0, said.append)
    found.add(bucket, refused)
    await found.retry()
    assert (said, found.numbers, found.announced()) == ([], set(), {})
    await store.close()


def test_a_bucket_that_has_retired_meanwhile_looks_empty_and_not_damaged(
    client: Client, redis_url: str, namespace: str
) -> None:
    hand = HandMover(client, 4)
    hand.begin(0)
    with Client(redis_url, namespace=namespace) as other:
        assert other.stats().delayed == 9
        hand.empty(0)
        bucket = hand.bucket(0)

        def found(_: object) -> Steps[list[damage.Damage]]:
            return damage.found(bucket, (yield Each(damage.commands(bucket))))

        assert other.run(found) == []


def test_a_parent_gives_back_the_lease_of_a_bucket_that_moves(
    client: Client, redis_url: str, namespace: str
) -> None:
    """Its dead child's."""
    hand = HandMover(client, 4)
    hand.begin(0)
    token = hand.run(hand.bucket(0).acquire("w:1", 60_000)).token
    child, supervisor = MagicMock(), MagicMock()
    child.identity.name, child.identity.instance, child.spec.kind = "w", "i", registry.WORKER
    child.tokens = {0: token}
    supervisor.settings = Settings.load(None, {"redis": {"url": redis_url}, "namespace": namespace})
    Supervisor._release(supervisor, child)
    assert hand.run(hand.bucket(0).acquire("w:2", 60_000)).token is not None


def test_a_call_finds_what_has_moved_twice_since_it_knew(
    client: Client, redis_url: str, namespace: str
) -> None:
    """Its message was looked for one bucket further, and that has begun to move, too."""
    hand = HandMover(client, 2)
    hand.begin(0)
    with Client(redis_url, namespace=namespace) as other:
        assert other.get("id1") is not None
        other._calls.following._looked_s = math.inf  # it does not read the record by itself
        hand.empty(0)
        hand.finish()
        hand = HandMover(client, 4)
        for number in hand.sources:
            hand.empty(number)
        assert other.get("id1") is not None
        assert other.cancel("id2") == "cancelled"
        assert other.schedule(TO, b"x", id="new", delay=60) == "created"
    assert client.get("new") is not None
