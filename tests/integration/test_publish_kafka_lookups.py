"""Look-ups of Kafka topics: they hold up nothing else, and those that exist go first."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest
from confluent_kafka import KafkaError

from delaybridge.message import Delivery
from delaybridge.publish import Fault, Verdict
from delaybridge.publish.kafka.client import THREAD, KafkaClient
from delaybridge.publish.kafka.topic import AT_ONCE
from tests.rigs.broker_kafka import KafkaInsides, KafkaRig
from tests.rigs.waiting import until_async

DOWN, TIMED_OUT = KafkaError(KafkaError._ALL_BROKERS_DOWN), KafkaError(KafkaError._TIMED_OUT)
THREADS = 32  # of an event loop, at most


@pytest.fixture
async def rig() -> AsyncIterator[KafkaRig]:
    """A private Kafka, running and reachable."""
    async with KafkaRig() as rig:
        yield rig


class Questions:
    """Look-ups that the cluster answers when the test says so. asked: the topics, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        self._answers: asyncio.Queue[KafkaError] = asyncio.Queue()
        real = KafkaClient.error_of_topic

        async def error_of_topic(
            client: KafkaClient, topic: str | None, timeout_s: float
        ) -> KafkaError | None:
            if topic is None:
                return await real(client, topic, timeout_s)
            self.asked.append(topic)
            return await self._answers.get()

        monkeypatch.setattr(KafkaClient, "error_of_topic", error_of_topic)

    def answer(self, error: KafkaError, count: int = 1) -> None:
        for _ in range(count):
            self._answers.put_nowait(error)

    async def are(self, count: int) -> None:
        await until_async(lambda: len(self.asked) >= count, f"{count} are asked")


def new_topics(rig: KafkaRig, count: int) -> list[Delivery]:
    """A delivery to each of so many topics that are not there."""
    return [rig.delivery(rig.missing_destination()) for _ in range(count)]


async def test_a_silent_cluster_takes_no_thread_of_the_loop_and_closing_waits_for_none(
    rig: KafkaRig,
) -> None:
    async with rig.connected() as (publisher, sink):
        rig.proxy.mode = "blackhole"
        publisher.publish(new_topics(rig, 2 * THREADS))
        await asyncio.to_thread(int)  # as the look-up of a host name does
        asking = [thread for thread in threading.enumerate() if thread.name == THREAD]
        assert len(asking) >= AT_ONCE, "the cluster is still given time"
        await publisher.close(0.0)
        assert any(thread.is_alive() for thread in asking)
        assert len(sink.outcomes) == 2 * THREADS


async def test_look_ups_that_wait_do_not_ask_a_cluster_that_is_unreachable(
    rig: KafkaRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig.connected() as (publisher, sink):
        questions, inside = Questions(monkeypatch), KafkaInsides(publisher)
        publisher.publish(sent := new_topics(rig, 3 * AT_ONCE))
        await questions.are(AT_ONCE)
        inside.erred(inside.clients.prompt, DOWN)
        await sink.all_of(sent)
        assert {sink.outcomes[one].fault for one in sent} == {Fault.BROKER}
        questions.answer(TIMED_OUT, 3 * AT_ONCE)
        topics = [inside.topic(one.destination) for one in sent]
        await until_async(lambda: not any(topic.is_in_use for topic in topics), "all turns over")
        assert len(questions.asked) == AT_ONCE


async def test_a_question_of_an_earlier_connection_does_not_end_the_next_one(
    rig: KafkaRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = await rig.new_destination()
    async with rig.connected() as (publisher, sink):
        questions, inside = Questions(monkeypatch), KafkaInsides(publisher)
        publisher.publish(before := rig.deliveries(to, 1))
        await questions.are(1)
        inside.erred(inside.clients.prompt, DOWN)
        await sink.all_of(before)
        await until_async(lambda: publisher.unavailable is None, "it is connected again")
        publisher.publish(after := rig.deliveries(to, 1))
        monkeypatch.undo()
        questions.answer(TIMED_OUT)
        await sink.all_of(after)
        assert sink.verdicts(after) == {Verdict.CONFIRMED}
        assert sink.changes[-2:] == [sink.outcomes[before[0]].reason, None]


async def test_topics_that_exist_are_looked_up_before_new_ones_and_missing_ones_last(
    rig: KafkaRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = await rig.new_destination()
    async with rig.connected() as (publisher, sink):
        await sink.publish(rig.deliveries(to, 1))
        questions, inside = Questions(monkeypatch), KafkaInsides(publisher)
        inside.topic(to).proved_s = None  # as after a record that failed
        publisher.publish(sent := new_topics(rig, AT_ONCE + 2))
        publisher.publish(rig.deliveries(to, 1))
        await questions.are(AT_ONCE)
        questions.answer(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART), AT_ONCE)
        await questions.are(2 * AT_ONCE)
        names = [one.destination.address for one in sent]
        new = names[AT_ONCE:]
        assert questions.asked[AT_ONCE : AT_ONCE + 3] == [to.address, *new]
        assert set(questions.asked[AT_ONCE + 3 :]) <= set(names[:AT_ONCE])
        monkeypatch.undo()
        questions.answer(TIMED_OUT, AT_ONCE)
