"""Tenants over HTTP: a token sees and changes its own messages only, by the ids that it gave."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import redis

from delaybridge.events import Quarantined
from delaybridge.serve.server.table import ENDPOINTS
from tests.rigs import ledgers
from tests.rigs.api import api
from tests.rigs.crew import CALM, Crew
from tests.rigs.waiting import until_async

WHO = {
    "acme": "acme-Zr7qK2mVx9TbWc4P", "beta": "beta-Zr7qK2mVx9TbWc4P",
    "ops": "ops-Zr7qK2mVx9TbWc4P", "eye": "eye-Zr7qK2mVx9TbWc4P",
}  # fmt: skip
BROKERS = {"memory": "memory://"}


class As:
    """The API, as one token uses it."""

    def __init__(self, http: httpx.AsyncClient, who: str) -> None:
        self._http, self._headers = http, {"Authorization": f"Bearer {WHO[who]}"}

    async def __call__(self, method: str, path: str, **given: Any) -> httpx.Response:
        headers = {**self._headers, **given.pop("headers", {})}
        return await self._http.request(method, f"/v1{path}", headers=headers, **given)

    async def schedule(self, id: str | None, **fields: Any) -> httpx.Response:
        message = {"destination": "memory:q", "body": "x", "delay": "1h", "id": id, **fields}
        return await self("POST", "/messages", json=message)

    async def ids(self, path: str = "/messages", **query: Any) -> list[str]:
        found = []
        while True:
            page = (await self("GET", path, params=query)).json()
            found += [one["id"] for one in page["items"]]
            if (cursor := page["next_cursor"]) is None:
                return found
            query["cursor"] = cursor

    async def job(self, path: str, asked: Any) -> dict[str, Any]:
        started = await self("POST", path, json=asked)
        assert started.status_code == 202, started.text

        async def ended() -> dict[str, Any]:
            job: dict[str, Any] = (await self("GET", f"/jobs/{started.json()['id']}")).json()
            return {} if job["state"] == "running" else job

        return await until_async(ended, "the job ends")


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[dict[str, Any]]:
    file = tmp_path / "tokens"
    lines = (f"{WHO['acme']} admin acme-shop acme", f"{WHO['beta']} admin beta-shop beta")
    more = (f"{WHO['ops']} admin", f"{WHO['eye']} write eye")
    file.write_text("\n".join((*lines, *more)))
    yield {"token_file": str(file), "top": {"tenants": ["acme", "beta"]}, "brokers": BROKERS}


@pytest.fixture
async def http(
    redis_url: str, namespace: str, serving: dict[str, Any]
) -> AsyncIterator[httpx.AsyncClient]:
    async with api(redis_url, namespace, **serving) as client:
        yield client


@pytest.fixture
def acme(http: httpx.AsyncClient) -> As:
    return As(http, "acme")


@pytest.fixture
def beta(http: httpx.AsyncClient) -> As:
    return As(http, "beta")


@pytest.fixture
def ops(http: httpx.AsyncClient) -> As:
    return As(http, "ops")


async def test_an_id_of_one_tenant_is_free_for_another(acme: As, beta: As, ops: As) -> None:
    for who in (acme, beta):
        made = await who.schedule("invoice-3", body=str(who))
        assert (made.status_code, made.json()["id"]) == (201, "invoice-3")
    assert (await ops.ids()) == ["acme/invoice-3", "beta/invoice-3"]
    clash = await acme.schedule("invoice-3", body="other")
    assert (clash.status_code, clash.json()["code"]) == (409, "conflict")
    assert "acme" not in clash.text
    assert (await beta("DELETE", "/messages/invoice-3")).json()["id"] == "invoice-3"
    assert await ops.ids() == ["acme/invoice-3"]
    assert (await ops("DELETE", "/messages/acme%2Finvoice-3")).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/messages/{}", None),
        ("PATCH", "/messages/{}", {"delay": "2h"}),
        ("PATCH", "/messages/{}", {"by": "1h"}),
        ("POST", "/messages/{}:publish", None),
        ("DELETE", "/messages/{}", None),
        ("GET", "/dead/{}", None),
        ("POST", "/dead/{}:kick", None),
        ("DELETE", "/dead/{}", None),
    ],
)
async def test_a_message_of_another_tenant_or_of_none_is_unknown(
    acme: As, beta: As, ops: As, method: str, path: str, body: Any
) -> None:
    await beta.schedule("b1")
    await ops.schedule("o1")
    for id in ("b1", "o1", "beta%2Fb1", "..%2Fbeta%2Fb1"):
        answer = await acme(method, path.format(id), json=body)
        assert (answer.status_code, answer.json()["code"]) == (404, "unknown")
    assert await ops.ids() == ["beta/b1", "o1"] or await ops.ids() == ["o1", "beta/b1"]


async def test_lists_exports_and_cursors_show_only_what_is_own(acme: As, beta: As, ops: As) -> None:
    due = "2030-01-01T00:00:00Z"
    for who, names in ((acme, "bd"), (beta, "ace"), (ops, "xy")):
        for name in names:
            await who.schedule(name, delay=None, due=due)
    for who, names in ((acme, ["b", "d"]), (beta, ["a", "c", "e"])):
        assert await who.ids(limit=1) == names
        assert await who.ids(id_prefix=names[0]) == names[:1]
        exported = await who("GET", "/messages:export")
        assert [one["id"] for one in exported.json()] == names
        csv = (await who("GET", "/messages", params={"format": "csv"})).text
        assert [line.partition(",")[0].strip('"') for line in csv.splitlines()[1:]] == names
    assert await acme.ids("/in-flight") == []
    assert len(await ops.ids()) == 7
    for who in (acme, beta):
        await who.schedule("pulled", destination="pull:t")
    assert await acme.ids(destination="pull:t") == ["pulled"]
    assert await ops.ids(destination="pull:acme/t") == ["acme/pulled"]
    assert await ops.ids(destination="pull:acme") == []
    asked = {"filter": {"destination": "pull:t"}}
    assert (await acme.job("/messages:cancel", asked))["answers"] == {"cancelled": 1}
    assert await ops.ids(destination="pull") == ["beta/pulled"]


async def test_a_cursor_says_nothing_of_others(
    acme: As, beta: As, ops: As, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that ends among the messages of another tenant goes on after them."""
    monkeypatch.setattr("delaybridge.operate.views.listing.LOOKED", 1)
    about = {"destination": "memory:q", "body": "x", "due": "2030-01-01T00:00:00Z"}
    for who in (beta, ops):  # theirs are before and after acme's
        many = [{**about, "id": f"a-secret-{n}"} for n in range(600)]
        assert (await who("POST", "/messages:batch", json={"messages": many})).status_code == 207
    await acme.schedule("first", delay=None, due="2030-01-01T00:00:00Z")
    await acme.schedule("last", delay=None, due="2030-01-03T00:00:00Z")
    found, cursor, pages = [], None, 0
    while True:
        query = {} if cursor is None else {"cursor": cursor}
        page = (await acme("GET", "/messages", params=query)).json()
        found += [one["id"] for one in page["items"]]
        if (cursor := page["next_cursor"]) is None:
            break
        pages += 1
        assert b"secret" not in base64.urlsafe_b64decode(cursor)
    assert (found, pages > 1) == (["first", "last"], True)


async def test_bulk_verbs_and_jobs_stay_within(acme: As, beta: As, ops: As) -> None:
    for who in (acme, beta):
        for id in ("m1", "m2", "n1"):
            await who.schedule(id)
    counted = await acme("POST", "/messages:cancel", json={"filter": {}, "dry_run": True})
    assert counted.json()["matched"] == 3
    moved = await acme.job("/messages:reschedule", {"ids": ["m1", "beta/m2"], "by": "1h"})
    assert moved["answers"] == {"rescheduled": 1, "unknown": 1}
    done = await acme.job("/messages:cancel", {"filter": {"id_prefix": "m"}})
    assert done["answers"] == {"cancelled": 2}
    assert sorted(await ops.ids()) == ["acme/n1", "beta/m1", "beta/m2", "beta/n1"]
    assert (await beta("GET", f"/jobs/{done['id']}")).status_code == 404
    assert (await beta("DELETE", f"/jobs/{done['id']}")).status_code == 404
    assert (await beta("GET", "/jobs")).json()["items"] == []
    assert {job["tenant"] for job in (await ops("GET", "/jobs")).json()["items"]} == {"acme"}
    noted = (await ops("GET", "/audit")).json()["items"]
    assert {one.get("tenant") for one in noted if one.get("asked")} == {"acme"}


async def test_recurring_messages_of_one_name(acme: As, beta: As, ops: As) -> None:
    definition = {"destination": "memory:q", "body": "x", "every": "1h", "name": "report"}
    for who in (acme, beta):
        made = await who("POST", "/recurring", json=definition)
        assert (made.status_code, made.json()["name"]) == (201, "report")
    named = [one["name"] for one in (await ops("GET", "/recurring")).json()["items"]]
    assert named == ["acme/report", "beta/report"]
    (own,) = (await acme("GET", "/recurring")).json()["items"]
    assert (own["name"], own["definition"]["name"]) == ("report", "report")
    run = (await acme("POST", "/recurring/report:run")).json()["id"]
    assert run.startswith("report@")
    assert [id for id in await ops.ids() if "run" in id] == [f"acme/{run}"]
    conflict = await acme("POST", "/recurring", json={**definition, "every": "2h"})
    assert (conflict.status_code, "acme" in conflict.text) == (409, False)
    assert (await acme("GET", "/recurring/beta%2Freport")).status_code in (404, 422)
    assert (await beta("POST", "/recurring/report:pause")).status_code == 200
    assert (await acme("GET", "/recurring/report")).json()["state"] == "active"
    assert (await ops("DELETE", "/recurring/acme%2Freport")).status_code == 200
    assert (await acme("GET", "/recurring/report")).status_code == 404
    odd = await ops("POST", "/recurring", json={**definition, "name": "acme/report"})
    assert (odd.status_code, odd.json()["code"]) == (422, "bad_name")


async def test_a_pull_topic_of_one_tenant_is_not_that_of_another(
    crew: Crew, acme: As, beta: As, ops: As
) -> None:
    crew.start(lease=CALM)
    waiting = asyncio.create_task(acme("POST", "/topics/t:receive", json={"max": 9, "wait": "60s"}))
    await beta.schedule("b", destination="pull:t", delay="0s")
    await ops.schedule("o", destination="pull:t", delay="0s")
    await acme.schedule("a", destination="pull:t", delay="0s")
    (one,) = (await waiting).json()["items"]
    assert (one["id"], one["body"]) == ("a", "x")
    given = {"items": [{"id": "a", "receipt": one["receipt"]}]}
    stolen = (await beta("POST", "/topics/t:finish", json=given)).json()["items"]
    assert stolen == [{"id": "a", "result": "unknown"}]
    shown = (await acme("GET", "/messages/a")).json()
    assert shown["destination"] == "pull:t"
    done = (await acme("POST", "/topics/t:finish", json=given)).json()["items"]
    assert done == [{"id": "a", "result": "finished"}]
    for topic in ("beta%2Ft", "acme%2Fbeta%2Ft"):
        odd = await acme("POST", f"/topics/{topic}:receive", json={})
        assert odd.status_code == 422
    both = [
        await who("POST", "/topics/t:receive", json={"max": 9, "wait": "60s"})
        for who in (beta, ops)
    ]
    assert [[one["id"] for one in answer.json()["items"]] for answer in both] == [["b"], ["o"]]


async def test_what_operators_send_to_a_pull_topic_of_a_tenant_is_the_tenants(
    crew: Crew, acme: As, ops: As
) -> None:
    crew.start(lease=CALM)
    about = {"destination": "pull:acme/t", "delay": "0s"}
    ids = [(await ops.schedule(id, **about)).json()["id"] for id in ("o1", "acme/o2")]
    many = {"messages": [{**about, "body": "x", "id": "o3"}]}
    ids += [one["id"] for one in (await ops("POST", "/messages:batch", json=many)).json()["items"]]
    message, headers = {**about, "body": "x"}, {"Idempotency-Key": "k"}
    ids.append((await ops("POST", "/messages", json=message, headers=headers)).json()["id"])
    assert {id.partition("/")[0] for id in ids} == {"acme"}
    asked, done = {"max": 9, "wait": "60s"}, []
    while len(done) < len(ids):
        items = (await acme("POST", "/topics/t:receive", json=asked)).json()["items"]
        given = [{"id": one["id"], "receipt": one["receipt"]} for one in items]
        finished = await acme("POST", "/topics/t:finish", json={"items": given})
        done += [(f"acme/{one['id']}", one["result"]) for one in finished.json()["items"]]
    assert sorted(done) == sorted((id, "finished") for id in ids)


async def test_a_definition_for_a_pull_topic_of_a_tenant_is_the_tenants_own(
    acme: As, ops: As
) -> None:
    definition = {"body": "x", "every": "1h", "name": "report"}
    odd = await ops("POST", "/recurring", json={**definition, "destination": "pull:acme/t"})
    assert (odd.status_code, odd.json()["code"]) == (422, "bad_destination")
    assert "a token of it" in odd.text
    for place in ("pull:t", "pull:acme/t"):
        made = await acme("POST", "/recurring", json={**definition, "destination": place})
        assert made.json()["result"] in ("created", "duplicate")


async def test_a_key_of_idempotency_belongs_to_its_token(
    acme: As, beta: As, ops: As, http: httpx.AsyncClient
) -> None:
    message = {"destination": "memory:q", "body": "x", "delay": "1h"}
    headers = {"Idempotency-Key": "order-1"}
    made = []
    for who in (acme, beta, ops, As(http, "eye")):
        first = await who("POST", "/messages", json=message, headers=headers)
        again = await who("POST", "/messages", json=message, headers=headers)
        assert (first.status_code, again.status_code) == (201, 200)
        assert first.content == again.content
        made.append(first.json()["id"])
    assert len({*made}) == 4
    assert {id.partition("/")[0] for id in await ops.ids()} == {"acme", "beta", *made[2:]}
    # From what others may know, the name of the token and the key, it cannot be computed.
    guessed = hashlib.sha256(msgspec.msgpack.encode(("eye", "order-1"))).hexdigest()[:32]
    assert f"idem-{guessed}" not in made


async def test_what_is_not_a_tenants_own_is_for_operators(http: httpx.AsyncClient) -> None:
    headers = {"Authorization": f"Bearer {WHO['acme']}"}
    for endpoint in ENDPOINTS:
        path = endpoint.path.replace("{", "").replace("}", "")
        if endpoint.is_for_tenants or endpoint.scope == "open" or path == "/v1/events":
            continue
        answer = await http.request(endpoint.method, path, headers=headers)
        assert answer.status_code in (303, 403), (endpoint.method, path)
    answer = await http.post("/login", content=f"token={WHO['acme']}&next=/")
    assert (answer.status_code, "set-cookie" in answer.headers) == (403, False)
    assert "reasons" not in (await http.get("/health/ready", headers=headers)).json()


async def test_events_of_a_tenant_are_those_of_its_pull_topics_and_sources(
    crew: Crew, redis_url: str, namespace: str, serving: dict[str, Any]
) -> None:
    crew.start(lease=CALM)
    await crew.shared("w")
    sources = {"tenants": ["acme-*=acme", "*=beta"]}
    told: list[dict[str, Any]] = []

    async def listen(http: httpx.AsyncClient) -> None:
        headers = {"Authorization": f"Bearer {WHO['acme']}"}
        async with http.stream("GET", "/v1/events", headers=headers) as answer:
            async for line in answer.aiter_lines():
                name, _, data = line.partition(": ")
                if name == "data" and "gap" not in line:
                    told.append(json.loads(data).get("fields", {}))
                if told[-1:] and told[-1].get("source") == "kafka:acme-1.delay":
                    return

    async with api(redis_url, namespace, ingest=sources, **serving) as http:
        acme, beta = As(http, "acme"), As(http, "beta")
        listening = asyncio.create_task(listen(http))
        while not listening.done():
            for who, id in ((beta, "other"), (acme, "late")):
                late = {"destination": "pull:t", "due": "2020-01-01T00:00:00Z", "ttl": "1s"}
                made = await who.schedule(id, delay=None, **late)
                assert made.status_code in (200, 201), made.text
            await crew.settled()
            for source in ("kafka:x.delay", "kafka:acme-1.delay"):
                crew.workers["w"].emit(Quarantined(source=source, messages=1, reason="r 'acme/x'"))
        assert {fields.get("destination") for fields in told} <= {"pull:t", None}
        assert {fields.get("source") for fields in told} == {"kafka:acme-1.delay", None}
        assert not any("acme/" in str(fields) for fields in told)
        assert await acme.ids("/dead") == ["late"]
        assert (await acme("POST", "/dead/other:kick")).status_code == 404
        assert (await acme("POST", "/dead/late:kick")).status_code == 200


@pytest.mark.parametrize("compat", ["youzan"])
async def test_a_dialect_stays_within(
    redis_url: str, namespace: str, serving: dict[str, Any], compat: str
) -> None:
    async with api(redis_url, namespace, compat=compat, **serving) as http:

        async def ask(who: str, **command: Any) -> Any:
            headers = {"Authorization": f"Bearer {WHO[who]}"}
            return (await http.post("/", json=command, headers=headers)).json()

        for who in ("acme", "beta"):
            job = {"command": "add", "topic": "t", "id": "j", "delay": 3600, "TTR": 9, "body": who}
            assert (await ask(who, **job))["success"]
        ops = As(http, "ops")
        assert await ops.ids() == ["acme/j", "beta/j"]
        assert (await ask("beta", command="delete", id="j"))["id"] == "j"
        assert (await ask("beta", command="delete", id="acme/j"))["success"]
        assert await ops.ids() == ["acme/j"]


async def test_the_ledger_tells_a_tenant_of_its_own_messages(
    redis_url: str, namespace: str, serving: dict[str, Any], tmp_path: Path
) -> None:
    kept = {"ledger": {"url": ledgers.made(f"sqlite:///{tmp_path / 'ledger.db'}")}}
    serving["top"] |= {"durability": "ledger", "buckets": 1}
    async with api(redis_url, namespace, **kept, **serving) as http:
        acme, beta, ops = (As(http, who) for who in ("acme", "beta", "ops"))
        await acme.schedule("m", destination="pull:t")
        assert (await acme("DELETE", "/messages/m")).status_code == 200
        ended = (await acme("GET", "/messages/m")).json()
        calls = [(call["state"], call["destination"]) for call in ended["life"]["calls"]]
        assert (ended["id"], ended["state"], calls) == (
            "m", "cancelled", [("cancelled", "pull:t")],
        )  # fmt: skip
        assert (await beta("GET", "/messages/m")).status_code == 404
        assert (await beta("GET", "/messages/acme%2Fm")).status_code == 404
        shown = (await ops("GET", "/messages/acme%2Fm")).json()
        assert (shown["id"], shown["tenant"], shown["destination"]) == (
            "acme/m", "acme", "pull:acme/t",
        )  # fmt: skip


async def test_keys_of_an_untenanted_namespace_are_as_they_were(
    ops: As, redis_url: str, namespace: str
) -> None:
    await ops.schedule("acme", key="k")
    await ops.schedule("plain")
    with redis.Redis.from_url(redis_url) as store:
        records = [
            value for key in store.scan_iter(f"*{namespace}*messages")
            for value in store.hgetall(key).values()
        ]  # fmt: skip
    assert len(records) == 2
    assert all(b"\x98" == record[13:14] for record in records)
