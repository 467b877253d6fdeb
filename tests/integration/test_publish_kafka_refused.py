"""Kafka refuses a whole batch for one record: the others go again, and the guilty alone fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from math import inf
from typing import Any

import pytest
from confluent_kafka import KafkaError

from delaybridge.message import Delivery, Destination, Record
from delaybridge.publish import CONFIRMED, Fault, Verdict
from delaybridge.publish.kafka import clients
from delaybridge.publish.kafka.outcomes import Care, Judgement
from tests.rigs.broker import Sink
from tests.rigs.broker_kafka import KafkaInsides, KafkaRig
from tests.rigs.waiting import quiet, until_async
from tests.servers.kafka import KafkaStandIn

COMPACTED = {"cleanup.policy": "compact"}
SMALL = {"max.message.bytes": "2000"}
HALT_AT = 8  # records of a piece are handed over, then the thread pauses
COUNT = 300  # for the prompt producer; 3 * COUNT is for the patient one


@pytest.fixture
async def rig() -> AsyncIterator[KafkaRig]:
    """A private Kafka, running and reachable; topics have three partitions."""
    async with KafkaRig(partitions=3) as rig:
        yield rig


async def topic_with(rig: KafkaRig, config: dict[str, str]) -> Destination:
    return rig.destination(await asyncio.to_thread(rig.make, None, **config))


def mixed(rig: KafkaRig, to: Destination, count: int, every: int) -> list[Delivery]:
    """Numbered; one of `every` has no key, the others one of seven."""
    keys = (None if n % every == every - 1 else b"%d" % (n % 7) for n in range(count))
    return [rig.delivery(to, b"%d" % n, key=key) for n, key in enumerate(keys)]


async def check(rig: KafkaRig, sink: Sink, sent: list[Delivery]) -> None:
    """The guilty were refused, all others are in the topic once, with their first attempt."""
    guilty = [one for one in sent if one.record.key is None]
    good = [one for one in sent if one.record.key is not None]
    assert sink.verdicts(good) <= {Verdict.CONFIRMED}
    assert sink.verdicts(guilty) == {Verdict.REFUSED}
    assert sink.reasons(guilty) == {"rejected"}
    assert {sink.outcomes[one].fault for one in guilty} == {Fault.MESSAGE}
    found = await asyncio.to_thread(rig.read, sent[0].destination.address, len(good))
    assert sorted(one.id for one in found) == sorted(one.id for one in good)
    assert {one.attempt for one in found} <= {1}


@pytest.mark.parametrize(
    ("count", "every"), [(COUNT, 10), (3 * COUNT, 10), (50, 1)],
    ids=["a tenth", "a backlog", "all"],
)  # fmt: skip
async def test_only_records_without_a_key_fail_in_a_compacted_topic(
    rig: KafkaRig, count: int, every: int
) -> None:
    to, sent = await topic_with(rig, COMPACTED), []
    async with rig.connected() as (publisher, sink):
        for _ in range(2):  # the second time it is known
            batch = mixed(rig, to, count, every)
            await sink.publish(batch)
            sent += batch
        await check(rig, sink, sent)


async def test_keys_stay_in_order_once_a_batch_was_refused(
    rig: KafkaRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the thread is interrupted while it hands over a piece, which stays one batch."""

    def halting(*args: Any, **how: Any) -> Iterator[Delivery]:
        for n, one in enumerate(piece(*args, **how)):
            quiet(0.1 if n == HALT_AT else 0.0)
            yield one

    piece = Care.piece
    monkeypatch.setattr(Care, "piece", halting)
    monkeypatch.setattr(clients, "PIECE_LINGER_MS", 1000)
    to = await topic_with(rig, COMPACTED)
    async with rig.connected() as (publisher, sink):
        await sink.publish(mixed(rig, to, COUNT, 10))
        apart = KafkaInsides(publisher).clients.apart
        assert apart is not None
        await until_async(apart.ready.is_set, "the producer apart is ready")
        sent = [rig.delivery(to, b"%d" % n, key=b"%d" % (n % 7)) for n in range(1000, 1500)]
        for one in sent[::50]:
            one.record = Record(str(to), one.record.body)
        for at in range(0, 500, 100):
            publisher.publish(sent[at : at + 100])
            await asyncio.sleep(0)
        await sink.all_of(sent)
        records = await asyncio.to_thread(rig.read_raw, to.address, COUNT * 9 // 10 + 490)
        for key in range(7):
            values = [int(r.value()) for r in records if r.key() == b"%d" % key]
            mine = [value for value in values if value >= 1000]
            assert mine == sorted(mine)


async def test_small_records_are_not_refused_together(rig: KafkaRig) -> None:
    to = await topic_with(rig, SMALL)
    async with rig.connected() as (publisher, sink):
        sent = [rig.delivery(to, bytes(100)) for _ in range(200)]
        large = rig.delivery(to, bytes(5000))
        await sink.publish([*sent[:100], large, *sent[100:]])
        assert sink.verdicts(sent) == {Verdict.CONFIRMED}
        assert sink.outcomes[large].verdict is Verdict.REFUSED
        assert sink.reasons([large]) == {"message_too_large"}


async def test_two_topics_at_once_each_with_its_own_guilty(rig: KafkaRig) -> None:
    first, second = await topic_with(rig, COMPACTED), await topic_with(rig, COMPACTED)
    calm = await rig.new_destination()
    async with rig.connected() as (publisher, sink):
        one, two, three = (mixed(rig, to, COUNT, 10) for to in (first, second, calm))
        publisher.publish([d for three_of in zip(one, two, three, strict=True) for d in three_of])
        await sink.all_of([*one, *two, *three])
        await check(rig, sink, one)
        await check(rig, sink, two)
        assert sink.verdicts(three) == {Verdict.CONFIRMED}


async def test_a_broker_that_names_nobody_is_asked_in_halves(rig: KafkaRig) -> None:
    with KafkaStandIn() as stand_in:
        to, refusals = Destination("kafka", "kafka", "t"), 4
        async with rig.connected(url=f"{stand_in.url}?linger.ms=20") as (publisher, sink):
            await sink.publish(rig.deliveries(to, 1))
            stand_in.refuse(KafkaError.INVALID_RECORD, refusals)
            sent = [rig.delivery(to, b"%d" % n, partition=0) for n in range(200)]
            await sink.publish(sent)
            alone = [one for one in sent if sink.outcomes[one] != CONFIRMED]
            assert len(alone) <= refusals  # none, if librdkafka makes one batch of them all


async def test_a_refusal_after_a_lost_connection_is_no_proof_and_nothing_goes_again(
    rig: KafkaRig,
) -> None:
    to = await topic_with(rig, COMPACTED)
    async with rig.connected() as (publisher, sink):
        await sink.publish(mixed(rig, to, 1, 2))
        clients = KafkaInsides(publisher).clients
        rig.proxy.mode = "hold_down"
        sent = mixed(rig, to, 20, 2)
        publisher.publish(sent)
        clients.prompt.disturbed_s = inf
        rig.proxy.mode = "pass"
        await sink.all_of(sent)
        assert sink.verdicts(sent) <= {Verdict.UNKNOWN, Verdict.CONFIRMED}


class TestMeanwhile:
    async def test_the_broker_dies(self, rig: KafkaRig) -> None:
        async with rig.connected() as (publisher, sink):
            held, sent = await self.in_pieces(rig, publisher, sink)
            rig.proxy.reset()
            rig.proxy.mode = "refuse"
            await until_async(lambda: held, "the publisher notices it")
            await sink.all_of(held)
            assert {sink.outcomes[one].fault for one in held} == {Fault.BROKER}
            assert sink.verdicts(held) == {Verdict.REFUSED}
            rig.proxy.mode = "pass"
            await sink.all_of(sent)
            await sink.confirm_again(rig, sent[0].destination)

    async def test_the_publisher_closes_in_peace(self, rig: KafkaRig) -> None:
        async with rig.connected() as (publisher, sink):
            _, sent = await self.in_pieces(rig, publisher, sink)
            closing = asyncio.create_task(publisher.close(60.0))
            await asyncio.sleep(0)
            rig.proxy.mode = "pass"
            await closing
            assert sink.verdicts(sent) == {Verdict.CONFIRMED}

    async def test_the_publisher_closes_at_once(self, rig: KafkaRig) -> None:
        async with rig.connected() as (publisher, sink):
            held, _ = await self.in_pieces(rig, publisher, sink)
            await publisher.close(0.0)
            assert held
            assert sink.verdicts(held) == {Verdict.REFUSED}
            assert {sink.outcomes[one].fault for one in held} == {Fault.BROKER}

    async def in_pieces(
        self, rig: KafkaRig, publisher: Any, sink: Sink
    ) -> tuple[list[Delivery], list[Delivery]]:
        """A topic of which a batch was refused, while the answer to the next piece is held back.

        Returns a list that will have what the topic holds when the publisher becomes unavailable,
        and all that was sent. An answer that had passed before lets one more piece go until then.
        """
        to = await topic_with(rig, SMALL)
        await sink.publish(rig.deliveries(to, 1))
        inside, held = KafkaInsides(publisher), list[Delivery]()
        topic = inside.topic(to)
        refused, changed = topic.refused, inside.on_change

        def hold(judgement: Judgement, now_s: float) -> None:
            rig.proxy.mode = "hold_down"  # before the next piece goes
            topic.refused = refused  # type: ignore[method-assign]
            refused(judgement, now_s)

        def note() -> None:
            changed()
            held.extend(() if held else topic.held)

        topic.refused = hold  # type: ignore[method-assign]
        inside.on_change = note
        sent = [rig.delivery(to, bytes(100)) for _ in range(200)]
        publisher.publish(sent)
        await until_async(lambda: rig.proxy.mode == "hold_down", "a batch is refused")
        assert topic.held
        assert CONFIRMED not in {sink.outcomes.get(one) for one in topic.held}
        return held, sent
