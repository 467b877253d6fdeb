"""The HTTP API's rows of security: S of the threats, H of bad input, each by its id."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from delaybridge.client.verbs import Scope
from delaybridge.errors import ConfigError
from delaybridge.serve.access import access
from delaybridge.serve.access.throttle import Pace
from delaybridge.serve.dialects.mykit import DIALECT
from delaybridge.serve.server.serving import listener, serve
from delaybridge.serve.server.table import ENDPOINTS
from delaybridge.settings.settings import Settings
from tests.rigs.api import api
from tests.rigs.waiting import until_async

ADMIN, WRITE, READ = (f"S3CR3T-CANARY-{word}-0123456789abcdef" for word in "awr")
TOKENS = {"admin": ADMIN, "write": WRITE, "read": READ}
MESSAGE = {"destination": "kafka:orders", "body": "secret body", "delay": "15m", "id": "m1"}
RULED = "/v1/destinations/kafka%3Aorders"


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.fixture
def token_file(tmp_path: Path) -> str:
    file = tmp_path / "tokens"
    hashed = hashlib.sha256(READ.encode()).hexdigest()
    lines = ("# who may", f"{ADMIN} admin boss", f"{WRITE} write shop", f"sha256:{hashed} read eye")
    file.write_text("\n".join(lines))
    file.chmod(0o600)
    return str(file)


@pytest.fixture
async def http(redis_url: str, namespace: str, token_file: str) -> AsyncIterator[httpx.AsyncClient]:
    async with api(redis_url, namespace, token_file=token_file) as client:
        yield client


async def records(http: httpx.AsyncClient, **query: Any) -> list[dict[str, Any]]:
    answer = await http.get("/v1/audit", headers=bearer(ADMIN), params=query)
    found: list[dict[str, Any]] = answer.json()["items"]
    return found


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        pytest.param({}, 401, id="H-1"),
        pytest.param(bearer("wrong-0123456789abcdef"), 401, id="H-2"),
        pytest.param(bearer(ADMIN[:-1]), 401, id="H-2 nearly right"),
        pytest.param({"Authorization": "Bearer"}, 401, id="H-2 empty"),
        pytest.param(bearer("ÿþ"), 401, id="H-2 not ASCII"),
        pytest.param({"Authorization": f"Basic {ADMIN}"}, 401, id="H-2 another scheme"),
        pytest.param({"Authorization": f"bearer   {ADMIN}"}, 200, id="H-2 spaces"),
    ],
)
async def test_who_is_not_known_is_refused_without_a_hint(
    http: httpx.AsyncClient, headers: dict[str, str], status: int
) -> None:
    raw = {name: value.encode("latin-1") for name, value in headers.items()}
    answer = await http.get("/v1/messages", headers=raw)  # type: ignore[arg-type]
    assert answer.status_code == status
    if status == 401:
        assert answer.headers["www-authenticate"] == 'Bearer realm="delaybridge"'
        same = await http.get("/v1/messages", headers=bearer("something else entirely"))
        assert same.json() == answer.json()


@pytest.mark.parametrize("name", ["token", "access_token", "API_KEY", "apikey", "authorization"])
async def test_h3_a_token_in_the_query_is_refused(http: httpx.AsyncClient, name: str) -> None:
    for path in ("/v1/messages", "/v1/workers", "/openapi.json"):
        answer = await http.get(path, params={"limit": 1, name: ADMIN}, headers=bearer(ADMIN))
        assert (answer.status_code, answer.json()["code"]) == (400, "token_in_query")
        assert ADMIN not in answer.text


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda each: f"{each.method} {each.path}")
async def test_h4_a_token_may_no_more_than_its_scope(
    http: httpx.AsyncClient, endpoint: Any
) -> None:
    path = endpoint.path.replace("{", "").replace("}", "")
    order = [Scope.OPEN, Scope.READ, Scope.WRITE, Scope.ADMIN]
    for scope in order[: order.index(endpoint.scope)]:
        headers = bearer(TOKENS[scope]) if scope is not Scope.OPEN else {}
        answer = await http.request(endpoint.method, path, headers=headers)
        unknown = 303 if endpoint.refusal else 401  # a page leads to the login
        assert answer.status_code == (unknown if scope is Scope.OPEN else 403), answer.text


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda each: f"{each.method} {each.path}")
def test_s30_what_cannot_be_undone_is_for_admins_or_audited(endpoint: Any) -> None:
    assert endpoint.method != "GET" or not endpoint.is_audited
    if endpoint.scope is Scope.ADMIN and endpoint.method != "GET":
        assert endpoint.is_audited


@pytest.mark.parametrize(
    ("row", "method", "path", "status"),
    [
        ("H-7", "GET", "/v1/nothing", 404),
        ("H-8", "POST", "/", 405),
        ("H-8", "PUT", "/v1/messages", 405),
        ("H-8", "POST", "/openapi.json", 405),
    ],
)
async def test_unknown_paths_and_methods(
    http: httpx.AsyncClient, row: str, method: str, path: str, status: int
) -> None:
    answer = await http.request(method, path, headers=bearer(ADMIN))
    assert answer.status_code == status, row
    assert answer.headers["content-type"] == "application/problem+json"
    assert ("allow" in answer.headers) == (status == 405)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", ""])
def test_s1_without_tokens_it_listens_on_loopback_only(host: str, redis_url: str) -> None:
    given = {"redis": {"url": redis_url}, "serve": {"host": host or "localhost", "port": 0}}
    settings = Settings.load(overrides=given)
    if not host:
        with listener("localhost", 0):
            return
    with pytest.raises(ConfigError, match=r"serve\.host: .*token_file"):
        serve(settings, lambda: None)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("short read", "line 1: the token has 5 characters"),
        ("changeme", "line 1: the token has 8 characters"),
        ("changemechangeme1", "line 1: the token is easy to guess"),
        ("aaaaaaaaaaaaaaaaaaaaaaaa", "line 1: the token is easy to guess"),
        (f"{ADMIN} owner", "line 1: write TOKEN"),
        (f"{ADMIN} read me now then", "line 1: write TOKEN"),
        (f"{ADMIN} read me now", "line 1: 'now' is not among tenants"),
        (f"{ADMIN} read a/b", "line 1: a name has"),
        (f"{ADMIN} read\n\n{ADMIN} admin", "line 3: has the token of line 1"),
        ("sha256:abc read", "line 1: after sha256: come 64"),
        ("# nothing\n", "has no token"),
        ("tökentökentökentöken", "ASCII"),
    ],
)
async def test_s1_tokens_that_are_refused(
    redis_url: str, namespace: str, tmp_path: Path, text: str, says: str
) -> None:
    file = tmp_path / "tokens"
    file.write_text(text)
    given = {"redis": {"url": redis_url}, "serve": {"token_file": str(file), "port": 0}}
    with pytest.raises(ConfigError) as caught:
        serve(Settings.load(overrides=given), lambda: None)
    assert says in str(caught.value)
    assert ADMIN not in str(caught.value)


async def test_s1_a_token_counts_as_long_as_it_is_in_the_file(
    http: httpx.AsyncClient, token_file: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def status(token: str) -> int:
        return (await http.get("/v1/workers", headers=bearer(token))).status_code

    file, new = Path(token_file), "another-one-0123456789abcdef"
    assert (await status(ADMIN), await status(new)) == (200, 401)
    file.write_text(f"{new} read\n")
    assert (await status(ADMIN), await status(new)) == (401, 200)
    file.write_text("oops\n")
    assert (await status(ADMIN), await status(new)) == (401, 200)
    assert "tokens from before" in caplog.text
    file.unlink()
    assert await status(new) == 401
    file.write_text(f"{ADMIN}\n")
    assert await status(ADMIN) == 200


async def test_s2_an_address_that_guesses_has_to_wait_and_others_not(
    http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    guess = "guess-0123456789abcdef"
    guesses = [await http.get("/v1/workers", headers=bearer(guess)) for _ in range(12)]
    assert [each.status_code for each in guesses] == [401] * 10 + [429] * 2
    assert 0 < int(guesses[-1].headers["retry-after"]) <= 60
    assert (await http.get("/v1/workers", headers=bearer(READ))).status_code == 200
    assert (await http.get("/v1/workers")).status_code == 401
    assert caplog.text.count("wrong token from 127.0.0.1") == 10
    assert guess not in caplog.text


async def test_s10_who_may_only_read_learns_the_size_of_a_body(http: httpx.AsyncClient) -> None:
    made = await http.post("/v1/messages", json=MESSAGE, headers=bearer(WRITE))
    assert made.status_code == 201
    fields = {"destination": "kafka:orders", "body": "secret body", "cron": "0 3 * * *"}
    put = await http.put("/v1/recurring/r", json=fields, headers=bearer(WRITE))
    assert put.status_code == 201, put.text
    shown = [
        (await http.get(path, headers=bearer(token))).text
        for token in (READ, WRITE)
        for path in ("/v1/messages/m1", "/v1/recurring/r", "/v1/recurring", "/v1/definitions")
    ]
    assert ["secret body" in text for text in shown] == [False] * 4 + [True] * 4
    assert '"body_bytes":11' in shown[0]


async def test_s17_a_destination_is_one_of_the_settings(http: httpx.AsyncClient) -> None:
    for destination in ("http://169.254.169.254/x", "https://evil.example", "amqp://h/x", "x:y"):
        wrong = {**MESSAGE, "destination": destination}
        answer = await http.post("/v1/messages", json=wrong, headers=bearer(WRITE))
        assert answer.status_code == 422, destination
        assert (await http.put(
            f"/v1/destinations/{destination.replace('/', '%2F')}", json={}, headers=bearer(ADMIN)
        )).status_code == 422  # fmt: skip


@pytest.mark.parametrize("row", ["S31", "S32"])
async def test_ids_of_another_namespace_are_unknown(
    http: httpx.AsyncClient, redis_url: str, namespace: str, row: str
) -> None:
    async with api(redis_url, f"{namespace}-other") as other:
        assert (await other.post("/v1/messages", json=MESSAGE)).status_code == 201
        theirs = await http.delete("/v1/messages/m1", headers=bearer(WRITE))
        nowhere = await http.delete("/v1/messages/m2", headers=bearer(WRITE))
        assert theirs.status_code == nowhere.status_code == 404
        assert theirs.text.replace("m1", "m2") == nowhere.text
        assert (await other.get("/v1/messages/m1")).status_code == 200


async def test_s33_a_fault_of_ours_shows_an_incident_and_no_more(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("the inner state")

    monkeypatch.setattr("delaybridge.serve.api.messages.ledger.shape_of", broken)
    assert (await http.post("/v1/messages", json=MESSAGE, headers=bearer(WRITE))).is_success
    answer = await http.get("/v1/messages/m1", headers=bearer(READ))
    assert (answer.status_code, answer.json()["code"]) == (500, "internal")
    assert "inner state" not in answer.text
    incident = answer.json()["detail"].split()[-1]
    assert f"incident {incident}" in caplog.text


async def test_read_only_changes_nothing(redis_url: str, namespace: str, token_file: str) -> None:
    async with api(redis_url, namespace, token_file=token_file, read_only=True) as http:
        for endpoint in ENDPOINTS:
            path = endpoint.path.replace("{", "").replace("}", "")
            if endpoint.method != "GET" and endpoint.scope is not Scope.OPEN:
                answer = await http.request(endpoint.method, path, headers=bearer(ADMIN))
                assert answer.json()["code"] == "read_only", endpoint
        for path in ("/v1/definitions", "/v1/audit"):
            assert (await http.get(path, headers=bearer(ADMIN))).status_code == 200


async def test_read_only_holds_for_dialects_that_change_by_get(
    redis_url: str, namespace: str
) -> None:
    spoken = {"compat": "mykit", "compat_destination": "memory:{topic}"}
    given = {"read_only": True, "brokers": {"memory": "memory://"}, **spoken}
    async with api(redis_url, namespace, **given) as http:
        for endpoint in DIALECT.endpoints:
            answer = await http.request(endpoint.method, endpoint.path)
            assert answer.json()["code"] == "read_only", endpoint


async def test_a_token_may_ask_as_often_as_the_rate_says(
    redis_url: str, namespace: str, token_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0
    monkeypatch.setattr(access, "Pace", partial(Pace, clock_s=lambda: now_s))
    async with api(redis_url, namespace, token_file=token_file, rate=5) as http:
        for now_s in (1000.0, 1000.2, 1002.0):
            ask = [http.get("/openapi.json", headers=bearer(READ)) for _ in range(20)]
            answers = Counter(each.status_code for each in await asyncio.gather(*ask))
            allowed = 1 if now_s == 1000.2 else 5
            assert answers == {200: allowed, 429: 20 - allowed}
        assert (await http.get("/v1/workers", headers=bearer(WRITE))).status_code == 200
        assert (await http.get("/health/live")).status_code == 200


async def test_s30_an_act_is_noted_before_and_after(http: httpx.AsyncClient) -> None:
    await http.post("/v1/messages", json=MESSAGE, headers=bearer(WRITE))
    for confirm, status in (("no", 422), ("kafka:orders", 200)):
        asked = {"confirm": confirm}
        answer = await http.post(f"{RULED}:purge", json=asked, headers=bearer(ADMIN))
        assert answer.status_code == status
    after, before, refused, _ = await records(http)
    assert (before["who"], before["from"]) == ("boss", "127.0.0.1")
    assert before["what"] == after["what"] == f"POST {RULED}:purge"
    assert before["asked"] == '{"confirm":"kafka:orders"}'
    assert (after["act"], after["status"]) == (before["id"], "200")
    assert after["answer"] == '{"answers":{"cancelled":1}}'
    assert refused["status"] == "422"
    (first,) = await records(http, limit=1)
    assert first == after
    assert await records(http, limit=1, cursor=first["id"]) == [before]


async def test_s30_a_job_is_noted_when_it_ends(http: httpx.AsyncClient) -> None:
    await http.post("/v1/messages", json=MESSAGE, headers=bearer(WRITE))
    asked = {"filter": {"destination": "kafka:orders"}}
    started = await http.post("/v1/messages:cancel", json=asked, headers=bearer(ADMIN))
    assert started.status_code == 202

    async def are_noted() -> list[dict[str, Any]]:
        found = await records(http)
        return found if len(found) >= 3 else []

    found = await until_async(are_noted, "the end of the job is noted")
    (end,) = [each for each in found if each["what"] == "cancel"]
    assert (end["who"], end["status"]) == ("boss", "done")
    assert '"cancelled":1' in end["answer"]
    assert started.json()["id"] in end["answer"]


async def test_s30_an_audit_that_cannot_be_written_stops_the_act(
    redis_url: str, namespace: str
) -> None:
    admin = redis.Redis.from_url(redis_url)
    admin.acl_setuser("no-audit", True, nopass=True, keys=["*"], channels=["*"],
                      commands=["+@all", "-xadd"])  # fmt: skip
    limited = redis_url.replace("//", "//no-audit:x@")
    async with api(limited, namespace) as http:
        assert (await http.post("/v1/messages", json=MESSAGE)).status_code == 201
        answer = await http.post(f"{RULED}:purge", json={"confirm": "kafka:orders"})
        assert answer.status_code == 503, answer.text
        assert (await http.get("/v1/messages/m1")).status_code == 200
    admin.acl_deluser("no-audit")
    admin.close()


async def test_s8_no_answer_and_no_log_has_a_secret(
    caplog: pytest.LogCaptureFixture, namespace: str, token_file: str
) -> None:
    caplog.set_level(logging.DEBUG)
    for client in ("httpx", "httpcore"):  # which tell what they send
        caplog.set_level(logging.WARNING, logger=client)
    gone = "redis://:S3CR3T-CANARY-pw@127.0.0.1:1/0"
    brokers = {"rabbitmq": "amqp://u:S3CR3T-CANARY-mq@127.0.0.1:1/"}
    asked = [each for each in ENDPOINTS if each.path not in ("/v1/events", "/live")]
    soon, few = {"url": gone, "timeout_s": 0.1}, asyncio.Semaphore(20)
    async with api(gone, namespace, token_file=token_file, brokers=brokers, redis=soon) as http:

        async def ask(each: Any, token: str, **given: Any) -> httpx.Response:
            path = each.path.replace("{", "").replace("}", "")
            async with few:  # none of them waits for a connection of this client
                return await http.request(each.method, path, headers=bearer(token), **given)

        (scheduling,) = (e for e in asked if (e.method, e.path) == ("POST", "/v1/messages"))
        answers = await asyncio.gather(
            ask(scheduling, ADMIN, json=MESSAGE),
            *(ask(each, ADMIN, json={}) for each in asked),
            *(ask(each, ADMIN, content="{") for each in asked),
            *(ask(each, "S3CR3T-CANARY-wrong-0123456789") for each in asked),
            *(ask(each, ADMIN, params={"token": ADMIN}) for each in asked),
        )
    assert {each.status_code for each in answers} >= {400, 401, 422, 429, 503}
    logged = [logging.Formatter().format(each) for each in caplog.records]
    assert any("a wrong token" in line for line in logged)
    told = [f"{each.headers} {each.text}" for each in answers]
    assert [text for text in logged + told if "S3CR3T" in text] == []
