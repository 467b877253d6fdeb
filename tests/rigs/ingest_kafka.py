"""Plain Kafka clients for tests of ingest: producers and readers off the loop."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from delaybridge.operate.notices.announcements import SourceInfo
from tests.rigs.bridge import make_topic
from tests.rigs.ingest import Entrance, source
from tests.rigs.kafka_site import Record, records_of
from tests.rigs.waiting import DEADLINE_S, until

T = TypeVar("T")
Headers = Sequence[tuple[str, bytes | None]]


class Kafka:
    """One cluster, through plain clients."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.servers = url.removeprefix("kafka://").partition("?")[0]
        self.settings = {"bootstrap.servers": self.servers, "log_level": 0}
        self.admin = AdminClient(self.settings)

    async def do(self, work: Callable[[], T]) -> T:
        return await asyncio.to_thread(work)

    # topics

    async def topic(self, name: str, partitions: int = 1, **config: str) -> str:
        """Create a topic; returns when clients can use it."""
        new = NewTopic(name, partitions, 1, config=config)
        await self.do(lambda: make_topic(self.admin, new))
        return name

    async def pair(self, namespace: str, partitions: int = 1) -> tuple[str, str]:
        """A delay topic and its target."""
        target = await self.topic(f"{namespace}-{uuid.uuid4().hex[:6]}", partitions)
        return await self.topic(f"{target}.delay", partitions), target

    async def delete(self, name: str) -> None:
        def delete() -> None:
            self.admin.delete_topics([name])[name].result(DEADLINE_S)
            until(lambda: not self._exists(name), f"{name} is gone")

        await self.do(delete)

    def _exists(self, name: str) -> bool:
        # Asked for by its name, a broker might make it.
        return name in self.admin.list_topics(timeout=DEADLINE_S).topics

    async def configure(self, topic: str, **config: str) -> None:
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in config.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        await self.do(
            lambda: self.admin.incremental_alter_configs([resource])[resource].result(DEADLINE_S)
        )

    async def take_away(self, topic: str, partition: int, *, before: int) -> None:
        """Delete the records before an offset, as retention does."""
        place = TopicPartition(topic, partition, before)
        await self.do(lambda: self.admin.delete_records([place])[place].result(DEADLINE_S))

    # records

    async def send(
        self,
        topic: str,
        value: bytes | None = b"body",
        headers: Headers = (),
        *,
        key: bytes | None = None,
        partition: int = -1,
        **more: Any,
    ) -> int:
        """Publish one record; its offset."""
        (offset,) = await self.send_many(
            topic, [(key, value, headers)], partition=partition, **more
        )
        return offset

    async def send_many(
        self,
        topic: str,
        records: Sequence[tuple[bytes | None, bytes | None, Headers]],
        *,
        partition: int = -1,
        timestamp: int = 0,
        **settings: Any,
    ) -> list[int]:
        """Publish records in their order; their offsets. settings: of the producer, _ for a dot."""

        def send() -> list[int]:
            config = {name.replace("_", "."): value for name, value in settings.items()}
            producer = Producer({**self.settings, "acks": "all", **config})
            offsets: list[int] = []

            def sent(error: KafkaError | None, message: Any) -> None:
                if error is not None:
                    raise KafkaException(error)
                offsets.append(message.offset())

            for key, value, headers in records:
                producer.produce(
                    topic, value, key, partition, sent,
                    timestamp=timestamp, headers=list(headers),
                )  # fmt: skip
            producer.flush(DEADLINE_S)
            assert len(offsets) == len(records)
            return offsets

        return await self.do(send)

    async def take(self, topic: str, count: int) -> list[Record]:
        """All records of a topic, by partition and offset, once there are this many."""
        found = await self.do(lambda: self._read(topic, count))
        assert len(found) == count, f"{len(found)} records of {topic}, not {count}"
        return found

    async def read(self, topic: str) -> list[Record]:
        return await self.do(lambda: self._read(topic, 0))

    def _read(self, topic: str, count: int) -> list[Record]:
        partitions = self.admin.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions
        return records_of(self.settings, topic, len(partitions), count)

    # the group

    async def committed(self, group: str, topic: str, partition: int = 0) -> int:
        """The offset that the group committed; negative: none."""

        def ask() -> int:
            consumer = Consumer({**self.settings, "group.id": group})
            try:
                place = TopicPartition(topic, partition)
                (found,) = consumer.committed([place], timeout=DEADLINE_S)
                return int(found.offset)
            finally:
                consumer.close()

        return await self.do(ask)

    async def reset(self, group: str, topic: str, partition: int = 0, offset: int = 0) -> None:
        """Set the group's offset, as an administrator does while the group has no members."""
        place = TopicPartition(topic, partition, offset)

        def alter() -> None:
            asked = [ConsumerGroupTopicPartitions(group, [place])]
            self.admin.alter_consumer_group_offsets(asked)[group].result(DEADLINE_S)

        await self.do(alter)

    async def members(self, group: str) -> list[int]:
        """How many partitions each process of the group reads."""

        def ask() -> list[int]:
            asked = self.admin.describe_consumer_groups([group])[group]
            try:
                found = asked.result(DEADLINE_S).members
            except KafkaException:  # the first group of a cluster has no coordinator yet
                return []
            return sorted(len(member.assignment.topic_partitions) for member in found)

        return await self.do(ask)


async def until_state(entrance: Entrance, topic: str, begin: str) -> SourceInfo:
    """A process's announcement of a topic, once its state begins like this."""
    said: Any = await entrance.until(lambda: source(entrance, topic, begin), f"{topic}: {begin}")
    return said


def produce_raw(servers: str, topic: str, name: bytes, value: bytes, body: bytes) -> None:
    """Produce a record with a header of any name, which no client library would send."""
    header = _varint(len(name)) + name + _varint(len(value)) + value
    record = b"\0" + _varint(0) + _varint(0) + _varint(-1) + _varint(len(body)) + body
    record += _varint(1) + header
    now = struct.pack(">q", time.time_ns() // 1_000_000)
    checked = struct.pack(">hi", 0, 0) + now + now + struct.pack(">qhii", -1, -1, -1, 1)
    checked += _varint(len(record)) + record
    batch = struct.pack(">ibI", 0, 2, _crc32c(checked)) + checked
    batch = struct.pack(">qi", 0, len(batch)) + batch
    text = struct.pack(">h", len(topic)) + topic.encode()
    request = struct.pack(">hhih", 0, 3, 1, -1)  # Produce v3, correlation id 1, no client id
    request += struct.pack(">hhii", -1, -1, 10_000, 1) + text
    request += struct.pack(">iii", 1, 0, len(batch)) + batch
    host, _, port = servers.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=DEADLINE_S) as link:
        link.sendall(struct.pack(">i", len(request)) + request)
        with link.makefile("rb") as stream:
            reply = stream.read(struct.unpack(">i", stream.read(4))[0])
    (error,) = struct.unpack_from(">h", reply, 4 + 4 + len(text) + 4 + 4)
    assert error == 0, f"refused with error {error}"


def _varint(number: int) -> bytes:
    left = (number << 1) ^ (number >> 63)
    encoded = bytearray()
    while left > 127:
        encoded.append(left & 127 | 128)
        left >>= 7
    return bytes([*encoded, left])


def _crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF
