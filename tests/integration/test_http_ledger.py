"""The HTTP API with a ledger: a message's life, and restoring what Redis lacks."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis as redis_py

from delaybridge.ledger.sql.tables import VERSION_TABLE
from tests.rigs.api import api, job_of
from tests.rigs.api_process import ApiProcess
from tests.rigs.crew import BUCKETS, CALM, Arrived, Crew
from tests.rigs.ledgers import LedgerProbe, made
from tests.rigs.sessions import TOKENS
from tests.rigs.waiting import DEADLINE_S, until_async
from tests.servers.redis import RedisServer

TO = "memory:q"
BROKERS = {"memory": "memory://"}
MANY = 1200  # more than a page of the ledger


@pytest.fixture
def database(tmp_path: Path) -> str:
    return made(f"sqlite:///{tmp_path / 'ledger.db'}")


def with_ledger(url: str, *, buckets: int = 1) -> dict[str, Any]:
    return {"top": {"durability": "ledger", "buckets": buckets}, "ledger": {"url": url}}


@pytest.fixture
async def http(redis_url: str, namespace: str, database: str) -> AsyncIterator[httpx.AsyncClient]:
    async with api(redis_url, namespace, brokers=BROKERS, **with_ledger(database)) as client:
        yield client


def message(id: str, **fields: Any) -> dict[str, Any]:
    return {"destination": TO, "body": "x", "delay": "30m", "id": id, **fields}


async def finished(http: httpx.AsyncClient, asked: dict[str, Any]) -> dict[str, Any]:
    return await job_of(http, "/v1/restore", asked)


async def test_a_message_is_shown_with_its_life_also_after_its_end(http: httpx.AsyncClient) -> None:
    await http.post("/v1/messages", json=message("a", headers={"n": "1"}))
    found = (await http.get("/v1/messages/a")).json()
    assert (found["state"], found["body"]) == ("delayed", "x")
    assert [call["state"] for call in found["life"]["calls"]] == ["delayed"]
    await http.delete("/v1/messages/a")
    ended = (await http.get("/v1/messages/a")).json()
    assert (ended["state"], ended["life"]["calls"][0]["state"]) == ("cancelled", "cancelled")
    same = ("id", "destination", "due", "due_ms", "body", "body_bytes", "headers")
    assert {name: ended[name] for name in same} == {name: found[name] for name in same}
    missing = await http.get("/v1/messages/b")
    assert (missing.status_code, missing.json()["code"]) == (404, "unknown")


async def test_a_published_message_has_its_worker_also_on_its_page(
    redis_url: str, namespace: str, database: str, arrived: Arrived
) -> None:
    given = with_ledger(database, buckets=BUCKETS)
    async with (
        Crew(redis_url, namespace, ledger=database) as crew,
        api(redis_url, namespace, brokers=BROKERS, **given) as http,
    ):
        crew.start(lease=CALM)  # its life has one transition, by one owner
        (id,) = await crew.schedule(1, seconds=0.1)
        await arrived.all([id])

        async def is_told() -> bool:
            shown = (await http.get(f"/v1/messages/{id}")).json()
            return bool(shown.get("state") == "published")

        await until_async(is_told, "the ledger knows")
        (step,) = (await http.get(f"/v1/messages/{id}")).json()["life"]["transitions"]
        assert (step["from"], step["to"], step["worker"]) == ("in_flight", "published", "w")
        text = (await http.get(f"/messages/{id}")).text
        assert "w, bucket" in text and 'class="strip"' in text and "message show" in text
        steps = re.findall(r'<i class="dot \w+"></i> (.*?)</td>', text)
        # A slow database may have the message only after its due time.
        assert sorted(steps[:-1]) == ["due", "scheduled"] and steps[-1] == "published"
        assert "data-act=" not in text  # it is over
        await crew.stop()


async def test_while_the_ledger_is_silent_what_redis_has_is_shown(
    redis_url: str, namespace: str, database: str
) -> None:
    ledger = LedgerProbe(database)
    async with api(redis_url, namespace, brokers=BROKERS, **with_ledger(database)) as http:
        await http.post("/v1/messages", json=message("a"))
        ledger.ask("DROP TABLE transition")
        ledger.ask("DROP TABLE message")
        found = (await http.get("/v1/messages/a")).json()
        assert found["state"] == "delayed" and "life" not in found
        unknown = await http.get("/v1/messages/b")
        assert (unknown.status_code, unknown.json()["code"]) == (503, "ledger_unavailable")
        page = await http.get("/messages/b")
        assert page.status_code == 503 and "The ledger does not" in page.text
        assert "Redis does not answer" not in page.text and "no such table" in page.text
        assert (await http.get("/messages/a")).status_code == 200
        failed = await finished(http, {})
        assert failed["state"] == "failed" and "ledger" in failed["error"]


async def test_what_redis_lost_is_restored(namespace: str, database: str) -> None:
    with RedisServer() as server:
        async with api(server.url, namespace, brokers=BROKERS, **with_ledger(database)) as http:
            batches = [[message(f"m{n}") for n in range(at, at + 400)] for at in (0, 400, 800)]
            for batch in batches:
                await http.post("/v1/messages:batch", json={"messages": batch})
            due = (await http.post("/v1/messages", json=message("due", delay="0s"))).json()
            await http.delete("/v1/messages/m0")
            redis_py.Redis.from_url(server.url).flushall()
            counted = await http.post("/v1/restore", json={"dry_run": True})
            assert counted.status_code == 200
            assert counted.json() == {"rows": MANY, "missing": MANY}
            assert (await finished(http, {"ids": ["m7", "m0"]}))["answers"] == {"restored": 1}
            early = {"due_to_ms": due["due_ms"], "expired": True}
            counted = await http.post("/v1/restore", json={**early, "dry_run": True})
            assert counted.json()["missing"] == 1
            done = await finished(http, {"expired": False})
            assert (done["state"], done["verb"]) == ("done", "restore")
            assert (done["matched"], done["answers"]) == (MANY - 1, {"restored": MANY - 2})
            assert (await finished(http, early))["answers"] == {"restored": 1}
            assert (await finished(http, {}))["answers"] == {"restored": 0}
            assert (await http.get("/v1/stats")).json()["delayed"] == MANY
            told = (await http.get("/v1/audit")).json()["items"]
            assert {each["what"] for each in told} == {"POST /v1/restore", "restore"}


async def test_without_a_ledger_the_remedy_is_named(redis_url: str, namespace: str) -> None:
    async with api(redis_url, namespace, brokers=BROKERS) as http:
        refused = await http.post("/v1/restore", json={})
        assert refused.headers["content-type"] == "application/problem+json"
        assert (refused.status_code, refused.json()["code"]) == (409, "no_ledger")
        assert "delaybridge ledger upgrade" in refused.json()["detail"]
        await http.post("/v1/messages", json=message("a"))
        assert "life" not in (await http.get("/v1/messages/a")).json()
        await http.delete("/v1/messages/a")
        assert (await http.get("/v1/messages/a")).status_code == 404


@pytest.mark.parametrize(
    "body",
    [
        {"ids": []},
        {"ids": [str(number) for number in range(1001)]},
        {"due_from_ms": -1},
        {"due_to_ms": 2**60},
        {"since": "2030-01-01T00:00:00Z"},
    ],
)
async def test_a_restore_that_makes_no_sense(http: httpx.AsyncClient, body: Any) -> None:
    assert (await http.post("/v1/restore", json=body)).status_code == 422


async def test_only_an_administrator_restores(
    redis_url: str, namespace: str, database: str, token_file: Path
) -> None:
    given = {"token_file": str(token_file), **with_ledger(database)}
    async with api(redis_url, namespace, brokers=BROKERS, **given) as http:
        for scope, status in (("write", 403), ("admin", 200)):
            headers = {"Authorization": f"Bearer {TOKENS[scope]}"}
            asked = await http.post("/v1/restore", json={"dry_run": True}, headers=headers)
            assert asked.status_code == status, asked.text


def test_serve_looks_at_the_tables_before_it_listens(
    redis_url: str, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    monkeypatch.setenv("DELAYBRIDGE_LEDGER__URL", url)
    monkeypatch.setenv("DELAYBRIDGE_DURABILITY", "ledger")
    flags = ["--redis", redis_url, "--namespace", namespace]
    command = [sys.executable, "-m", "delaybridge", *flags, "serve", "--port", "0"]

    def refusal() -> str:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
        assert ended.returncode == 2, ended
        return ended.stdout + ended.stderr

    assert "delaybridge ledger upgrade" in refusal()
    probe = LedgerProbe(made(url))
    probe.ask(f"UPDATE {VERSION_TABLE} SET version_num = '77'")
    assert "version 77" in refusal()
    probe.close()


async def test_serve_starts_while_the_database_is_silent(
    redis_url: str, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = f"sqlite:///{tmp_path / 'missing' / 'ledger.db'}"
    monkeypatch.setenv("DELAYBRIDGE_LEDGER__URL", away)
    monkeypatch.setenv("DELAYBRIDGE_DURABILITY", "ledger")
    with ApiProcess(tmp_path, redis_url, namespace, "--port", "0") as serving:
        assert "ledger_silent" in serving.log.read_text()
