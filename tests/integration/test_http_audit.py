"""The audit of the HTTP API: two streams, so that no act of an administrator is pushed out."""

from __future__ import annotations

import asyncio
import html
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from delaybridge.operate.views import audit
from delaybridge.store.protocol import keys
from delaybridge.store.redis.store import Store
from tests.rigs.api import api, ended_job
from tests.rigs.burials import buried
from tests.rigs.sessions import TOKENS, token_file_in
from tests.rigs.waiting import until_async

ADMIN, WRITE, READ = (
    {"Authorization": f"Bearer {TOKENS[scope]}"} for scope in ("admin", "write", "read")
)
MESSAGE = {"destination": "pull:t", "body": "a secret", "id": "m", "delay": "1h"}
PURGE = "/v1/destinations/pull%3At:purge"


@pytest.fixture
async def http(redis_url: str, namespace: str, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with api(redis_url, namespace, token_file=str(token_file_in(tmp_path))) as client:
        yield client


async def records(http: httpx.AsyncClient, **query: Any) -> list[dict[str, Any]]:
    answer = await http.get("/v1/audit", headers=ADMIN, params={"limit": 500, **query})
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["items"]
    return found


async def told(http: httpx.AsyncClient) -> list[tuple[str, str]]:
    """Who did what, the first first; of each act what was noted before it."""
    return [(each["who"], each["what"]) for each in (await records(http))[::-1] if "from" in each]


async def test_whoever_writes_or_reads_pushes_no_act_of_an_administrator_out(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "KEPT", 10)
    purged = await http.post(PURGE, json={"confirm": "pull:t"}, headers=ADMIN)
    assert purged.status_code == 200
    assert (await http.post("/v1/messages", json=MESSAGE, headers=ADMIN)).status_code == 201
    for _ in range(60):  # as a program that polls with a token for all
        assert (await http.get("/v1/messages/m", headers=ADMIN)).status_code == 200
    ask = [http.post("/v1/messages:cancel", json={}, headers=WRITE) for _ in range(60)]
    assert {each.status_code for each in await asyncio.gather(*ask)} == {422}
    found = await records(http)
    acts = [each["what"] for each in found if each["who"] == "admin"]
    assert acts == [f"POST {PURGE}"] * 2
    # Redis trims a stream of 120 records by whole nodes, of at most 100: fewer if they differ.
    assert 10 <= len([each for each in found if each["who"] == "write"]) <= 110


async def test_both_streams_are_one_list_whose_pages_lack_nothing(
    http: httpx.AsyncClient, redis_url: str, namespace: str
) -> None:
    ids = [f"{1_800_000_000_000 + ms}-{number}" for ms in range(3) for number in range(2)]
    with redis.Redis.from_url(redis_url) as raw:
        for key, who in ((keys.audit, "a"), (keys.audit_others, "o")):
            for id in ids if who == "a" else ids[1:]:
                raw.xadd(key(namespace), {"who": f"{who} {id}"}, id)
    expected = [f"{who} {id}" for id in reversed(ids) for who in "ao" if (who, id) != ("o", ids[0])]
    assert [each["who"] for each in await records(http)] == expected
    for most in (1, 2, 3):
        paged, cursor = [], ""
        while cursor is not None:
            asked = {"limit": most, **({"cursor": cursor} if cursor else {})}
            answer = (await http.get("/v1/audit", headers=ADMIN, params=asked)).json()
            paged += [each["who"] for each in answer["items"]]
            cursor = answer["next_cursor"]
        assert paged == expected
    for cursor in ("x", "0-0", f"{2**64}-1", "1-1.other", "1-1.others.others", "-"):
        refused = await http.get("/v1/audit", headers=ADMIN, params={"cursor": cursor})
        assert refused.json()["code"] == "bad_cursor"


async def test_an_act_and_its_end_are_in_one_stream(http: httpx.AsyncClient) -> None:
    for headers in (WRITE, ADMIN):
        started = await http.post("/v1/messages:cancel", json={"ids": ["x"]}, headers=headers)
        http.headers.update(headers)
        await ended_job(http, started.json()["id"])

    async def all_are_noted() -> list[dict[str, Any]]:
        """A job is told to have ended before that is in the audit."""
        found = await records(http)
        return found if len(found) >= 6 else []

    found = await until_async(all_are_noted, "the end of both jobs is noted")
    ends = [(each["who"], each["id"].endswith(".others")) for each in found]
    assert sorted(ends) == [("admin", False)] * 3 + [("write", True)] * 3


async def test_who_reads_a_body_is_noted(http: httpx.AsyncClient) -> None:
    definition = {"destination": "pull:t", "body": "a secret", "cron": "0 3 * * *"}
    assert (await http.post("/v1/messages", json=MESSAGE, headers=WRITE)).status_code == 201
    assert (await http.put("/v1/recurring/r", json=definition, headers=WRITE)).is_success
    paths = ("/v1/messages/m", "/v1/recurring/r", "/v1/recurring", "/v1/definitions")
    for path in (*paths, "/recurring?edit=r"):
        for headers in (READ, WRITE, ADMIN):
            text = (await http.get(path, headers=headers)).text
            assert ("a secret" in text) == (headers is not READ), path
    one, all_ = "the recurring definition r", "all recurring definitions"
    what = ["m", one, all_, all_, one]
    assert (await told(http))[1:] == [
        (who, f"read the body of {each}") for each in what for who in ("write", "admin")
    ]


async def test_a_page_that_shows_itself_again_reads_no_body(http: httpx.AsyncClient) -> None:
    """Each does so every five seconds: an open page would fill the audit."""
    definition = {"destination": "pull:t", "body": "a secret", "cron": "0 3 * * *"}
    await http.put("/v1/recurring/r", json=definition, headers=WRITE)
    await http.post("/v1/messages", json=MESSAGE, headers=WRITE)
    for path in ("/recurring?edit=r&find=r", "/messages/m"):
        text = (await http.get(path, headers=WRITE)).text
        assert "a secret" in text
        before = await told(http)
        (again,) = re.findall(r'hx-get="([^"]*)"', text)
        assert "a secret" not in (await http.get(html.unescape(again), headers=WRITE)).text
        assert await told(http) == before


async def test_who_reads_the_body_of_a_dead_message_is_noted(
    http: httpx.AsyncClient, store: Store, redis_url: str, namespace: str
) -> None:
    with buried(store, redis_url, namespace, {"kafka": "kafka://h:1"}, [("d", "kafka:t", "odd")]):
        assert "body" in (await http.get("/v1/dead/d", headers=WRITE)).json()
        assert "body" not in (await http.get("/v1/dead/d", headers=READ)).json()
    assert await told(http) == [("write", "read the body of d")]


async def test_the_dialect_of_delay_queue_shows_bodies_to_those_who_may_see_them(
    redis_url: str, namespace: str, tmp_path: Path
) -> None:
    file = str(token_file_in(tmp_path))
    async with api(redis_url, namespace, token_file=file, compat="delay-queue") as http:
        await http.post("/v1/messages", json=MESSAGE, headers=WRITE)
        shown = [
            (await http.post("/get", json={"id": "m"}, headers=headers)).json()["data"]["body"]
            for headers in (READ, WRITE)
        ]
        assert shown == ["", "a secret"]
        assert await told(http) == [("write", "read the body of m")]
