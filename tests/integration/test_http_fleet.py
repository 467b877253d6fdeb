"""The HTTP API: destinations, recurring messages, the fleet, numbers, definitions, health."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from delaybridge import AsyncClient
from delaybridge.serve.shared import site as site_module
from tests.rigs.crew import CALM, Crew
from tests.rigs.waiting import until_async

CLOSE = "/v1/destinations/kafka%3Aorders"


async def schedule(http: httpx.AsyncClient, **fields: Any) -> None:
    message = {"destination": "kafka:orders", "body": "x", "delay": "15m", **fields}
    assert (await http.post("/v1/messages", json=message)).status_code == 201


async def test_a_rule_from_put_to_delete(http: httpx.AsyncClient) -> None:
    rule = {"rate": 5, "spread": "10s", "retry": {"max_attempts": 3}, "dead_letter": "kafka:dead"}
    put = await http.put(CLOSE, json=rule)
    assert put.status_code == 200, put.text
    assert put.json()["rule"] == {
        "rate": 5.0, "spread_ms": 10_000, "retry": {"max_attempts": 3}, "dead_letter": "kafka:dead",
    }  # fmt: skip
    paused = (await http.post(f"{CLOSE}:pause")).json()
    assert (paused["state"], paused["paused_by"]) == ("paused", "kafka:orders")
    assert (await http.put(CLOSE, json={"rate": 7})).json()["rule"].keys() == {
        "paused", "paused_ms", "rate",
    }  # fmt: skip
    assert (await http.get("/v1/destinations")).json()["items"][0]["state"] == "paused"
    assert (await http.post(f"{CLOSE}:resume")).json()["state"] == "limited"
    assert (await http.delete(CLOSE)).json()["rule"] == {}


async def test_where_no_message_is_an_answer_says_so_and_names_what_is_like_it(
    http: httpx.AsyncClient,
) -> None:
    await schedule(http)
    wrong = "/v1/destinations/kafka%3Aordres"
    for shown in (await http.get(wrong), await http.post(f"{wrong}:pause")):
        assert (shown.json()["empty"], shown.json()["near"]) == (True, "kafka:orders")
    assert shown.json()["state"] == "paused"
    known = (await http.get(CLOSE)).json()
    assert (known["empty"], known["near"]) == (False, None)
    refused = await http.get("/v1/destinations/orders")
    assert (refused.status_code, refused.json()["code"]) == (422, "unknown_destination")
    assert "did you mean 'kafka:orders'?" in refused.json()["detail"]


async def test_a_wrong_rule_changes_nothing(http: httpx.AsyncClient) -> None:
    await http.put(CLOSE, json={"rate": 5})
    for rule, code in (
        ({"rate": 0}, "bad_rate"),
        ({"rate": 1, "spread": "2d"}, "too_far"),
        ({"rate": 1, "retry": {"max_attempts": 0}}, "bad_retry"),
        ({"rate": 1, "dead_letter": "nowhere:x"}, "bad_retry"),
    ):
        refused = await http.put(CLOSE, json=rule)
        assert (refused.status_code, refused.json()["code"]) == (422, code), refused.text
    assert (await http.get(CLOSE)).json()["rule"] == {"rate": 5.0}


async def test_a_purge_needs_the_name_once_more(http: httpx.AsyncClient) -> None:
    await schedule(http)
    refused = await http.post(f"{CLOSE}:purge", json={"confirm": "kafka:order"})
    assert (refused.status_code, refused.json()["code"]) == (422, "not_confirmed")
    purged = await http.post(f"{CLOSE}:purge", json={"confirm": "kafka:orders"})
    assert purged.json() == {"answers": {"cancelled": 1}}


async def test_a_definition_from_post_to_delete(http: httpx.AsyncClient) -> None:
    fields = {"destination": "kafka:orders", "body": "b ${due}", "cron": "0 9 * * *"}
    made = await http.post("/v1/recurring", json={"name": "daily", **fields})
    assert (made.status_code, made.json()) == (201, {"name": "daily", "result": "created"})
    other = await http.post("/v1/recurring", json={"name": "daily", **fields, "cron": "0 8 * * *"})
    assert other.status_code == 409
    put = await http.put("/v1/recurring/daily", json=fields | {"cron": "0 8 * * *"})
    assert (put.status_code, put.json()["result"]) == (200, "replaced")
    shown = (await http.get("/v1/recurring/daily")).json()
    assert shown["definition"]["cron"] == "0 8 * * *"
    assert (await http.post("/v1/recurring/daily:run")).json()["result"] == "created"
    assert (await http.post("/v1/recurring/daily:pause")).json()["result"] == "paused"
    assert (await http.get("/v1/recurring")).json()["items"][0]["state"] == "paused"
    assert (await http.post("/v1/recurring/daily:resume")).json()["result"] == "resumed"
    past = {"start": "2026-11-01T00:00:00Z", "end": "2026-11-03T00:00:00Z"}
    assert (await http.post("/v1/recurring/daily:backfill", json=past)).json()["made"] == 2
    assert (await http.delete("/v1/recurring/daily")).json()["result"] == "removed"
    assert (await http.delete("/v1/recurring/daily")).status_code == 404


async def test_a_preview_needs_no_definition(http: httpx.AsyncClient) -> None:
    query: dict[str, Any] = {"cron": "*/15 9 * * MON", "tz": "Europe/Berlin", "n": 3}
    found = (await http.get("/v1/recurring:preview", params=query)).json()
    assert len(found["runs"]) == 3
    assert found["words"]


async def test_numbers_of_what_waits(http: httpx.AsyncClient) -> None:
    await schedule(http, delay="30s")
    await schedule(http, delay="4m")
    await schedule(http, delay="3h")
    stats = (await http.get("/v1/stats")).json()
    assert (stats["delayed"], stats["workers"], stats["buckets_unowned"]) == (3, 0, 16)
    await schedule(http, delay="61s")
    load = (await http.get("/v1/scaling")).json()
    assert (load["due_now"], load["due_1m"], load["due_5m"]) == (0, 1, 3), "to the second"
    for span in ("span", "for"):  # its earlier name
        ahead = (await http.get("/v1/horizon", params={span: "1h", "step": "10m"})).json()
        assert (ahead["messages"], ahead["later"]) == (3, 1)
    both = (await http.get("/v1/horizon", params={"for": "1h", "span": "1h"})).json()
    assert (both["code"], both["at"]) == ("bad_query", "$.for")
    assert len((await http.get("/v1/buckets")).json()["items"]) == 16
    assert (await http.get("/v1/series", params={"step": "1s"})).status_code == 200
    assert (await http.get("/v1/series", params={"step": "5s"})).status_code == 422


async def test_what_no_further_worker_would_deliver_wants_none(
    http: httpx.AsyncClient, crew: Crew
) -> None:
    crew.start(lease=CALM)
    await crew.shared("w")
    await schedule(http, destination="pull:mails", delay="0s")
    load = {"parked": 0}

    async def is_parked() -> bool:
        load.update((await http.get("/v1/scaling")).json())
        return load["parked"] == 1

    await until_async(is_parked, "the message waits for its consumer")
    assert (load["due_now"], load["due_1m"], load["due_5m"]) == (0, 0, 0)
    assert (load["overdue_seconds"], load["workers"]) == (0.0, 1)


async def test_the_fleet_and_its_readiness(
    redis_url: str, namespace: str, http: httpx.AsyncClient, crew: Crew
) -> None:
    assert (await http.get("/health/live")).json() == {"status": "ok"}
    crew.start(lease=CALM)
    await crew.shared("w")
    names = [each["name"] for each in (await http.get("/v1/workers")).json()["items"]]
    assert names == ["w"]

    async def is_ready() -> bool:  # no, if Redis had no time to answer for 2 s
        return bool((await http.get("/health/ready")).json() == {"status": "ok"})

    await until_async(is_ready, "it is ready")
    assert (await http.get("/v1/alarm")).json() == {"alarm": None, "setbacks": [], "mended": {}}


async def test_many_who_ask_whether_it_is_ready_ask_redis_once(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[AsyncClient] = []

    async def counted(client: AsyncClient) -> Any:
        asked.append(client)
        return await stats(client)

    stats = AsyncClient.stats
    monkeypatch.setattr(AsyncClient, "stats", counted)
    monkeypatch.setattr(site_module, "FRESH_S", 3600.0)
    answers = await asyncio.gather(*(http.get("/health/ready") for _ in range(20)))
    answers += [await http.get("/health/ready") for _ in range(5)]
    assert {each.text for each in answers} == {'{"status":"ok"}'}
    assert len(asked) == 1


async def test_definitions_there_and_back(http: httpx.AsyncClient) -> None:
    await http.put(CLOSE, json={"rate": 5})
    document = (await http.get("/v1/definitions")).json()
    assert document["destinations"] == {"kafka:orders": {"rate": 5.0}}
    document["destinations"]["kafka:orders"]["rate"] = 6
    url = "/v1/definitions"
    tried = (await http.put(url, json=document, params={"dry_run": "true"})).json()
    change = {"section": "destinations", "name": "kafka:orders", "change": "changed"}
    assert tried == {"items": [change], "dry_run": True}
    assert (await http.put(url, json=document)).json() == {"items": [change], "dry_run": False}
    assert (await http.get(CLOSE)).json()["rule"] == {"rate": 6.0}


async def test_metrics_count_what_was_answered(http: httpx.AsyncClient) -> None:
    began_s = time.perf_counter()
    for path in ("/v1/messages/none", "/v1/messages/other", "/v1/messages", "/nothing"):
        await http.get(path)
    took_s = time.perf_counter() - began_s
    await http.put("/v1/messages")
    answer = await http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    families = {each.name: each for each in text_string_to_metric_families(answer.text)}
    counted = {
        (sample.labels["method"], sample.labels["path"], sample.labels["status"]): sample.value
        for sample in families["delaybridge_http_requests"].samples
    }
    assert counted == {
        ("GET", "/v1/messages/{id}", "404"): 2,
        ("GET", "/v1/messages", "200"): 1,
        ("other", "/v1/messages", "405"): 1,
    }
    took = families["delaybridge_http_request_duration_seconds"].samples
    (sum_s,) = [s.value for s in took if s.name.endswith("_sum") and "{id}" in s.labels["path"]]
    assert 0 < sum_s < took_s
