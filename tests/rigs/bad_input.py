"""Requests of the HTTP API as text, and that nothing comes of a bad one."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator

import httpx

from tests.rigs.api import api

BROKERS = {"rabbitmq": "amqp://127.0.0.1:1", "kafka": "kafka://127.0.0.1:1", "memory": "memory://"}
BODY_BYTES = 1000  # limits.body_bytes
CREATED = 201
JSON = {"Content-Type": "application/json"}
MESSAGE = '{"destination": "kafka:orders", "body": "x", "delay": "15m"}'


@contextlib.asynccontextmanager
async def strict_api(redis_url: str) -> AsyncIterator[httpx.AsyncClient]:
    """An API of its own namespace that takes only small bodies."""
    limits = {"body_bytes": BODY_BYTES}
    async with api(redis_url, f"bad-{time.time_ns()}", brokers=BROKERS, limits=limits) as client:
        yield client


async def post(http: httpx.AsyncClient, body: str | bytes, path: str = "") -> httpx.Response:
    return await http.post(f"/v1/messages{path}", content=body, headers=JSON)


async def nothing_is_stored(http: httpx.AsyncClient) -> None:
    assert (await http.get("/v1/messages")).json()["items"] == []
