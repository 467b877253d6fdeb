"""A Kafka, a worker and a consumer that sees the bytes: for tests of drop-in producers."""

from __future__ import annotations

import threading
import time
import uuid
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.rigs.site import ProducerSite
from tests.rigs.waiting import DEADLINE_S, until

PARTITIONS = 3


class Record(NamedTuple):
    """A record as a plain consumer received it. stamp_ms: its timestamp in Kafka."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    partition: int
    stamp_ms: int

    @property
    def id(self) -> str:
        return str((dict(self.headers)["delaybridge-id"] or b"").decode())

    @property
    def due_ms(self) -> int:
        return int(dict(self.headers)["delaybridge-due-ms"] or 0)

    @property
    def given(self) -> tuple[Any, ...]:
        """Key, value and headers without the headers that delaybridge added."""
        ours = [(n, v) for n, v in self.headers if n.startswith("delaybridge-")]
        assert self.headers[len(self.headers) - len(ours) :] == ours
        return self.key, self.value, self.headers[: len(self.headers) - len(ours)]


class Reports:
    """An `on_delivery` of confluent_kafka that records its calls."""

    def __init__(self) -> None:
        self.all: list[tuple[KafkaError | None, Any]] = []
        self.threads: set[int] = set()

    def __call__(self, error: KafkaError | None, message: Any) -> None:
        self.all.append((error, message))
        self.threads.add(threading.get_ident())

    @property
    def codes(self) -> list[int | None]:
        return [None if error is None else error.code() for error, _ in self.all]


class KafkaSite(ProducerSite):
    """One worker, one Kafka, and topics for this test alone."""

    def __init__(self, folder: Path, redis_url: str, kafka_url: str) -> None:
        self.kafka_url = kafka_url
        self.servers = kafka_url.removeprefix("kafka://")
        self.config: dict[str, Any] = {
            "bootstrap.servers": self.servers,
            "log_level": 3,
            "message.timeout.ms": 15_000,  # so that a failed test ends
        }
        super().__init__(folder, redis_url, {"kafka": kafka_url})

    def topic(self, name: str | None = None) -> str:
        """A new topic, or the one of this name, whose partitions all have a leader; its name."""
        name = name or f"t-{uuid.uuid4().hex}"
        admin = AdminClient(self.config)
        try:
            admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(DEADLINE_S)
        except KafkaException as exc:
            if exc.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
        until(lambda: _has_leaders(admin, name), f"{name} can be written to")
        return name

    def take(self, topic: str, count: int) -> list[Record]:
        """The topic's records, oldest first in each partition, once there are this many."""
        settings = {"group.id": topic, "enable.partition.eof": True}
        consumer = Consumer({**self.config, **settings})
        consumer.assign([TopicPartition(topic, n, 0) for n in range(PARTITIONS)])
        found: list[Record] = []
        ended: set[int] = set()
        until_s = time.monotonic() + DEADLINE_S
        try:
            while len(found) < count or len(ended) < PARTITIONS:
                assert time.monotonic() < until_s, f"{len(found)} of {count} in {topic}"
                got = consumer.poll(0.1)
                if got is None:
                    continue
                error = got.error()
                if error is None:
                    ended.discard(got.partition())
                    headers = list(got.headers() or ())
                    stamp_ms = got.timestamp()[1]
                    found.append(Record(got.key(), got.value(), headers, got.partition(), stamp_ms))
                else:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    ended.add(got.partition())
        finally:
            consumer.close()
        return found

    def pending(self, topic: str) -> list[Any]:
        """The messages for the topic that are stored and not in flight."""
        return self.client.pending(destination=f"kafka:{topic}", limit=1000).items

    def check_nothing_left(self, topic: str) -> None:
        """Nothing was published to the topic and nothing waits for it."""
        assert self.take(topic, 0) == []
        assert self.pending(topic) == []


def _has_leaders(admin: AdminClient, topic: str) -> bool:
    partitions = admin.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions
    return bool(partitions) and all(each.leader >= 0 for each in partitions.values())
