"""The whole console in Chromium, on a bridge under load: every page, hostile content, pictures.

PICTURES=docs/images writes the pictures of the documentation.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pika
import pytest
from playwright.async_api import Page, expect

from delaybridge.store import registry
from delaybridge.store.store import Store
from delaybridge.web.console import look
from delaybridge.web.console.pages import PAGES
from tests.rigs.api import api
from tests.rigs.browser import (
    PHONE,
    browser,
    cut_off,
    inaccessible,
    log_in_by_form,
    overlapping,
    too_wide,
)
from tests.rigs.hostile_strings import HOSTILE_STRINGS
from tests.rigs.sessions import TOKENS, token_file_in
from tests.rigs.waiting import DEADLINE_S, until_async
from tests.servers.redis import RedisServer

PLAIN = [page.path for page in PAGES if "{" not in page.path]
PICTURES = os.environ.get("PICTURES", "")


@asynccontextmanager
async def site(
    redis_url: str, rabbitmq_url: str, namespace: str
) -> AsyncIterator[httpx.AsyncClient]:
    """A server whose namespace has messages in every place, and a worker that is busy."""
    brokers = {"rabbitmq": rabbitmq_url}
    flags = ["--redis", redis_url, "--namespace", namespace, "--broker", rabbitmq_url]
    command = [sys.executable, "-m", "delaybridge", *flags, "scan", "--name", "web-1"]
    async with api(redis_url, namespace, brokers=brokers) as client:
        with queue_on(rabbitmq_url, namespace), worker(command):
            await fill(client, f"rabbitmq:/{namespace}")
            yield client


@contextmanager
def worker(command: list[str]) -> Iterator[None]:
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


@contextmanager
def queue_on(rabbitmq_url: str, name: str) -> Iterator[None]:
    """A queue that nobody reads."""
    with closing(pika.BlockingConnection(pika.URLParameters(rabbitmq_url))) as connection:
        channel = connection.channel()
        channel.queue_declare(name, durable=True, arguments={"x-queue-type": "quorum"})
    yield


async def fill(client: httpx.AsyncClient, to: str) -> None:
    """Messages of every kind; the last one is dead when this returns."""
    some = [
        {"id": f"order-{n}", "destination": to, "body_json": {"order": n}, "delay": f"{n * 200}ms",
         "headers": {"kind": "order"}}
        for n in range(1, 500)
    ]  # fmt: skip
    some += [
        {"id": f"later-{n}", "destination": to, "body": f"I am {n}", "delay": f"{n}m"}
        for n in range(1, 400)
    ]
    some.append({"id": "late", "destination": to, "body": "x", "due": "2026-01-01T00:00:00Z",
                 "ttl": "1s"})  # fmt: skip
    answer = await client.post("/v1/messages:batch", json={"messages": some})
    assert answer.status_code == 207, answer.text
    report = {"name": "report", "destination": to, "body": "x", "cron": "0 6 * * *"}
    assert (await client.post("/v1/recurring", json=report)).status_code == 201

    async def is_dead() -> bool:
        return (await client.get("/v1/dead/late")).status_code == 200

    await until_async(is_dead, "the worker has given one up")


async def opened(page: Page, path: str) -> None:
    """The page, when its first tick has come."""
    await page.goto(path)
    await expect(page.locator("h1").first).to_be_visible()
    await expect(page.locator(".beacon.on")).to_be_visible(timeout=15_000)


@pytest.mark.parametrize("look", ["light", "dark", "phone", "chinese"])
async def test_every_page_is_well(
    redis_url: str,
    rabbitmq_url: str,
    namespace: str,
    chromium: str,
    node_modules: str,
    look: str,
) -> None:
    how: dict[str, Any] = {
        "light": {},
        "dark": {"scheme": "dark"},
        "phone": {"size": PHONE},
        "chinese": {"locale": "zh-CN"},
    }[look]
    async with (
        site(redis_url, rabbitmq_url, namespace) as http,
        browser(str(http.base_url), chromium, **how) as page,
    ):
        found = []
        for path in [*PLAIN, "/messages/later-7", "/destinations/rabbitmq", "/?range=1h"]:
            await opened(page, path)
            found += [f"{path}: {each}" for each in await too_wide(page)]
            found += [f"{path}: cut off: {each}" for each in await cut_off(page)]
            found += [f"{path}: overlaps: {each}" for each in await overlapping(page)]
            found += [f"{path}: {each}" for each in await inaccessible(page, node_modules)]
        assert not found, "\n".join(found)


FIELDS = {
    "/messages": ("q", "destination", "id_prefix", "header", "reason", "due_from", "cursor"),
    "/dead": ("reason", "destination", "id_prefix", "cursor"),
    "/horizon": ("destination", "range"), "/tail": ("destination", "event"), "/": ("range",),
    "/publish": ("destination", "from"), "/recurring": ("find", "edit"), "/jobs": ("cursor",),
    "/in-flight": ("destination",), "/login": ("next",),
}  # fmt: skip
"""The fields of each page that an address may fill."""


async def fill_with_hostility(http: httpx.AsyncClient, store: Store, namespace: str) -> list[str]:
    """Each string is an id, a header and a body; some are what recurring definitions and workers
    say. The strings that are ids."""
    taken = []
    for number, text in enumerate(HOSTILE_STRINGS):
        body = {"destination": f"pull:t{number % 3}", "body": text, "delay": "1h",
                "headers": {"x": text}, "id": text}  # fmt: skip
        answer = await http.post("/v1/messages", json=body)
        if answer.status_code == 201:
            taken.append(text)
        else:
            assert answer.status_code == 422, answer.text
            body["id"] = f"hostile-{number}"
            answer = await http.post("/v1/messages", json=body)
            assert answer.status_code in (201, 422), answer.text
    for number, text in enumerate(HOSTILE_STRINGS[::10]):
        definition = {"name": f"r{number}", "destination": "pull:t", "every": "1h", "body": text,
                      "headers": {"x": text}, "properties": {"type": text}}  # fmt: skip
        answer = await http.post("/v1/recurring", json=definition)
        assert answer.status_code in (201, 422), answer.text
        said = {text: text, "kafka": text}
        pace = {"confirm_ms": {text: 1}, "unconfirmed": {text: 2}, "late_ms": {text: 3}}
        about = {"host": text, "pid": 7, "version": text, "started_ms": 5, "brokers": said,
                 "parked": said, "paused": [text], "damaged": said, "failing": said,
                 "pace": pace}  # fmt: skip
        info = json.dumps(about).encode()
        store.run([registry.announce(namespace, text, "0" * 16, 300_000, info)])
    return taken


async def test_hostile_content_is_shown_as_text(
    redis_url: str, namespace: str, chromium: str
) -> None:
    """Through every page, and through every field that an address may fill."""
    async with (
        api(redis_url, namespace) as http,
        browser(str(http.base_url), chromium, expected={404, 422}) as page,
    ):
        await page.add_init_script("window.alert = () => { window.__pwned = 1; }")
        with closing(Store(redis_url)) as store:
            taken = await fill_with_hostility(http, store, namespace)
        assert len(taken) > len(HOSTILE_STRINGS) / 2
        pages = ["/messages?limit=500", "/messages?limit=500&state=dead", *PLAIN]
        for path in [*pages, *(f"/recurring?edit=r{n}" for n in range(25))]:
            await opened(page, path)
            if await page.locator("[hx-trigger]").count():
                async with page.expect_response(lambda found: "/static/" not in found.url):
                    await page.keyboard.press(".")  # rows are matched by such ids, too
            assert not await page.evaluate("window.__pwned"), path
        own = (await http.get("/tail")).text  # a page that has nothing of theirs has `<title>`
        for path, names in FIELDS.items():
            for number, text in enumerate(HOSTILE_STRINGS):
                name = names[number % len(names)]
                found = await http.get(path, params={name: text})
                assert found.status_code < 500, (path, name, text)
                is_own = "<" not in text or text in own
                assert is_own or text not in found.text, (path, name, text)
        for text in taken[::8]:
            for path in ("/messages/{}", "/publish?from={}", "/destinations/kafka%3A{}"):
                await page.goto(path.format(quote(text, safe="")))
                assert not await page.evaluate("window.__pwned"), (path, text)


async def test_a_token_opens_the_console_and_its_scope_decides_what_can_be_done(
    redis_url: str, namespace: str, chromium: str, tmp_path: Path
) -> None:
    file = token_file_in(tmp_path)
    async with (
        api(redis_url, namespace, token_file=str(file)) as http,
        browser(str(http.base_url), chromium, expected={401}) as page,
    ):
        await page.goto("/publish")
        await page.get_by_label("Token").fill("wrong-token-wrong")
        await page.get_by_role("button", name="Log in").click()
        await expect(page.get_by_role("alert")).to_be_visible()
        await page.get_by_label("Token").fill(TOKENS["write"])
        await page.get_by_role("button", name="Log in").click()
        await expect(page).to_have_url(f"{http.base_url}/publish")
        await page.get_by_label("Destination", exact=True).fill("pull:orders")
        await page.get_by_label("Id, made if empty").fill("by-hand")
        await page.get_by_label("Body", exact=True).fill("hello")
        await expect(page.locator("#as-cli")).to_contain_text("'pull:orders' --in '15m'")
        await page.get_by_role("button", name="Schedule").click()
        await expect(page).to_have_url(f"{http.base_url}/messages/by-hand")
        admin = {"authorization": f"Bearer {TOKENS['admin']}"}
        stored = await http.get("/v1/messages/by-hand", headers=admin)
        assert stored.json()["body"] == "hello"
        await page.get_by_role("button", name="Log out").click()
        await expect(page.get_by_label("Token")).to_be_visible()


@pytest.mark.parametrize("path", ["/settings", "/messages"])
async def test_an_open_page_leads_to_the_login_when_its_session_ends(
    redis_url: str, namespace: str, chromium: str, tmp_path: Path, path: str
) -> None:
    """By its stream, also where nothing is refreshed; and back to where it was."""
    file = token_file_in(tmp_path)
    async with (
        api(redis_url, namespace, token_file=str(file)) as http,
        browser(str(http.base_url), chromium, expected={401}) as page,
    ):
        await page.goto(path)
        await log_in_by_form(page, TOKENS["admin"])
        known = file.read_text()
        file.write_text("")
        await expect(page.get_by_label("Token")).to_be_visible(timeout=20_000)
        file.write_text(known)
        await page.get_by_label("Token").fill(TOKENS["admin"])
        await page.keyboard.press("Enter")
        await expect(page).to_have_url(f"{http.base_url}{path}")


async def test_what_is_seen_stays_while_redis_is_slow(namespace: str, chromium: str) -> None:
    """A list that cannot be refreshed, and a chart of the same page."""
    message = {"id": "order-7", "destination": "pull:orders", "body": "7", "delay": "1h"}
    with RedisServer() as redis:
        async with (
            api(redis.url, namespace, transport={"redis_s": 1.0}) as http,
            browser(str(http.base_url), chromium, expected={503}) as page,
        ):
            assert (await http.post("/v1/messages", json=message)).status_code == 201
            await opened(page, "/destinations/pull:orders")
            await expect(page.locator("[data-chart=ahead] canvas")).to_be_visible()
            other = await page.context.new_page()
            await opened(other, "/messages")
            redis.pause()
            for each in (page, other):
                await each.keyboard.press(".")
                await expect(each.locator("#live.stale")).to_be_visible(timeout=15_000)
                await expect(each.locator("#said")).to_contain_text("503")
            await expect(page.locator("#alerts")).to_contain_text("old", timeout=15_000)
            await expect(other.locator("#live")).to_contain_text("order-7")
            await expect(page.locator("[data-chart=ahead] canvas")).to_be_visible()
            redis.resume()
            for each in (page, other):
                await expect(each.locator("#live:not(.stale)")).to_be_visible(timeout=30_000)
            await expect(other.locator("#live")).to_contain_text("order-7")


async def test_alerts_stay_in_the_language_of_their_page(
    redis_url: str, namespace: str, chromium: str
) -> None:
    """One page is from before the other chose a language."""
    tick = "new Promise(done => document.addEventListener('tick', done, {once: true}))"
    async with (
        api(redis_url, namespace) as http,
        browser(str(http.base_url), chromium) as before,
    ):
        await opened(before, "/")
        page = await before.context.new_page()
        await opened(page, "/")
        await page.get_by_label("Language").first.select_option("zh")
        await expect(page.locator("html")).to_have_attribute("lang", "zh-CN")
        for one, text in ((page, "个没有 worker"), (before, "buckets have no worker")) * 2:
            await one.evaluate(tick)
            await expect(one.locator("#alerts")).to_contain_text(text)


async def test_many_pages_are_open_at_once(redis_url: str, namespace: str, chromium: str) -> None:
    """A browser opens six connections to a server: streams must leave some for the rest."""
    async with (
        api(redis_url, namespace) as http,
        browser(str(http.base_url), chromium) as first,
    ):
        await opened(first, "/")
        pages = [await first.context.new_page() for _ in range(7)]
        for number, page in enumerate(pages):
            await opened(page, "/tail" if number < 4 else "/messages")
        await first.close()  # it had the stream
        await pages[0].close()
        for page in pages[1:]:
            await page.evaluate(
                "new Promise(done => document.addEventListener('tick', done, {once: true}))"
            )


async def test_a_job_goes_on_when_its_dialog_is_left(
    redis_url: str, namespace: str, chromium: str
) -> None:
    some = [
        {"id": f"m{n}", "destination": "pull:t", "body": "x", "delay": "1h"} for n in range(400)
    ]
    async with (
        api(redis_url, namespace) as http,
        browser(str(http.base_url), chromium) as page,
    ):
        for batch in range(10):
            named = [{**each, "id": f"{each['id']}-{batch}"} for each in some]
            answer = await http.post("/v1/messages:batch", json={"messages": named})
            assert answer.status_code == 207
        await opened(page, "/messages")
        await page.locator("summary", has_text="All that match").click()
        await page.get_by_role("button", name="Cancel all").click()
        await page.locator("#ask .typed input").fill("4000")
        await page.locator("#ask .go").click()
        await expect(page.locator("#ask .go")).to_be_hidden()  # it has begun
        await page.keyboard.press("Escape")
        await page.close()

        async def is_done() -> bool:
            return bool((await http.get("/v1/stats")).json()["delayed"] == 0)

        await until_async(is_done, "the job does all")


async def test_a_page_that_the_browser_kept_goes_on(
    redis_url: str, namespace: str, chromium: str
) -> None:
    """Going back shows a page as it was left, without loading it."""
    async with (
        api(redis_url, namespace) as http,
        browser(str(http.base_url), chromium) as page,
    ):
        await opened(page, "/tail")
        await page.evaluate("dispatchEvent(new PageTransitionEvent('pagehide', {persisted: true}))")
        await page.evaluate("dispatchEvent(new PageTransitionEvent('pageshow', {persisted: true}))")
        await expect(page.locator("#t-tail")).to_contain_text("events may be missing")
        await page.evaluate(
            "new Promise(done => document.addEventListener('tick', done, {once: true}))"
        )


async def test_a_double_click_schedules_one_message(
    redis_url: str, namespace: str, chromium: str
) -> None:
    async with (
        api(redis_url, namespace) as http,
        browser(str(http.base_url), chromium) as page,
    ):
        await opened(page, "/publish?destination=pull:orders")
        await page.get_by_role("button", name="Schedule").dblclick()
        await page.wait_for_url("**/messages/*")
        assert (await http.get("/v1/stats")).json()["delayed"] == 1


async def test_a_page_of_a_message_that_is_gone_says_so(
    redis_url: str, namespace: str, chromium: str
) -> None:
    message = {"id": "order-7", "destination": "pull:orders", "body": "7", "delay": "1h"}
    async with (
        api(redis_url, namespace) as http,
        browser(str(http.base_url), chromium, expected={404}) as page,
    ):
        assert (await http.post("/v1/messages", json=message)).status_code == 201
        await opened(page, "/messages/order-7")
        assert (await http.delete("/v1/messages/order-7")).status_code == 200
        await page.keyboard.press(".")
        await expect(page.locator("h1")).to_have_text("No such message")


async def test_a_page_heals_when_redis_is_back(
    namespace: str, chromium: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server of the page goes away and comes back, as the operator sees it."""
    monkeypatch.setattr(look, "_KEPT_S", 2.0)
    with RedisServer() as redis:
        async with (
            api(redis.url, namespace, transport={"redis_s": 1.0}) as http,
            browser(str(http.base_url), chromium, expected={503}) as page,
        ):
            await opened(page, "/")
            redis.stop()
            await expect(page.locator("#alerts")).to_contain_text(
                "Redis does not answer", timeout=15_000
            )
            await page.goto("/")
            await expect(page.locator("h1")).to_have_text("Redis does not answer")
            redis.start()
            await expect(page.locator("h1")).to_have_text("Overview", timeout=30_000)


async def test_pages_by_keys_alone(redis_url: str, namespace: str, chromium: str) -> None:
    message = {"id": "order-7", "destination": "pull:orders", "body": "7", "delay": "1h"}
    async with (
        api(redis_url, namespace) as http,
        browser(str(http.base_url), chromium) as page,
    ):
        assert (await http.post("/v1/messages", json=message)).status_code == 201
        await opened(page, "/")
        for key, path in (("h", "/horizon"), ("d", "/dead"), ("b", "/buckets"), ("o", "/")):
            await page.keyboard.press("g")
            await page.keyboard.press(key)
            await page.wait_for_url(f"**{path}")
        await page.keyboard.press("?")
        await expect(page.locator("#keys")).to_be_visible()
        await page.keyboard.press("Escape")
        await page.keyboard.press("c")
        await expect(page.locator("#curl pre")).to_contain_text("curl -sS http://")
        await page.keyboard.press("Escape")
        await page.keyboard.press("/")
        await page.keyboard.type("order-7")
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/messages/order-7")


async def test_the_store_is_checked_by_a_button(
    redis_url: str, namespace: str, chromium: str, node_modules: str
) -> None:
    gone = {"rabbitmq": "amqp://127.0.0.1:1"}
    async with (
        api(redis_url, namespace, brokers=gone) as http,
        browser(str(http.base_url), chromium) as page,
    ):
        await opened(page, "/store")
        await page.get_by_role("link", name="Check").click()
        line = page.locator("#checks tbody tr", has_text="broker rabbitmq")
        await expect(line).to_contain_text("fails", timeout=20_000)
        await expect(page.locator("#checks tr", has_text="scripts run")).to_contain_text("ok")
        assert page.url == f"{http.base_url}/store"
        assert await inaccessible(page, node_modules) == []
        await page.keyboard.press("c")
        await expect(page.locator("#curl pre")).to_contain_text("/v1/checks")
        await page.keyboard.press("Escape")
        await expect(page.locator("#curl")).to_be_hidden()


@pytest.mark.timeout(400)
async def test_the_demo_is_seen_live(chromium: str, tmp_path: Path) -> None:
    """A worker is killed and another comes, as the pages show it; pictures of them."""
    folder = Path(PICTURES or tmp_path)
    shown = PLAIN if PICTURES else ["/", "/horizon", "/buckets"]
    looks: dict[str, Any] = {"light": {}, "dark": {"scheme": "dark"}, "phone": {"size": PHONE}}
    demo = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "delaybridge", "demo", "--serve", "--port", "0"),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert demo.stdout is not None
        found = None
        while found is None:
            found = re.search(rb"http://[0-9.:]+", await demo.stdout.readline())
        url = found[0].decode()
        async with browser(url, chromium) as page:
            await opened(page, "/buckets")
            await expect(page.locator("main")).to_contain_text("w1", timeout=20_000)
            async with asyncio.timeout(DEADLINE_S):
                while b"worker w3 started" not in await demo.stdout.readline():
                    pass
            await expect(page.locator("#live, main").first).to_contain_text("w3", timeout=20_000)
            await opened(page, "/workers")
            await expect(page.locator("main table").first).not_to_contain_text("w1")
        for look, how in looks.items():
            async with browser(url, chromium, **how) as page:
                for path in shown:
                    await opened(page, "/horizon?range=1m" if path == "/horizon" else path)
                    await page.wait_for_timeout(1500)  # the charts have their points
                    name = path.strip("/") or "overview"
                    await page.screenshot(path=folder / f"console-{name}-{look}.png")
    finally:
        demo.send_signal(signal.SIGINT)
        told, _ = await demo.communicate()
    assert demo.returncode == 0 and told.rstrip().endswith(b"PASS"), told
