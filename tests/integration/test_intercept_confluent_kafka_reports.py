"""confluent_kafka's drop-in: what becomes of each message is reported, to the thread that polls."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError

from delaybridge.intercept.confluent_kafka import Producer
from tests.rigs.kafka_site import KafkaSite, Reports
from tests.rigs.waiting import DEADLINE_S, until


@pytest.fixture
def site(kafka_site: KafkaSite) -> KafkaSite:
    return kafka_site


@pytest.fixture
def producer(site: KafkaSite) -> Iterator[Producer]:
    with Producer(site.config, client=site.client) as producer:
        yield producer


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
        assert 20 <= len(producer) <= 30  # librdkafka counts reports that wait, too
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
