"""`serve --compat`: requests as the clients of other delay queues send them, and their replies."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from delaybridge.errors import ConfigError
from delaybridge.settings.settings import Settings
from delaybridge.store.protocol.keys import bucket_key
from delaybridge.store.protocol.verbs import bucket_of
from tests.rigs.api import api, ended_job
from tests.rigs.crew import BUCKETS, CALM, Arrived, Crew
from tests.rigs.sessions import TOKENS
from tests.rigs.waiting import DEADLINE_S, until_async

PLACE = "memory:{topic}"
BROKERS = {"memory": "memory://"}
JOB = {"topic": "order", "id": "15702398321", "delay": 3600, "ttr": 120, "body": '{"uid": 1}'}
OK = {"code": 0, "message": "ok", "data": None}


def server(redis_url: str, namespace: str, dialect: str, **serve: Any) -> Any:
    serve = {"compat": dialect, "compat_destination": PLACE, **serve}
    return api(redis_url, namespace, brokers=BROKERS, **serve)


async def got(http: httpx.AsyncClient, method: str, path: str, **more: Any) -> Any:
    answer = await http.request(method, path, **more)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_delay_queue(redis_url: str, namespace: str) -> None:
    async with server(redis_url, namespace, "delay-queue") as http:
        assert await got(http, "POST", "/push", json=JOB) == OK
        shown = await got(http, "POST", "/get", json={"id": JOB["id"]})
        stored = (await http.get(f"/v1/messages/{JOB['id']}")).json()
        assert shown == {**OK, "data": {**JOB, "delay": -(-stored["due_ms"] // 1000)}}
        assert stored["destination"] == "memory:order"
        # The same id once more replaces it.
        assert await got(http, "POST", "/push", json={**JOB, "body": "two"}) == OK
        assert (await got(http, "POST", "/get", json={"id": JOB["id"]}))["data"]["body"] == "two"
        # Whoever else schedules it may say anything.
        other = {"destination": "memory:order", "body": "", "delay": "1h"}
        for id, ttr, shown_ttr in (("a", "9" * 5000, 10**15), ("b", "soon", 0)):
            made = {**other, "id": id, "headers": {"ttr": ttr}}
            assert (await http.post("/v1/messages", json=made)).status_code == 201
            shown = await got(http, "POST", "/get", json={"id": id})
            assert shown["data"]["ttr"] == shown_ttr
        for _ in range(2):  # also if nobody knows it
            assert await got(http, "POST", "/delete", json={"id": JOB["id"]}) == OK
        assert await got(http, "POST", "/get", json={"id": JOB["id"]}) == OK


@pytest.mark.parametrize(
    ("path", "sent", "code"),
    [
        ("/push", {**JOB, "id": " "}, "bad_id"),
        ("/push", {**JOB, "topic": ""}, "bad_destination"),
        ("/push", {**JOB, "topic": "a/b"}, "bad_destination"),
        ("/push", {**JOB, "delay": 0}, "bad_time"),
        ("/push", {**JOB, "delay": 2**31 + 1}, "bad_time"),
        ("/push", {**JOB, "delay": "5"}, "bad_time"),
        ("/push", {**JOB, "ttr": 0}, "bad_time"),
        ("/push", {**JOB, "ttr": 86401}, "bad_time"),
        ("/push", [], "bad_value"),
        ("/pop", {"topic": "order"}, "no_pull"),
        ("/pop", {"topic": ",".join(map(str, range(101)))}, "bad_value"),
        ("/delete", {"id": ""}, "bad_id"),
    ],
)
async def test_delay_queue_refuses(
    redis_url: str, namespace: str, path: str, sent: Any, code: str
) -> None:
    async with server(redis_url, namespace, "delay-queue") as http:
        refused = await got(http, "POST", path, json=sent)
        assert (refused["code"], refused["data"]) == (1, None)
        assert refused["message"].startswith(f"{code}: ")
        assert (await http.get("/v1/messages")).json()["items"] == []


ADD = {"command": "add", "topic": "order", "id": "7", "delay": 30, "TTR": 60, "body": {"a": 1}}


@pytest.mark.parametrize(
    ("sent", "reply"),
    [
        (ADD, {"success": True, "error": "", "id": "7", "value": ""}),
        ({"command": "delete", "id": "8"}, {"success": True, "error": "", "id": "8", "value": ""}),
        ({**ADD, "id": ""}, "bad_id"),
        ({**ADD, "delay": -1}, "bad_time"),
        ({**ADD, "topic": None}, "bad_value"),
        ({"command": "pop", "topic": "order"}, "no_pull"),
        ({"command": "drop"}, "bad_command"),
        ({}, "bad_value"),
    ],
)
async def test_youzan(redis_url: str, namespace: str, sent: Any, reply: Any) -> None:
    async with server(redis_url, namespace, "youzan") as http:
        answer = await got(http, "POST", "/", json=sent)
        if isinstance(reply, dict):
            assert answer == reply
        else:
            assert answer["success"] is False
            assert answer["error"].startswith(f"{reply}: ")
        stored = (await http.get("/v1/messages/7")).json()
        if sent == ADD:
            assert (stored["body"], stored["headers"]) == (
                '{"a":1}', [["topic", "order"], ["ttr", "60"]],
            )  # fmt: skip


TASK = {"topic": "order", "delay": 3_600_000, "body": "x", "subtopic": "paid", "bizKey": "b7"}
DONE = {"success": True, "data": None, "code": 200, "message": "success"}


async def test_mykit(redis_url: str, namespace: str) -> None:
    place = {"compat_destination": "memory:{topic}.{subtopic}"}
    async with server(redis_url, namespace, "mykit", **place) as http:
        first, second = [await got(http, "POST", "/push", json=TASK) for _ in range(2)]
        assert {**first, "data": None} == DONE
        assert re.fullmatch(r"order:b7:\d+\.\d+\.\d+\.\d+:\d{15,19}", first["data"])
        assert first["data"] != second["data"]
        stored = (await http.get(f"/v1/messages/{first['data']}")).json()
        assert stored["destination"] == "memory:order.paid"
        assert [*map(tuple, stored["headers"])] == [
            ("topic", "order"), ("subtopic", "paid"), ("bizKey", "b7"),
        ]  # fmt: skip
        # The delay counts from createTime.
        at_ms = stored["due_ms"]
        timed = {**TASK, "id": "t", "createTime": at_ms, "delay": 5000, "priority": 3}
        assert (await got(http, "POST", "/push", json=timed))["data"] == "t"
        shown = (await http.get("/v1/messages/t")).json()
        assert (shown["due_ms"], shown["priority"]) == (at_ms + 5000, 3)
        for spelling in (f"jobId={first['data']}", f"id={second['data']}", "id=t", "id=t"):
            assert await got(http, "GET", f"/delete?{spelling}") == DONE
        assert (await http.get("/v1/messages")).json()["items"] == []


@pytest.mark.parametrize(
    ("method", "path", "sent", "code"),
    [
        ("POST", "/push", {**TASK, "topic": ""}, "bad_destination"),
        ("POST", "/push", {**TASK, "subtopic": "a b"}, "bad_destination"),
        ("POST", "/push", {**TASK, "delay": -1}, "bad_time"),
        ("POST", "/push", {**TASK, "delay": 2**62}, "too_far"),
        ("POST", "/push", {**TASK, "status": 3}, "bad_value"),
        ("POST", "/push", {"delay": 1}, "bad_value"),
        ("GET", "/delete", None, "bad_id"),
        ("GET", "/reStoreJob?JobId=nobody", None, "unknown"),
        ("GET", "/reStore/nobody", None, "unknown"),
        ("GET", "/clearAll", None, "unconfirmed"),
        ("GET", "/clearAll?confirm=delaybridge", None, "unconfirmed"),
        ("GET", "/finish?jobId=x", None, "not_supported"),
        ("GET", "/get/topic?topic=a", None, "no_pull"),
    ],
)
async def test_mykit_refuses(
    redis_url: str, namespace: str, method: str, path: str, sent: Any, code: str
) -> None:
    async with server(redis_url, namespace, "mykit") as http:
        refused = await got(http, method, path, json=sent)
        assert {**refused, "message": ""} == {
            "success": False, "data": None, "code": 500, "message": "",
        }  # fmt: skip
        assert refused["message"].startswith(f"{code}: ")


async def finished(http: httpx.AsyncClient, id: str) -> dict[str, Any]:
    job = await ended_job(http, id)
    assert job["state"] == "done", job
    return dict(job.get("answers", {}))


async def test_mykit_clears_and_restores(redis_url: str, namespace: str) -> None:
    async with server(redis_url, namespace, "mykit") as http:
        await got(http, "POST", "/push", json={**TASK, "id": "a"})
        assert (await got(http, "GET", "/reStoreJob?jobId=a"))["message"] == "it waits already"
        assert (await got(http, "GET", "/reStore?expire=false"))["data"] is None
        restored = await got(http, "GET", "/reStore")
        assert await finished(http, restored["data"]) == {}
        cleared = await got(http, "GET", f"/clearAll?confirm={namespace}")
        assert await finished(http, cleared["data"]) == {"cancelled": 1}


async def test_a_dead_job_comes_back(redis_url: str, namespace: str, crew: Crew) -> None:
    crew.start(lease=CALM)
    await crew.client.destinations.pause("memory:order")
    await crew.shared("w")
    async with server(redis_url, namespace, "mykit") as http:
        for id in "ab":
            late = {"destination": "memory:order", "body": "x", "due": "2024-01-01T00:00:00Z"}
            # The one that is kicked is not to expire once more.
            made = await http.post("/v1/messages", json={**late, "ttl": "1h", "id": id})
            assert made.status_code == 201

        async def both_are_dead() -> bool:
            return len((await http.get("/v1/dead")).json()["items"]) == 2

        await until_async(both_are_dead, "they are buried")
        assert (await got(http, "GET", "/reStoreJob?JobId=a")) == DONE
        restored = await got(http, "GET", "/reStore?expire=true")
        assert await finished(http, restored["data"]) == {"kicked": 1}


async def test_whether_a_job_that_is_dead_and_elsewhere_waits_is_not_told(
    redis_url: str, namespace: str, crew: Crew
) -> None:
    async with server(redis_url, namespace, "mykit") as http:
        await got(http, "POST", "/push", json={**TASK, "id": "a"})
        dead = bucket_key(namespace, bucket_of(b"a", BUCKETS), "dead")
        await crew.store.redis.zadd(dead, {"a": 1})
        refused = await got(http, "GET", "/reStoreJob?jobId=a")
        assert refused["message"].startswith("in_flight: ")


@pytest.mark.parametrize(
    ("dialect", "path", "sent"),
    [
        ("mykit", "/push", {"topic": "order", "id": "a", "delay": 1000, "body": "x"}),
        ("youzan", "/", {**ADD, "id": "a", "delay": 1}),
        ("delay-queue", "/push", {**JOB, "id": "a", "delay": 1}),
    ],
)
async def test_a_job_arrives_at_a_broker(
    redis_url: str, namespace: str, crew: Crew, arrived: Arrived,
    dialect: str, path: str, sent: Any,
) -> None:  # fmt: skip
    crew.start(lease=CALM)
    await crew.shared("w")
    async with server(redis_url, namespace, dialect) as http:
        await got(http, "POST", path, json=sent)
        await arrived.all(["a"])
    assert min(arrived.late_ms) >= 0
    assert not arrived.twice


async def test_delay_queue_from_push_to_finish(redis_url: str, namespace: str, crew: Crew) -> None:
    job = {"topic": "b", "id": "7", "delay": 1, "ttr": 1, "body": "x"}
    pop = {"topic": "a, b"}
    crew.start(lease=CALM)
    await crew.shared("w")
    async with api(redis_url, namespace, compat="delay-queue") as http:
        waiting = asyncio.create_task(got(http, "POST", "/pop", json=pop))
        pushed_s = time.time()
        assert await got(http, "POST", "/push", json=job) == OK
        first = await waiting
        assert first == {**OK, "data": {"id": "7", "body": "x"}}
        assert time.time() - pushed_s >= 1
        # Not finished within its time to run: it comes again.
        assert await got(http, "POST", "/pop", json=pop) == first

        async def is_finished() -> bool:
            """It is too late while it is about to come again, for its time to run is over."""
            return bool(await got(http, "POST", "/finish", json={"id": "7"}) == OK)

        for _ in range(2):
            await until_async(is_finished, "it is finished")
        assert await got(http, "POST", "/get", json={"id": "7"}) == OK


async def test_youzan_from_add_to_finish(redis_url: str, namespace: str, crew: Crew) -> None:
    add = {"command": "add", "topic": "b", "id": "7", "delay": 1, "TTR": 1, "body": "x"}
    pop = {"command": "pop", "topic": "b"}
    none = {"success": True, "error": "", "id": "", "value": ""}
    crew.start(lease=CALM)
    await crew.shared("w")
    async with api(redis_url, namespace, compat="youzan") as http:
        assert await got(http, "POST", "/", json=pop) == none
        assert (await got(http, "POST", "/", json=add))["success"]
        for _ in range(2):
            async with asyncio.timeout(DEADLINE_S):
                while (found := await got(http, "POST", "/", json=pop)) == none:
                    pass  # this dialect polls
            assert found == {**none, "id": "7", "value": "x"}

        async def is_finished() -> bool:
            answer = await got(http, "POST", "/", json={"command": "finish", "id": "7"})
            return bool(answer == {**none, "id": "7"})

        await until_async(is_finished, "it is finished")
        assert (await http.get("/v1/messages/7")).status_code == 404


async def test_mykit_from_push_to_delete(redis_url: str, namespace: str, crew: Crew) -> None:
    job = {"topic": "b", "subtopic": "c", "id": "7", "bizKey": "k", "delay": 100, "ttl": 1000}
    fetched = {**job, "body": "x", "status": 2}
    del fetched["delay"]
    crew.start(lease=CALM)
    await crew.shared("w")
    place = "pull:{topic}.{subtopic}"
    async with api(redis_url, namespace, compat="mykit", compat_destination=place) as http:
        waiting = asyncio.create_task(http.get("/get/topic?topic=b&subtopic=c"))
        assert (await got(http, "POST", "/push", json={**job, "body": "x"}))["data"] == "7"
        assert (await waiting).json() == {**DONE, "data": fetched}
        # Not deleted within its ttl: it comes again.
        assert (await http.get("/get/topic?topic=b&subtopic=c")).json()["data"] == fetched

        async def is_deleted() -> bool:
            return bool((await http.get("/delete?jobId=7")).json() == DONE)

        await until_async(is_deleted, "it is deleted")
        assert (await http.get("/v1/messages/7")).status_code == 404
        # An absurd time to run is cut to the longest, and holds up no other job.
        await got(http, "POST", "/push", json={**job, "delay": 0, "ttl": 10**400, "body": "huge"})
        huge = (await http.get("/get/topic?topic=b&subtopic=c")).json()["data"]
        assert (huge["body"], huge["ttl"]) == ("huge", 10**15)


ELSEWHERE = [
    {"Sec-Fetch-Site": "cross-site"},
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Referer": "https://evil.example/page"},
    {"Referer": "http://[evil"},
]


@pytest.mark.parametrize("dialect", ["mykit", "youzan", "delay-queue"])
async def test_a_page_in_a_browser_cannot_use_it(
    redis_url: str, namespace: str, dialect: str
) -> None:
    asked = {
        "mykit": ("GET", f"/clearAll?confirm={namespace}"),
        "youzan": ("POST", "/"),
        "delay-queue": ("POST", "/push"),
    }[dialect]
    async with server(redis_url, namespace, dialect) as http:
        for headers in ELSEWHERE:
            text = (await http.request(*asked, headers=headers)).text
            assert "forbidden: " in text or "foreign_origin" in text, headers
        assert (await http.get("/v1/audit")).json()["items"] == []
        near = {"Origin": str(http.base_url), "Referer": f"{http.base_url}/x"}
        assert "forbidden: " not in (await http.request(*asked, headers=near)).text


async def test_without_a_dialect_nothing_of_it_is_there(redis_url: str, namespace: str) -> None:
    async with api(redis_url, namespace) as http:
        for path in ("/push", "/delete", "/clearAll"):
            assert (await http.get(path)).status_code == 404
        assert (await http.post("/", json={"command": "add"})).status_code == 405


async def test_tokens_hold_for_dialects_too(
    redis_url: str, namespace: str, token_file: Path
) -> None:
    async with server(redis_url, namespace, "mykit", token_file=str(token_file)) as http:
        assert (await http.get("/delete?id=a")).status_code == 401
        writer = {"Authorization": f"Bearer {TOKENS['write']}"}
        assert (await http.get("/delete?id=a", headers=writer)).status_code == 200
        clear = f"/clearAll?confirm={namespace}"
        assert (await http.get(clear, headers=writer)).status_code == 403


@pytest.mark.parametrize("place", ["", "kafka:orders", "nowhere:{topic}"])
def test_a_dialect_says_where_its_topics_go(place: str) -> None:
    given = {"serve": {"compat": "mykit", "compat_destination": place}, "brokers": BROKERS}
    with pytest.raises(ConfigError, match=r"serve\.compat_destination"):
        Settings.load(overrides=given, environ={})


async def test_topology(http: httpx.AsyncClient, namespace: str, crew: Crew) -> None:
    """000-22."""
    crew.start(lease=CALM)
    await crew.shared("w")
    (one,) = (await http.get("/topology")).json().values()
    assert one.keys() == {"lastHeartBeat", "addr", "serveKeys"}
    assert abs(time.time() * 1000 - one["lastHeartBeat"]) < CALM["ttl_ms"]
    assert re.fullmatch(r".+:\d+", one["addr"])
    assert one["serveKeys"]
    for key in one["serveKeys"]:
        assert re.fullmatch(rf"\{{{namespace}:\d+\}}:due", key)
