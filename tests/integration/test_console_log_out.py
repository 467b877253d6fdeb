"""Logging out of the console: the session ends, at every server of the namespace."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from delaybridge.serve.access import sessions
from delaybridge.serve.shared import event_fanout
from delaybridge.store.protocol import keys
from tests.rigs.api import api
from tests.rigs.sessions import TOKENS, log_in, token_file_in
from tests.rigs.waiting import DEADLINE_S, until_async
from tests.servers.redis import RedisServer

SHOWN = "/v1/settings"  # needs a token, but no Redis


@pytest.fixture
def serve(tmp_path: Path) -> dict[str, Any]:
    return {"token_file": str(token_file_in(tmp_path))}


@pytest.fixture
async def both(
    redis_url: str, namespace: str, serve: dict[str, Any]
) -> AsyncIterator[tuple[httpx.AsyncClient, httpx.AsyncClient]]:
    async with api(redis_url, namespace, **serve) as one, api(redis_url, namespace, **serve) as two:
        yield one, two


async def status(http: httpx.AsyncClient, session: dict[str, str]) -> int:
    return (await http.get(SHOWN, headers=session)).status_code


async def test_a_log_out_ends_this_session_at_every_server_and_no_other(both: Any) -> None:
    one, two = both
    ended, other = [await log_in(one, "admin") for _ in range(2)]
    assert [await status(http, each) for http in both for each in (ended, other)] == [200] * 4
    assert (await one.post("/logout", headers=ended)).status_code == 303
    for http in (two, one):
        assert (await status(http, ended), await status(http, other)) == (401, 200)
        page = await http.get("/jobs", headers=ended)
        assert page.headers["location"].startswith("/login?")


async def test_only_a_session_is_ended(both: Any, redis_url: str, namespace: str) -> None:
    """Without a token nobody fills Redis."""
    one, _ = both
    session = await log_in(one, "admin")
    label, _, value = session["cookie"].partition("=")
    for made in (f"{label}={value[:-64]}{'0' * 64}", f"{label}=x", "a=b", ""):
        assert (await one.post("/logout", headers={"cookie": made})).status_code == 303
    assert await status(one, session) == 200
    with redis.Redis.from_url(redis_url) as raw:
        assert not raw.exists(keys.sessions_ended(namespace))


@pytest.mark.parametrize("path", ["/live", "/v1/events"])
async def test_a_log_out_elsewhere_ends_streams(
    both: Any, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_fanout, "ALIVE_S", 0.05)
    one, two = both
    session = await log_in(one, "admin")
    async with two.stream("GET", path, headers=session) as stream:
        lines = stream.aiter_lines()
        await anext(lines)
        await one.post("/logout", headers=session)
        async with asyncio.timeout(DEADLINE_S):
            async for _ in lines:
                pass  # it ends


async def test_one_token_begins_a_few_sessions_a_second(both: Any) -> None:
    """The end of each is kept in Redis for half a day."""
    one, _ = both
    form = f"token={TOKENS['read']}"
    ask = [one.post("/login", content=form) for _ in range(20)]
    answers = [each.status_code for each in await asyncio.gather(*ask)]
    assert answers.count(303) < 20 and {303, 429} == {*answers}
    await log_in(one, "write")


async def test_while_redis_is_silent_only_sessions_that_it_confirmed_go_on(
    namespace: str, serve: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "READ_AGAIN_S", 0.0)
    with RedisServer() as server:
        given = {**serve, "transport": {"redis_s": 0.3}}
        async with (
            api(server.url, namespace, **given) as one,
            api(server.url, namespace, **given) as two,
        ):
            known, ended, new = [await log_in(one, "admin") for _ in range(3)]
            for each in (known, ended):
                for http in (one, two):
                    assert await status(http, each) == 200
            server.pause()
            try:
                page = await one.post("/logout", headers=ended)
                assert page.status_code == 503 and "others learn of it" in page.text
                assert "Max-Age=0" in page.headers["set-cookie"]
                shown = [await status(one, each) for each in (known, ended, new)]
                assert shown == [200, 401, 503]
            finally:
                server.resume()
            assert await status(one, known) == 200  # and tells what it knows

            async def is_ended() -> bool:
                return await status(two, ended) == 401

            await until_async(is_ended, "the other server knows")
            assert await status(two, known) == 200


async def test_what_has_ended_stays_so_when_redis_comes_back_empty(
    namespace: str, serve: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "READ_AGAIN_S", 0.0)
    with RedisServer() as server:
        async with api(server.url, namespace, **serve) as one:
            ended, other = [await log_in(one, "admin") for _ in range(2)]
            await one.post("/logout", headers=ended)
            server.restart()

            async def is_there() -> bool:
                return await status(one, other) == 200

            await until_async(is_there, "the other session goes on")
            async with api(server.url, namespace, **serve) as two:
                assert (await status(two, other), await status(two, ended)) == (200, 401)
