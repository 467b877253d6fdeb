"""Fixtures: bridges, and private servers that a test may stop and damage."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page

from tests.rigs.api import api
from tests.rigs.bridge import Bridge, MakeBridge
from tests.rigs.browser import browser, launched
from tests.servers.cluster import ClusterSite
from tests.servers.kafka import KafkaNode
from tests.servers.rabbitmq import RabbitMQNode
from tests.servers.redis import RedisServer
from tests.servers.sentinel import SentinelSite


@pytest.fixture
def make_bridge(tmp_path: Path, redis_url: str, namespace: str) -> Iterator[MakeBridge]:
    """Make bridges on the shared Redis, or on the one at `redis_url`; closed at the end."""
    with ExitStack() as stack:

        def make(brokers: dict[str, str], **options: object) -> Bridge:
            url = options.pop("redis_url", redis_url)
            bridge = Bridge(tmp_path, url, namespace, brokers, **options)  # type: ignore[arg-type]
            stack.callback(bridge.close)
            return bridge

        yield make


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    """A private Redis that writes its AOF to disk every second."""
    with RedisServer(["--appendonly", "yes", "--appendfsync", "everysec"]) as server:
        yield server


@pytest.fixture(params=[SentinelSite, ClusterSite], ids=["sentinel", "cluster"])
def own_site(request: pytest.FixtureRequest) -> Iterator[SentinelSite | ClusterSite]:
    """Redis behind Sentinels, or a Cluster, with AOF, whose master a test may kill."""
    with request.param(["appendonly yes"]) as site:
        yield site


@pytest.fixture
def own_rabbitmq(rabbitmq_url: str) -> Iterator[RabbitMQNode]:
    """A private RabbitMQ. `rabbitmq_url` skips the test if no RabbitMQ is available."""
    with RabbitMQNode() as node:
        yield node


@pytest.fixture
def own_kafka(kafka_url: str) -> Iterator[KafkaNode]:
    """A private Kafka. `kafka_url` skips the test if no Kafka is available."""
    with KafkaNode() as node:
        yield node


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def program(chromium: str) -> AsyncIterator[Browser]:
    """The one browser of this process: tests that use it run on the loop of the session."""
    async with launched(chromium) as program:
        yield program


@pytest_asyncio.fixture(loop_scope="session")
async def http(
    request: pytest.FixtureRequest, redis_url: str, namespace: str
) -> AsyncIterator[httpx.AsyncClient]:
    """A server, whose brokers are the BROKERS of the test's file."""
    async with api(redis_url, namespace, brokers=request.module.BROKERS) as client:
        yield client


@pytest_asyncio.fixture(loop_scope="session")
async def page(http: httpx.AsyncClient, program: Browser) -> AsyncIterator[Page]:
    """A page of that server."""
    async with browser(program, str(http.base_url)) as page:
        yield page
