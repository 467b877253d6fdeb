"""Counts by destination on a real Redis."""

from __future__ import annotations

import pytest
import redis

from delaybridge import Client, Message, MessageError, Receipt, StoreDamaged
from delaybridge.message import State
from delaybridge.operate.views.tally import DestinationCounts, Tally
from delaybridge.store.protocol import keys
from tests.rigs.bucket import World
from tests.rigs.flavours import Maker

MANY = 6000
EARLIER_MS = 1_000


def to(destination: str, number: int, **fields: object) -> list[Message]:
    return [Message(destination, b"x", delay="1h", **fields) for _ in range(number)]  # type: ignore[arg-type]


def test_few_messages_are_counted_in_every_state(
    redis_url: str, raw: redis.Redis, namespace: str
) -> None:
    with Client(redis_url, namespace=namespace) as client:
        made = client.schedule_many(
            [*to("rabbitmq:orders/close", 5), *to("rabbitmq:orders/remind", 2), *to("kafka:t", 3)]
        )
        bury(client, raw, made[0])
        found = client.counts(by="destination")
    orders = DestinationCounts("rabbitmq:orders", delayed=Tally(6), dead=Tally(1))
    assert found == [orders, DestinationCounts("kafka:t", delayed=Tally(3))]
    assert [each.messages for each in found] == [7, 3]


def test_many_messages_are_estimated_within_the_error(redis_url: str, namespace: str) -> None:
    with Client(redis_url, namespace=namespace) as client:
        client.schedule_many([*to("kafka:big", MANY), *to("kafka:small", MANY // 10)])
        found = {each.destination: each.delayed for each in client.counts()}
    big, small = found["kafka:big"], found["kafka:small"]
    assert 0 < big.error < MANY / 10
    # Three times the error of 95 in 100: it fails once in a hundred million runs.
    assert abs(big.messages - MANY) <= 3 * big.error
    assert abs(small.messages - MANY // 10) <= 3 * small.error


def test_large_records_end_a_look_early_and_make_it_an_estimate(
    redis_url: str, namespace: str
) -> None:
    with Client(redis_url, namespace=namespace, buckets=1) as client:
        body = b"x" * 200_000
        client.schedule_many([Message("kafka:t", body, delay="1h") for _ in range(12)])
        (found,) = client.counts()
    assert found.delayed.messages == 12
    assert found.delayed.error > 0


def test_the_first_of_each_destination_is_told_and_another_seed_draws_others(world: World) -> None:
    for n, to in enumerate(b"abbaab" * 20):
        payload = b"\x97\xa7kafka:%c" % to
        world.schedule(f"m{n}", world.now_ms + 1000 + 7 * n % 120, payload=payload)
    due = world.state()["due"]
    first = {
        to: min(due[b"m%d" % n] for n in range(120) if b"abbaab"[n % 6] == ord(to)) for to in "ab"
    }
    found = world.run(world.bucket.tally(State.DELAYED, 120, 1))
    assert found.firsts == {f"kafka:{to}": score for to, score in first.items()}
    drawn = [world.run(world.bucket.tally(State.DELAYED, 9, seed)) for seed in (1, 1, 2, 3, 4, 5)]
    assert drawn[0] == drawn[1]
    assert len({str(each) for each in drawn}) > 1


def test_an_unreadable_record_is_counted_as_such(
    redis_url: str, raw: redis.Redis, namespace: str
) -> None:
    with Client(redis_url, namespace=namespace, buckets=1) as client:
        made = client.schedule_many(to("kafka:t", 2))
        raw.hset(keys.bucket_key(namespace, 0, "messages"), made[0].id, b"\xc1")
        found = {each.destination: each.delayed for each in client.counts()}
    assert found == {"kafka:t": Tally(1), "(unreadable)": Tally(1)}


def test_a_damaged_key_is_named(redis_url: str, raw: redis.Redis, namespace: str) -> None:
    with Client(redis_url, namespace=namespace) as client:
        client.schedule_many(to("kafka:t", 2))
        damaged = keys.bucket_key(namespace, 3, "parked")
        raw.set(damaged, "by hand")
        with pytest.raises(StoreDamaged, match="parked"):
            client.counts()


async def test_both_clients_count_alike(make: Maker, redis_url: str, namespace: str) -> None:
    client = make(redis_url, namespace=namespace)
    await client.schedule("kafka:t", b"x", delay="1h")
    assert await client.counts() == [DestinationCounts("kafka:t", delayed=Tally(1))]


async def test_no_other_count_is_offered(make: Maker, redis_url: str, namespace: str) -> None:
    with pytest.raises(MessageError, match="by"):
        await make(redis_url, namespace=namespace).counts(by="bucket")


def bury(client: Client, raw: redis.Redis, receipt: Receipt) -> None:
    """Move a delayed message to the dead set, as its owner's verbs would."""
    bucket = client.run(lambda calls: calls.open())[receipt.bucket]
    raw.zrem(bucket.key("due"), receipt.id)
    raw.zadd(bucket.key("dead"), {receipt.id: EARLIER_MS})
    raw.hset(bucket.key("dead_reason"), receipt.id, "refused: by a test")
