"""The Kafka publisher's two producers: who uses which, and order and outcomes across a change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from math import inf
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from delaybridge.message import Delivery, Destination
from delaybridge.publish import Fault, PublishOptions, Verdict
from delaybridge.publish.kafka.topic import MANY
from tests.rigs.broker import Sink, quick
from tests.rigs.broker_kafka import KafkaInsides, KafkaRig
from tests.rigs.waiting import DEADLINE_S, until_async

KEYS = 7


@pytest.fixture(autouse=True)
def only_counts_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine confirms are slow: a reason to have patience, or to give a change up."""
    monkeypatch.setattr("delaybridge.publish.kafka.topic.SLOW_S", inf)
    monkeypatch.setattr("delaybridge.publish.kafka.topic.CHANGE_S", 3600.0)


@pytest.fixture
async def rig() -> AsyncIterator[KafkaRig]:
    """A private Kafka, running and reachable; topics have three partitions."""
    async with KafkaRig(partitions=3) as rig:
        yield rig


class Order:
    """Numbered deliveries with keys, and the check that each key's arrived once and in order."""

    def __init__(self, rig: KafkaRig, to: Destination) -> None:
        self.rig, self.to = rig, to
        self.sent: list[Delivery] = []

    def next(self, count: int) -> list[Delivery]:
        """The next deliveries."""
        first = len(self.sent)
        numbers = range(first, first + count)
        made = [self.rig.delivery(self.to, b"%d" % n, key=b"%d" % (n % KEYS)) for n in numbers]
        self.sent += made
        return made

    async def check(self) -> None:
        """All arrived once; each key's in the order in which they were published."""
        total = len(self.sent)
        records = await asyncio.to_thread(self.rig.read_raw, self.to.address, total)
        for key in range(KEYS):
            mine = [int(r.value()) for r in records if r.key() == b"%d" % key]
            assert mine == list(range(key, total, KEYS))


async def both_ready(publisher: Any) -> None:
    """Wait until the patient producer can be used, too."""
    clients = KafkaInsides(publisher).clients
    await until_async(lambda: clients.patient.ready.is_set(), "the patient one is ready")


async def in_use(publisher: Any, rig: KafkaRig, sink: Sink) -> Order:
    """The order of a new topic that is known to exist, and has nothing in flight."""
    order = Order(rig, await rig.new_destination())
    first = order.next(1)
    await sink.publish(first)
    await both_ready(publisher)
    return order


class TestChoice:
    async def test_few_records_go_at_once_and_a_backlog_has_patience(self, rig: KafkaRig) -> None:
        async with rig.connected() as (publisher, sink):
            inside = KafkaInsides(publisher)
            clients = inside.clients
            busy, calm = await in_use(publisher, rig, sink), await in_use(publisher, rig, sink)
            backlog, due = busy.next(MANY), calm.next(3)
            publisher.publish([*backlog, *due])
            assert inside.topic(busy.to).client is clients.patient
            assert inside.topic(calm.to).client is clients.prompt
            await sink.all_of([*backlog, *due])
            last = busy.next(1)
            publisher.publish(last)
            assert inside.topic(busy.to).client is clients.prompt
            await sink.all_of(last)
            await busy.check()
            await calm.check()

    @pytest.mark.parametrize(
        ("linger_ms", "query"), [(1, ""), (0, "?linger.ms=0"), (0, "?linger.ms=2")]
    )
    async def test_the_operators_linger_is_obeyed(
        self, rig: KafkaRig, linger_ms: int, query: str
    ) -> None:
        to = await rig.new_destination()
        options = PublishOptions(linger_ms=linger_ms)
        async with rig.connected(options, rig.url() + query) as (publisher, sink):
            inside = KafkaInsides(publisher)
            backlog = rig.deliveries(to, 2 * MANY)
            await sink.publish(backlog)
            assert inside.clients.patient is None


class TestOrder:
    async def test_records_of_one_key_stay_in_order_across_changes(self, rig: KafkaRig) -> None:
        async with rig.connected() as (publisher, sink):
            inside = KafkaInsides(publisher)
            order = await in_use(publisher, rig, sink)
            topic = inside.topic(order.to)
            used = []
            for count in (10, MANY, 10, 1, 2 * MANY, 50, 3, MANY - 1, 10, MANY, 5) * 2:
                rig.proxy.mode = "hold_down"
                for _ in range(3):  # answers are held back, so that a change has to wait
                    publisher.publish(order.next(count))
                    await asyncio.sleep(0)
                rig.proxy.mode = "pass"
                await until_async(lambda: not topic.held, "all handed over")
                used.append(topic.client)
            await sink.all_of(order.sent)
            assert sink.verdicts(order.sent) == {Verdict.CONFIRMED}
            assert {*used} == {inside.clients.prompt, inside.clients.patient}
            await order.check()

    async def test_a_change_that_takes_too_long_is_given_up(
        self, rig: KafkaRig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("delaybridge.publish.kafka.topic.CHANGE_S", 0.05)
        async with rig.connected() as (publisher, sink):
            inside = KafkaInsides(publisher)
            order = await in_use(publisher, rig, sink)
            topic = inside.topic(order.to)
            rig.proxy.mode = "hold_down"
            publisher.publish(order.next(10))
            publisher.publish(order.next(MANY))
            assert topic.is_blocked
            assert len(topic.held) == MANY
            await until_async(lambda: not topic.held, "given up")
            assert topic.client is inside.clients.prompt
            publisher.publish(order.next(MANY))
            assert not topic.held
            rig.proxy.mode = "pass"
            await sink.all_of(order.sent)
            assert sink.verdicts(order.sent) == {Verdict.CONFIRMED}
            await order.check()


class TestFaults:
    async def blocked(self, publisher: Any, rig: KafkaRig, sink: Sink) -> tuple[Order, Any]:
        """A topic in the middle of a change, since its broker does not answer."""
        order = await in_use(publisher, rig, sink)
        rig.proxy.mode = "hold_down"
        publisher.publish(order.next(10))
        publisher.publish(order.next(MANY))
        topic = KafkaInsides(publisher).topic(order.to)
        assert topic.is_blocked
        return order, topic

    async def test_records_that_wait_for_a_change_are_refused_if_the_broker_is_lost(
        self, rig: KafkaRig
    ) -> None:
        async with rig.connected() as (publisher, sink):
            order, topic = await self.blocked(publisher, rig, sink)
            flying, held = order.sent[1:11], order.sent[11:]
            rig.proxy.mode = "refuse"
            rig.proxy.reset()
            await sink.all_of(held)
            assert sink.verdicts(held) == {Verdict.REFUSED}
            assert {sink.outcomes[one].fault for one in held} == {Fault.BROKER}
            rig.proxy.mode = "pass"
            await sink.all_of(flying)
            assert sink.verdicts(flying) <= {Verdict.CONFIRMED, Verdict.UNKNOWN}
            await sink.confirm_again(rig, order.to)
            assert not topic.is_blocked

    async def test_a_fatal_error_during_a_change_ends_all_of_it(self, rig: KafkaRig) -> None:
        async with rig.connected() as (publisher, sink):
            inside = KafkaInsides(publisher)
            order, _ = await self.blocked(publisher, rig, sink)
            fatal = KafkaError(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, "sequence", fatal=True)
            inside.erred(inside.clients.prompt, fatal)
            await sink.all_of(order.sent)
            assert sink.verdicts(order.sent[1:11]) == {Verdict.UNKNOWN}
            assert sink.verdicts(order.sent[11:]) == {Verdict.REFUSED}
            rig.proxy.mode = "pass"
            await until_async(lambda: publisher.unavailable is None, "it is back")

    async def test_the_idle_patient_producer_is_replaced_without_an_outage(
        self, rig: KafkaRig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("delaybridge.publish.kafka.client.REOPEN_S", 0.0)
        async with rig.connected() as (publisher, sink):
            inside = KafkaInsides(publisher)
            order = await in_use(publisher, rig, sink)
            down = KafkaError(KafkaError._ALL_BROKERS_DOWN)
            inside.erred(inside.clients.patient, down)
            assert publisher.unavailable is None
            publisher.publish(order.next(MANY))
            await sink.all_of(order.sent)
            await both_ready(publisher)
            publisher.publish(order.next(MANY))
            assert inside.topic(order.to).client is inside.clients.patient
            await sink.all_of(order.sent)
            await order.check()

    async def test_without_a_patient_producer_the_prompt_one_does_all(
        self, rig: KafkaRig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object) -> None:
            raise KafkaException(KafkaError(KafkaError._SSL, "a certificate is gone"))

        monkeypatch.setattr("delaybridge.publish.kafka.client.REOPEN_S", 0.0)
        async with rig.connected() as (publisher, sink):
            inside = KafkaInsides(publisher)
            order = await in_use(publisher, rig, sink)
            monkeypatch.setattr("delaybridge.publish.kafka.clients.KafkaClient", fail)
            inside.clients.drop_spare(inside.clients.patient)
            publisher.publish(order.next(MANY))
            publisher.publish(order.next(MANY))
            await sink.all_of(order.sent)
            assert inside.clients.patient is None
            assert sink.verdicts(order.sent) == {Verdict.CONFIRMED}
            await order.check()

    async def test_a_patient_producer_that_alone_stays_down_is_dropped_with_its_last_record(
        self, rig: KafkaRig
    ) -> None:
        async with rig.connected() as (publisher, sink):
            inside = KafkaInsides(publisher)
            order = await in_use(publisher, rig, sink)
            clients = inside.clients
            patient = clients.patient
            rig.proxy.mode = "hold_down"
            lost = order.next(MANY)
            publisher.publish(lost)
            assert inside.topic(order.to).client is patient
            inside.erred(patient, KafkaError(KafkaError._ALL_BROKERS_DOWN))
            assert clients.patient is patient, "it may still be able to send them"
            inside.librdkafka(patient).purge(in_queue=True, in_flight=True)
            await sink.all_of(lost)
            assert clients.patient is not patient
            rig.proxy.mode = "pass"
            await sink.confirm_again(rig, order.to)
            assert inside.topic(order.to).client is clients.prompt

    async def test_a_topic_stays_where_it_is_after_a_failed_record(
        self, rig: KafkaRig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("delaybridge.publish.kafka.topic.SETTLED_S", inf)
        monkeypatch.setattr("delaybridge.publish.kafka.client.REOPEN_S", 0.0)
        async with rig.connected(quick()) as (publisher, sink):
            inside = KafkaInsides(publisher)
            order = await in_use(publisher, rig, sink)
            rig.proxy.mode = "blackhole_down"
            lost = rig.deliveries(order.to, 1)
            await sink.publish(lost)
            assert sink.verdicts(lost) == {Verdict.UNKNOWN}
            rig.proxy.mode = "pass"
            rig.proxy.reset()
            await sink.confirm_again(rig, order.to)
            inside.clients.open()  # the patient one, too, which the reset may have ended
            await both_ready(publisher)

            async def are_confirmed() -> bool:  # within a second
                await sink.publish(many := rig.deliveries(order.to, MANY))
                return sink.verdicts(many) == {Verdict.CONFIRMED}

            await until_async(are_confirmed, "many are confirmed")
            assert inside.topic(order.to).client is inside.clients.prompt

    async def test_closing_during_a_change_waits_for_all_records(self, rig: KafkaRig) -> None:
        async with rig.connected() as (publisher, sink):
            order, _ = await self.blocked(publisher, rig, sink)
            closing = asyncio.create_task(publisher.close(DEADLINE_S))
            await asyncio.sleep(0)
            rig.proxy.mode = "pass"
            await closing
            assert sink.verdicts(order.sent) == {Verdict.CONFIRMED}
            await order.check()

    async def test_closing_without_patience_reports_each_record_once(self, rig: KafkaRig) -> None:
        async with rig.connected() as (publisher, sink):
            order, _ = await self.blocked(publisher, rig, sink)
            await publisher.close(0.0)
            assert sink.verdicts(order.sent[1:11]) == {Verdict.UNKNOWN}
            assert sink.verdicts(order.sent[11:]) == {Verdict.REFUSED}
