"""The HTTP API: many messages at once, jobs, and the dead set."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from delaybridge import AsyncClient
from delaybridge.message import Answer
from delaybridge.serve.shared import jobs as web_jobs
from delaybridge.store.protocol.keys import bucket_key
from delaybridge.store.protocol.verbs import bucket_of
from tests.rigs.api import ended_job, job_of
from tests.rigs.crew import BUCKETS, Crew
from tests.rigs.waiting import until_async

BROKERS = {"memory": "memory://"}


def message(**fields: Any) -> dict[str, Any]:
    return {"destination": "memory:orders", "body": "x", "delay": "15m", **fields}


async def add(http: httpx.AsyncClient, count: int, **fields: Any) -> list[str]:
    ids = [f"m{number:04}" for number in range(count)]
    batch = {"messages": [message(id=id, **fields) for id in ids]}
    made = await http.post("/v1/messages:batch", json=batch)
    assert made.status_code == 207
    assert {item["status"] for item in made.json()["items"]} == {201}
    return ids


async def test_h54_one_bad_message_of_a_batch_hinders_no_other(http: httpx.AsyncClient) -> None:
    messages = [
        message(id="a"),
        message(id="b", delay=5),
        message(id="c", dely="1s"),
        message(id="d", destination="nowhere:x"),
        message(id="a"),
        message(id="a", body="other"),
        "no object",
    ]
    answer = await http.post("/v1/messages:batch", json={"messages": messages})
    items = answer.json()["items"]
    assert [item["status"] for item in items] == [201, 422, 422, 422, 200, 409, 422]
    assert items[1]["at"] == "$.messages[1].delay"
    codes = [item.get("code") for item in items]
    assert codes[1:4] == ["bad_time", "unknown_field", "unknown_destination"]
    assert codes[5] == "conflict"
    assert (await http.get("/v1/stats")).json()["delayed"] == 1


async def test_a_filter_is_counted_then_cancelled(http: httpx.AsyncClient) -> None:
    await add(http, 600)
    await http.post("/v1/messages", json=message(id="other", destination="memory:other"))
    wanted: dict[str, Any] = {"filter": {"destination": "memory:orders"}}
    tried = await http.post("/v1/messages:cancel", json={**wanted, "dry_run": True})
    assert (tried.status_code, tried.json()["matched"]) == (200, 600)
    job = await job_of(http, "/v1/messages:cancel", wanted)
    assert (job["state"], job["matched"], job["answers"]) == ("done", 600, {"cancelled": 600})
    assert (await http.get("/v1/stats")).json()["delayed"] == 1
    assert (await http.get("/v1/jobs")).json()["items"][0]["id"] == job["id"]
    strange = {"filter": {"destination": "memry:orders"}}
    for path in ("messages:cancel", "dead:discard"):
        refused = await http.post(f"/v1/{path}", json=strange)
        assert (refused.status_code, refused.json()["code"]) == (422, "unknown_destination")


async def test_ids_are_rescheduled(http: httpx.AsyncClient) -> None:
    ids = await add(http, 3)
    wanted = {"ids": [*ids, "missing"], "due": "2030-01-01T00:00:00Z"}
    job = await job_of(http, "/v1/messages:reschedule", wanted)
    assert job["answers"] == {"rescheduled": 3, "unknown": 1}
    found = (await http.get(f"/v1/messages/{ids[0]}")).json()
    assert found["due"] == "2030-01-01T00:00:00.000Z"


@pytest.mark.parametrize(
    ("verb", "fields", "answers"),
    [
        ("messages:cancel", {}, ["cancelled", "unknown"]),
        ("messages:reschedule", {"delay": "1h"}, ["rescheduled", "unknown"]),
        ("messages:reschedule", {"by": "+1h"}, ["rescheduled", "unknown"]),
        ("messages:publish", {"over": "1h"}, ["rescheduled", "unknown"]),
        ("dead:kick", {}, ["unknown", "unknown"]),
        ("dead:discard", {}, ["unknown", "unknown"]),
    ],
)
async def test_a_dry_run_says_what_would_happen_to_each_id(
    http: httpx.AsyncClient, verb: str, fields: dict[str, Any], answers: list[str]
) -> None:
    (id,) = await add(http, 1)
    before = (await http.get(f"/v1/messages/{id}")).json()
    wanted = {"ids": [id, "missing", id], "dry_run": True, **fields}
    tried = await http.post(f"/v1/{verb}", json=wanted)
    items = [{"id": id, "result": answers[0]}, {"id": "missing", "result": answers[1]}]
    assert tried.status_code == 200
    assert tried.json() == {"matched": 2, "states": {}, "items": items}
    assert (await http.get(f"/v1/messages/{id}")).json() == before
    assert (await http.get("/v1/jobs")).json()["items"] == [], "no job was begun"


@pytest.mark.parametrize(
    ("verb", "fields"),
    [
        ("reschedule", {"by": "+9999d"}),
        ("reschedule", {}),
        ("publish", {"over": "soon"}),
        ("cancel", {"ids": []}),
    ],
)
async def test_a_dry_run_refuses_what_the_verb_would(
    http: httpx.AsyncClient, verb: str, fields: dict[str, Any]
) -> None:
    wanted = {"ids": await add(http, 1), "dry_run": True, **fields}
    assert (await http.post(f"/v1/messages:{verb}", json=wanted)).status_code == 422


async def test_ids_beyond_one_batch_of_a_job_are_each_cancelled_once(
    http: httpx.AsyncClient,
) -> None:
    ids = await add(http, 501)  # a batch has 250
    job = await job_of(http, "/v1/messages:cancel", {"ids": ids})
    assert (job["matched"], job["answers"]) == (501, {"cancelled": 501})
    assert (await http.get("/v1/stats")).json()["delayed"] == 0


async def test_publish_now_spreads_over_a_span(http: httpx.AsyncClient, crew: Crew) -> None:
    ids = await add(http, 20)
    wanted = {"filter": {}, "over": "10m"}
    await job_of(http, "/v1/messages:publish", wanted)
    dues = [(await http.get(f"/v1/messages/{id}")).json()["due_ms"] for id in ids]
    assert max(dues) - min(dues) > 60_000


async def test_a_stopped_job_counts_the_messages_under_way_and_begins_no_others(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = await add(http, 600)  # three batches
    cancel, begun, goes_on = AsyncClient.cancel_many, asyncio.Event(), asyncio.Event()

    async def slow(self: AsyncClient, ids: Any) -> list[Answer]:
        begun.set()
        await goes_on.wait()
        return await cancel(self, ids)

    monkeypatch.setattr(AsyncClient, "cancel_many", slow)
    id = (await http.post("/v1/messages:cancel", json={"ids": ids})).json()["id"]
    await begun.wait()
    (working,) = (task for task in asyncio.all_tasks() if task.get_name() == f"job {id}")
    stopping = asyncio.create_task(http.delete(f"/v1/jobs/{id}"))
    await until_async(working.cancelling, "the job is to stop")
    goes_on.set()
    stopped = (await stopping).json()
    assert (stopped["state"], stopped["answers"]) == ("stopped", {"cancelled": 250})
    acts = (await http.get("/v1/audit")).json()["items"]
    assert [each["what"] for each in acts].count(f"DELETE /v1/jobs/{id}") == 2
    assert (await http.get("/v1/stats")).json()["delayed"] == 350


async def test_a_job_is_told_of_though_one_batch_takes_long(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = asyncio.Event()

    async def slow(*_: Any) -> list[Answer]:
        await goes_on.wait()
        return []

    monkeypatch.setattr(AsyncClient, "cancel_many", slow)
    monkeypatch.setattr(web_jobs, "TELL_S", 0.01)
    started = (await http.post("/v1/messages:cancel", json={"ids": ["m"]})).json()

    async def is_told() -> bool:
        job = (await http.get(f"/v1/jobs/{started['id']}")).json()
        return bool(job.get("matched") and job["updated_ms"] > started["updated_ms"])

    await until_async(is_told, "the job that waits is written again")
    goes_on.set()
    assert (await ended_job(http, started["id"]))["state"] == "done"


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"ids": []},
        {"ids": ["a"], "filter": {}},
        {"ids": [str(number) for number in range(1001)]},
        {"filter": {"state": "dead"}},
        {"filter": {"destination": "nowhere:x/y z"}, "dry_run": True, "more": 1},
        {"filter": {"destination": "memory:"}},
        {"filter": {"header": ""}},
    ],
)
async def test_a_bulk_verb_that_makes_no_sense(
    http: httpx.AsyncClient, body: dict[str, Any]
) -> None:
    assert (await http.post("/v1/messages:cancel", json=body)).status_code == 422


async def test_a_dead_message_from_burial_to_kick(http: httpx.AsyncClient, crew: Crew) -> None:
    crew.start()
    past = "2026-01-01T00:00:00Z"
    expired = {"destination": "memory:orders", "body": "x", "id": "late", "due": past, "ttl": "1s"}
    await crew.shared("w")
    assert (await http.post("/v1/messages", json=expired)).status_code == 201

    async def is_dead() -> bool:
        return bool((await http.get("/v1/dead")).json()["items"])

    await until_async(is_dead, "it is buried")
    item = (await http.get("/v1/dead")).json()["items"][0]
    assert (item["id"], item["state"]) == ("late", "dead")
    shown = (await http.get("/v1/dead/late")).json()
    assert shown["reason"].startswith("expired")
    refused = await http.delete("/v1/messages/nothing")
    assert refused.status_code == 404
    moved = await http.patch("/v1/messages/late", json={"delay": "1m"})
    assert (moved.status_code, moved.json()["code"]) == (409, "dead")
    assert (await http.post("/v1/dead/late:kick")).json()["result"] == "kicked"
    assert (await http.post("/v1/dead/nothing:kick")).status_code == 404
    assert (await http.delete("/v1/dead/nothing")).status_code == 404


async def test_what_is_dead_and_elsewhere_may_live(http: httpx.AsyncClient, crew: Crew) -> None:
    await add(http, 1)
    key = bucket_key(crew.namespace, bucket_of(b"m0000", BUCKETS), "dead")
    await crew.store.redis.zadd(key, {"m0000": 1})
    for refused in (await http.post("/v1/dead/m0000:kick"), await http.delete("/v1/dead/m0000")):
        assert (refused.status_code, refused.json()["code"]) == (409, "in_flight")
        assert "may live" in refused.json()["detail"]
    for verb in ("kick", "discard"):
        job = await job_of(http, f"/v1/dead:{verb}", {"ids": ["m0000"]})
        assert job["answers"] == {"in_flight": 1}
