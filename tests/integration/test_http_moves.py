"""The HTTP API: due times moved by an offset, of one message, of ids and of filters."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from delaybridge import Client, Selection
from delaybridge.ledger.sql.rows import COLD
from delaybridge.message import Answer
from delaybridge.serve.shared import jobs as web_jobs
from delaybridge.store.messages import selection
from tests.rigs.api import api, job_of
from tests.rigs.ledgers import LedgerProbe, made

BROKERS = {"memory": "memory://"}
START_MS = 2_051_222_400_000
HOUR_MS = 3_600_000


async def add(http: httpx.AsyncClient, dues: dict[str, int], **fields: Any) -> None:
    messages = [
        {"destination": "memory:q", "body": "x", "id": id, "due_ms": due_ms, **fields}
        for id, due_ms in dues.items()
    ]
    for at in range(0, len(messages), 1000):
        made = await http.post("/v1/messages:batch", json={"messages": messages[at : at + 1000]})
        assert {item["status"] for item in made.json()["items"]} == {201}, made.text[:500]


async def dues(http: httpx.AsyncClient, limit: int = 500) -> dict[str, int]:
    """The due time of every delayed message. limit: of a page."""
    found: dict[str, int] = {}
    query: dict[str, Any] = {"limit": limit}
    while True:
        page = (await http.get("/v1/messages", params=query)).json()
        found |= {item["id"]: item["due_ms"] for item in page["items"]}
        if page["next_cursor"] is None:
            return found
        query["cursor"] = page["next_cursor"]


async def moved(http: httpx.AsyncClient, asked: dict[str, Any]) -> dict[str, Any]:
    return await job_of(http, "/v1/messages:reschedule", asked)


@pytest.mark.parametrize(
    ("by", "by_ms"),
    [
        ("+10m", 600_000), ("-1h", -HOUR_MS), ("90s", 90_000), ("+PT15M", 900_000), ("+0s", 0),
        ("-1h30m", -5_400_000),
    ],
)  # fmt: skip
async def test_a_message_is_moved_by_an_offset(
    http: httpx.AsyncClient, by: str, by_ms: int
) -> None:
    await add(http, {"m": START_MS}, priority=3)
    answer = await http.patch("/v1/messages/m", json={"by": by})
    assert (answer.status_code, answer.json()["result"]) == (200, "rescheduled")
    found = (await http.get("/v1/messages/m")).json()
    assert (found["due_ms"], found["priority"]) == (START_MS + by_ms, 3)


@pytest.mark.parametrize(
    "body",
    [
        {"by": ""},
        {"by": "+"},
        {"by": "+-1h"},
        {"by": "--1h"},
        {"by": "soon"},
        {"by": 5},
        {"by": "+1h", "delay": "1h"},
        {"by": "+1h", "due": "2035-01-01T00:00:00Z"},
        {"by": "+1h", "due_ms": START_MS},
        {"by": "+99999999d"},
    ],
    ids=str,
)
async def test_an_offset_that_makes_no_sense_moves_nothing(
    http: httpx.AsyncClient, body: dict[str, Any]
) -> None:
    await add(http, {"m": START_MS})
    assert (await http.patch("/v1/messages/m", json=body)).status_code == 422
    for which in ({"ids": ["m"]}, {"filter": {}}):
        refused = await http.post("/v1/messages:reschedule", json={**which, **body})
        assert refused.status_code == 422, refused.text
    assert await dues(http) == {"m": START_MS}


async def test_a_message_is_not_moved_beyond_what_a_new_one_may_be_delayed(
    redis_url: str, namespace: str
) -> None:
    now = datetime.now(UTC)
    soon_ms = int((now + timedelta(hours=20)).timestamp() * 1000)
    top = {"top": {"limits": {"delay": "1d"}}}
    async with api(redis_url, namespace, brokers=BROKERS, **top) as http:
        await add(http, {"m": soon_ms})
        refused = await http.patch("/v1/messages/m", json={"by": "+10h"})
        assert refused.status_code == 422, refused.text
        job = await moved(http, {"filter": {}, "by": "+10h"})
        assert (job["state"], job.get("answers")) == ("failed", None)
        assert "too_far" in job["error"]
        assert await dues(http) == {"m": soon_ms}


async def test_a_message_that_cannot_be_moved_says_why(http: httpx.AsyncClient) -> None:
    unknown = await http.patch("/v1/messages/nothing", json={"by": "+1h"})
    assert (unknown.status_code, unknown.json()["code"]) == (404, "unknown")
    await add(http, {"a": START_MS, "b": START_MS + 1})
    job = await moved(http, {"ids": ["a", "nothing", "b", "a"], "by": "+1h"})
    assert (job["matched"], job["answers"]) == (3, {"rescheduled": 2, "unknown": 1})
    assert await dues(http) == {"a": START_MS + HOUR_MS, "b": START_MS + 1 + HOUR_MS}


async def test_each_message_of_a_filter_is_moved_once_though_it_is_found_again(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A page spans less than ten seconds: the walk meets moved messages again
    monkeypatch.setattr(selection, "PAGE_MESSAGES", 20)
    before = {f"m{n:04}": START_MS + 20 * n for n in range(2000)}
    await add(http, before)
    span = {"due_from_ms": START_MS, "due_to_ms": START_MS + HOUR_MS}
    job = await moved(http, {"filter": span, "by": "+10s"})
    assert (job["state"], job["matched"], job["answers"]) == ("done", 2000, {"rescheduled": 2000})
    assert await dues(http) == {id: due_ms + 10_000 for id, due_ms in before.items()}


async def test_only_the_messages_of_the_span_are_moved(http: httpx.AsyncClient) -> None:
    before = {f"m{n}": START_MS + n * HOUR_MS for n in range(5)}
    await add(http, before)
    span = {"due_from_ms": START_MS + HOUR_MS, "due_to_ms": START_MS + 3 * HOUR_MS}
    tried = await http.post(
        "/v1/messages:reschedule", json={"filter": span, "by": "-1h", "dry_run": True}
    )
    assert tried.json()["matched"] == 3
    assert await dues(http) == before
    await moved(http, {"filter": span, "by": "-30m"})
    after = {id: due - HOUR_MS // 2 if id in ("m1", "m2", "m3") else due
             for id, due in before.items()}  # fmt: skip
    assert await dues(http) == after


async def test_cold_messages_are_moved_too(
    redis_url: str, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "PAGE_MESSAGES", 20)
    monkeypatch.setattr(web_jobs, "BATCH_MESSAGES", 8)  # several of them, each with the database
    database = made(f"sqlite:///{tmp_path / 'ledger.db'}")
    ledger = {"url": database, "hot_window_s": 120}
    given = {"top": {"durability": "ledger", "buckets": 2}, "ledger": ledger}
    async with api(redis_url, namespace, brokers=BROKERS, **given) as http:
        before = {f"m{n:03}": START_MS + n for n in range(24)}
        await add(http, before)
        probe = LedgerProbe(database)
        tiers = probe.ask("SELECT DISTINCT tier FROM message")
        probe.close()
        assert [row[0] for row in tiers] == [COLD]
        assert (await http.patch("/v1/messages/m000", json={"by": "+1h"})).status_code == 200
        before["m000"] += HOUR_MS
        assert await dues(http, limit=10) == before
        job = await moved(http, {"filter": {"id_prefix": "m"}, "by": "+5s"})
        assert (job["state"], job.get("answers")) == ("done", {"rescheduled": 24}), job
        job = await moved(http, {"ids": ["m001", "m002"], "by": "-1s"})
        assert (job["state"], job.get("answers")) == ("done", {"rescheduled": 2}), job
        after = {id: due_ms + 5000 for id, due_ms in before.items()}
        after["m001"] -= 1000
        after["m002"] -= 1000
        assert await dues(http, limit=10) == after


def test_who_was_rescheduled_since_it_was_found_gets_the_time_of_the_last_call(
    redis_url: str, namespace: str
) -> None:
    with Client(redis_url, namespace=namespace, brokers=BROKERS) as client:
        client.schedule("memory:q", b"x", id="m", at="2035-01-01T00:00:00Z")
        (page,) = [page for page in client.select(Selection()) if page]
        client.reschedule("m", at="2036-01-01T00:00:00Z")
        assert client.move_many(page, by_ms=HOUR_MS) == [Answer.RESCHEDULED]
        found = client.get("m")
        assert found is not None and found.due_ms == START_MS + HOUR_MS
