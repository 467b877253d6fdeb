"""A Kafka, a worker and a consumer that sees the bytes: for tests of drop-in producers."""

from __future__ import annotations

import threading
import time
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from delaybridge.message import OWN_HEADERS
from tests.rigs.bridge import make_topic
from tests.rigs.site import ProducerSite
from tests.rigs.waiting import DEADLINE_S, until

PARTITIONS = 3
HOUR_MS = 3_600_000


def _in_an_hour() -> datetime:
    return datetime.now(UTC) + timedelta(hours=1)


# Headers and arguments that delay a message by an hour, and the headers that are left.
WAYS: list[tuple[Any, Any, list[tuple[str, bytes]]]] = [
    (None, lambda: {"delay": 3600}, []),
    (None, lambda: {"delay": timedelta(hours=1)}, []),
    (None, lambda: {"delay": "1h"}, []),
    (None, lambda: {"deliver_at": _in_an_hour()}, []),
    (None, lambda: {"deliver_at": _in_an_hour().isoformat()}, []),
    ([("x-delay", b"3600000"), ("a", b"1")], dict, [("x-delay", b"3600000"), ("a", b"1")]),
    ([("a", b"1"), ("delaybridge-delay", b"1h")], dict, [("a", b"1")]),
]
# What of a message is not `{"value": b"x"}`, and arguments, that are refused: code and field.
REFUSED: list[tuple[Any, ...]] = [
    ({}, {"delay": "soon"}, "bad_time", "delay"),
    ({}, {"delay": -1}, "negative_delay", "delay"),
    ({}, {"delay": 1, "deliver_at": "2030-01-01T00:00:00Z"}, "time_ambiguous", "delay"),
    ({"headers": [("x-delay", b"5")]}, {"delay": 1}, "time_ambiguous", "delay"),
    ({"headers": [("x-delay", b"abc")]}, {}, "bad_time", "x-delay"),
    ({"value": bytes(300_000)}, {"delay": 1}, "body_too_large", "body"),
    ({"topic": "a topic"}, {"delay": 1}, "bad_destination", "destination"),
]


class Record(NamedTuple):
    """A record as a plain consumer received it. stamp_ms: its timestamp in Kafka."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    stamp_ms: int

    @property
    def own(self) -> dict[str, str]:
        """The three headers that delaybridge adds."""
        return {n: (v or b"").decode() for n, v in self.headers if n in OWN_HEADERS}

    @property
    def id(self) -> str:
        return self.own["delaybridge-id"]

    @property
    def due_ms(self) -> int:
        return int(self.own["delaybridge-due-ms"])

    @property
    def given(self) -> tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]:
        """The producer's key, value and headers; behind them come those that delaybridge adds."""
        kept = self.headers[: len(self.headers) - len(self.own)]
        assert not {*OWN_HEADERS} & {name for name, _ in kept}
        return self.key, self.value, kept


def messages_of(config: dict[str, Any], topic: str, partitions: int, at_least: int) -> list[Any]:
    """A topic's messages by partition and offset, once there are so many and no more come."""
    at_once = {"enable.partition.eof": True, "fetch.wait.max.ms": 10}
    consumer = Consumer({**config, "group.id": uuid.uuid4().hex, **at_once})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    found: list[Any] = []
    ended: set[int] = set()

    def are_found() -> bool:
        for message in consumer.consume(1000, 0.05):
            if message.error() is None:
                ended.discard(message.partition())
                found.append(message)
            elif message.error().code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
        return len(ended) == partitions and len(found) >= at_least

    try:
        until(are_found, lambda: f"{at_least} in {topic}, now {len(found)}", interval_s=0)
    finally:
        consumer.close()
    return sorted(found, key=lambda message: (message.partition(), message.offset()))


def records_of(config: dict[str, Any], topic: str, partitions: int, at_least: int) -> list[Record]:
    return [
        Record(m.partition(), m.offset(), m.key(), m.value(), m.headers() or [], m.timestamp()[1])
        for m in messages_of(config, topic, partitions, at_least)
    ]


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
            "message.timeout.ms": int(DEADLINE_S * 1000),  # so that a failed test ends
        }
        super().__init__(folder, redis_url, {"kafka": kafka_url})

    def topic(self) -> str:
        """A new topic whose partitions all have a leader; its name."""
        name = f"t-{uuid.uuid4().hex}"
        make_topic(AdminClient(self.config), NewTopic(name, PARTITIONS, 1))
        return name

    def take(self, topic: str, count: int) -> list[Record]:
        """The topic's records, oldest first in each partition, once there are this many."""
        return records_of(self.config, topic, PARTITIONS, count)

    def pending(self, topic: str) -> list[Any]:
        """The messages for the topic that are stored and not in flight."""
        return self.client.pending(destination=f"kafka:{topic}", limit=1000).items

    def check_way(self, topic: str, id: str, kept: Any, sent_ms: int) -> None:
        """The message of one of the WAYS is due in an hour, with the headers that are left."""
        (stored,) = self.pending(topic)
        assert (stored.id, stored.headers) == (id, kept)
        assert sent_ms + HOUR_MS <= stored.due_ms <= time.time_ns() // 1_000_000 + HOUR_MS + 1

    def check_nothing_left(self, topic: str) -> None:
        """Nothing was published to the topic and nothing waits for it."""
        assert self.take(topic, 0) == []
        assert self.pending(topic) == []
