"""confluent_kafka's drop-in: plain messages, delayed messages, reports, an unreachable store."""

from __future__ import annotations

import gc
import logging
import threading
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import confluent_kafka
import pytest
from confluent_kafka import KafkaError

from delaybridge import Client, ConfigError, MessageError
from delaybridge.intercept import client_of_settings
from delaybridge.intercept.confluent_kafka import Producer
from tests.rigs.kafka_site import KafkaSite
from tests.rigs.lossy_proxy import LossyProxy
from tests.rigs.waiting import DEADLINE_S, until
from tests.servers.process import LOOPBACK, free_port
from tests.servers.redis import RedisServer

HOUR_MS = 3_600_000
PRODUCED = [
    pytest.param("text", None, None, id="text alone"),
    pytest.param(b"\x00\xff", "key", [], id="bytes, text key, no headers"),
    pytest.param(None, b"\xff\x00", {"a": b"1", "b": None, "c": "text"}, id="null value, dict"),
    pytest.param(b"", b"", [("a", "1"), ("b", None), ("a", b""), ("a", b"\xff"), ("é", "€")],
                 id="empty value and key, headers twice"),
]  # fmt: skip


class Reports:
    """An `on_delivery` that records its calls."""

    def __init__(self) -> None:
        self.all: list[tuple[KafkaError | None, Any]] = []
        self.threads: set[int] = set()

    def __call__(self, error: KafkaError | None, message: Any) -> None:
        self.all.append((error, message))
        self.threads.add(threading.get_ident())

    @property
    def codes(self) -> list[int | None]:
        return [None if error is None else error.code() for error, _ in self.all]


NOT_DELAYED = pytest.param(b"x", None, {"x-delay": "0", "delaybridge-id": "i"}, id="no delay")


@pytest.fixture(scope="module")
def site(
    redis_url: str, real_kafka_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KafkaSite]:
    folder = tmp_path_factory.mktemp("site")
    with KafkaSite(folder, redis_url, real_kafka_url) as site:
        yield site


@pytest.fixture
def producer(site: KafkaSite) -> Iterator[Producer]:
    with Producer(site.config, client=site.client) as producer:
        yield producer


@pytest.fixture
def reports() -> Reports:
    return Reports()


@pytest.fixture
def lossy(site: KafkaSite) -> Iterator[LossyProxy]:
    """Between a producer's client and Redis."""
    port = urlsplit(site.redis_url).port
    assert port is not None
    with LossyProxy(port) as proxy:
        yield proxy


@pytest.fixture
def slow(site: KafkaSite, lossy: LossyProxy) -> Iterator[Client]:
    """A client behind the proxy that gives one call up quickly."""
    with Client(lossy.url, namespace=site.namespace, timeout_s=0.4) as client:
        yield client


@pytest.fixture
def unreachable() -> Iterator[Client]:
    """A client whose Redis does not run."""
    with Client(f"redis://{LOOPBACK}:{free_port()}", timeout_s=0.1) as client:
        yield client


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
            assert len(one) == 1
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
        [
            (None, {"delay": 3600}, []),
            (None, {"delay": timedelta(hours=1)}, []),
            (None, {"delay": "1h"}, []),
            ([("x-delay", "3600000"), ("a", b"1")], {}, [("x-delay", b"3600000"), ("a", b"1")]),
            ({"a": "1", "delaybridge-delay": b"1h"}, {}, [("a", b"1")]),
        ],
    )
    def test_every_way_to_give_a_delay_delays_the_message(
        self, site: KafkaSite, producer: Producer, headers: Any, arguments: Any, kept: Any
    ) -> None:
        topic = site.topic()
        before_ms = time.time_ns() // 1_000_000
        id = producer.produce(topic, b"x", headers=headers, **arguments)
        producer.flush()
        (stored,) = site.pending(topic)
        assert stored.id == id
        assert stored.headers == kept
        assert before_ms + HOUR_MS <= stored.due_ms <= time.time_ns() // 1_000_000 + HOUR_MS + 1

    @pytest.mark.parametrize("way", ["datetime", "text", "header"])
    def test_every_way_to_give_a_time_delays_the_message(
        self, site: KafkaSite, producer: Producer, way: str
    ) -> None:
        topic = site.topic()
        due = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
        if way == "header":
            producer.produce(topic, b"x", headers={"delaybridge-due": due.isoformat()})
        else:
            producer.produce(topic, b"x", deliver_at=due if way == "datetime" else due.isoformat())
        producer.flush()
        (stored,) = site.pending(topic)
        assert stored.due_ms == due.timestamp() * 1000

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


class TestReports:
    def test_on_delivery_is_called_only_in_the_thread_that_polls(
        self, site: KafkaSite, producer: Producer, reports: Reports
    ) -> None:
        topic = site.topic()
        headers = {"a": "é", "b": None, "delaybridge-id": topic}
        producer.produce(topic, "é", "k", 2, on_delivery=reports, headers=headers, delay="1h")
        until(lambda: site.pending(topic))
        assert reports.all == []
        assert len(producer) == 1
        assert producer.poll(-1) == 1
        ((error, message),) = reports.all
        assert error is None and message.error() is None
        assert type(message) is confluent_kafka.Message
        assert (message.topic(), message.partition(), message.offset()) == (topic, 2, None)
        assert (message.value(), message.key()) == ("é".encode(), b"k")
        assert message.headers() == [
            ("a", "é".encode()), ("b", None), ("delaybridge-id", topic.encode()),
        ]  # fmt: skip
        assert message.latency() > 0
        assert reports.threads == {threading.get_ident()}
        assert len(producer) == producer.poll(0) == 0

    def test_flush_serves_reports_of_plain_and_of_delayed_messages(
        self, site: KafkaSite, producer: Producer, reports: Reports
    ) -> None:
        topic = site.topic()
        for _ in range(10):
            producer.produce(topic, b"now", on_delivery=reports)
            producer.produce(topic, b"later", on_delivery=reports, delay="1h")
        assert len(producer) == 20
        assert producer.flush() == 0
        values = sorted(message.value() for _, message in reports.all)
        assert values == [b"later"] * 10 + [b"now"] * 10
        assert reports.codes == [None] * 20

    def test_a_poll_that_waits_already_serves_the_first_delayed_message(
        self, site: KafkaSite, producer: Producer, reports: Reports
    ) -> None:
        polled: list[int] = []
        polling = threading.Thread(target=lambda: polled.append(producer.poll(-1)))
        polling.start()
        producer.produce(site.topic(), b"x", on_delivery=reports, delay="1h")
        polling.join(DEADLINE_S)
        assert polled == [1]
        assert reports.threads == {polling.ident}

    def test_without_a_callback_messages_are_stored_without_a_poll(
        self, site: KafkaSite, producer: Producer
    ) -> None:
        producer.produce(site.topic(), b"x", delay="1h")
        until(lambda: len(producer) == 0)

    def test_the_callback_of_the_configuration_gets_reports(
        self, site: KafkaSite, reports: Reports
    ) -> None:
        config = {**site.config, "on_delivery": reports}
        with Producer(config, client=site.client) as producer:
            producer.produce(site.topic(), b"x", delay="1h")
            producer.produce(site.topic(), b"y")
            assert producer.flush() == 0
            assert sorted(message.value() for _, message in reports.all) == [b"x", b"y"]

    def test_delivery_report_only_error_reports_only_errors(
        self, site: KafkaSite, reports: Reports
    ) -> None:
        config = {**site.config, "delivery.report.only.error": True}
        topic = site.topic()
        with Producer(config, client=site.client) as producer:
            for value in (b"x", b"y"):
                producer.produce(
                    topic, value, on_delivery=reports, headers={"delaybridge-id": topic}, delay="1h"
                )
            producer.flush()
        assert reports.codes == [KafkaError._CONFLICT]

    def test_a_callback_that_raises_stops_no_other(
        self, site: KafkaSite, producer: Producer, reports: Reports
    ) -> None:
        def fail(error: Any, message: Any) -> None:
            raise LookupError("boom")

        topic = site.topic()
        producer.produce(topic, b"x", on_delivery=fail, delay="1h")
        producer.produce(topic, b"y", on_delivery=reports, delay="1h")
        with pytest.raises(LookupError, match="boom"):
            producer.flush()
        assert producer.flush() == 0
        assert reports.codes == [None]

    def test_a_callback_may_produce(
        self, site: KafkaSite, producer: Producer, reports: Reports
    ) -> None:
        topic = site.topic()

        def again(error: Any, message: Any) -> None:
            producer.produce(topic, b"second", on_delivery=reports, delay="1h")

        producer.produce(topic, b"first", on_delivery=again, delay="1h")
        assert producer.flush() == 0
        assert [message.value() for _, message in reports.all] == [b"second"]

    def test_an_id_that_is_pending_with_other_content_is_reported_as_a_conflict(
        self, site: KafkaSite, producer: Producer, reports: Reports
    ) -> None:
        topic = site.topic()
        for value in (b"x", b"x", b"y"):
            producer.produce(
                topic, value, on_delivery=reports, headers={"delaybridge-id": topic}, delay="1h"
            )
        producer.flush()
        assert reports.codes == [None, None, KafkaError._CONFLICT]
        error, message = reports.all[2]
        assert error is not None and "pending with other content" in error.str()
        assert message.error() == error
        (stored,) = site.pending(topic)
        assert stored.body == b"x"


class TestRefused:
    @pytest.mark.parametrize(
        ("given", "arguments", "code", "field"),
        [
            ({}, {"delay": "soon"}, "bad_time", "delay"),
            ({}, {"delay": -1}, "negative_delay", "delay"),
            ({}, {"delay": timedelta(days=8000)}, "too_far", "delay"),
            ({}, {"delay": 1, "deliver_at": "2030-01-01T00:00:00Z"}, "time_ambiguous", "delay"),
            ({"headers": {"x-delay": "5"}}, {"delay": 1}, "time_ambiguous", "delay"),
            ({"headers": {"delaybridge-delay": "1.5"}}, {}, "bad_time", "delaybridge-delay"),
            ({"headers": {"delaybridge-dealy": "1"}}, {"delay": 1}, "reserved_header",
             "delaybridge-dealy"),
            ({"headers": [("a", 5)]}, {"delay": 1}, "unsupported_header_type", "a"),
            ({"headers": {"delaybridge-id": "a\nb"}}, {"delay": 1}, "bad_id", "id"),
            pytest.param(
                {"value": bytes(300_000)}, {"delay": 1}, "body_too_large", "body", id="large"
            ),
            ({"value": 5}, {"delay": 1}, "bad_body", "body"),
            ({"key": 5}, {"delay": 1}, "bad_key", "key"),
            ({"partition": -5}, {"delay": 1}, "bad_partition", "partition"),
            ({"topic": "a topic"}, {"delay": 1}, "bad_destination", "destination"),
        ],
        ids=str,
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

    @pytest.mark.parametrize(
        ("brokers", "broker", "remedy"),
        [
            ({"rabbitmq": "amqp://h"}, None, "DELAYBRIDGE_BROKERS__KAFKA"),
            ({"eu": "kafka://h", "us": "kafka://h"}, None, "eu, us; give broker=NAME"),
            ({"eu": "kafka://h", "us": "kafka://h"}, "asia", "'asia' is not one of them"),
        ],
    )
    def test_a_broker_that_is_not_configured_is_a_config_error(
        self, site: KafkaSite, brokers: dict[str, str], broker: str | None, remedy: str
    ) -> None:
        with (
            Client(site.redis_url, namespace=site.namespace, brokers=brokers) as client,
            Producer(site.config, client=client, broker=broker) as producer,
            pytest.raises(ConfigError, match=remedy),
        ):
            producer.produce("t", b"x", delay=1)

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


class TestAnUnavailableStore:
    def test_a_call_whose_reply_is_lost_is_repeated_and_stores_once(
        self, site: KafkaSite, lossy: LossyProxy, slow: Client, reports: Reports
    ) -> None:
        topic = site.topic()
        with Producer(site.config, client=slow) as producer:
            lossy.drop_next_replies(8)
            for n in range(50):
                producer.produce(topic, str(n), on_delivery=reports, delay="1h")
            assert producer.flush() == 0
        assert lossy.dropped == 8
        assert reports.codes == [None] * 50
        assert len(site.pending(topic)) == 50

    def test_a_message_cancelled_before_its_answer_arrived_stays_cancelled(
        self, site: KafkaSite, lossy: LossyProxy, slow: Client, reports: Reports
    ) -> None:
        topic = site.topic()
        with Producer(site.config, client=slow) as producer:
            producer.produce(site.topic(), b"x", b"key", delay="1h")
            producer.flush()  # the script is loaded, the buckets are known, a connection is open
            lossy.swallowing = True
            id = producer.produce(topic, b"x", b"key", on_delivery=reports, delay="1h")
            assert id is not None
            until(lambda: site.pending(topic))
            assert site.client.cancel(id) == "cancelled"
            assert producer.flush(1.0) == 1  # the call is given up, and made again
            lossy.swallowing = False
            assert producer.flush() == 0
        assert reports.codes == [None]
        site.check_nothing_left(topic)

    def test_a_delay_counts_from_the_call_of_produce(
        self, site: KafkaSite, lossy: LossyProxy, slow: Client
    ) -> None:
        topic = site.topic()
        redis = RedisServer()
        with redis, Client(redis.url, timeout_s=0.4) as client:
            with Producer(site.config, client=client) as producer:
                client.stats()
                redis.pause()
                before_ms = time.time_ns() // 1_000_000
                id = producer.produce(topic, b"x", delay="1h")
                assert id is not None
                assert producer.flush(1.0) == 1
                resumed_ms = time.time_ns() // 1_000_000
                redis.resume()
                assert producer.flush() == 0
            stored = client.get(id)
        assert stored is not None
        assert before_ms + HOUR_MS <= stored.due_ms < resumed_ms + HOUR_MS

    def test_a_full_queue_has_room_again_once_messages_are_stored(
        self, site: KafkaSite, lossy: LossyProxy, slow: Client, reports: Reports
    ) -> None:
        topic = site.topic()
        config = {**site.config, "queue.buffering.max.messages": 3}
        with Producer(config, client=slow) as producer:
            lossy.swallowing = True
            for _ in range(3):
                producer.produce(topic, b"x", on_delivery=reports, delay="1h")
            with pytest.raises(BufferError, match="Queue full"):
                producer.produce(topic, b"x", on_delivery=reports, delay="1h")
            assert len(producer) == 3
            lossy.swallowing = False
            until(lambda: len(site.pending(topic)) == 3)
            with pytest.raises(BufferError):  # reports that were not served count, too
                producer.produce(topic, b"x", delay="1h")
            assert producer.flush() == 0
            producer.produce(topic, b"x", on_delivery=reports, delay="1h")
            assert producer.flush() == 0
        assert reports.codes == [None] * 4

    def test_a_queue_is_bounded_in_bytes(self, site: KafkaSite, unreachable: Client) -> None:
        config = {**site.config, "queue.buffering.max.kbytes": 10, "message.timeout.ms": 500}
        with Producer(config, client=unreachable) as producer:
            producer.produce("t", bytes(6000), delay="1h")
            with pytest.raises(BufferError, match="Queue full"):
                producer.produce("t", bytes(6000), delay="1h")
            producer.flush()
            producer.produce("t", bytes(6000), delay="1h")

    @pytest.mark.parametrize("name", ["message.timeout.ms", "delivery.timeout.ms"])
    def test_a_message_is_given_up_after_the_time_out_of_the_configuration(
        self, site: KafkaSite, unreachable: Client, reports: Reports, name: str
    ) -> None:
        with Producer({**site.config, name: "700"}, client=unreachable) as producer:
            began_s = time.monotonic()
            producer.produce("t", b"x", b"k", on_delivery=reports, delay="1h")
            assert producer.flush(0.1) == 1
            assert reports.all == []
            assert producer.flush() == 0
            assert time.monotonic() - began_s >= 0.7
        assert reports.codes == [KafkaError._MSG_TIMED_OUT]
        error, message = reports.all[0]
        assert error is not None and "within 0.7 s" in error.str()
        assert message.error() == error
        assert (message.topic(), message.value(), message.key()) == ("t", b"x", b"k")

    def test_without_a_callback_a_failure_is_logged(
        self, site: KafkaSite, unreachable: Client, caplog: pytest.LogCaptureFixture
    ) -> None:
        with Producer({**site.config, "message.timeout.ms": 100}, client=unreachable) as producer:
            id = producer.produce("t", b"x", delay="1h")
        (record,) = caplog.records
        assert record.levelno == logging.ERROR
        assert f"{id} for t: not stored" in record.getMessage()

    def test_a_permanent_refusal_of_redis_is_reported_at_once(
        self, site: KafkaSite, reports: Reports
    ) -> None:
        with (
            RedisServer(["--requirepass", "secret"]) as redis,
            Client(redis.url) as client,
            Producer(site.config, client=client) as producer,
        ):
            producer.produce("t", b"x", on_delivery=reports, delay="1h")
            producer.flush()
            assert reports.codes == [KafkaError._FAIL]
            assert "access refused" in str(reports.all[0][0])

    def test_purge_gives_up_messages_in_queue_and_in_flight(
        self, site: KafkaSite, unreachable: Client, reports: Reports
    ) -> None:
        with Producer(site.config, client=unreachable) as producer:
            producer.produce("t", b"first", on_delivery=reports, delay="1h")
            until(lambda: producer._outbox._in_flight)
            producer.produce("t", b"second", on_delivery=reports, delay="1h")
            producer.purge(in_flight=False)
            assert producer.poll(-1) == 1
            assert reports.codes == [KafkaError._PURGE_QUEUE]
            producer.purge()
            assert producer.flush() == 0
        assert reports.codes[1:] == [KafkaError._PURGE_INFLIGHT]
        assert [message.value() for _, message in reports.all] == [b"second", b"first"]


class TestTheEnd:
    def test_leaving_the_with_block_and_close_store_everything(
        self, site: KafkaSite, reports: Reports
    ) -> None:
        topic = site.topic()
        with Producer(site.config, client=site.client) as producer:
            for n in range(500):
                producer.produce(topic, str(n), on_delivery=reports, delay="1h")
        assert reports.codes == [None] * 500
        assert len(site.pending(topic)) == 500
        assert producer.close() is True
        with pytest.raises(RuntimeError, match="closed"):
            producer.produce(topic, b"x", delay="1h")
        with pytest.raises(RuntimeError, match="closed"):
            producer.produce(topic, b"x")
        assert len(producer) == 0

    def test_a_producer_dropped_early_warns_and_its_messages_are_still_stored(
        self, site: KafkaSite, lossy: LossyProxy, slow: Client, caplog: pytest.LogCaptureFixture
    ) -> None:
        topic = site.topic()
        lossy.swallowing = True
        producer = Producer(site.config, client=slow)
        for _ in range(3):
            producer.produce(topic, b"x", delay="1h")
        del producer
        gc.collect()
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        assert "3 delayed messages" in record.getMessage()
        lossy.swallowing = False
        until(lambda: len(site.pending(topic)) == 3)

    def test_a_producer_dropped_when_all_is_stored_logs_nothing(
        self, site: KafkaSite, caplog: pytest.LogCaptureFixture
    ) -> None:
        def threads() -> set[threading.Thread]:
            return {t for t in threading.enumerate() if t.name == "delaybridge outbox"}

        before = threads()
        producer = Producer(site.config, client=site.client)
        producer.produce(site.topic(), b"x", delay="1h")
        producer.flush()
        assert len(threads() - before) == 1
        del producer
        gc.collect()
        until(lambda: threads() <= before, "its thread ends")
        assert caplog.records == []

    def test_a_process_that_ends_without_a_flush_stores_its_messages_first(
        self, site: KafkaSite
    ) -> None:
        topic = site.topic()
        ended = site.run(
            "from delaybridge.intercept.confluent_kafka import Producer\n"
            f"producer = Producer({site.config!r})\n"
            f"for _ in range(1000): producer.produce({topic!r}, b'x', delay='1h')\n"
        )
        assert ended.stderr == ""
        assert len(site.pending(topic)) == 1000

    def test_a_process_that_ends_while_redis_does_not_answer_logs_a_warning(
        self, site: KafkaSite
    ) -> None:
        ended = site.run(
            "import os\n"
            f"os.environ['DELAYBRIDGE_REDIS_URL'] = 'redis://{LOOPBACK}:{free_port()}'\n"
            "from delaybridge.intercept.confluent_kafka import Producer\n"
            f"producer = Producer({site.config!r})\n"
            "producer.produce('t', b'x', delay='1h')\n"
        )
        assert "1 delayed messages" in ended.stderr

    def test_after_a_fork_the_parent_stores_and_the_child_needs_its_own_producer(
        self, site: KafkaSite
    ) -> None:
        topic = site.topic()
        ended = site.run(
            "import os, warnings\n"
            "warnings.simplefilter('ignore')\n"
            "from delaybridge.intercept.confluent_kafka import Producer\n"
            f"producer = Producer({site.config!r})\n"
            "told = lambda error, message: print(message.value(), error, flush=True)\n"
            f"producer.produce({topic!r}, b'parent', on_delivery=told, delay='1h')\n"
            "if (pid := os.fork()) == 0:\n"
            "    try:\n"
            f"        producer.produce({topic!r}, b'x', delay='1h')\n"
            "    except RuntimeError as exc:\n"
            "        print(exc, flush=True)\n"
            f"    with Producer({site.config!r}) as own:\n"
            f"        own.produce({topic!r}, b'child', on_delivery=told, delay='1h')\n"
            "    os._exit(0)\n"
            "os.waitpid(pid, 0)\n"
            "producer.flush()\n"
        )
        refusal, *sent = ended.stdout.splitlines()
        assert "fork" in refusal and sent == ["b'child' None", "b'parent' None"]
        assert sorted(stored.body for stored in site.pending(topic)) == [b"child", b"parent"]

    def test_the_thread_imports_no_module_whose_lock_a_fork_would_leave_held(
        self, site: KafkaSite
    ) -> None:
        ended = site.run(
            "import sys, threading\n"
            "from delaybridge.intercept.confluent_kafka import Producer\n"
            "class Finder:\n"
            "    def find_spec(self, name, path=None, target=None):\n"
            "        if threading.current_thread().name == 'delaybridge outbox':\n"
            "            print(name)\n"
            f"producer = Producer({site.config!r})\n"
            "sys.meta_path.insert(0, Finder())\n"
            f"producer.produce({site.topic()!r}, b'x', delay='1h')\n"
            "print('left', producer.flush())\n"
        )
        assert ended.stdout == "left 0\n"

    def test_a_process_ends_although_its_thread_was_stopped_while_it_held_the_lock(
        self, site: KafkaSite
    ) -> None:
        ended = site.run(
            "import threading, time\n"
            "from delaybridge.intercept.confluent_kafka import Producer\n"
            f"producer = Producer({site.config!r})\n"
            f"producer.produce({site.topic()!r}, b'x', delay='1h')\n"
            "producer.flush()\n"
            "producer._outbox.close()\n"
            "held = threading.Event()\n"
            "def hold():\n"
            "    with producer._outbox._changed:\n"
            "        held.set()\n"
            "        time.sleep(60)\n"
            "threading.Thread(target=hold, daemon=True).start()\n"
            "held.wait()\n"
            "producer.__del__()\n"
            "print('ended', flush=True)\n"
            "import os; os._exit(0)\n"
        )
        assert ended.stdout == "ended\n"

    def test_without_a_client_one_is_made_from_the_settings(self, site: KafkaSite) -> None:
        topic = site.topic()
        client_of_settings.cache_clear()
        with site.settings(), Producer(site.config) as producer:
            id = producer.produce(topic, b"x", delay=0)
        client_of_settings().close()
        client_of_settings.cache_clear()
        (record,) = site.take(topic, 1)
        assert record.id == id


def test_the_code_in_the_guide_runs_unchanged(site: KafkaSite) -> None:
    assert (
        site.run_recipe("confluent_kafka").split()
        == "in a moment safe rescheduled cancelled".split()
    )
