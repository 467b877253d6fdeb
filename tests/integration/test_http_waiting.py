"""Streams, polls that wait and downloads have their share of the connections, and no more."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.rigs.api import api
from tests.rigs.sessions import TOKENS, token_file_in
from tests.rigs.waiting import DEADLINE_S, until_async

OF_TENANT = [f"{name}-Zr7qK2mVx9TbWc4P" for name in ("one", "two")]
READ, WRITE = ({"authorization": f"Bearer {TOKENS[scope]}"} for scope in ("read", "write"))
ONE, TWO = ({"authorization": f"Bearer {text}"} for text in OF_TENANT)
MOST, OF_ONE = 4, 2
WAITS = {
    "/v1/events": ("GET", None),
    "/live": ("GET", None),
    "/v1/topics/t:receive": ("POST", {"wait": "60s"}),
    "/pop": ("POST", {"topic": "t"}),
}


@pytest.fixture
async def http(redis_url: str, namespace: str, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    file = token_file_in(tmp_path)
    with file.open("a") as lines:
        lines.writelines(f"{text} write {text[:3]} acme\n" for text in OF_TENANT)
    given = {"token_file": str(file), "compat": "delay-queue", "top": {"tenants": ["acme"]}}
    async with api(redis_url, namespace, connections=2 * MOST, **given) as client:
        yield client


@contextlib.asynccontextmanager
async def asked(http: httpx.AsyncClient, path: str, *tokens: Any) -> AsyncIterator[httpx.Response]:
    """A request for each of these at once. The first answer that ends, while the others wait."""
    method, wanted = WAITS[path]

    async def ask(own: Any) -> httpx.Response:
        async with http.stream(method, path, json=wanted, headers=own) as answer:
            if answer.headers["content-type"] == "text/event-stream":
                await asyncio.Event().wait()
            await answer.aread()
            return answer

    asking = [asyncio.create_task(ask(own)) for own in tokens]
    try:
        ended, others = await asyncio.wait(
            asking, timeout=DEADLINE_S, return_when=asyncio.FIRST_COMPLETED
        )
        (first,) = ended
        yield await first
        assert not any(each.done() for each in others)
    finally:
        for each in asking:
            each.cancel()
        await asyncio.wait(asking)


@pytest.mark.parametrize("path", WAITS)
async def test_one_token_has_half_of_what_all_have(http: httpx.AsyncClient, path: str) -> None:
    async with asked(http, path, *[WRITE] * (OF_ONE + 1)) as answer:
        assert "too_many_clients: " in answer.text or answer.status_code == 429
        assert f"{OF_ONE} streams, polls and downloads of this token are open" in answer.text
        export = await http.get("/v1/messages:export", headers=WRITE)
        assert export.status_code == 429 and export.headers["retry-after"] == "3"
        assert (await http.get("/v1/messages:export", headers=READ)).status_code == 200
        # What waits for nothing needs no place.
        at_once = await http.post("/v1/topics/t:receive", json={}, headers=WRITE)
        assert at_once.json() == {"items": []}

    async def is_free() -> bool:
        return (await http.get("/v1/messages:export", headers=WRITE)).status_code == 200

    await until_async(is_free, "those that left have given their places back")


async def test_the_tokens_of_a_tenant_count_as_one(http: httpx.AsyncClient) -> None:
    async with asked(http, "/v1/events", ONE, TWO, ONE) as answer:
        assert answer.status_code == 429 and "of tenant acme" in answer.json()["detail"]


async def test_all_together_leave_half_of_the_connections(http: httpx.AsyncClient) -> None:
    async with asked(http, "/v1/events", READ, READ, WRITE, WRITE, ONE) as answer:
        assert answer.status_code == 503 and answer.json()["code"] == "too_many_clients"
        for _ in range(3 * MOST):
            async with httpx.AsyncClient(base_url=http.base_url) as other:
                assert (await other.get("/health/live")).status_code == 200
