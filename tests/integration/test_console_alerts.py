"""Alerts at the top of every page of the console, over HTTP: their language, and some of them."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import httpx
import redis

from delaybridge.serve.access import sessions
from delaybridge.store.namespace import history_alarm
from delaybridge.store.namespace.history_alarm import Setback
from delaybridge.store.redis.store import Store
from tests.rigs.api import api
from tests.rigs.golden import DURATION
from tests.rigs.waiting import DEADLINE_S, until_async
from tests.servers.process import LOOPBACK
from tests.servers.redis import RedisServer


async def tick(client: httpx.AsyncClient, path: str = "/live", **headers: str) -> dict[str, Any]:
    async with asyncio.timeout(DEADLINE_S), client.stream("GET", path, headers=headers) as answer:
        lines = answer.aiter_lines()
        assert await anext(lines) == "event: tick"
        found: dict[str, Any] = json.loads((await anext(lines)).removeprefix("data: "))
        return found


async def alerts_of(client: httpx.AsyncClient, *, renewed: bool = False, **headers: str) -> str:
    """The alerts on a page. renewed: not those that were seen within the last second."""
    if renewed:
        done = await client.post("/v1/destinations/pull:x:resume", headers={sessions.GUARD: "1"})
        assert done.status_code in (200, 507), done.text  # it may be full
    answer = await client.get("/", headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.text.partition('id="alerts"')[2].partition("</div>")[0]


async def test_alerts_speak_the_language_of_their_page(redis_url: str, namespace: str) -> None:
    english, chinese = "4 of 4 buckets have no worker", "4 个桶中有 4 个没有 worker"
    async with api(redis_url, namespace, top={"buckets": 4}) as client:
        for asked, text in (("zh-CN", chinese), ("de,en;q=0.5", english)):
            headers = {"accept-language": asked}
            page = (await client.get("/", headers=headers)).text
            said = (
                f'<p class="severe"><a href="/buckets">{text}</a> <code>delaybridge scan</code></p>'
            )
            assert said in page
            alert = {"level": "severe", "text": text, "path": "/buckets"}
            alert |= {"code": "bucket_without_worker", "command": "delaybridge scan"}
            assert (await tick(client, **headers))["alerts"] == [alert]
        chosen = {"cookie": "delaybridge-language=zh", "accept-language": "en"}
        assert (await tick(client, **chosen))["alerts"][0]["text"] == chinese
        told = await tick(client, "/live?language=en", **chosen)  # a page from before the choice
        assert told["alerts"][0]["text"] == english


async def test_what_an_alert_quotes_is_escaped(
    http: httpx.AsyncClient, store: Store, namespace: str
) -> None:
    store.run([history_alarm.note(namespace, Setback(1_800_000_000_000, "<b>{time}\u202e"))])
    for asked, said in (("en", "seen by {} at 2027"), ("zh", "由 {} 于 2027")):
        page = await alerts_of(http, **{"accept-language": asked})
        assert said.format("&lt;b&gt;{time}\\u202e") in page
        told = (await tick(http, **{"accept-language": asked}))["alerts"][0]
        assert said.format("<b>{time}\\u202e") in told["text"]


async def test_a_paused_place_is_an_alert(http: httpx.AsyncClient) -> None:
    path = "/v1/destinations/kafka:orders:pause"
    assert (await http.post(path, headers={sessions.GUARD: "1"})).status_code == 200
    link = '<p class="warning"><a href="/destinations/kafka%3Aorders">'
    said = rf"{link}kafka:orders is paused for {DURATION}, 0 messages wait</a>"
    assert re.search(said, await alerts_of(http))
    told = (await tick(http))["alerts"][-1]
    assert told["level"] == "warning" and told["text"].startswith("kafka:orders is paused for ")


async def test_a_look_does_without_the_right_to_ask_for_memory(namespace: str) -> None:
    with RedisServer() as server, redis.Redis.from_url(server.url) as connection:
        right = "ACL SETUSER viewer on >x ~* &* +@all"
        connection.execute_command(right)
        async with api(server.url.replace("//", "//viewer:x@"), namespace) as client:
            await client.get("/")  # what is checked at the start takes INFO
            connection.config_set("maxmemory", connection.info("memory")["used_memory"] + 100_000)

            async def is_said() -> bool:
                return "of maxmemory" in await alerts_of(client, renewed=True)

            await until_async(is_said, "the limit is seen")
            command = f"redis-cli -h {LOOPBACK} -p {server.port} --user viewer CONFIG SET maxmemory"
            assert command in await alerts_of(client)
            connection.execute_command(f"{right} -info")

            async def is_left_out() -> bool:
                page = await alerts_of(client, renewed=True)
                assert "buckets have no worker" in page
                return "maxmemory" not in page

            await until_async(is_left_out, "the rest is seen without it")
