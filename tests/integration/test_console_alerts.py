"""Alerts at the top of every page of the console, over HTTP: their language."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx

from delaybridge.store import setbacks
from delaybridge.store.setbacks import Setback
from delaybridge.store.store import AsyncStore
from tests.rigs.api import api


async def tick(client: httpx.AsyncClient, path: str = "/live", **headers: str) -> dict[str, Any]:
    """The first tick of a stream."""
    async with asyncio.timeout(15), client.stream("GET", path, headers=headers) as answer:
        lines = answer.aiter_lines()
        assert await anext(lines) == "event: tick"
        found: dict[str, Any] = json.loads((await anext(lines)).removeprefix("data: "))
        return found


async def alerts_of(client: httpx.AsyncClient, **headers: str) -> str:
    """The alerts on a page."""
    answer = await client.get("/", headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.text.partition('id="alerts"')[2].partition("</div>")[0]


async def test_alerts_speak_the_language_of_their_page(redis_url: str, namespace: str) -> None:
    english, chinese = "4 of 4 buckets have no worker", "4 个桶中有 4 个没有 worker"
    async with api(redis_url, namespace, top={"buckets": 4}) as client:
        for asked, text in (("zh-CN", chinese), ("de,en;q=0.5", english)):
            headers = {"accept-language": asked}
            page = (await client.get("/", headers=headers)).text
            assert f'<p class="severe">{text}</p>' in page
            assert (await tick(client, **headers))["alerts"] == [{"level": "severe", "text": text}]
        chosen = {"cookie": "delaybridge-language=zh", "accept-language": "en"}
        assert (await tick(client, **chosen))["alerts"][0]["text"] == chinese
        told = await tick(client, "/live?language=en", **chosen)  # a page from before the choice
        assert told["alerts"][0]["text"] == english


async def test_what_an_alert_quotes_is_escaped(redis_url: str, namespace: str) -> None:
    store = AsyncStore(redis_url)
    await store.run_one(setbacks.note(namespace, Setback(1_800_000_000_000, "<b>{time}\u202e")))
    await store.close()
    async with api(redis_url, namespace) as client:
        for asked, said in (("en", "seen by {} at 2027"), ("zh", "由 {} 于 2027")):
            page = await alerts_of(client, **{"accept-language": asked})
            assert said.format("&lt;b&gt;{time}\\u202e") in page
            told = (await tick(client, **{"accept-language": asked}))["alerts"][0]
            assert said.format("<b>{time}\\u202e") in told["text"]
