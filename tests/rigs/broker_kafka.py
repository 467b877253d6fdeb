"""Kafka for tests of publishers."""

from __future__ import annotations

import time
import uuid
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from delaybridge.message import Destination
from delaybridge.publish.kafka.client import KafkaClient
from delaybridge.publish.kafka.topic import TopicState
from tests.rigs.broker import NetworkRig, Received
from tests.rigs.waiting import DEADLINE_S, until
from tests.servers.kafka import KafkaNode
from tests.servers.process import LOOPBACK


class KafkaRig(NetworkRig):
    """Apache Kafka 4.3, one node: a topic with one partition per destination."""

    kind = "kafka"
    missing_reason = "topic_missing"
    partitions = 1

    def __init__(self, properties: dict[str, str] | None = None) -> None:
        super().__init__()
        advertised = {"advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{self.proxy_port}"}
        no_creation = {"auto.create.topics.enable": "false"}
        self.node = KafkaNode({**advertised, **no_creation, **(properties or {})})

    def url(self) -> str:
        return f"kafka://{LOOPBACK}:{self.proxy_port}"

    def make(self, name: str | None = None, *, settled: bool = True, **config: str) -> str:
        """settled: wait until its partitions have a leader; before, Kafka may lose a record."""
        name = name or f"t-{uuid.uuid4().hex}"
        admin = AdminClient(self._settings())
        topic = NewTopic(name, self.partitions, 1, config=config)
        admin.create_topics([topic])[name].result(10)
        for number in range(self.partitions if settled else 0):
            asked = TopicPartition(name, number)
            until(lambda asked=asked: self._has_leader(admin, asked))
        return name

    @staticmethod
    def _has_leader(admin: AdminClient, partition: TopicPartition) -> bool:
        try:
            admin.list_offsets({partition: OffsetSpec.latest()})[partition].result(10)
        except KafkaException:
            return False
        return True

    def read(self, address: str, at_least: int) -> list[Received]:
        found = []
        for record in self.read_raw(address, at_least):
            headers = dict(record.headers())
            attempt = int(headers["delaybridge-attempt"])
            found.append(Received(headers["delaybridge-id"].decode(), record.value(), attempt))
        return found

    def read_raw(self, topic: str, at_least: int) -> list[Any]:
        """Records, as confluent_kafka gives them, partition by partition."""
        consumer = confluent_kafka.Consumer(
            {**self._settings(), "group.id": uuid.uuid4().hex, "enable.partition.eof": True}
        )
        assigned = [confluent_kafka.TopicPartition(topic, n, 0) for n in range(self.partitions)]
        consumer.assign(assigned)
        found: list[Any] = []
        ended: set[int] = set()
        deadline = time.monotonic() + DEADLINE_S
        try:
            while time.monotonic() < deadline:
                record = consumer.poll(0.1)
                if record is None:
                    continue
                if record.error() is None:
                    found.append(record)
                elif record.error().code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    ended.add(record.partition())
                if len(ended) == self.partitions and len(found) >= at_least:
                    break
        finally:
            consumer.close()
        return found

    def _settings(self) -> dict[str, Any]:
        return {"bootstrap.servers": f"{LOOPBACK}:{self.proxy_port}", "log_level": 0}


class KafkaInsides:
    """What the user of a publisher does not see: its producers, and what it knows of a topic."""

    def __init__(self, publisher: Any) -> None:
        """erred: as librdkafka calls it, with one of the producers and an error."""
        self.clients, self.erred = publisher._clients, publisher._erred
        self._publisher = publisher

    def topic(self, to: Destination) -> TopicState:
        topics: dict[str, TopicState] = self._publisher._topics
        return topics[to.address]

    @staticmethod
    def librdkafka(client: KafkaClient) -> Any:
        """The producer of confluent_kafka."""
        return client._producer
