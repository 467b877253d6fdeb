"""The Kafka publisher alone: keys, headers, partitions, timestamps, limits, rights, TLS."""

from __future__ import annotations

import asyncio
import ctypes
import time
from collections.abc import AsyncIterator
from math import inf
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from delaybridge.errors import PublishUnavailable
from delaybridge.message import Destination
from delaybridge.publish import CONFIRMED, Fault, Verdict
from tests.rigs.broker import connect_to
from tests.rigs.broker_kafka import KafkaInsides, KafkaRig
from tests.rigs.waiting import DEADLINE_S, until_async
from tests.servers.kafka import KafkaStandIn, native
from tests.servers.process import LOOPBACK


@pytest.fixture
async def rig() -> AsyncIterator[KafkaRig]:
    """A private Kafka, running and reachable; topics have three partitions."""
    async with KafkaRig(partitions=3) as rig:
        yield rig


class TestRecords:
    async def test_a_record_arrives_as_it_was_given(self, rig: KafkaRig) -> None:
        to = await rig.new_destination()
        pairs = (("b", b"1"), ("a", None), ("b", b""), ("b", b"\xff\x00"), ("é", "€".encode()))
        async with rig.connected() as (publisher, sink):
            one = rig.delivery(to, b"\x00body\xff", headers=pairs, key=b"\xffkey", partition=2)
            one.given_id = "é-id"
            before_ms = time.time_ns() // 1_000_000
            await sink.publish([one])
            (record,) = await asyncio.to_thread(rig.read_raw, to.address, 1)
            assert record.value() == b"\x00body\xff"
            assert record.key() == b"\xffkey"
            assert record.partition() == 2
            assert record.headers() == [
                *pairs,
                ("delaybridge-id", "é-id".encode()),
                ("delaybridge-due-ms", b"1800000000000"),
                ("delaybridge-attempt", b"1"),
            ]
            _, stamp_ms = record.timestamp()
            assert before_ms - 1 <= stamp_ms <= time.time_ns() // 1_000_000

    async def test_confirmed_records_exist_even_in_a_new_topic(self, rig: KafkaRig) -> None:
        # In about one new topic of six the broker loses the first record of a partition, and
        # calls it a duplicate; it must not be called confirmed.
        async with rig.connected() as (publisher, sink):
            for _ in range(20):
                to = rig.destination(await asyncio.to_thread(rig.make, settled=False))
                sent = [rig.delivery(to, b"%d" % n, key=b"key-%d" % n) for n in range(20)]
                for one in sent:
                    publisher.publish([one])
                    await asyncio.sleep(0)
                await sink.all_of(sent)
                confirmed = {one.id for one in sent if sink.outcomes[one] == CONFIRMED}
                found = await asyncio.to_thread(rig.read, to.address, len(confirmed))
                assert confirmed <= {record.id for record in found}
                # A busy broker may not yet know the topic itself.
                refused = [one for one in sent if sink.verdicts([one]) == {Verdict.REFUSED}]
                assert sink.reasons(refused) <= {"topic_missing"}


class TestRefusals:
    @pytest.mark.parametrize("in_use", [False, True], ids=["new topic", "topic in use"])
    async def test_a_partition_that_does_not_exist_is_a_refusal_and_holds_up_no_other_record(
        self, rig: KafkaRig, in_use: bool
    ) -> None:
        to = await rig.new_destination()
        async with rig.connected() as (publisher, sink):
            if in_use:  # now the topic is known to exist
                await sink.publish([rig.delivery(to)])
            bad, good = rig.delivery(to, partition=99), rig.delivery(to)
            publisher.publish([bad])
            await sink.publish([good])
            await sink.all_of([bad])
            assert sink.outcomes[bad].verdict is Verdict.REFUSED
            assert sink.reasons([bad]) == {"partition_missing"}
            assert sink.outcomes[good] == CONFIRMED

    async def test_a_record_above_the_broker_s_own_limit_is_refused(self, rig: KafkaRig) -> None:
        address = await asyncio.to_thread(rig.make, None, **{"max.message.bytes": "2000"})
        to = rig.destination(address)
        async with rig.connected() as (publisher, sink):
            large, small = rig.delivery(to, bytes(5000)), rig.delivery(to)
            await sink.publish([large])
            await sink.publish([small])
            assert sink.outcomes[large].verdict is Verdict.REFUSED
            assert sink.reasons([large]) == {"message_too_large"}
            assert sink.outcomes[small] == CONFIRMED

    async def test_a_topic_without_the_right_to_write_is_refused(self, rig: KafkaRig) -> None:
        to, other = await rig.new_destination(), await rig.new_destination()

        def deny() -> None:
            admin = AdminClient({"bootstrap.servers": f"{LOOPBACK}:{rig.proxy_port}"})
            rule = AclBinding(
                ResourceType.TOPIC,
                to.address,
                ResourcePatternType.LITERAL,
                "User:ANONYMOUS",
                "*",
                AclOperation.WRITE,
                AclPermissionType.DENY,
            )
            admin.create_acls([rule])[rule].result(DEADLINE_S)

        await asyncio.to_thread(deny)
        async with rig.connected() as (publisher, sink):

            async def is_denied() -> bool:  # Kafka answers before all of it knows
                await sink.publish(tried := rig.deliveries(to, 1))
                return Verdict.CONFIRMED not in sink.verdicts(tried)

            await until_async(is_denied, "the rule is obeyed")
            refused, taken = rig.deliveries(to, 10), rig.deliveries(other, 10)
            await sink.publish([*refused, *taken])
            assert sink.verdicts(refused) == {Verdict.REFUSED}
            assert sink.reasons(refused) == {"access_refused"}
            assert {sink.outcomes[one].fault for one in refused} == {Fault.DESTINATION}
            assert sink.verdicts(taken) == {Verdict.CONFIRMED}

    async def test_a_deleted_topic_is_noticed(self, rig: KafkaRig) -> None:
        to = await rig.new_destination()
        async with rig.connected() as (publisher, sink):
            await sink.publish(rig.deliveries(to, 10))

            def delete() -> None:
                admin = AdminClient({"bootstrap.servers": f"{LOOPBACK}:{rig.proxy_port}"})
                admin.delete_topics([to.address])[to.address].result(DEADLINE_S)

            await asyncio.to_thread(delete)

            async def is_noticed() -> bool:  # Kafka answers before all of it knows
                await sink.publish(caught := rig.deliveries(to, 10))
                return Verdict.CONFIRMED not in sink.verdicts(caught)

            await until_async(is_noticed, "the topic is missed")
            late = rig.deliveries(to, 10)
            await sink.publish(late)
            assert sink.verdicts(late) == {Verdict.REFUSED}
            assert sink.reasons(late) == {"topic_missing"}

    async def test_a_broker_that_creates_topics_creates_a_missing_one(self) -> None:
        with KafkaStandIn() as stand_in:
            rig = KafkaRig.__new__(KafkaRig)  # only to make deliveries
            async with rig.connected(url=stand_in.url) as (publisher, sink):
                deliveries = rig.deliveries(Destination("kafka", "kafka", "never-made"), 10)
                await sink.publish(deliveries)
                assert sink.verdicts(deliveries) == {Verdict.CONFIRMED}


class TestConnection:
    async def test_the_first_publish_does_not_wait_for_a_producer_id(self, rig: KafkaRig) -> None:
        to = await rig.new_destination()
        async with rig.connected() as (publisher, sink):
            assert KafkaInsides(publisher).clients.prompt.ready.is_set()
            await sink.publish(first := rig.deliveries(to, 1))
            assert sink.verdicts(first) == {Verdict.CONFIRMED}

    async def test_a_fatal_error_ends_messages_in_flight_and_a_new_producer_takes_over(
        self, rig: KafkaRig
    ) -> None:
        to = await rig.new_destination()
        async with rig.connected() as (publisher, sink):
            inside = KafkaInsides(publisher)
            await sink.publish(rig.deliveries(to, 10))
            rig.proxy.mode = "blackhole_down"
            caught = rig.deliveries(to, 10)
            publisher.publish(caught)
            fatal = KafkaError(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, "sequence", fatal=True)
            inside.erred(inside.clients.prompt, fatal)
            await sink.all_of(caught)
            assert sink.verdicts(caught) == {Verdict.UNKNOWN}
            assert sink.reasons(caught) == {"fatal"}
            assert publisher.unavailable is not None
            rig.proxy.mode = "pass"
            rig.proxy.reset()
            await sink.confirm_again(rig, to)

    async def test_a_producer_that_librdkafka_has_ended_for_good_is_replaced(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # After a slow confirm, as on a busy machine, the next records would go to the other one.
        monkeypatch.setattr("delaybridge.publish.kafka.topic.SLOW_S", inf)
        rig = KafkaRig.__new__(KafkaRig)  # only to make deliveries
        to = Destination("kafka", "kafka", "t")
        with KafkaStandIn() as stand_in:
            async with rig.connected(url=stand_in.url) as (publisher, sink):
                inside = KafkaInsides(publisher)
                await sink.publish(rig.deliveries(to, 10))
                end_for_good(inside.librdkafka(inside.clients.prompt))
                caught = rig.deliveries(to, 10)
                await sink.publish(caught)
                assert Verdict.CONFIRMED not in sink.verdicts(caught)
                await until_async(lambda: len(sink.changes) == 3, "lost, and back")
                assert [reason is None for reason in sink.changes] == [True, False, True]
                after = rig.deliveries(to, 10)
                await sink.publish(after)
                assert sink.verdicts(after) == {Verdict.CONFIRMED}

    async def test_records_beyond_librdkafkas_queue_wait_and_stay_in_order(
        self, rig: KafkaRig
    ) -> None:
        to = await rig.new_destination()
        url = f"{rig.url()}?queue.buffering.max.messages=50"
        async with rig.connected(url=url) as (publisher, sink):
            deliveries = [rig.delivery(to, str(n).encode(), partition=0) for n in range(1000)]
            await sink.publish(deliveries)
            assert sink.verdicts(deliveries) == {Verdict.CONFIRMED}
            records = await asyncio.to_thread(rig.read_raw, to.address, 1000)
            assert [int(record.value()) for record in records] == list(range(1000))

    async def test_a_password_in_a_file_is_read_again_when_it_is_refused(
        self, rig: KafkaRig, tmp_path: Path
    ) -> None:
        file = tmp_path / "password"
        file.write_text("wrong\n")
        url = f"kafka://bridge@{LOOPBACK}:{rig.node.login_port}?password_file={file}"
        publisher, sink = connect_to("kafka", url)
        try:
            to = await rig.new_destination()
            refused = "login_refused: the broker refused user bridge$"
            with pytest.raises(PublishUnavailable, match=refused):
                await publisher.connect()
            file.write_text("right\n")
            await until_async(lambda: publisher.unavailable is None, "logged in")
            deliveries = rig.deliveries(to, 3)
            await sink.publish(deliveries)
            assert sink.verdicts(deliveries) == {Verdict.CONFIRMED}
        finally:
            await publisher.close(0.0)

    async def test_a_redis_at_its_port_is_named(self, redis_url: str) -> None:
        at = urlsplit(redis_url).netloc
        publisher, _ = connect_to("kafka", f"kafka://{at}")
        try:
            with pytest.raises(PublishUnavailable, match=f"Redis answers at {at}, not Kafka$"):
                await publisher.connect()
        finally:
            await publisher.close(0.0)

    async def test_tls_verifies_the_broker(self, rig: KafkaRig) -> None:
        to, url = await rig.new_destination(), f"kafkas://{LOOPBACK}:{rig.node.tls_port}"
        trusting = f"{url}?ssl.ca.location={rig.node.authority}"
        async with rig.connected(url=trusting) as (publisher, sink):
            deliveries = rig.deliveries(to, 100)
            await sink.publish(deliveries)
            assert sink.verdicts(deliveries) == {Verdict.CONFIRMED}
            assert "ssl" in publisher.describe()
        with pytest.raises(PublishUnavailable, match="unreachable"):
            async with rig.connected(url=url):
                pass


def end_for_good(producer: Producer) -> None:
    """Cause a fatal error in librdkafka, as when the broker has lost track of its records."""
    library, handle = native(producer)
    meet = library.rd_kafka_test_fatal_error
    meet.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p]
    assert meet(handle, KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, b"told to") == 0
