"""The HTTP API while Redis does not answer, is full, or comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pytest

from tests.rigs.api import api
from tests.rigs.fault_proxy import FaultProxy
from tests.rigs.waiting import wait_until_async
from tests.servers.process import free_port
from tests.servers.redis import RedisServer, redis_url_of

MESSAGE = {"destination": "kafka:orders", "body": "x", "delay": "1h"}


@pytest.fixture
async def proxy(redis_url: str) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(free_port(), urlsplit(redis_url).port or 6379) as proxy:
        yield proxy


@pytest.mark.parametrize("mode", ["refuse", "blackhole_down"])
async def test_h62_a_redis_that_is_away_is_503_soon(
    proxy: FaultProxy, namespace: str, mode: str
) -> None:
    async with api(redis_url_of(proxy.port), namespace, transport={"redis_s": 1.8}) as http:
        assert (await http.post("/v1/messages", json=MESSAGE)).status_code == 201
        proxy.mode = mode
        if mode == "refuse":
            proxy.reset()
        for method, path in (
            ("POST", "/v1/messages"),
            ("GET", "/v1/messages"),
            ("GET", "/v1/stats"),
            ("GET", "/v1/scaling"),
            ("DELETE", "/v1/messages/x"),
        ):
            body = MESSAGE if method == "POST" else None
            async with asyncio.timeout(5):  # 2, if the machine has nothing else to do
                answer = await http.request(method, path, json=body)
            assert answer.status_code == 503
            assert answer.headers["retry-after"]
        assert (await http.get("/health/ready")).status_code == 503
        assert (await http.get("/health/live")).status_code == 200
        proxy.mode = "pass"

        async def is_back() -> bool:
            return (await http.post("/v1/messages", json=MESSAGE)).status_code == 201

        await wait_until_async(is_back, 10.0, "it answers again")


async def test_a_server_starts_while_redis_is_away(proxy: FaultProxy, namespace: str) -> None:
    proxy.mode = "refuse"
    async with api(redis_url_of(proxy.port), namespace, transport={"redis_s": 1.8}) as http:
        assert (await http.get("/health/ready")).status_code == 503
        assert (await http.post("/v1/messages", json=MESSAGE)).status_code == 503
        proxy.mode = "pass"

        async def is_there() -> bool:
            return (await http.post("/v1/messages", json=MESSAGE)).status_code == 201

        await wait_until_async(is_there, 10.0, "it answers")


async def test_h62_a_full_redis_is_507(namespace: str) -> None:
    with RedisServer(["--maxmemory", "3mb", "--maxmemory-policy", "noeviction"]) as server:
        async with api(server.url, namespace) as http:
            large = MESSAGE | {"body": "x" * 200_000}
            statuses = [(await http.post("/v1/messages", json=large)).status_code]
            while statuses[-1] == 201 and len(statuses) < 50:
                statuses.append((await http.post("/v1/messages", json=large)).status_code)
            assert statuses[-1] == 507
