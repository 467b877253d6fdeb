"""The whole console in Chromium: every page, hostile content, the demo.

PICTURES=docs/images writes the pictures of the documentation, with `-k demo`.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from playwright.async_api import Browser, Page, expect

from delaybridge.store.store import Store
from delaybridge.web.console.pages import PAGES
from tests.rigs.api import api
from tests.rigs.browser import (
    DESKTOP,
    PHONE,
    browser,
    cut_off,
    inaccessible,
    opened,
    overlapping,
    refreshed,
    too_wide,
)
from tests.rigs.crew import Crew
from tests.rigs.hostile_strings import HOSTILE_STRINGS, filled
from tests.rigs.waiting import DEADLINE_S, until_async

pytestmark = pytest.mark.asyncio(loop_scope="session")
PLAIN = [page.path for page in PAGES if "{" not in page.path]
PICTURES = os.environ.get("PICTURES", "")


@asynccontextmanager
async def site(redis_url: str, namespace: str) -> AsyncIterator[str]:
    """The URL of a server whose namespace has messages in every place, and a worker that is busy."""
    async with (
        Crew(redis_url, namespace) as crew,
        api(redis_url, namespace, brokers={"memory": "memory://"}) as http,
    ):
        crew.start("web-1")
        await fill(http)
        yield str(http.base_url)


async def fill(http: httpx.AsyncClient) -> None:
    """Messages of every kind; the last one is dead when this returns."""
    some = [
        {"id": f"order-{n}", "destination": "memory:orders", "body_json": {"order": n},
         "delay": f"{n * 200}ms", "headers": {"kind": "order"}}
        for n in range(1, 500)
    ]  # fmt: skip
    some += [
        {"id": f"later-{n}", "destination": "memory:x", "body": f"I am {n}", "delay": f"{n}m"}
        for n in range(1, 400)
    ]
    some.append({"id": "late", "destination": "memory:x", "body": "x", "ttl": "1s",
                 "due": "2026-01-01T00:00:00Z"})  # fmt: skip
    answer = await http.post("/v1/messages:batch", json={"messages": some})
    assert answer.status_code == 207, answer.text
    report = {"name": "report", "destination": "memory:x", "body": "x", "cron": "0 6 * * *"}
    assert (await http.post("/v1/recurring", json=report)).status_code == 201

    async def is_dead() -> bool:
        return (await http.get("/v1/dead/late")).status_code == 200

    await until_async(is_dead, "the worker has given one up")


async def shape_of(page: Page) -> list[str]:
    """What is wrong with the places and sizes of things."""
    return [
        *await too_wide(page),
        *(f"cut off: {each}" for each in await cut_off(page)),
        *(f"overlaps: {each}" for each in await overlapping(page)),
    ]


async def test_every_page_is_well_in_each_size_scheme_and_language(
    redis_url: str, namespace: str, program: Browser, node_modules: str
) -> None:
    """Loaded small in English, then enlarged, then dark; and loaded large in Chinese."""
    found = []
    async with (
        site(redis_url, namespace) as url,
        browser(program, url, size=PHONE) as page,
        browser(program, url, locale="zh-CN") as chinese,
    ):
        for path in [*PLAIN, "/messages/later-7", "/destinations/memory", "/?range=1h"]:
            await asyncio.gather(opened(page, path), opened(chinese, path))
            wrong = {"phone": [*await shape_of(page), *await inaccessible(page, node_modules)]}
            await page.set_viewport_size({"width": DESKTOP[0], "height": DESKTOP[1]})
            wrong["desktop"] = [*await shape_of(page), *await inaccessible(page, node_modules)]
            await page.emulate_media(color_scheme="dark")
            wrong["dark"] = await inaccessible(page, node_modules)
            await page.emulate_media(color_scheme="light")
            await page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
            wrong["chinese"] = [
                *await shape_of(chinese), *await inaccessible(chinese, node_modules)
            ]  # fmt: skip
            found += [f"{path}, {look}: {each}" for look, all in wrong.items() for each in all]
    assert not found, "\n".join(found)


async def test_hostile_content_runs_on_no_page(
    redis_url: str, namespace: str, program: Browser
) -> None:
    """Each text is in lists, in a message and in a definition that are copied into forms."""
    async with (
        api(redis_url, namespace) as http,
        browser(program, str(http.base_url), expected={404, 422}) as page,
    ):
        await page.context.add_init_script("window.alert = () => { window.__pwned = 1; }")
        with closing(Store(redis_url)) as store:
            taken = await filled(http, store, namespace, HOSTILE_STRINGS)
        headers = {f"h{number}": text for number, text in enumerate(HOSTILE_STRINGS)}
        all_in_one = {"body": "\n".join(HOSTILE_STRINGS), "headers": headers}
        message = {"id": "all", "destination": "pull:t", "delay": "1h", **all_in_one}
        assert (await http.post("/v1/messages", json=message)).status_code == 201
        named = {"name": "all", "destination": "pull:t", "every": "1h", **all_in_one}
        assert (await http.post("/v1/recurring", json=named)).status_code == 201
        lists = [*PLAIN, "/messages?limit=500", "/messages?limit=500&state=dead"]
        for path in [*lists, "/recurring?edit=all", "/publish?from=all", "/messages/all"]:
            await opened(page, path)
            if await page.locator("[hx-trigger]").count():
                await refreshed(page)  # rows are matched by such ids, too
            assert not await page.evaluate("window.__pwned"), path
        for text in taken[::30]:
            for path in ("/messages/{}", "/publish?from={}", "/destinations/kafka%3A{}"):
                await page.goto(path.format(quote(text, safe="")))
                assert not await page.evaluate("window.__pwned"), (path, text)


async def test_the_demo_is_seen_live(program: Browser) -> None:
    """A worker is killed and another comes, as the pages show it; pictures of them."""
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
        async with browser(program, url) as page:
            await opened(page, "/buckets")
            await expect(page.locator("main")).to_contain_text("w1")
            async with asyncio.timeout(DEADLINE_S):
                while b"worker w3 started" not in await demo.stdout.readline():
                    pass
            await expect(page.locator("#live, main").first).to_contain_text("w3")
            await opened(page, "/workers")
            await expect(page.locator("main table").first).not_to_contain_text("w1")
        if PICTURES:
            await draw(program, url, Path(PICTURES))
    finally:
        demo.send_signal(signal.SIGINT)
        told, _ = await demo.communicate()
    assert demo.returncode == 0 and told.rstrip().endswith(b"PASS"), told


async def draw(program: Browser, url: str, folder: Path) -> None:
    """Write the pictures of all pages."""
    looks: dict[str, Any] = {"light": {}, "dark": {"scheme": "dark"}, "phone": {"size": PHONE}}
    for look, how in looks.items():
        async with browser(program, url, **how) as page:
            for path in PLAIN:
                await opened(page, "/horizon?range=1m" if path == "/horizon" else path)
                for chart in await page.locator("[data-chart]:visible").all():
                    await expect(chart.locator("canvas")).to_be_visible()
                name = path.strip("/") or "overview"
                await page.screenshot(path=folder / f"console-{name}-{look}.png")
