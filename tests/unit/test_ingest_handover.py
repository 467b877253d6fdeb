"""Partitions are given up with everything stored and committed that can be."""

from __future__ import annotations

import asyncio
import math
from typing import Any
from unittest.mock import Mock

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from delaybridge.ingest.kafka.consumer import KafkaConsumer
from delaybridge.ingest.kafka.handover import HandOver
from delaybridge.ingest.kafka.offsets import commit
from delaybridge.ingest.kafka.records import RawRecord
from delaybridge.ingest.kafka.sources import Troubles
from delaybridge.ingest.kafka.subscription import DELETED, Subscription
from delaybridge.ingest.kafka.topics import Topic

ORDERS = Topic("orders.delay", "id")


def records(*partitions: int) -> list[RawRecord]:
    return [RawRecord(partition, 0, None, b"", ()) for partition in partitions]


async def test_what_is_withdrawn_is_not_taken() -> None:
    hand_over = HandOver()
    hand_over.offer({ORDERS: records(0, 1, 0, 2)})
    hand_over.withdraw({("orders.delay", 0), ("orders.delay", 2), ("others.delay", 1)})
    assert not hand_over.wait_taken(0)
    assert await hand_over.next() == {ORDERS: records(1)}
    assert hand_over.wait_taken(0)


async def test_a_batch_withdrawn_as_a_whole_holds_nobody_up() -> None:
    hand_over = HandOver()
    hand_over.offer({ORDERS: records(0)})
    hand_over.withdraw({("orders.delay", 0)})
    assert hand_over.wait_taken(0)
    coming = asyncio.ensure_future(hand_over.next())
    await asyncio.sleep(0)
    assert not coming.done()
    hand_over.wait_stored(600)  # nothing was taken
    hand_over.offer({ORDERS: records(1)})
    assert await coming == {ORDERS: records(1)}


class Arrived:
    """A record as the client library hands it over."""

    def __init__(self, partition: int) -> None:
        self.place = "orders.delay", partition

    def topic(self) -> str:
        return self.place[0]

    def partition(self) -> int:
        return self.place[1]


async def test_what_has_arrived_is_given_up_with_its_partition() -> None:
    consumer = object.__new__(KafkaConsumer)  # without its thread
    consumer._hand_over = HandOver()
    consumer._early = waiting = [Arrived(0), Arrived(1), Arrived(0)]  # type: ignore[list-item]
    consumer._withdraw([TopicPartition("orders.delay", 0)])
    assert [each.partition() for each in waiting] == [1]  # the list that is about to be read


def test_the_trouble_of_a_topic_is_left_with_its_last_partition() -> None:
    told: list[tuple[object, ...]] = []
    sources, asked = Mock(), ["named.delay", "^.*"]
    troubles = Troubles(lambda *what: told.append(what), sources)
    troubles.topics = {"orders.delay": 0, "named.delay": 0}
    troubles.leave({("orders.delay", 1): 0}, asked)
    assert (troubles.topics["orders.delay"], told) == (1, [])  # it is looked at there
    troubles.leave({}, asked)
    # a topic that is asked for by its name may have trouble without partitions
    assert troubles.topics == {"named.delay": 0}
    assert told == [(sources.topic_left, "orders.delay")]


@pytest.mark.parametrize(("existing", "found"), [({"b.delay"}, DELETED), ({"a.delay"}, None)])
def test_a_deleted_topic_is_no_other_process_s(existing: set[str], found: str | None) -> None:
    ids, owners = Mock(), Mock(foreign={})
    ids.names.return_value = [*existing, "b.delay"]
    subscription = Subscription(["^.*\\.delay"], ids, owners)
    subscription.since_s = -math.inf
    assert subscription.idle({"a.delay", "b.delay"}) == {}
    assert subscription.idle({"b.delay"}).get("a.delay") == found


class Member:
    """A consumer whose commits are refused a few times, as while others join its group."""

    def __init__(self, refusals: int) -> None:
        self.refusals, self.committed_to, self.commits, self.polls = refusals, 3, 0, 0

    def commit(self, offsets: list[TopicPartition], asynchronous: bool) -> None:
        assert asynchronous  # else it would wait as long as the slowest member takes to join
        self.commits += 1
        if self.commits > self.refusals:
            self.committed_to = offsets[0].offset

    def committed(self, places: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        if self.commits == 1:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return [TopicPartition(place.topic, place.partition, self.committed_to) for place in places]


@pytest.mark.parametrize(("refusals", "commits"), [(0, 2), (3, 4)])
def test_a_refused_commit_is_sent_again_until_it_is_accepted(refusals: int, commits: int) -> None:
    member: Any = Member(refusals)
    polls: list[int] = []
    place = TopicPartition("orders.delay", 0, 7)
    commit(member, {("orders.delay", 0): place}, lambda: polls.append(1), 600)
    assert (member.committed_to, member.commits, len(polls)) == (7, commits, commits - 1)


def test_commits_end_with_the_partitions_and_with_the_time() -> None:
    member: Any = Member(refusals=10**9)
    reached = {("orders.delay", 0): TopicPartition("orders.delay", 0, 7)}
    commit(member, reached, lambda: None, 0.0)
    assert member.commits == 0
    commit(member, reached, reached.clear, 600)  # another member has them
    assert member.commits == 1
