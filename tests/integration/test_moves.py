"""Messages on their way to other buckets, script by script: nothing is lost, early or doubled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis as redis_py

from delaybridge.client import Client
from delaybridge.errors import StoreDamaged, StoreError, StoreWiped
from delaybridge.message import Message, OnConflict, State
from delaybridge.store.protocol import keys, moves
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.verbs import Steps, bucket_of, new_stamp
from tests.rigs.hand_mover import HandMover

TO = "kafka:t"
IDS = [f"id{n}" for n in range(40)]
HASHES = ("messages", "attempts", "dead_reason")
ZSETS = ("due", "parked", "dead", "delivered")


@pytest.fixture
def client(redis_url: str, namespace: str) -> Iterator[Client]:
    with Client(redis_url, namespace=namespace, buckets=2) as client:
        client.schedule_many([Message(TO, b"x", id=id, delay="1h") for id in IDS])
        yield client


@pytest.fixture
def late(redis_url: str, namespace: str, client: Client) -> Iterator[Client]:
    """A client that knows the namespace as it was before."""
    with Client(redis_url, namespace=namespace) as late:
        assert late.get(IDS[0]) is not None
        yield late


def content(raw: redis_py.Redis, buckets: list[Bucket]) -> dict[str, dict[bytes, Any]]:
    """What these buckets have, together; nothing may be in two of them."""
    found: dict[str, dict[bytes, Any]] = {}
    for name in (*HASHES, *ZSETS):
        for bucket in buckets:
            key = bucket.key(name)
            own: Any = raw.zrange(key, 0, -1, withscores=True) if name in ZSETS else None
            own = raw.hgetall(key) if own is None else dict(own)
            assert not own.keys() & found.get(name, {}).keys()
            found[name] = found.get(name, {}) | own
    return found


def buckets_of(client: Client) -> list[Bucket]:
    return [*client._calls.buckets]


def test_a_page_is_lifted_until_it_is_forgotten_by_its_stamp(client: Client) -> None:
    hand = HandMover(client, 4)
    assert hand.begin(0) and hand.begin(0)
    first = hand.lift(0)
    assert first.page is not None and len(first.page.entries) > 5
    assert hand.lift(0) == first == hand.lift(0, b"another!")
    second = hand.lift(0, first.page.stamp)
    assert second.page is not None and second.page.stamp != first.page.stamp
    assert hand.lift(0, first.page.stamp) == second
    assert float(first.page.gate) > float(second.page.gate)  # what is due before may be claimed


def test_a_page_lands_once_however_late_it_lands_again(client: Client) -> None:
    hand = HandMover(client, 4, limit=3)
    hand.begin(0)
    first = hand.lift(0).page
    assert first is not None and len(first.entries) == 3
    assert hand.land(0, first) == hand.land(0, first) == []
    gone = first.entries[0].id.decode()
    assert client.cancel(gone) == "cancelled"
    second = hand.lift(0, first.stamp).page
    assert second is not None
    hand.land(0, second)
    assert hand.land(0, first) == []  # as it was sent once more, late
    assert client.get(gone) is None
    assert all(client.get(id) is not None for id in IDS if id != gone)


@pytest.mark.parametrize("count", [1, 8])
def test_all_that_a_bucket_has_goes_along(client: Client, raw: redis_py.Redis, count: int) -> None:
    before = buckets_of(client)
    for bucket in before:
        pipe = raw.pipeline()
        for n, id in enumerate(list(raw.hkeys(bucket.key("messages")))[:6]):
            score = raw.zscore(bucket.key("due"), id)
            pipe.hset(bucket.key("attempts"), id, "3:1:7")
            pipe.hset(bucket.key("attempts"), id + b"\0", "5\nkafka:t\nrefused")
            if n % 2:
                pipe.zrem(bucket.key("due"), id)
                pipe.zadd(bucket.key("parked"), {id: 2**52 + score})
            elif n:
                pipe.zrem(bucket.key("due"), id)
                pipe.zadd(bucket.key("dead"), {id: 1000 + n})
                pipe.hset(bucket.key("dead_reason"), id, "refused: why")
        pipe.zadd(bucket.key("delivered"), {f"gone{bucket.number}": 4e12})
        pipe.zadd(bucket.key("delivered"), {f"span{bucket.number}\0": 4e12})
        pipe.hset(bucket.key("marks"), mapping={"scheduled": 20, "dropped": 2})
        pipe.execute()
    was = content(raw, before)
    hand = HandMover(client, count, limit=7)
    for number in hand.sources:
        hand.empty(number)
    hand.finish()
    after = [hand.bucket(number) for number in hand.layout.resized(1).epochs[1].numbers]
    delivered = {
        id: score
        for bucket in after
        for id, score in raw.zrange(bucket.key("delivered"), 0, -1, withscores=True)
    }
    assert delivered == was["delivered"]
    raw.delete(*(bucket.key("delivered") for bucket in after))
    assert content(raw, after) == was | {"delivered": {}}
    counts = [raw.hmget(bucket.key("marks"), "scheduled", "dropped", "gate") for bucket in after]
    assert {each[2] for each in counts} == {None}


def test_counters_are_counted_once(client: Client, raw: redis_py.Redis) -> None:
    before = buckets_of(client)
    for bucket in before:
        raw.hset(bucket.key("marks"), mapping={"scheduled": 20, "cancelled": 3})
    hand = HandMover(client, 8)
    for number in hand.sources:
        hand.empty(number)
    after = [hand.bucket(number) for number in hand.layout.epochs[1].numbers]
    found = [raw.hmget(bucket.key("marks"), "scheduled", "cancelled") for bucket in after]
    sums = [sum(int(each[n] or 0) for each in found) for n in (0, 1)]
    assert sums == [40, 6]


def one_of_each(client: Client, prefix: str) -> list[str]:
    """The answers of all verbs, as text."""
    at = {name: f"{prefix}{name}" for name in ("get", "cancel", "again", "other", "new", "put")}
    found = [
        client.get(at["get"]) is not None,
        client.get(f"{prefix}none"),
        client.cancel(at["cancel"]), client.cancel(at["cancel"]),
        client.reschedule(at["again"], delay="3h"),
        client.reschedule(f"{prefix}none", delay="3h"),
        client.schedule(TO, b"x", id=at["get"], delay="1h"),
        client.schedule(TO, b"new", id=at["new"], delay="1h"),
        client.schedule(TO, b"new", id=at["new"], delay="1h"),
        client.schedule(TO, b"y", id=at["other"], delay="1h", on_conflict=OnConflict.REPLACE),
        client.schedule(TO, b"y", id=at["put"], delay="1h", on_conflict=OnConflict.KEEP),
        client.touch(at["again"], ttl="1d"),
        client.dead.kick(f"{prefix}dead"), client.dead.kick(f"{prefix}dead"),
        client.dead.discard(f"{prefix}dead2"), client.dead.discard(f"{prefix}dead2"),
    ]  # fmt: skip
    try:
        found.append(client.schedule(TO, b"another", id=at["get"], delay="1h"))
    except Exception as exc:
        found.append(type(exc).__name__)
    return [str(each) for each in found]


PREFIXES = ("whole", "begun", "lifted", "landed", "retired", "moved")


@pytest.mark.parametrize("count", [1, 4])
def test_a_client_that_knew_the_buckets_before_is_answered_as_ever(
    client: Client, late: Client, raw: redis_py.Redis, count: int
) -> None:
    names = ("get", "cancel", "again", "other", "put", "dead", "dead2")
    for prefix in PREFIXES:
        client.schedule_many([Message(TO, b"x", id=f"{prefix}{n}", delay="1h") for n in names])
        for id in (f"{prefix}dead", f"{prefix}dead2"):
            client.cancel(id)
            bury(client, id)
    expected = one_of_each(late, "whole")
    hand = HandMover(client, count, limit=500)
    for number in hand.sources:
        hand.begin(number)
    assert one_of_each(late, "begun") == expected
    pages = {n: hand.lift(n).page for n in hand.sources}
    assert one_of_each(late, "lifted") == expected
    for number, page in pages.items():
        assert page is not None
        hand.land(number, page)
        hand.lift(number, page.stamp)
    assert one_of_each(late, "landed") == expected
    for number in hand.sources:
        hand.empty(number)
    assert one_of_each(late, "retired") == expected
    hand.finish()
    assert one_of_each(late, "moved") == expected
    assert one_of_each(client, "none") is not None


def bury(client: Client, id: str) -> None:
    """A message that could not be read, as ingest keeps it."""
    accepted = client.accept(Message(TO, b"x", id=id, delay="1h"))
    number = bucket_of(id.encode(), len(client._calls.buckets))
    bucket = client._calls.buckets[number]

    def steps(_: object) -> Steps[Any]:
        kept = [(new_stamp(), id, accepted.payload, "refused: why")]
        return (yield [bucket.quarantine(kept)])[0]

    assert client.run(steps)


def refused(asked: list[Callable[[], object]]) -> None:
    for one in asked:
        with pytest.raises(StoreError):
            one()


def test_who_does_not_know_of_a_resize_is_refused(
    client: Client, late: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a process of an older version, which has no `following`."""
    late._store.follower = None
    monkeypatch.setattr(late._calls.following, "_read", lambda: iter(()))
    hand = HandMover(client, 4)
    asked: list[Callable[[], object]] = [
        lambda: late.get(IDS[0]),
        lambda: late.cancel(IDS[0]),
        lambda: late.reschedule(IDS[0], delay="2h"),
        lambda: late.schedule(TO, b"new", id="new", delay="1h"),
        lambda: late.schedule_many([Message(TO, b"new", delay="1h") for _ in range(5)]),
        lambda: late.dead.kick(IDS[0]),
        lambda: late.pending(limit=9),
        lambda: late.pending(limit=9, state=State.DEAD),
        lambda: late.topics.receive("t"),
    ]
    for number in hand.sources:
        hand.begin(number)
    refused(asked)
    for number in hand.sources:
        hand.empty(number)
    refused(asked)
    hand.finish()
    refused(asked)
    assert len(client.pending(limit=99).items) == len(IDS)


def test_a_bucket_of_another_birth_gives_and_takes_nothing(
    client: Client, raw: redis_py.Redis
) -> None:
    hand = HandMover(client, 4)
    other = Bucket(client._calls.namespace, 0, "another")
    assert not hand.run(moves.begin(other))
    hand.begin(0)
    assert hand.run(moves.lift(other, b"", moves.new_page(), 9, 9)) is None
    assert not hand.run(moves.retire(other))
    page = hand.lift(0).page
    assert page is not None
    (target, *_) = hand.layout.targets(0)
    raw.hset(hand.bucket(target).key("marks"), "birth", "another")
    raw.hset(hand.bucket(target).key("messages"), "x", "of another")
    with pytest.raises(StoreWiped):
        hand.land(0, page)
    raw.delete(hand.bucket(target).key("messages"))
    hand.land(0, page)
    assert raw.hget(hand.bucket(target).key("marks"), "birth") == client._calls.birth.encode()


@pytest.mark.parametrize("name", [*HASHES, *ZSETS, "calls", "sources"])
@pytest.mark.parametrize("where", ["source", "target"])
def test_a_damaged_key_stops_a_bucket_and_loses_nothing(
    client: Client, raw: redis_py.Redis, name: str, where: str
) -> None:
    hand = HandMover(client, 1)
    for number in hand.sources:
        hand.begin(number)
    key = hand.bucket(hand.layout.targets(0)[0]).key(name)
    if where == "source":
        key = keys.moving(hand.bucket(0).key(name))
    if is_there := raw.exists(key):
        raw.rename(key, f"{key}.kept")
    raw.set(key, "damaged")
    with pytest.raises(StoreDamaged):
        page = hand.lift(0).page
        assert page is not None
        hand.land(0, page)
    raw.delete(key)
    if is_there:
        raw.rename(f"{key}.kept", key)
    for number in hand.sources:
        hand.empty(number)
    hand.finish()
    assert all(client.cancel(id) == "cancelled" for id in IDS)


def test_an_id_under_two_keys_waits_until_one_is_gone(client: Client) -> None:
    """With fewer buckets both belong into one."""
    for n in range(8):
        client.schedule(TO, f"{n}".encode(), id="same", key=f"k{n}", delay="1h", on_conflict="keep")
    hand = HandMover(client, 1)
    landed = {}
    for number in hand.sources:
        hand.begin(number)
        stamp, back = b"", list[bytes]()
        while (page := hand.lift(number, stamp, *back).page) is not None:
            back = hand.land(number, page)
            if back:
                hand.put_back(number, page, back)
                landed[number] = back
            stamp = page.stamp
    assert landed == {1: [b"same"]}
    found = client.pending(limit=99).items
    assert [each.id for each in found].count("same") == 2
    bodies = {each.body for each in found if each.id == "same"}
    assert len(bodies) == 2
