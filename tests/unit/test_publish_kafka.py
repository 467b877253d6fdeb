"""Kafka's settings from a URL, and what its errors mean."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.cimpl import Consumer

from delaybridge.errors import ConfigError
from delaybridge.message import Delivery, Destination, Record
from delaybridge.publish import Fault, Outcome, PublishOptions, Verdict
from delaybridge.publish.kafka import publisher
from delaybridge.publish.kafka.configuration import catchable, configuration
from delaybridge.publish.kafka.outcomes import answer, not_found, not_queued
from tests.rigs.waiting import until

OPTIONS = PublishOptions(confirm_timeout_s=20.0, linger_ms=1)


def settings(url: str) -> dict[str, Any]:
    return configuration("kafka", url, OPTIONS)


def made(url: str) -> Any:
    quiet: Any = {"report": lambda *_: None, "on_change": lambda: None}
    return publisher("kafka", url, **quiet, options=OPTIONS)


def test_the_clients_own_error_in_a_callback_can_be_caught() -> None:
    told: list[KafkaError] = []

    def fails(error: KafkaError) -> None:
        told.append(error)
        if len(told) == 1:  # `close` may call it again
            consumer.store_offsets(offsets=[TopicPartition("not read", 0, 1)])

    nowhere = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0, "group.id": "g"}
    consumer = Consumer(
        {**nowhere, "enable.auto.offset.store": False, "error_cb": catchable(fails)}
    )
    with pytest.raises(KafkaException, match="_UNKNOWN_PARTITION"):
        until(lambda: consumer.consume(1, 0.2))
    consumer.close()


class TestConfiguration:
    def test_hosts_without_a_port_get_the_default(self) -> None:
        found = settings("kafka://a,b:9093,[::1],[::1]:9094")["bootstrap.servers"]
        assert found == "a:9092,b:9093,[::1]:9092,[::1]:9094"

    def test_options_that_confirms_depend_on_are_fixed(self) -> None:
        found = settings("kafka://a")
        assert found["enable.idempotence"] is True
        assert found["acks"] == "all"
        assert found["message.timeout.ms"] == 20_000
        assert found["linger.ms"] == 1

    def test_the_producer_of_single_records_sends_none_twice(self) -> None:
        made = configuration("kafka", "kafka://a?linger.ms=50", OPTIONS).with_single_records()
        assert (made["batch.num.messages"], made["linger.ms"], made["acks"]) == (1, 0, "all")
        # Not idempotent, so a record that is sent again could come twice.
        assert (made["enable.idempotence"], made["message.send.max.retries"]) == (False, 0)

    def test_a_changed_password_file_is_read_again_and_an_unreadable_one_changes_nothing(
        self, tmp_path: Path
    ) -> None:
        file = tmp_path / "password"
        file.write_text("old\n")
        made = configuration("kafka", f"kafka://u@a?password_file={file}", OPTIONS)
        file.write_text("new\n")
        given: list[tuple[str, str]] = []
        client = SimpleNamespace(set_sasl_credentials=lambda *login: given.append(login))
        made.renew(client)
        file.unlink()
        made.renew(client)
        assert given == [("u", "new"), ("u", "new")]
        assert made.current()["sasl.password"] == "new"

    @pytest.mark.parametrize(
        ("url", "protocol"),
        [
            ("kafka://a", "plaintext"),
            ("kafkas://a", "ssl"),
            ("kafka://u:p@a", "sasl_plaintext"),
            ("kafkas://u:p@a", "sasl_ssl"),
            ("kafkas://a?sasl.mechanism=OAUTHBEARER", "sasl_ssl"),
        ],
    )
    def test_the_scheme_and_the_login_decide_the_protocol(self, url: str, protocol: str) -> None:
        assert settings(url)["security.protocol"] == protocol

    def test_user_and_password_are_unquoted_and_plain_by_default(self) -> None:
        found = settings("kafkas://us%40er:p%3A%40ss@a,b")
        assert (found["sasl.username"], found["sasl.password"]) == ("us@er", "p:@ss")
        assert found["sasl.mechanism"] == "PLAIN"
        found = settings("kafkas://u:p@a?sasl.mechanism=SCRAM-SHA-512")
        assert found["sasl.mechanism"] == "SCRAM-SHA-512"

    def test_an_allowed_option_wins_over_the_default(self) -> None:
        found = settings("kafka://a?linger.ms=7&partitioner=murmur2_random")
        assert (found["linger.ms"], found["partitioner"]) == ("7", "murmur2_random")

    @pytest.mark.parametrize(
        "option",
        [
            "acks=1",
            "enable.idempotence=false",
            "max.in.flight=10",
            "max.in.flight.requests.per.connection=10",
            "transactional.id=x",
            "nonsense=1",
            "plugin.library.paths=/tmp/evil.so",
            "enable.ssl.certificate.verification=false",
            "bootstrap.servers=elsewhere",
            "debug=all",
        ],
    )
    def test_other_options_are_refused_by_name(self, option: str) -> None:
        with pytest.raises(ConfigError, match=option.partition("=")[0]):
            settings(f"kafka://u:s3cret@a?{option}")

    @pytest.mark.parametrize("url", ["kafka://", "kafka://a,,b", "kafka://u:s3cret@"])
    def test_a_missing_host_is_refused(self, url: str) -> None:
        with pytest.raises(ConfigError) as caught:
            settings(url)
        assert "s3cret" not in str(caught.value)

    def test_a_value_that_librdkafka_refuses_is_refused_at_once(self) -> None:
        with pytest.raises(ConfigError, match="Invalid value") as caught:
            made("kafka://u:s3cret@a?linger.ms=soon")
        assert "s3cret" not in str(caught.value)

    def test_no_password_is_shown(self) -> None:
        assert "s3cret" not in made("kafka://u:s3cret@a").describe()


def delivery(partition: int | None = None) -> Delivery:
    record = Record("kafka:t", b"", partition=partition)
    return Delivery("id", record, Destination("kafka", "kafka", "t"), 1, 1)


def outcome(code: int, *, is_proof: bool = True) -> Outcome:
    return answer(delivery(), KafkaError(code), is_proof=is_proof)


class TestOutcomes:
    @pytest.mark.parametrize(
        ("code", "reason", "fault"),
        [
            (KafkaError.MSG_SIZE_TOO_LARGE, "message_too_large", Fault.MESSAGE),
            (KafkaError._UNKNOWN_PARTITION, "topic_missing", Fault.MESSAGE),
            (KafkaError._UNKNOWN_TOPIC, "topic_missing", Fault.MESSAGE),
            (KafkaError.UNKNOWN_TOPIC_OR_PART, "topic_missing", Fault.MESSAGE),
            (KafkaError.INVALID_RECORD, "rejected", Fault.MESSAGE),
            (KafkaError.TOPIC_AUTHORIZATION_FAILED, "access_refused", Fault.DESTINATION),
            (KafkaError.CLUSTER_AUTHORIZATION_FAILED, "access_refused", Fault.DESTINATION),
        ],
    )
    def test_a_refusal_is_certain_only_while_no_connection_was_lost(
        self, code: int, reason: str, fault: Fault
    ) -> None:
        refused = outcome(code)
        assert (refused.verdict, refused.fault) == (Verdict.REFUSED, fault)
        assert refused.reason.startswith(f"{reason}: ")
        assert refused.answered == (reason in {"message_too_large", "rejected"})
        unknown = outcome(code, is_proof=False)
        assert (unknown.verdict, unknown.fault) == (Verdict.UNKNOWN, fault)

    @pytest.mark.parametrize(
        "code",
        [
            KafkaError._MSG_TIMED_OUT,
            KafkaError._TIMED_OUT_QUEUE,
            KafkaError._PURGE_QUEUE,
            KafkaError._PURGE_INFLIGHT,
            KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
            KafkaError.REQUEST_TIMED_OUT,
            KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
            KafkaError._TRANSPORT,
            KafkaError.UNKNOWN,
        ],
    )
    def test_everything_else_is_unknown(self, code: int) -> None:
        assert outcome(code).verdict is Verdict.UNKNOWN

    def test_a_time_out_is_named_in_the_reason(self) -> None:
        assert outcome(KafkaError._MSG_TIMED_OUT).reason.startswith("confirm_timeout: ")

    def test_a_missing_partition_is_named_if_the_message_asked_for_it(self) -> None:
        error = KafkaError(KafkaError._UNKNOWN_PARTITION)
        found = answer(delivery(9), error, is_proof=True)
        assert found.reason.startswith("partition_missing: ")
        assert not_queued(delivery(9), KafkaException(error)) == found

    def test_a_record_that_was_never_queued_is_refused(self) -> None:
        too_large = KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
        found = not_queued(delivery(), too_large)
        assert found.reason.startswith("message_too_large: ")
        assert not found.answered, "the broker never saw it"
        other = KafkaException(KafkaError(KafkaError._STATE))
        assert not_queued(delivery(), other).verdict is Verdict.REFUSED
        assert not_queued(delivery(), TypeError("a header")).reason == "unencodable: TypeError"

    @pytest.mark.parametrize(
        ("code", "fault"),
        [
            (KafkaError.UNKNOWN_TOPIC_OR_PART, Fault.MESSAGE),
            (KafkaError.TOPIC_AUTHORIZATION_FAILED, Fault.DESTINATION),
            (KafkaError.LEADER_NOT_AVAILABLE, Fault.DESTINATION),
            (KafkaError._TRANSPORT, Fault.BROKER),
            (KafkaError._TIMED_OUT, Fault.BROKER),
        ],
    )
    def test_the_fault_when_a_topic_cannot_be_looked_up(self, code: int, fault: Fault) -> None:
        found = not_found(KafkaError(code))
        assert (found.verdict, found.fault) == (Verdict.REFUSED, fault)
