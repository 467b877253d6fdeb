"""The HTTP API while Redis does not answer, is full, or comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pytest

from tests.rigs.api import api
from tests.rigs.fault_proxy import FaultProxy
from tests.rigs.waiting import until_async
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
            ("POST", "/v1/topics/t:receive"),
        ):
            body = MESSAGE if path == "/v1/messages" and method == "POST" else {}
            answer = await http.request(method, path, json=body)
            assert answer.status_code == 503, path
            assert answer.headers["retry-after"]
        assert (await http.get("/health/ready")).status_code == 503
        assert (await http.get("/health/live")).status_code == 200
        proxy.mode = "pass"

        async def is_back() -> bool:
            return (await http.post("/v1/messages", json=MESSAGE)).status_code == 201

        await until_async(is_back, "it answers again")


async def test_a_page_waits_longer_for_redis_than_programs_do(
    proxy: FaultProxy, namespace: str
) -> None:
    async with api(redis_url_of(proxy.port), namespace, transport={"redis_s": 1.0}) as http:
        for path in ("/messages", "/v1/messages"):  # connected, and the scripts are known
            assert (await http.get(path)).status_code == 200
        proxy.delay_s = 0.35
        assert (await http.get("/v1/messages")).status_code == 503
        assert (await http.get("/messages")).status_code == 200


async def test_a_job_goes_on_through_a_pause_of_redis(proxy: FaultProxy, namespace: str) -> None:
    async with api(redis_url_of(proxy.port), namespace, transport={"redis_s": 1.0}) as http:
        messages = [MESSAGE | {"id": f"m{n}"} for n in range(1000)]
        for first in range(0, len(messages), 500):
            some = {"messages": messages[first : first + 500]}
            assert (await http.post("/v1/messages:batch", json=some)).status_code == 207
        wanted = {"ids": [each["id"] for each in messages]}
        proxy.delay_s = 0.1  # each of its batches takes at least 0.2 s
        answer = await http.post("/v1/messages:cancel", json=wanted)
        assert answer.status_code == 202, answer.text
        job = answer.json()
        proxy.mode = "hold_down"
        await asyncio.sleep(0.8)  # a pause has a length, and requests wait 0.5 s
        proxy.mode, proxy.delay_s = "pass", 0.0

        async def ended() -> object:
            found = (await http.get(f"/v1/jobs/{job['id']}")).json()
            return None if found.get("state", "running") == "running" else found

        found = await until_async(ended, "the job ends")
        assert found["state"] == "done" and found["answers"] == {"cancelled": 1000}, found


async def test_a_server_starts_while_redis_is_away(proxy: FaultProxy, namespace: str) -> None:
    proxy.mode = "refuse"
    async with api(redis_url_of(proxy.port), namespace, transport={"redis_s": 1.8}) as http:
        assert (await http.get("/health/ready")).status_code == 503
        assert (await http.post("/v1/messages", json=MESSAGE)).status_code == 503
        proxy.mode = "pass"

        async def is_there() -> bool:
            return (await http.post("/v1/messages", json=MESSAGE)).status_code == 201

        await until_async(is_there, "it answers")


async def test_h62_a_full_redis_is_507(namespace: str) -> None:
    with RedisServer(["--maxmemory", "3mb", "--maxmemory-policy", "noeviction"]) as server:
        async with api(server.url, namespace) as http:
            large = MESSAGE | {"body": "x" * 200_000}
            statuses = [(await http.post("/v1/messages", json=large)).status_code]
            while statuses[-1] == 201 and len(statuses) < 50:
                statuses.append((await http.post("/v1/messages", json=large)).status_code)
            assert statuses[-1] == 507
