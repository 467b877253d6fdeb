"""The HTTP API while Redis does not answer, is full, or comes back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from delaybridge import AsyncClient, Message
from tests.rigs.api import api, ended_job
from tests.rigs.fault_proxy import FaultProxy
from tests.rigs.waiting import quiet_async, until_async
from tests.servers.process import free_port
from tests.servers.redis import redis_url_of

MESSAGE = {"destination": "kafka:orders", "body": "x", "delay": "1h"}


@pytest.fixture
async def proxy(redis_url: str) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(free_port(), urlsplit(redis_url).port or 6379) as proxy:
        yield proxy


def soon(redis_s: float) -> dict[str, Any]:
    """For how long a request waits for Redis."""
    return {"transport": {"redis_s": redis_s}}


async def answers(http: httpx.AsyncClient, path: str = "/v1/messages") -> None:
    """Wait until the page answers, and connections and scripts are there for the next request."""

    async def is_there() -> bool:
        return (await http.get(path)).status_code == 200

    await until_async(is_there, f"{path} answers")


@pytest.mark.parametrize("mode", ["refuse", "blackhole_down"])
async def test_h62_a_redis_that_is_away_is_503_soon(
    proxy: FaultProxy, namespace: str, mode: str
) -> None:
    async with api(redis_url_of(proxy.port), namespace, **soon(0.5)) as http:
        await answers(http)
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
        await answers(http)


async def test_a_page_waits_longer_for_redis_than_programs_do(
    proxy: FaultProxy, namespace: str
) -> None:
    async with api(redis_url_of(proxy.port), namespace, **soon(0.4)) as http:
        for path in ("/messages", "/v1/messages"):
            await answers(http, path)
        proxy.delay_s = 0.2  # an answer takes 0.4 s: programs wait 0.2 s for it, pages 2.5 s
        assert (await http.get("/v1/messages")).status_code == 503
        await answers(http, "/messages")
        assert (await http.get("/v1/messages")).status_code == 503


@pytest.mark.usefixtures("stall")  # the job waits 2.5 s for Redis, which pauses for a third of it
async def test_a_job_goes_on_through_a_pause_of_redis(
    proxy: FaultProxy, namespace: str, redis_url: str
) -> None:
    ids = [f"m{n}" for n in range(1000)]
    async with (
        AsyncClient(redis_url, namespace=namespace) as client,
        api(redis_url_of(proxy.port), namespace, **soon(1.0)) as http,
    ):
        await client.schedule_many([Message("kafka:o", b"x", delay="1h", id=id) for id in ids])
        await answers(http)
        proxy.delay_s = 0.1  # each of its batches takes at least 0.2 s

        async def begun() -> str:
            answer = await http.post("/v1/messages:cancel", json={"ids": ids})
            return answer.json()["id"] if answer.status_code == 202 else ""

        job = await until_async(begun, "it begins")
        proxy.mode = "hold_down"
        await quiet_async(0.8)  # a pause has a length, and requests wait 0.5 s
        proxy.mode, proxy.delay_s = "pass", 0.0
        found = await ended_job(http, job)
        assert found["state"] == "done" and found["answers"] == {"cancelled": 1000}, found


async def test_a_server_starts_while_redis_is_away(proxy: FaultProxy, namespace: str) -> None:
    proxy.mode = "refuse"
    async with api(redis_url_of(proxy.port), namespace, **soon(0.5)) as http:
        assert (await http.get("/health/ready")).status_code == 503
        assert (await http.post("/v1/messages", json=MESSAGE)).status_code == 503
        proxy.mode = "pass"
        await answers(http)
