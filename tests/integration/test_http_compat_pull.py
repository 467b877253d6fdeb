"""`serve --compat mykit|youzan|delay-queue`: jobs from push to the end, without a broker."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx

from tests.rigs.api import api
from tests.rigs.crew import Crew
from tests.rigs.waiting import DEADLINE_S

OK = {"code": 0, "message": "ok", "data": None}


async def got(http: httpx.AsyncClient, path: str, sent: Any) -> Any:
    answer = await http.post(path, json=sent)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_delay_queue_from_push_to_finish(redis_url: str, namespace: str) -> None:
    job = {"topic": "b", "id": "7", "delay": 1, "ttr": 1, "body": "x"}
    pop = {"topic": "a, b"}
    async with (
        Crew(redis_url, namespace) as crew,
        api(redis_url, namespace, compat="delay-queue") as http,
    ):
        crew.start()
        await crew.shared("w")
        waiting = asyncio.create_task(got(http, "/pop", pop))
        pushed_s = time.time()
        assert await got(http, "/push", job) == OK
        first = await waiting
        assert first == {**OK, "data": {"id": "7", "body": "x"}}
        assert time.time() - pushed_s >= 1
        # Not finished within its time to run: it comes again.
        assert await got(http, "/pop", pop) == first
        for _ in range(2):
            assert await got(http, "/finish", {"id": "7"}) == OK
        assert await got(http, "/get", {"id": "7"}) == OK


async def test_youzan_from_add_to_finish(redis_url: str, namespace: str) -> None:
    add = {"command": "add", "topic": "b", "id": "7", "delay": 1, "TTR": 1, "body": "x"}
    pop = {"command": "pop", "topic": "b"}
    none = {"success": True, "error": "", "id": "", "value": ""}
    async with (
        Crew(redis_url, namespace) as crew,
        api(redis_url, namespace, compat="youzan") as http,
    ):
        crew.start()
        await crew.shared("w")
        assert await got(http, "/", pop) == none
        assert (await got(http, "/", add))["success"]
        for _ in range(2):
            async with asyncio.timeout(DEADLINE_S):
                while (found := await got(http, "/", pop)) == none:
                    pass  # this dialect polls
            assert found == {**none, "id": "7", "value": "x"}
        assert await got(http, "/", {"command": "finish", "id": "7"}) == {**none, "id": "7"}
        assert (await http.get("/v1/messages/7")).status_code == 404


async def test_mykit_from_push_to_delete(redis_url: str, namespace: str) -> None:
    job = {"topic": "b", "subtopic": "c", "id": "7", "bizKey": "k", "delay": 100, "ttl": 1000}
    fetched = {**job, "body": "x", "status": 2}
    del fetched["delay"]
    none = {"success": True, "data": None, "code": 200, "message": "success"}
    async with (
        Crew(redis_url, namespace) as crew,
        api(redis_url, namespace, compat="mykit", compat_destination="pull:{topic}.{subtopic}")
        as http,
    ):  # fmt: skip
        crew.start()
        await crew.shared("w")
        waiting = asyncio.create_task(http.get("/get/topic?topic=b&subtopic=c"))
        assert (await got(http, "/push", {**job, "body": "x"}))["data"] == "7"
        assert (await waiting).json() == {**none, "data": fetched}
        # Not deleted within its ttl: it comes again.
        assert (await http.get("/get/topic?topic=b&subtopic=c")).json()["data"] == fetched
        assert (await http.get("/delete?jobId=7")).json() == none
        assert (await http.get("/v1/messages/7")).status_code == 404
        # A time to run that is no number of this world holds up nobody.
        await got(http, "/push", {**job, "delay": 0, "ttl": 10**400, "body": "huge"})
        huge = (await http.get("/get/topic?topic=b&subtopic=c")).json()["data"]
        assert (huge["body"], huge["ttl"]) == ("huge", 10**15)
