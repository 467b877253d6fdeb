"""The console over HTTP: its frame, its sessions, its files, and how it shows problems."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import httpx
import pytest
from redis import Redis

from delaybridge.errors import ConfigError
from delaybridge.serve.access import sessions
from delaybridge.serve.console import snapshot
from delaybridge.serve.console.screens.pages import PAGES
from delaybridge.serve.shared import event_fanout
from delaybridge.settings.settings import Settings
from delaybridge.store.namespace import history_alarm
from delaybridge.store.namespace.history_alarm import Setback
from delaybridge.store.redis.store import Store
from tests.rigs.api import api
from tests.rigs.sessions import TOKENS, log_in, token_file_in
from tests.rigs.waiting import DEADLINE_S, until_async
from tests.servers.redis import RedisServer

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
)
BROKERS = {"kafka": "kafka://127.0.0.1:1"}
PLAIN = sorted(page.path for page in PAGES if "{" not in page.path)


async def test_every_page_is_html_with_a_strict_policy(http: httpx.AsyncClient) -> None:
    """Also one whose address has the order of a table."""
    for path in [*PLAIN, *(f"{path}?sort-t-x=-due" for path in PLAIN)]:
        answer = await http.get(path)
        assert answer.status_code == 200, (path, answer.text)
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert answer.headers["content-security-policy"] == POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert "curl -sS" in answer.text and 'aria-current="page"' in answer.text, path


async def test_a_page_shows_at_once_what_its_button_changed(http: httpx.AsyncClient) -> None:
    for verb, is_paused in (("pause", True), ("resume", False), ("pause", True)):
        await http.get("/brokers")  # a look that is kept for a second
        path, page = f"/v1/destinations/kafka:{verb}", {sessions.GUARD: "1"}
        assert (await http.post(path, headers=page)).status_code == 200
        page = (await http.get("/brokers")).text.split("<main")[1].split("</main>")[0]
        assert ("> paused" in page) is is_paused


async def test_pages_and_their_files_are_below_the_base_path(
    redis_url: str, namespace: str
) -> None:
    async with api(redis_url, namespace, base_path="/delay") as client:
        assert (await client.get("/delay")).headers["location"] == "/delay/"
        text = (await client.get("/delay/")).text
        links = re.findall(r'(?:href|src|action)="([^"#?][^"]*)"', text)
        assert links and all(link.startswith("/delay/") for link in links)
        for link in links:
            if "/static/" in link:
                answer = await client.get(link)
                assert answer.status_code == 200
                assert "immutable" in answer.headers["cache-control"]
                other = "/".join([*link.split("/")[:-2], "0", link.split("/")[-1]])
                assert (await client.get(other)).headers["cache-control"] == "no-store"
        assert (await client.get("/")).status_code == 404


async def test_no_other_file_is_served(http: httpx.AsyncClient) -> None:
    for name in ("..%2Flook.py", "vendor.json", "nothing.js", "%2e%2e"):
        assert (await http.get(f"/static/0/{name}")).status_code == 404, name


async def test_an_unknown_path_is_a_page_for_browsers_and_json_for_programs(
    redis_url: str, namespace: str, tmp_path: Path
) -> None:
    for more in ({}, {"base_path": "/delay"}):
        async with api(redis_url, namespace, **more) as client:
            base = more.get("base_path", "")
            for path in ("/nowhere", f"{base}/nowhere/<b>?x=<i>", f"{base}/v2/messages"):
                page = await client.get(path, headers={"accept": "text/html,*/*;q=0.8"})
                assert page.status_code == 404
                assert page.headers["content-security-policy"] == POLICY
                assert "There is no such page" in page.text and "<b>" not in page.text
                assert f'href="{base}/"' in page.text
                other = await client.get(path)
                assert other.status_code == 404 and other.json()["code"] == "not_found"
            assert (await client.post(path, headers={"accept": "text/html"})).status_code == 404
    async with api(redis_url, namespace, token_file=str(token_file_in(tmp_path))) as client:
        page = await client.get("/nowhere", headers={"accept": "text/html"})
        assert page.headers["location"] == "/login?next=%2Fnowhere"
        session = await log_in(client, "admin")
        page = await client.get("/nowhere", headers={"accept": "text/html", **session})
        assert page.status_code == 404 and "There is no such page" in page.text
        assert 'href="/settings"' in page.text
        # A page that cannot be shown leaves its reader his own navigation.
        page = await client.get("/messages?due_from=tomorrow", headers=session)
        assert page.status_code == 422 and 'href="/settings"' in page.text


async def test_without_a_session_a_page_leads_to_the_login_and_back(
    guarded: httpx.AsyncClient,
) -> None:
    answer = await guarded.get("/?range=1h")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/login?next=%2F%3Frange%3D1h"
    form = await guarded.get(answer.headers["location"])
    assert 'name="next" value="/?range=1h"' in form.text
    headers = await log_in(guarded, "read", "/?range=1h")
    assert (await guarded.get("/?range=1h", headers=headers)).status_code == 200
    assert (await guarded.get("/v1/stats", headers=headers)).status_code == 200


async def test_a_session_is_known_to_other_servers_and_ends_with_its_token(
    redis_url: str, namespace: str, token_file: Path
) -> None:
    serve = {"token_file": str(token_file)}
    async with (
        api(redis_url, namespace, **serve) as one,
        api(redis_url, namespace, **serve) as other,
    ):
        headers = await log_in(one, "admin")
        assert (await other.get("/v1/stats", headers=headers)).status_code == 200
        rest = [line for line in token_file.read_text().splitlines() if " admin" not in line]
        token_file.write_text("\n".join(rest))
        assert (await other.get("/v1/stats", headers=headers)).status_code == 401


async def test_a_cookie_that_was_changed_is_no_session(guarded: httpx.AsyncClient) -> None:
    cookie = (await log_in(guarded, "read"))["cookie"]
    label, _, value = cookie.partition("=")
    name, number, ends, signature = value.split(".")
    changed = (
        f"{name}.{number}.{ends}.{'0' * 64}",
        f"{name}.{number}.{int(ends) + 1}.{signature}",
        f"{name}.{'0' * 16}.{ends}.{signature}",
        f"{'0' * 16}.{number}.{ends}.{signature}",
        "",
    )
    for text, status in (*((each, 401) for each in changed), (value, 200)):
        answer = await guarded.get("/v1/stats", headers={"cookie": f"{label}={text}"})
        assert answer.status_code == status, text


async def test_a_session_changes_something_only_from_a_page_of_the_console(
    guarded: httpx.AsyncClient,
) -> None:
    message = {"id": "a", "destination": "pull:x", "body": "1", "delay": "1h"}
    cookie = await log_in(guarded, "write")
    own = {**cookie, "x-delaybridge-console": "1"}
    for headers in (
        cookie,
        {**own, "sec-fetch-site": "cross-site"},
        {**own, "sec-fetch-site": "same-site"},
        {**own, "origin": "https://evil.example"},
    ):
        answer = await guarded.post("/v1/messages", json=message, headers=headers)
        assert answer.status_code == 403, headers
    headers = {**own, "sec-fetch-site": "same-origin", "origin": str(guarded.base_url)}
    answer = await guarded.post("/v1/messages", json=message, headers=headers)
    assert answer.status_code == 201
    viewer = {**(await log_in(guarded, "read")), "x-delaybridge-console": "1"}
    assert (await guarded.delete("/v1/messages/a", headers=viewer)).status_code == 403


async def test_the_label_of_an_environment_is_on_every_page_as_text(
    redis_url: str, namespace: str, http: httpx.AsyncClient
) -> None:
    async with api(redis_url, namespace, env_label="PROD <b>&") as client:
        for path in ("/", "/messages"):
            page = await client.get(path)
            assert '<strong class="env">PROD &lt;b&gt;&amp;</strong>' in page.text
    assert 'class="env"' not in (await http.get("/")).text


@pytest.mark.parametrize("label", ["x" * 21, "two\nlines", "\u202eDORP"])
def test_only_some_printable_characters_are_a_label(label: str) -> None:
    with pytest.raises(ConfigError, match="at most 20 printable"):
        Settings.load(overrides={"serve": {"env_label": label}})


async def test_two_servers_on_one_host_do_not_share_a_cookie(
    redis_url: str, namespace: str, token_file: Path
) -> None:
    """Of the same namespace, but of another Redis. Cookies do not know ports."""
    serve = {"token_file": str(token_file)}
    with RedisServer() as redis:
        async with (
            api(redis_url, namespace, **serve) as one,
            api(redis.url, namespace, **serve) as other,
        ):
            cookies = [await log_in(each, "read") for each in (one, other)]
            assert len({each["cookie"].partition("=")[0] for each in cookies}) == 2
            both = {"cookie": "; ".join(each["cookie"] for each in cookies)}
            for each in (one, other):
                assert (await each.get("/v1/stats", headers=both)).status_code == 200


async def test_sessions_outlive_a_redis_that_comes_back_empty(
    namespace: str, token_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its servers agree on a secret again, also with one that is new."""
    monkeypatch.setattr(sessions, "READ_AGAIN_S", 0.0)
    serve = {"token_file": str(token_file)}
    with RedisServer() as redis:
        async with api(redis.url, namespace, **serve) as one:
            cookie = await log_in(one, "read")
            redis.restart()

            async def is_there() -> bool:
                return (await one.get("/v1/stats", headers=cookie)).status_code == 200

            await until_async(is_there, "the session goes on")
            async with api(redis.url, namespace, **serve) as other:
                assert (await other.get("/v1/stats", headers=cookie)).status_code == 200


async def test_the_alarm_of_a_redis_that_went_back_is_cleared_on_the_page_store(
    http: httpx.AsyncClient, store: Store, namespace: str
) -> None:
    store.run([history_alarm.note(namespace, Setback(1_800_000_000_000, "w", 3, 9, 4, 2))])
    assert "Redis went back to an older state" in (await http.get("/")).text
    assert 'data-path="/v1/alarm"' in (await http.get("/store")).text
    assert (await http.delete("/v1/alarm")).json() == {"cleared": True}


async def test_who_copies_a_body_into_the_form_is_in_the_audit(guarded: httpx.AsyncClient) -> None:
    message = {"id": "a", "destination": "pull:x", "body": "hello", "delay": "1h"}
    admin = {"authorization": f"Bearer {TOKENS['admin']}"}
    answer = await guarded.post("/v1/messages", json=message, headers=admin)
    assert answer.status_code == 201
    writer = await log_in(guarded, "write")
    assert "hello" in (await guarded.get("/publish?from=a", headers=writer)).text
    assert "read the body of a" in (await guarded.get("/v1/audit", headers=admin)).text


async def test_wrong_tokens_are_refused_and_counted(guarded: httpx.AsyncClient) -> None:
    seen = [
        (await guarded.post("/login", content=f"token=wrong-{i}")).status_code for i in range(12)
    ]
    assert seen[0] == 401 and seen[-1] == 429
    again = await guarded.post("/login", content="token=x")
    assert 'role="alert"' in again.text and again.headers["x-content-type-options"] == "nosniff"
    await log_in(guarded, "admin")  # a right token still counts


async def test_a_log_out_ends_the_session_of_the_browser(guarded: httpx.AsyncClient) -> None:
    session = await log_in(guarded, "read")
    foreign = await guarded.post("/logout", headers={**session, "sec-fetch-site": "cross-site"})
    assert foreign.status_code == 403 and "set-cookie" not in foreign.headers
    answer = await guarded.post("/logout", headers=session)
    assert answer.status_code == 303 and "Max-Age=0" in answer.headers["set-cookie"]


async def test_a_viewer_and_a_read_only_server_see_no_buttons(
    redis_url: str, namespace: str, guarded: httpx.AsyncClient
) -> None:
    admin = (await guarded.get("/", headers=await log_in(guarded, "admin"))).text
    viewer = (await guarded.get("/", headers=await log_in(guarded, "read"))).text
    assert "data-act" in admin and "data-act" not in viewer
    assert "/publish" in admin and "/publish" not in viewer
    assert "/settings" in admin and "/settings" not in viewer
    async with api(redis_url, namespace, read_only=True, brokers=BROKERS) as client:
        assert "data-act" not in (await client.get("/")).text
        assert (await client.get("/settings")).status_code == 200


async def test_a_page_in_chinese(http: httpx.AsyncClient) -> None:
    text = (await http.get("/", headers={"accept-language": "zh-CN"})).text
    assert '<html lang="zh-CN"' in text and ">Overview<" not in text


async def test_without_redis_a_page_says_what_to_look_at(namespace: str, token_file: Path) -> None:
    nowhere = "redis://:secret@127.0.0.1:1/0"
    async with api(nowhere, namespace, transport={"redis_s": 0.5}) as client:
        answer = await client.get("/")
        assert answer.status_code == 503 and "127.0.0.1:1" in answer.text
        assert "data-heal" in answer.text and "secret" not in answer.text
    async with api(
        nowhere, namespace, token_file=str(token_file), transport={"redis_s": 0.5}
    ) as client:
        cookie = {"cookie": "__Host-delaybridge-00000000=x"}
        answer = await client.get("/", headers=cookie)  # who asks cannot be known
        assert answer.status_code == 503 and "127.0.0.1:1" not in answer.text


async def test_a_redis_that_answers_but_takes_no_writes_is_not_called_silent(
    namespace: str,
) -> None:
    with RedisServer() as server, Redis(port=server.port) as admin:
        admin.replicaof("127.0.0.1", 1)
        async with api(server.url, namespace, transport={"redis_s": 0.5}) as client:

            async def page() -> str:
                answer = await client.get("/")
                assert answer.status_code == 503
                # A starved Redis may not answer in so short a time: then it is silent.
                return answer.text if "READONLY" in answer.text else ""

            text = await until_async(page, "it answers in time")
    assert "<h1>Redis is not ready</h1>" in text and "does not answer</h1>" not in text


async def test_a_redis_that_is_slow_is_shown_as_it_was(
    namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RedisServer() as redis:
        async with api(redis.url, namespace, transport={"redis_s": 5.0}) as client:

            async def alarm() -> tuple[int, bool]:
                answer = await client.get("/")
                shown, _, _ = answer.text.partition('id="words"')
                return answer.status_code, "these numbers are" in shown

            assert await alarm() == (200, False)
            redis.pause()

            async def is_old() -> bool:
                status, is_said = await alarm()
                assert status == 200
                return is_said

            await until_async(is_old, "the page says that it is old")
            monkeypatch.setattr(snapshot, "KEPT_S", 0.0)
            assert (await client.get("/")).status_code == 503  # too old to be of use
            redis.resume()

            async def is_there() -> bool:
                return await alarm() == (200, False)

            await until_async(is_there, "it is as it is now")


async def test_ticks_are_streamed_and_end_with_the_client(http: httpx.AsyncClient) -> None:
    async with http.stream("GET", "/live") as answer:
        assert answer.headers["content-type"] == "text/event-stream"
        lines = answer.aiter_lines()
        assert await anext(lines) == "event: tick"
        assert '"delayed":0' in await anext(lines)
        await anext(lines)
        assert await anext(lines) == "event: tick"


@pytest.mark.parametrize("path", ["/live", "/v1/events"])
async def test_a_stream_ends_with_its_token(
    guarded: httpx.AsyncClient, token_file: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(event_fanout, "ALIVE_S", 0.5)
    headers = await log_in(guarded, "read")
    async with asyncio.timeout(DEADLINE_S), guarded.stream("GET", path, headers=headers) as answer:
        lines = answer.aiter_lines()
        await anext(lines)
        rest = [line for line in token_file.read_text().splitlines() if " read" not in line]
        token_file.write_text("\n".join(rest))
        async for _ in lines:
            pass  # until it ends


async def test_a_message_is_copied_into_the_form(http: httpx.AsyncClient) -> None:
    message = {
        "id": "a", "key": "k", "destination": "pull:x", "body": "<b>", "delay": "1h",
        "headers": {"kind": "order"},
    }  # fmt: skip
    assert (await http.post("/v1/messages", json=message)).status_code == 201
    text = (await http.get("/publish?from=a&key=k")).text
    assert 'name="destination" value="pull:x"' in text and "&lt;b&gt;</textarea>" in text
    assert 'name="key" value="k"' in text and "order" in text


async def test_the_store_and_the_settings_are_shown_without_secrets(
    redis_url: str, namespace: str
) -> None:
    brokers = {"rabbitmq": "amqp://user:S3CR3T@127.0.0.1:1/"}
    async with api(redis_url, namespace, brokers=brokers) as client:
        store, settings = await client.get("/store"), await client.get("/settings")
        assert "noeviction" in store.text and store.status_code == 200
        assert "brokers.rabbitmq" in settings.text and "S3CR3T" not in settings.text
        found = (await client.get("/v1/store")).json()
        assert found["keys"]["due"] == 0 and found["servers"][0]["info"]["role"] == "master"
