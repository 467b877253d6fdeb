"""`serve --compat mykit` with a ledger: jobs are restored and cleared by its record."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis as redis_py

from delaybridge import AsyncClient
from delaybridge.store.redis.store import Store
from tests.rigs.api import api, ended_job
from tests.rigs.bucket import World
from tests.rigs.delivering import Delivering
from tests.rigs.ledgers import LedgerProbe, made
from tests.rigs.waiting import until_async

BROKERS = {"memory": "memory://", "other": "memory://"}
HOUR_MS = 3_600_000
DONE = {"success": True, "data": None, "code": 200, "message": "success"}


@pytest.fixture
def database(tmp_path: Path) -> str:
    return made(f"sqlite:///{tmp_path / 'ledger.db'}")


@pytest.fixture
async def http(redis_url: str, namespace: str, database: str) -> AsyncIterator[httpx.AsyncClient]:
    given = {
        "top": {"durability": "ledger", "buckets": 1}, "ledger": {"url": database},
        "compat": "mykit", "compat_destination": "memory:{topic}", "brokers": BROKERS,
    }  # fmt: skip
    async with api(redis_url, namespace, **given) as client:
        yield client


async def push(http: httpx.AsyncClient, id: str, delay_ms: int = HOUR_MS) -> None:
    job = {"topic": "order", "id": id, "delay": delay_ms, "body": "x"}
    assert (await http.post("/push", json=job)).json()["data"] == id


async def ended(http: httpx.AsyncClient, path: str) -> dict[str, Any]:
    """What each of its messages was answered, once the job of this request has ended."""
    started = (await http.get(path)).json()
    job = await ended_job(http, started["data"])
    assert job["state"] == "done", job
    return dict(job["answers"])


async def waiting(http: httpx.AsyncClient) -> list[str]:
    return [each["id"] for each in (await http.get("/v1/messages")).json()["items"]]


def lose(redis_url: str, namespace: str) -> None:
    """Redis loses all messages, and knows its namespace still."""
    with redis_py.Redis.from_url(redis_url) as redis:
        kinds = ("due", "messages", "dead", "dead_reason")
        redis.delete(*(f"{{{namespace}:0}}:{kind}" for kind in kinds))


async def test_all_that_redis_lost_comes_back_or_only_what_is_not_due(
    http: httpx.AsyncClient, redis_url: str, namespace: str
) -> None:
    await push(http, "late", 0)
    for id in ("a", "b", "deleted"):
        await push(http, id)
    assert (await http.get("/delete?jobId=deleted")).json() == DONE
    lose(redis_url, namespace)
    assert await ended(http, "/reStore?expire=false") == {"restored": 2}
    assert sorted(await waiting(http)) == ["a", "b"]
    assert await ended(http, "/reStore?expire=true") == {"restored": 1}
    assert sorted(await waiting(http)) == ["a", "b", "late"]
    assert await ended(http, "/reStore") == {"restored": 0}


@pytest.mark.parametrize("path", ["/reStoreJob?jobId=a", "/reStore/a"])
async def test_one_that_redis_lost_comes_back(
    http: httpx.AsyncClient, redis_url: str, namespace: str, path: str
) -> None:
    for id in ("a", "b"):
        await push(http, id)
    assert (await http.get(path)).json() == {**DONE, "message": "it waits already"}
    lose(redis_url, namespace)
    assert (await http.get(path)).json() == DONE
    assert await waiting(http) == ["a"]
    assert (await http.get("/delete?jobId=a")).json() == DONE
    assert (await http.get(path)).json()["message"].startswith("unknown: ")


async def test_one_that_was_dead_when_redis_lost_it_waits_again(
    http: httpx.AsyncClient, redis_url: str, namespace: str, database: str
) -> None:
    for id in ("a", "b"):
        await push(http, id)
    LedgerProbe(database).ask("UPDATE message SET state = 'dead', error = 'unroutable: q'")
    lose(redis_url, namespace)
    assert (await http.get("/reStoreJob?jobId=a")).json() == DONE
    assert await waiting(http) == ["a"]
    assert await ended(http, "/reStore") == {"restored": 1, "kicked": 1}
    assert sorted(await waiting(http)) == ["a", "b"]


async def test_all_is_cleared_by_the_record_but_what_is_dead_or_elsewhere(
    http: httpx.AsyncClient, redis_url: str, namespace: str, database: str
) -> None:
    ledger = LedgerProbe(database)
    for id in ("a", "b", "dead"):
        await push(http, id)
    ledger.ask("UPDATE message SET state = 'dead', error = 'unroutable: q' WHERE id = 'dead'")
    there = {"id": "there", "destination": "other:q", "body": "x", "delay": "1h"}
    assert (await http.post("/v1/messages", json=there)).status_code == 201
    lose(redis_url, namespace)
    async with AsyncClient(redis_url, namespace=namespace, brokers=BROKERS) as alone:
        await alone.schedule("memory:order", b"x", id="without-a-row", delay="1h")
    assert await ended(http, f"/clearAll?confirm={namespace}") == {"cancelled": 3}
    assert ledger.states() == {"cancelled": 2, "dead": 1, "delayed": 1}

    async def is_noted() -> bool:  # a moment after the job has ended
        told = (await http.get("/v1/audit")).json()["items"]
        return {each["what"] for each in told} == {f"GET /clearAll?confirm={namespace}", "cancel"}

    await until_async(is_noted, "the audit has the request and its job")
    assert await ended(http, "/reStore?expire=false") == {"restored": 2}
    assert await waiting(http) == ["there"]


async def test_what_is_with_the_broker_is_counted_once(
    http: httpx.AsyncClient, store: Store, redis_url: str, namespace: str
) -> None:
    for id, delay_ms in (("sent", 0), ("a", HOUR_MS)):
        await push(http, id, delay_ms)
    with World.of_key(store, redis_url, namespace, b"sent") as world:
        Delivering(world.owner())
        answers = await ended(http, f"/clearAll?confirm={namespace}")
    assert answers == {"in_flight": 1, "cancelled": 1}
