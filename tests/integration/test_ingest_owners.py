"""A delay exchange or topic belongs to one namespace: another is refused, and told the owner."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from confluent_kafka import KafkaException

from delaybridge.ingest.entries import Entry
from delaybridge.ingest.kafka import owners
from delaybridge.ingest.kafka.handover import Batch, HandOver
from delaybridge.ingest.kafka.ingest import KafkaIngest
from delaybridge.ingest.kafka.owners import TopicOwners
from delaybridge.ingest.owner import Owner
from delaybridge.ingest.storing import EntryStore, Found
from delaybridge.publish.kafka.configuration import Configuration
from delaybridge.store.protocol import keys
from tests.rigs.ingest import Entrance, MakeEntrance
from tests.rigs.ingest_kafka import Kafka
from tests.rigs.ingest_kafka import source as topic_source
from tests.rigs.ingest_rabbitmq import HOUR_MS, Exchanges, reading
from tests.rigs.ingest_rabbitmq import source as exchange_source
from tests.rigs.waiting import DEADLINE_S, quiet_async, until

HOUR = [("delaybridge-delay", b"1h")]
TO_DO = " --take-over "  # of a refusal; a broker that is slow to answer may be announced before it
Source = Callable[[Entrance, str], Awaitable[Any]]


async def refused(entrance: Entrance, source: Source, name: str) -> str:
    """What an entrance announces about a source that it does not read."""

    async def look() -> str:
        found = await source(entrance, name)
        return found.state if found and TO_DO in found.state else ""

    return str(await entrance.until(look, f"{name} refused"))


async def all_refused(entrance: Entrance) -> str:
    """What the processes of an entrance announce once none of them reads."""

    async def look() -> str:
        ingests = (await entrance.client.stats()).ingests
        states = [source.state for ingest in ingests for source in ingest.sources]
        said = "; ".join(states)
        return said if TO_DO in said and not {"reading", "starting"} & {*states} else ""

    return str(await entrance.until(look, "nothing read"))


async def owner_of(redis_url: str, namespace: str) -> str:
    def read() -> str:
        with redis.Redis.from_url(redis_url) as client:
            return client.get(keys.birth(namespace)).decode().partition(":")[2]  # type: ignore[union-attr]

    return f"{namespace}@{await asyncio.to_thread(read)}"


async def more_than(entrance: Entrance, count: int) -> bool:
    return len(await entrance.delayed()) > count


async def send_until(enough: asyncio.Event, kafka: Kafka, delay: str) -> int:
    """Send records to all partitions in turn, ten a second; how many there are."""
    sent = 0
    while not enough.is_set():
        await kafka.send(delay, b"meanwhile", HOUR, partition=sent % 4)
        sent += 1
        await quiet_async(0.1)
    return sent


async def are_shared(one: Entrance, other: Entrance, count: int) -> None:
    """Wait until all messages are pending; none is in both namespaces."""

    async def look() -> bool:
        ids = [{message.id for message in await each.delayed()} for each in (one, other)]
        assert not ids[0] & ids[1]
        return len(ids[0] | ids[1]) == count

    await one.until(look, f"{count} messages pending")


class Held:
    """Answers of the store to one namespace, held back; and what its consumer does meanwhile."""

    def __init__(self, namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """batches: offered to the loop. is_leaving: it is told to stop, or waits for the store."""
        self.batches, self.is_leaving = 0, threading.Event()
        self.is_holding, self.answer = asyncio.Event(), asyncio.Event()
        put, stop = EntryStore.store, KafkaIngest.stop
        offer, wait = HandOver.offer, HandOver.wait_stored

        async def hold(store: EntryStore, entries: Sequence[Entry]) -> list[Found]:
            answers = await put(store, entries)
            if store.calls.namespace == namespace:
                self.is_holding.set()
                await self.answer.wait()
            return answers

        def count(hand_over: HandOver, batch: Batch) -> None:
            offer(hand_over, batch)
            self.batches += 1

        async def end(ingest: KafkaIngest, timeout_s: float) -> None:
            self.is_leaving.set()
            await stop(ingest, timeout_s)

        def leave(hand_over: HandOver, timeout_s: float) -> None:
            self.is_leaving.set()
            wait(hand_over, timeout_s)

        monkeypatch.setattr(EntryStore, "store", hold)
        monkeypatch.setattr(KafkaIngest, "stop", end)
        monkeypatch.setattr(HandOver, "offer", count)
        monkeypatch.setattr(HandOver, "wait_stored", leave)


def wiped(redis_url: str, namespace: str) -> None:
    """As if this were another Redis, or had lost everything."""
    with redis.Redis.from_url(redis_url) as client:
        found = [*client.scan_iter(match=f"{{{namespace}*", count=10_000)]
        assert found
        client.delete(*found)


class TestRabbitMQ:
    async def test_a_second_namespace_is_refused_and_gets_nothing(
        self, make_entrance: MakeEntrance, rabbit: Exchanges, namespace: str, redis_url: str
    ) -> None:
        delay = f"{namespace}.delay"
        first = make_entrance()
        second = make_entrance(space=f"{namespace}-b")
        first.ingest("rabbitmq")
        first.ingest("rabbitmq")  # several processes of one namespace
        await reading(first, delay)
        trying = second.ingest("rabbitmq")
        refusal = asyncio.create_task(refused(second, exchange_source, delay))
        sent = 0
        while not refusal.done():  # it gets nothing while it starts, either
            await rabbit.publish(delay, "k", b"meanwhile", {"x-delay": HOUR_MS})
            sent += 1
        reason = await refusal
        owner = await owner_of(redis_url, namespace)
        assert f"namespace '{namespace}' ({owner})" in reason
        assert f"delaybridge ingest rabbitmq --take-over {owner}" in reason
        for number in range(20):
            await rabbit.publish(delay, "k", b"%d" % number, {"x-delay": HOUR_MS})
        await first.until_delayed(20 + sent)
        assert await second.delayed() == []

        # taken over from a process that still runs, which then stops reading
        await second.stop(trying)
        third = make_entrance(space=f"{namespace}-b", take_over=[owner])
        third.ingest("rabbitmq")
        await reading(third, delay)
        assert f"namespace '{namespace}-b'" in await all_refused(first)
        await rabbit.publish(delay, "k", b"for the third", {"x-delay": HOUR_MS})
        await third.until_delayed(1)

    async def test_a_wiped_namespace_may_take_over_its_own_exchange(
        self, make_entrance: MakeEntrance, rabbit: Exchanges, namespace: str, redis_url: str
    ) -> None:
        delay = f"{namespace}.delay"
        before = make_entrance()
        task = before.ingest("rabbitmq")
        await reading(before, delay)
        old = await owner_of(redis_url, namespace)
        await before.stop(task)
        await asyncio.to_thread(wiped, redis_url, namespace)
        await rabbit.publish(delay, "k", b"kept in the queue", {"x-delay": HOUR_MS})

        again = make_entrance()
        task = again.ingest("rabbitmq")
        reason = await refused(again, exchange_source, delay)
        assert "wiped" in reason
        assert f"--take-over {old}" in reason
        await again.stop(task)
        over = make_entrance(take_over=[old])
        task = over.ingest("rabbitmq")
        await over.until_delayed(1)
        await over.stop(task)
        again.ingest("rabbitmq")  # now it is its own
        await reading(again, delay)


class TestKafka:
    @pytest.fixture
    def entrance_url(self, watched_kafka_url: str) -> str:
        return watched_kafka_url

    @pytest.mark.parametrize("same_group", [True, False], ids=["one group", "two groups"])
    async def test_a_second_namespace_is_refused_and_gets_nothing(
        self,
        same_group: bool,
        make_entrance: MakeEntrance,
        kafka: Kafka,
        namespace: str,
        redis_url: str,
    ) -> None:
        delay, _ = await kafka.pair(namespace, partitions=4)
        group = namespace if same_group else f"{namespace}-b"
        other = {"space": f"{namespace}-b", "group": group}
        first = make_entrance()
        second = make_entrance(**other)
        first.ingest("kafka")
        first.ingest("kafka")  # several processes of one namespace
        await kafka.send(delay, b"before", HOUR)
        await first.until_delayed(1)
        trying = second.ingest("kafka")
        reason = await refused(second, topic_source, delay)
        owner = await owner_of(redis_url, namespace)
        assert f"namespace '{namespace}' ({owner})" in reason
        assert f"delaybridge ingest kafka --take-over {owner}" in reason
        for number in range(20):
            await kafka.send(delay, b"%d" % number, HOUR, partition=number % 4)
        await first.until_delayed(21)
        assert await second.delayed() == []
        if not same_group:
            return

        await second.stop(trying)

        # taken over from processes that still run and read, which then stop reading
        enough = asyncio.Event()
        sending = asyncio.create_task(send_until(enough, kafka, delay))
        await first.until(lambda: more_than(first, 30), "it reads what is sent")
        third = make_entrance(**other, take_over=[owner])
        third.ingest("kafka")
        assert f"namespace '{namespace}-b'" in await all_refused(first)
        enough.set()
        await are_shared(first, third, 21 + await sending)

    # Of three batches one is stored but not answered yet, one is read, one is on offer.
    @pytest.mark.parametrize(("how", "batches"), [("taken over", 3), ("stopped first", 1)])
    async def test_what_one_namespace_has_stored_another_does_not_get(
        self,
        how: str,
        batches: int,
        make_entrance: MakeEntrance,
        kafka: Kafka,
        namespace: str,
        redis_url: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        delay, _ = await kafka.pair(namespace)
        first = make_entrance(topics=[delay])
        old = first.ingest("kafka")
        await kafka.send(delay, b"0", HOUR)
        await first.until_delayed(1)
        held = Held(namespace, monkeypatch)
        sent = 1
        while held.batches < batches:
            await kafka.send(delay, b"%d" % sent, HOUR)
            sent += 1
            await first.until(held.is_holding.is_set, "the store is to answer")
        owner = await owner_of(redis_url, namespace)
        over = make_entrance(
            space=f"{namespace}-b", topics=[delay], group=namespace, take_over=[owner]
        )
        if how == "taken over":
            over.ingest("kafka")
            await first.until(held.is_leaving.is_set, "the first waits for its batches")
            held.answer.set()
        else:
            ending = asyncio.create_task(first.stop(old))
            await first.until(held.is_leaving.is_set, "the first is told to stop")
            await quiet_async(0.2)
            assert not ending.done()
            held.answer.set()
            await ending
            over.ingest("kafka")
        await are_shared(first, over, sent)

    @pytest.mark.slow
    async def test_a_foreign_topic_stops_no_other_topic(
        self, make_entrance: MakeEntrance, kafka: Kafka, namespace: str
    ) -> None:
        taken, _ = await kafka.pair(namespace)
        first = make_entrance(topics=[taken])
        first.ingest("kafka")
        await kafka.send(taken, b"1", HOUR)
        await first.until_delayed(1)
        own, _ = await kafka.pair(namespace)
        second = make_entrance(space=f"{namespace}-b", group=namespace)
        second.ingest("kafka")
        await refused(second, topic_source, taken)
        await kafka.send(own, b"2", HOUR)
        await second.until_delayed(1)
        later, _ = await kafka.pair(namespace)  # found although no pattern is subscribed to
        await kafka.send(later, b"3", HOUR)
        await second.until_delayed(2)
        await kafka.send(taken, b"4", HOUR)
        await first.until_delayed(2)

    async def test_a_topic_created_later_is_read_by_one_namespace(
        self, make_entrance: MakeEntrance, kafka: Kafka, namespace: str
    ) -> None:
        both = []
        for own in (namespace, f"{namespace}-b"):
            entrance = make_entrance(space=own, group=f"group-{own}")
            entrance.ingest("kafka")

            async def is_idle(entrance: Entrance = entrance) -> bool:
                found = await topic_source(entrance, f"{namespace}*.delay")
                return found is not None and found.state.startswith("idle: ")

            await entrance.until(is_idle, "no topic is there yet")
            both.append(entrance)
        later, _ = await kafka.pair(namespace)
        for number in range(10):
            await kafka.send(later, b"%d" % number, HOUR)

        async def is_settled() -> bool:
            states = [found.state for e in both if (found := await topic_source(e, later))]
            return len(states) == 2 and any(" belongs to " in state for state in states)

        await both[0].until(is_settled, "read by one, refused by the other")

        async def all_read() -> list[int]:
            counts = sorted([len(await entrance.delayed()) for entrance in both])
            return counts if counts[-1] == 10 else []

        assert await both[0].until(all_read, "ten messages pending") == [0, 10]

    async def test_of_two_that_mark_a_topic_at_once_the_first_sees_that_it_lost(
        self, kafka: Kafka, namespace: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        topic, known = await kafka.pair(namespace)
        settings = Configuration(kafka.settings)
        names = [f"{namespace}@1", f"{namespace}-b@2"]
        first, second = (TopicOwners(settings, Owner(name), lambda _: None) for name in names)
        turns = [second]

        def meanwhile(_: float) -> None:
            while turns:
                other = turns.pop()
                with monkeypatch.context() as blind:  # it looked before there was any mark
                    blind.setattr(other, "_read", lambda *_: {})
                    other.claim([topic], DEADLINE_S)
                assert not other.claim([topic], DEADLINE_S), "it has the topic"

        def are_connected() -> bool:
            with contextlib.suppress(KafkaException):
                return bool(first.claim([known], DEADLINE_S) or second.claim([known], DEADLINE_S))
            return False

        try:
            await asyncio.to_thread(until, are_connected)
            own_time = SimpleNamespace(monotonic=time.monotonic, sleep=meanwhile)
            monkeypatch.setattr(owners, "time", own_time)
            found = await asyncio.to_thread(first.claim, [topic], DEADLINE_S)
        finally:
            first.close()
            second.close()
        assert found == {topic: names[1]}
