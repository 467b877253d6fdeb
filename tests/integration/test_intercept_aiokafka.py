"""aiokafka's drop-in: plain messages, delayed messages, refusals, the end."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

import aiokafka
import pytest
from aiokafka.errors import MessageSizeTooLargeError, ProducerClosed

from delaybridge import AsyncClient, MessageConflict, MessageError, StoreUnavailable
from delaybridge.intercept import aiokafka as intercepted
from delaybridge.intercept.aiokafka import AIOKafkaProducer
from tests.rigs.kafka_site import REFUSED, WAYS, KafkaSite, Record
from tests.rigs.waiting import until_async
from tests.servers.process import LOOPBACK, free_port

SENT = [
    pytest.param(b"\x00\xff", None, None, id="value alone"),
    pytest.param(None, b"\xff\x00", [], id="null value, no headers"),
    pytest.param(b"", b"", [("a", b"1"), ("b", None), ("a", b""), ("a", b"\xff"), ("é", b"x")],
                 id="empty value and key, headers twice"),
]  # fmt: skip


NOT_DELAYED = pytest.param(b"x", None, [("x-delay", b"0")], id="no delay")


@pytest.fixture
def site(kafka_site: KafkaSite) -> KafkaSite:
    return kafka_site


@pytest.fixture
async def client(site: KafkaSite) -> AsyncIterator[AsyncClient]:
    brokers = {"kafka": site.kafka_url}
    async with AsyncClient(site.redis_url, namespace=site.namespace, brokers=brokers) as client:
        yield client


@pytest.fixture
async def producer(site: KafkaSite, client: AsyncClient) -> AsyncIterator[AIOKafkaProducer]:
    async with AIOKafkaProducer(bootstrap_servers=site.servers, client=client) as producer:
        yield producer


async def take(site: KafkaSite, topic: str, count: int) -> list[Record]:
    return await asyncio.to_thread(site.take, topic, count)


class TestPassingThrough:
    @pytest.mark.parametrize(("value", "key", "headers"), [*SENT, NOT_DELAYED])
    async def test_a_message_without_a_delay_is_sent_by_the_library_itself(
        self, site: KafkaSite, producer: AIOKafkaProducer, value: Any, key: Any, headers: Any
    ) -> None:
        topics = [site.topic(), site.topic()]
        answers = []
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=site.servers) as plain:
            for one, topic in zip((plain, producer), topics, strict=True):
                given = (topic, value, key, 1, 1_700_000_000_000, headers)
                answers.append(await one.send_and_wait(*given))
                answers.append(await (await one.send(*given)))
        first, second = [await take(site, topic, 2) for topic in topics]
        assert first == second
        assert all(isinstance(a, aiokafka.structs.RecordMetadata) for a in answers)
        assert [a[3:] for a in answers[:2]] == [a[3:] for a in answers[2:]]

    async def test_the_library_s_own_refusals_stay_the_same(
        self, site: KafkaSite, producer: AIOKafkaProducer
    ) -> None:
        topic = site.topic()
        with pytest.raises(AssertionError, match="key or value"):
            await producer.send(topic)
        with pytest.raises(TypeError):
            await producer.send(topic, b"x", headers={"a": b"1"})
        with pytest.raises(TypeError):
            await producer.send(topic, b"x", unknown=5)  # type: ignore[call-arg]
        with pytest.raises(TypeError):
            AIOKafkaProducer(unknown=5)


class TestArriving:
    @pytest.mark.parametrize(("value", "key", "headers"), SENT)
    async def test_a_delayed_message_arrives_byte_for_byte_and_not_early(
        self, site: KafkaSite, producer: AIOKafkaProducer, value: Any, key: Any, headers: Any
    ) -> None:
        now, later = site.topic(), site.topic()
        await producer.send_and_wait(now, value, key, 2, headers=headers)
        (plain,) = await take(site, now, 1)
        before_ms = time.time_ns() // 1_000_000
        receipt = await producer.send_and_wait(later, value, key, 2, headers=headers, delay="300ms")
        assert receipt == "created"
        (record,) = await take(site, later, 1)
        assert record.given == plain.given
        assert record.partition == plain.partition == 2
        assert (record.id, record.due_ms) == (receipt.id, receipt.due_ms)
        assert record.stamp_ms >= record.due_ms >= before_ms + 300

    @pytest.mark.parametrize(("headers", "arguments", "kept"), WAYS)
    async def test_every_way_to_give_a_time_delays_the_message(
        self, site: KafkaSite, producer: AIOKafkaProducer, headers: Any, arguments: Any, kept: Any
    ) -> None:
        topic, sent_ms = site.topic(), time.time_ns() // 1_000_000
        receipt = await producer.send_and_wait(topic, b"x", headers=headers, **arguments())
        site.check_way(topic, receipt.id, kept, sent_ms)

    async def test_a_delayed_message_is_cancelled_and_rescheduled_by_its_id(
        self, site: KafkaSite, producer: AIOKafkaProducer, client: AsyncClient
    ) -> None:
        topic, own = site.topic(), f"id-{uuid.uuid4().hex}"
        headers = [("delaybridge-id", own.encode())]
        kept = await producer.send_and_wait(topic, b"given", headers=headers, delay="1h")
        gone = await producer.send_and_wait(topic, b"gone", b"key", delay="1h")
        assert kept.id == own
        assert await client.cancel(gone.id) == "cancelled"
        assert await client.reschedule(own, delay="50ms") == "rescheduled"
        (record,) = await take(site, topic, 1)
        assert (record.value, record.id) == (b"given", own)

    async def test_a_delayed_message_passes_through_the_producer_s_serializers(
        self, site: KafkaSite, client: AsyncClient
    ) -> None:
        now, later = site.topic(), site.topic()
        async with AIOKafkaProducer(
            bootstrap_servers=site.servers,
            client=client,
            key_serializer=lambda key: str(key).encode(),
            value_serializer=lambda value: json.dumps(value).encode(),
        ) as producer:
            await producer.send_and_wait(now, {"order": 17}, 17, 0)
            await producer.send_and_wait(later, {"order": 17}, 17, 0, delay=0)
        (plain,), (record,) = await take(site, now, 1), await take(site, later, 1)
        assert record.given == plain.given
        assert record.key == b"17"

    async def test_send_waits_while_very_many_are_being_stored(
        self, site: KafkaSite, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(intercepted, "MOST_UNSTORED", 10)
        topic = site.topic()
        async with AIOKafkaProducer(bootstrap_servers=site.servers, client=client) as producer:
            futures = []
            for n in range(95):
                futures.append(await producer.send(topic, b"%d" % n, delay="1h"))
                assert sum(not future.done() for future in futures) <= 10
        assert [future.result() for future in futures] == ["created"] * 95


class TestRefused:
    @pytest.mark.parametrize(
        ("given", "arguments", "code", "field"),
        [*REFUSED, ({"partition": -1}, {"delay": 1}, "bad_partition", "partition")],
    )
    async def test_a_refused_message_raises_at_once_and_is_not_stored(
        self, site: KafkaSite, producer: AIOKafkaProducer, given: Any, arguments: Any,
        code: str, field: str,
    ) -> None:  # fmt: skip
        topic = site.topic()
        with pytest.raises(MessageError) as caught:
            await producer.send(**({"topic": topic, "value": b"x"} | given), **arguments)
        assert (caught.value.code, caught.value.field) == (code, field)
        await producer.flush()
        await asyncio.to_thread(site.check_nothing_left, topic)

    async def test_messages_that_the_library_would_refuse_are_refused(
        self, site: KafkaSite, producer: AIOKafkaProducer
    ) -> None:
        with pytest.raises(MessageSizeTooLargeError):
            await producer.send("t", bytes(2_000_000), delay=1)
        with pytest.raises(TypeError):
            await producer.send("t", "text", delay=1)
        with pytest.raises(TypeError, match="must be str"):
            await producer.send(None, b"x", delay=1)  # type: ignore[arg-type]

    async def test_an_id_that_is_pending_with_other_content_is_a_conflict(
        self, site: KafkaSite, producer: AIOKafkaProducer
    ) -> None:
        topic = site.topic()
        headers = [("delaybridge-id", topic.encode())]
        values = (b"x", b"x", b"y")
        futures = [await producer.send(topic, v, headers=headers, delay="1h") for v in values]
        assert [await future for future in futures[:2]] == ["created", "duplicate"]
        with pytest.raises(MessageConflict):
            await futures[2]
        (stored,) = site.pending(topic)
        assert stored.body == b"x"

    async def test_without_redis_the_future_raises_and_nothing_is_sent(
        self, site: KafkaSite
    ) -> None:
        topic = site.topic()
        async with AsyncClient(f"redis://{LOOPBACK}:{free_port()}", timeout_s=0.2) as lost:
            async with AIOKafkaProducer(bootstrap_servers=site.servers, client=lost) as producer:
                with pytest.raises(StoreUnavailable):
                    await producer.send_and_wait(topic, b"x", delay=0)
        await asyncio.to_thread(site.check_nothing_left, topic)

    async def test_broker_chooses_one_of_several_brokers(self, site: KafkaSite) -> None:
        brokers = {"eu": "kafka://h", "us": "kafka://h"}
        async with (
            AsyncClient(site.redis_url, namespace=site.namespace, brokers=brokers) as client,
            AIOKafkaProducer(
                bootstrap_servers=site.servers, client=client, broker="us"
            ) as producer,
        ):
            receipt = await producer.send_and_wait("t", b"x", delay="1h")
            stored = await client.get(receipt.id)
            assert stored is not None and stored.destination == "us:t"
            assert await client.cancel(receipt.id) == "cancelled"

    async def test_within_a_transaction_a_delayed_message_is_refused(
        self, site: KafkaSite, client: AsyncClient
    ) -> None:
        now, later = site.topic(), site.topic()
        async with AIOKafkaProducer(
            bootstrap_servers=site.servers, client=client, transactional_id=now
        ) as producer:
            async with producer.transaction():
                await producer.send(now, b"x")
                with pytest.raises(MessageError, match="in_transaction"):
                    await producer.send(later, b"x", headers=[("x-delay", b"5")])
            assert await producer.send_and_wait(later, b"y", delay="1h") == "created"
        (record,) = await take(site, now, 1)
        assert record.value == b"x"
        assert len(site.pending(later)) == 1


class TestTheEnd:
    async def test_stop_waits_until_messages_are_stored(
        self, site: KafkaSite, client: AsyncClient
    ) -> None:
        topic = site.topic()
        async with AIOKafkaProducer(bootstrap_servers=site.servers, client=client) as producer:
            futures = [await producer.send(topic, b"%d" % n, delay="1h") for n in range(500)]
            assert not any(future.done() for future in futures)
        assert [future.result() for future in futures] == ["created"] * 500
        with pytest.raises(ProducerClosed):
            await producer.send(topic, b"x", delay="1h")
        await producer.stop()
        assert len(site.pending(topic)) == 500
        assert (await client.stats()).delayed >= 500  # the client given stays open

    async def test_a_message_is_stored_even_if_its_future_is_not_awaited(
        self, site: KafkaSite, producer: AIOKafkaProducer
    ) -> None:
        topic = site.topic()
        await producer.send(topic, b"x", delay="1h")
        await until_async(lambda: len(site.pending(topic)) == 1)

    async def test_the_client_of_the_settings_is_closed_with_the_producer(
        self, site: KafkaSite
    ) -> None:
        topic = site.topic()
        with site.settings():
            async with AIOKafkaProducer(bootstrap_servers=site.servers) as producer:
                receipt = await producer.send_and_wait(topic, b"x", delay=0)
        (record,) = await take(site, topic, 1)
        assert record.id == receipt.id


def test_the_code_in_the_guide_runs_unchanged(site: KafkaSite) -> None:
    orders = site.topic()  # as its readers have: aiokafka warns when the broker has to create one
    assert site.run_recipe("aiokafka", orders) == "created cancelled\n"
