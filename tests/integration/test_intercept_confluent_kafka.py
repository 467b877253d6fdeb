"""confluent_kafka's drop-in: plain messages, delayed messages, refusals."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import confluent_kafka
import pytest

from delaybridge import Client, MessageError
from delaybridge.intercept.confluent_kafka import Producer
from tests.rigs.kafka_site import REFUSED, WAYS, KafkaSite, Reports
from tests.rigs.waiting import DEADLINE_S
from tests.servers.process import LOOPBACK, free_port

PRODUCED = [
    pytest.param("text", None, None, id="text alone"),
    pytest.param(b"\x00\xff", "key", [], id="bytes, text key, no headers"),
    pytest.param(None, b"\xff\x00", {"a": b"1", "b": None, "c": "text"}, id="null value, dict"),
    pytest.param(b"", b"", [("a", "1"), ("b", None), ("a", b""), ("a", b"\xff"), ("é", "€")],
                 id="empty value and key, headers twice"),
]  # fmt: skip


NOT_DELAYED = pytest.param(b"x", None, {"x-delay": "0", "delaybridge-id": "i"}, id="no delay")


@pytest.fixture
def site(kafka_site: KafkaSite) -> KafkaSite:
    return kafka_site


@pytest.fixture
def producer(site: KafkaSite) -> Iterator[Producer]:
    with Producer(site.config, client=site.client) as producer:
        yield producer


class TestPassingThrough:
    @pytest.mark.parametrize(("value", "key", "headers"), [*PRODUCED, NOT_DELAYED])
    def test_a_message_without_a_delay_is_produced_by_the_library_itself(
        self, site: KafkaSite, reports: Reports, value: Any, key: Any, headers: Any
    ) -> None:
        topics = [site.topic(), site.topic()]
        made = [
            confluent_kafka.Producer(site.config),
            Producer(site.config, client=Client(f"redis://{LOOPBACK}:{free_port()}")),
        ]
        for one, topic in zip(made, topics, strict=True):
            given = (topic, value, key, 1, reports, None, 1_700_000_000_000, headers)
            assert one.produce(*given) is None
            assert 1 <= len(one) <= 2  # librdkafka counts messages and reports that wait
            assert one.flush(DEADLINE_S) == 0
        plain, ours = (site.take(topic, 1) for topic in topics)
        assert plain == ours
        reported = [
            (
                e,
                m.value(),
                m.key(),
                m.headers(),
                m.partition(),
                m.offset(),
                m.timestamp(),
                m.error(),
            )
            for e, m in reports.all
        ]
        assert reported[0] == reported[1]
        assert [m.topic() for _, m in reports.all] == topics

    def test_the_library_s_own_refusals_stay_the_same(self, producer: Producer) -> None:
        with pytest.raises(TypeError, match="bytes-like"):
            producer.produce("t", 5)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="header value"):
            producer.produce("t", headers=[("a", 5)])
        with pytest.raises(TypeError):
            producer.produce("t", unknown=5)  # type: ignore[call-arg]
        with pytest.raises(confluent_kafka.KafkaException):
            Producer({"no.such.property": 1})
        assert len(producer) == 0

    def test_poll_and_flush_without_delayed_messages_are_the_library_s(
        self, site: KafkaSite, producer: Producer, reports: Reports
    ) -> None:
        topic = site.topic()
        assert producer.poll(0) == 0
        assert producer.poll(0.15) == 0
        for name in ("on_delivery", "callback"):
            producer.produce(topic, name, **{name: reports})
            assert producer.poll(-1) == 1
            assert reports.all[-1][1].value() == name.encode()
        producer.produce(topic, callback=reports, on_delivery=pytest.fail)
        assert producer.flush() == 0
        assert len(reports.all) == 3
        with pytest.raises(TypeError):
            producer.poll(None)  # type: ignore[arg-type]


class TestArriving:
    @pytest.mark.parametrize(("value", "key", "headers"), PRODUCED)
    def test_a_delayed_message_arrives_byte_for_byte_and_not_early(
        self, site: KafkaSite, producer: Producer, value: Any, key: Any, headers: Any
    ) -> None:
        now, later = site.topic(), site.topic()
        producer.produce(now, value, key, headers=headers)
        producer.flush()
        (plain,) = site.take(now, 1)
        before_ms = time.time_ns() // 1_000_000
        id = producer.produce(later, value, key, plain.partition, headers=headers, delay="300ms")
        producer.flush()
        (record,) = site.take(later, 1)
        assert record.given == plain.given
        assert record.partition == plain.partition
        assert record.id == id
        assert record.stamp_ms >= record.due_ms >= before_ms + 300

    def test_a_key_leads_to_the_library_s_partition(
        self, site: KafkaSite, producer: Producer
    ) -> None:
        now, later = site.topic(), site.topic()
        for n in range(20):
            producer.produce(now, b"", f"key-{n}")
            producer.produce(later, b"", f"key-{n}", delay=0)
        producer.flush()
        plain = {record.key: record.partition for record in site.take(now, 20)}
        assert len(set(plain.values())) > 1
        assert {record.key: record.partition for record in site.take(later, 20)} == plain

    @pytest.mark.parametrize(
        ("headers", "arguments", "kept"),
        [*WAYS, ({"a": "1", "delaybridge-delay": "1h"}, dict, [("a", b"1")])],
    )
    def test_every_way_to_give_a_time_delays_the_message(
        self, site: KafkaSite, producer: Producer, headers: Any, arguments: Any, kept: Any
    ) -> None:
        topic, sent_ms = site.topic(), time.time_ns() // 1_000_000
        id = producer.produce(topic, b"x", headers=headers, **arguments())
        producer.flush()
        site.check_way(topic, str(id), kept, sent_ms)

    def test_a_delayed_message_is_cancelled_and_rescheduled_by_its_id(
        self, site: KafkaSite, producer: Producer
    ) -> None:
        topic, own = site.topic(), f"id-{uuid.uuid4().hex}"
        given = {"delaybridge-id": own}
        assert producer.produce(topic, b"given", headers=given, delay="1h") == own
        gone = producer.produce(topic, b"gone", "key", delay="1h")
        assert gone is not None
        producer.flush()
        assert site.client.cancel(gone) == "cancelled"
        assert site.client.reschedule(own, delay="50ms") == "rescheduled"
        (record,) = site.take(topic, 1)
        assert (record.value, record.id) == (b"given", own)

    def test_two_thousand_arrive_once_and_none_early(
        self, site: KafkaSite, producer: Producer, reports: Reports
    ) -> None:
        topic = site.topic()
        ids = [
            producer.produce(topic, str(n), f"key-{n % 7}", on_delivery=reports, delay=n % 10 / 10)
            for n in range(2000)
        ]
        assert producer.flush() == 0
        assert reports.codes == [None] * 2000
        assert [message.value() for _, message in reports.all] == [b"%d" % n for n in range(2000)]
        records = site.take(topic, 2000)
        assert sorted(record.id for record in records) == sorted(map(str, ids))
        assert {int(r.value or b""): r.id for r in records} == dict(enumerate(ids))
        assert all(record.stamp_ms >= record.due_ms for record in records)

    def test_many_threads_may_share_one_producer(
        self, site: KafkaSite, producer: Producer, reports: Reports
    ) -> None:
        topic = site.topic()

        def produce(thread: int) -> None:
            for n in range(100):
                producer.produce(topic, f"{thread} {n}", on_delivery=reports, delay="1h")

        threads = [threading.Thread(target=produce, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        producer.flush()
        values = {message.value().decode() for _, message in reports.all}
        assert values == {f"{thread} {n}" for thread in range(4) for n in range(100)}
        assert reports.codes == [None] * 400
        assert len(site.pending(topic)) == 400


class TestRefused:
    @pytest.mark.parametrize(
        ("given", "arguments", "code", "field"),
        [
            *REFUSED,
            ({}, {"delay": timedelta(days=8000)}, "too_far", "delay"),
            ({"headers": {"x-delay": "5"}}, {"delay": 1}, "time_ambiguous", "delay"),
            ({"headers": {"delaybridge-delay": "1.5"}}, {}, "bad_time", "delaybridge-delay"),
            ({"headers": {"delaybridge-dealy": "1"}}, {"delay": 1}, "reserved_header",
             "delaybridge-dealy"),
            ({"headers": [("a", 5)]}, {"delay": 1}, "unsupported_header_type", "a"),
            ({"headers": {"delaybridge-id": "a\nb"}}, {"delay": 1}, "bad_id", "id"),
            ({"value": 5}, {"delay": 1}, "bad_body", "body"),
            ({"key": 5}, {"delay": 1}, "bad_key", "key"),
            ({"partition": -5}, {"delay": 1}, "bad_partition", "partition"),
        ],
    )  # fmt: skip
    def test_a_refused_message_raises_at_once_and_is_not_queued(
        self, site: KafkaSite, producer: Producer, reports: Reports,
        given: Any, arguments: Any, code: str, field: str,
    ) -> None:  # fmt: skip
        topic = site.topic()
        with pytest.raises(MessageError) as caught:
            producer.produce(
                **({"topic": topic, "value": b"x", "on_delivery": reports} | given), **arguments
            )
        assert (caught.value.code, caught.value.field) == (code, field)
        assert len(producer) == producer.flush() == 0
        assert reports.all == []
        site.check_nothing_left(topic)

    def test_a_topic_that_is_not_text_is_a_type_error(self, producer: Producer) -> None:
        with pytest.raises(TypeError, match="must be str"):
            producer.produce(None, b"x", delay=1)  # type: ignore[arg-type]

    def test_broker_chooses_one_of_several_brokers(self, site: KafkaSite) -> None:
        brokers = {"eu": "kafka://h", "us": "kafka://h"}
        with (
            Client(site.redis_url, namespace=site.namespace, brokers=brokers) as client,
            Producer(site.config, client=client, broker="us") as producer,
        ):
            id = producer.produce("t", b"x", delay="1h")
            producer.flush()
            assert id is not None
            stored = client.get(id)
            assert stored is not None and stored.destination == "us:t"
            assert client.cancel(id) == "cancelled"

    def test_within_a_transaction_a_delayed_message_is_refused(
        self, site: KafkaSite, reports: Reports
    ) -> None:
        now, later = site.topic(), site.topic()
        config = {**site.config, "transactional.id": now}
        with Producer(config, client=site.client) as producer:
            producer.init_transactions(DEADLINE_S)
            for finish in (producer.abort_transaction, producer.commit_transaction):
                producer.begin_transaction()
                producer.produce(now, finish.__name__)
                with pytest.raises(MessageError, match="in_transaction"):
                    producer.produce(later, b"x", headers={"x-delay": "5"})
                finish(DEADLINE_S)
                producer.produce(later, finish.__name__, on_delivery=reports, delay="1h")
            producer.flush()
        assert reports.codes == [None, None]
        (record,) = site.take(now, 1)
        assert record.value == b"commit_transaction"
        assert len(site.pending(later)) == 2


def test_the_code_in_the_guide_runs_unchanged(site: KafkaSite) -> None:
    assert (
        site.run_recipe("confluent_kafka", site.topic()).split()
        == "in a moment safe rescheduled cancelled".split()
    )
