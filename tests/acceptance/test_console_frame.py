"""What is on every page of the console, in a browser: its stream, its session, its keys."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from delaybridge import AsyncClient
from delaybridge.serve.console import snapshot
from tests.rigs.api import api
from tests.rigs.browser import (
    PHONE,
    browser,
    inaccessible,
    log_in_by_form,
    opened,
    overlapping,
    ticked,
    too_wide,
)
from tests.rigs.sessions import TOKENS, token_file_in
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.asyncio(loop_scope="session")
MESSAGE = {"id": "order-7", "destination": "pull:orders", "body": "7", "delay": "1h"}


@pytest_asyncio.fixture(loop_scope="session")
async def http(redis_url: str, namespace: str) -> AsyncIterator[httpx.AsyncClient]:
    async with api(redis_url, namespace, brokers={"rabbitmq": "amqp://127.0.0.1:1"}) as client:
        assert (await client.post("/v1/messages", json=MESSAGE)).status_code == 201
        yield client


@pytest.mark.slow
async def test_a_session_begins_with_a_token_and_what_is_typed_outlives_it(
    redis_url: str, namespace: str, program: Browser, tmp_path: Path
) -> None:
    """When it ends each page leads to the login, told by its stream: also where nothing is
    refreshed; and back to where it was. A page on which something was typed stays."""
    file = token_file_in(tmp_path)
    async with (
        api(redis_url, namespace, token_file=str(file)) as http,
        AsyncExitStack() as profiles,
    ):
        url, pages = str(http.base_url), {}
        for path in ("/settings", "/messages", "/publish"):
            page = await profiles.enter_async_context(browser(program, url, expected={401}))
            await page.goto(path)
            pages[path] = page
        typing = pages.pop("/publish")
        await typing.get_by_label("Token").fill("wrong-token-wrong")
        await typing.get_by_role("button", name="Log in").click()
        await expect(typing.get_by_role("alert")).to_be_visible()
        for page in (typing, *pages.values()):
            await log_in_by_form(page, TOKENS["admin"])
        await expect(typing).to_have_url(f"{url}/publish")
        body = typing.get_by_label("Body", exact=True)
        await body.fill("an hour's work")

        known = file.read_text()
        file.write_text("")
        for page in pages.values():
            await expect(page.get_by_label("Token")).to_be_visible()
        login = typing.locator("#alerts a", has_text="log in")
        await expect(login).to_be_visible()
        await expect(body).to_have_value("an hour's work")

        async with typing.context.expect_page() as appeared:
            await login.click()
        other = await appeared.value
        await expect(other.get_by_label("Token")).to_be_visible()
        file.write_text(known)
        for path, page in pages.items():
            await page.get_by_label("Token").fill(TOKENS["admin"])
            await page.keyboard.press("Enter")
            await expect(page).to_have_url(f"{url}{path}")
        await log_in_by_form(other, TOKENS["admin"])
        await other.close()
        await expect(typing.locator(".beacon.on")).to_be_visible()
        await expect(body).to_have_value("an hour's work")
        await typing.get_by_role("button", name="Log out").click()
        await expect(typing.get_by_label("Token")).to_be_visible()


@pytest.mark.slow
async def test_what_is_seen_stays_while_redis_is_slow_and_heals_when_it_was_away(
    namespace: str, program: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list that cannot be refreshed, and a chart of another page."""
    with RedisServer() as redis:
        async with (
            api(redis.url, namespace, transport={"redis_s": 1.0}) as http,
            browser(program, str(http.base_url), expected={503}) as page,
        ):
            async with AsyncClient(redis.url, namespace=namespace) as client:  # which is patient
                await client.schedule("pull:orders", "7", delay="1h", id="order-7")
            await opened(page, "/destinations/pull:orders")
            await expect(page.locator("[data-chart=ahead] canvas")).to_be_visible()
            other = await page.context.new_page()
            await opened(other, "/messages")
            redis.pause()
            for each in (page, other):
                await each.keyboard.press(".")
                await expect(each.locator("#live.stale")).to_be_visible()
                await expect(each.locator("#said")).to_contain_text("503")
            await expect(page.locator("#alerts")).to_contain_text("old")
            await expect(other.locator("#live")).to_contain_text("order-7")
            await expect(page.locator("[data-chart=ahead] canvas")).to_be_visible()
            redis.resume()
            for each in (page, other):
                await expect(each.locator("#live:not(.stale)")).to_be_visible()
            await expect(other.locator("#live")).to_contain_text("order-7")

            monkeypatch.setattr(snapshot, "KEPT_S", 2.0)
            await opened(page, "/")
            redis.stop()
            await expect(page.locator("#alerts")).to_contain_text("Redis does not answer")
            await page.goto("/")
            await expect(page.locator("h1")).to_have_text("Redis does not answer")
            redis.start()
            await expect(page.locator("h1")).to_have_text("Overview")


@pytest.mark.slow
async def test_many_pages_share_a_stream_and_each_keeps_its_language(
    http: httpx.AsyncClient, page: Page
) -> None:
    """A browser opens six connections to a server: streams must leave some for the rest. Most
    pages are from before one of them chose a language."""
    await opened(page, "/")
    await page.evaluate("localStorage.setItem('delaybridge-refresh', 'off')")
    pages = [await page.context.new_page() for _ in range(7)]
    for number, each in enumerate(pages):
        await opened(each, "/tail" if number < 4 else "/messages")
    await page.close()  # it had the stream
    await pages.pop(0).close()
    chosen = pages.pop()
    await chosen.get_by_label("Language").first.select_option("zh")
    await expect(chosen.locator("html")).to_have_attribute("lang", "zh-CN")
    for _ in range(2):
        await asyncio.gather(*map(ticked, [*pages, chosen]))
        for each in pages:
            await expect(each.locator("#alerts")).to_contain_text("buckets have no worker")
        await expect(chosen.locator("#alerts")).to_contain_text("个没有 worker")


async def test_a_page_goes_on_that_the_browser_kept_and_one_of_nothing_says_so(
    http: httpx.AsyncClient, program: Browser
) -> None:
    async with browser(program, str(http.base_url), expected={404}) as page:
        await opened(page, "/tail")  # going back shows it as it was left, without loading it
        for event in ("pagehide", "pageshow"):
            how = f"new PageTransitionEvent('{event}', {{persisted: true}})"
            await page.evaluate(f"dispatchEvent({how})")
        await expect(page.locator("#t-tail")).to_contain_text("events may be missing")
        await ticked(page)

        await opened(page, "/messages/order-7")
        assert (await http.delete("/v1/messages/order-7")).status_code == 200
        await page.keyboard.press(".")
        await expect(page.locator("h1")).to_have_text("No such message")


async def test_pages_by_keys_alone(http: httpx.AsyncClient, page: Page) -> None:
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
    http: httpx.AsyncClient, page: Page, node_modules: str
) -> None:
    await opened(page, "/store")
    await page.get_by_role("link", name="Check").click()
    line = page.locator("#checks tbody tr", has_text="broker rabbitmq")
    await expect(line).to_contain_text("fails")
    await expect(page.locator("#checks tr", has_text="scripts run")).to_contain_text("ok")
    assert page.url == f"{http.base_url}/store"
    assert await inaccessible(page, node_modules) == []
    await page.keyboard.press("c")
    await expect(page.locator("#curl pre")).to_contain_text("/v1/checks")
    await page.keyboard.press("Escape")
    await expect(page.locator("#curl")).to_be_hidden()


async def test_big_numbers_do_not_run_into_each_other(page: Page) -> None:
    for path in ("/", "/buckets", "/horizon"):
        await opened(page, path)
        await page.evaluate(
            """for (const it of document.querySelectorAll(".card .value")) {
              delete it.dataset.tick; it.textContent = "1,234,567"; }"""
        )
        for width in (320, 390, 1280):
            await page.set_viewport_size({"width": width, "height": 800})
            assert await overlapping(page) == [], (path, width)


async def test_on_a_phone_the_header_is_one_line_and_a_button_shows_its_tools(
    redis_url: str, namespace: str, program: Browser
) -> None:
    async with (
        api(redis_url, namespace, env_label="PRODUCTION, BERLIN 2") as http,
        browser(program, str(http.base_url), size=PHONE) as page,
    ):
        await opened(page, "/settings")
        bar, theme = page.locator(".top"), page.get_by_label("Theme").first
        box = await bar.bounding_box()
        assert box and box["height"] < 50 and await too_wide(page) == []
        await expect(page.locator(".side [aria-current]")).to_be_in_viewport()
        await expect(theme).to_be_hidden()
        await page.get_by_role("button", name="More").click()
        await expect(theme).to_be_visible()
        assert await too_wide(page) == []
