"""A Kafka with a worker beside it, and a consumer that sees the bytes: for the drop-ins."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from delaybridge import Client
from tests.rigs.bridge import ROOT, Bridge

DEADLINE_S = 20.0
GUIDE = ROOT / "docs" / "intercept.md"
PARTITIONS = 3


class Record(NamedTuple):
    """A record as a plain consumer got it. stamp_ms: when the broker was handed it."""

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
        """What a producer gives, without what delaybridge adds."""
        ours = [(n, v) for n, v in self.headers if n.startswith("delaybridge-")]
        assert self.headers[len(self.headers) - len(ours) :] == ours
        return self.key, self.value, self.headers[: len(self.headers) - len(ours)]


class KafkaSite:
    """One worker, one Kafka, topics of this test's own."""

    def __init__(self, folder: Path, redis_url: str, kafka_url: str) -> None:
        self.redis_url, self.kafka_url = redis_url, kafka_url
        self.servers = kafka_url.removeprefix("kafka://")
        self.config: dict[str, Any] = {
            "bootstrap.servers": self.servers,
            "log_level": 3,
            "message.timeout.ms": 15_000,  # a test that failed ends nevertheless
        }
        self.namespace = f"t-{uuid.uuid4().hex[:16]}"
        # Its worker tries again: Kafka loses first records of topics just made, and says so.
        self._bridge = Bridge(folder, redis_url, self.namespace, {"kafka": kafka_url})
        self.client: Client = self._bridge.client
        self.environment = {
            "DELAYBRIDGE_REDIS_URL": redis_url,
            "DELAYBRIDGE_NAMESPACE": self.namespace,
            "DELAYBRIDGE_BROKERS__KAFKA": kafka_url,
        }

    def __enter__(self) -> Self:
        self._bridge.start_worker()
        return self

    def __exit__(self, *exc: object) -> None:
        self._bridge.close()

    def topic(self) -> str:
        """A new topic; its name."""
        name = f"t-{uuid.uuid4().hex}"
        admin = AdminClient(self.config)
        admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(DEADLINE_S)
        return name

    def take(self, topic: str, count: int) -> list[Record]:
        """What the topic holds, oldest first in each partition, once it is so many and the end."""
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
        """What is stored for the topic and not in flight yet."""
        return self.client.pending(destination=f"kafka:{topic}", limit=1000).items

    def check_nothing_left(self, topic: str) -> None:
        """Nothing was published to the topic and nothing waits for it."""
        assert self.take(topic, 0) == []
        assert self.pending(topic) == []

    @contextlib.contextmanager
    def settings(self) -> Iterator[None]:
        """The settings of this process name this site."""
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.environment.items():
                patch.setenv(name, value)
            yield

    def run_recipe(self, title: str) -> str:
        """What the code of a section of the guide prints."""
        section = GUIDE.read_text().split(f"\n## {title}\n")[1].split("\n## ")[0]
        code = "\n".join(re.findall(r"```python\n(.*?)```", section, re.DOTALL))
        return self.run(code).stdout

    def run(self, code: str) -> subprocess.CompletedProcess[str]:
        """A process of its own, with this site's settings, that has to end well."""
        return subprocess.run(
            [sys.executable, "-W", "error", "-c", code],
            env=self.environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=True,
        )
