"""Bridges, and servers of a test's own, which it may stop and damage."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.rigs.bridge import Bridge, MakeBridge
from tests.servers.kafka import KafkaNode
from tests.servers.rabbitmq import RabbitMQNode
from tests.servers.redis import RedisServer


@pytest.fixture
def make_bridge(tmp_path: Path, redis_url: str, namespace: str) -> Iterator[MakeBridge]:
    """Makes bridges on the shared Redis, or on the one given as `redis_url`; closes them."""
    with ExitStack() as stack:

        def make(brokers: dict[str, str], **options: object) -> Bridge:
            url = options.pop("redis_url", redis_url)
            bridge = Bridge(tmp_path, url, namespace, brokers, **options)  # type: ignore[arg-type]
            stack.callback(bridge.close)
            return bridge

        yield make


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    """A Redis of this test's own, with AOF every second."""
    with RedisServer(["--appendonly", "yes", "--appendfsync", "everysec"]) as server:
        yield server


@pytest.fixture
def own_rabbitmq(rabbitmq_url: str) -> Iterator[RabbitMQNode]:
    """A RabbitMQ of this test's own. `rabbitmq_url` skips the test where there is none."""
    with RabbitMQNode() as node:
        yield node


@pytest.fixture
def own_kafka(kafka_url: str) -> Iterator[KafkaNode]:
    """A Kafka of this test's own."""
    with KafkaNode() as node:
        yield node
