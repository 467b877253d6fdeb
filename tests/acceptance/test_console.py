"""The whole console in Chromium: every page, hostile content, the demo.

PICTURES=docs/images draws the pictures in it again, with `-k demo`: python -m tools.pictures.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import httpx
import pytest
from playwright.async_api import Browser, Page, expect

from delaybridge.serve.console.screens.pages import PAGES
from delaybridge.store.redis.store import Store
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
    """The URL of a server: its namespace has messages in every place, and a busy worker."""
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
         "delay": f"{n * 1500}ms", "headers": {"kind": "order"}}
        for n in range(1, 30)
    ]  # fmt: skip
    some += [
        {"id": f"later-{n}", "destination": "memory:x", "body": f"I am {n}", "delay": f"{n * 7}m"}
        for n in range(1, 15)
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


async def faults(page: Page, node_modules: str, leaving_out: str = "") -> list[str]:
    """What is wrong with the places and sizes of things, and what axe-core finds."""
    return [
        *await too_wide(page),
        *(f"cut off: {each}" for each in await cut_off(page)),
        *(f"overlaps: {each}" for each in await overlapping(page)),
        *await inaccessible(page, node_modules, leaving_out),
    ]


async def look(page: Page, size: tuple[int, int], scheme: Literal["light", "dark"]) -> None:
    await page.set_viewport_size({"width": size[0], "height": size[1]})
    await page.emulate_media(color_scheme=scheme)


@pytest.mark.parametrize("part", range(8))  # each may take half a minute on a busy machine
@pytest.mark.slow_with("[1-7]")
async def test_every_page_is_well_in_each_size_scheme_and_language(
    redis_url: str, namespace: str, program: Browser, node_modules: str, part: int
) -> None:
    """Loaded small, dark and in English, then made large and light; loaded large in Chinese."""
    found = []
    async with (
        site(redis_url, namespace) as url,
        browser(program, url) as page,
        browser(program, url, locale="zh-CN") as chinese,
    ):
        paths = [*PLAIN, "/messages/later-7", "/destinations/memory", "/?range=1h"]
        for path in paths[part::8]:
            await look(page, PHONE, "dark")
            await asyncio.gather(opened(page, path), opened(chinese, path))
            wrong = {"small, dark": await faults(page, node_modules)}
            await look(page, DESKTOP, "light")
            wrong["large, light"] = await faults(page, node_modules)
            # Its colours are those of the others.
            wrong["chinese"] = await faults(chinese, node_modules, leaving_out="color-contrast")
            found += [f"{path}, {how}: {each}" for how, all in wrong.items() for each in all]
    assert not found, "\n".join(found)


async def post(http: httpx.AsyncClient, path: str, texts: Sequence[str], **more: str) -> None:
    """Make a message or a definition that has each of the texts as a header, and in its body."""
    headers = {f"h{number}": text for number, text in enumerate(texts)}
    body = {"destination": "pull:t", "body": "\n".join(texts), "headers": headers, **more}
    answer = await http.post(path, json=body)
    assert answer.status_code == 201, answer.text


@pytest.mark.slow
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
        lists = [*PLAIN, "/messages?limit=500", "/messages?limit=500&state=dead"]
        for n in range(5):
            texts = HOSTILE_STRINGS[n::5]  # a message has at most 64 headers
            plain = [text for text in texts if "${" not in text]  # no field of a template
            await post(http, "/v1/messages", texts, id=f"all-{n}", delay="1h")
            await post(http, "/v1/recurring", plain, name=f"all-{n}", every="1h")
            lists += [f"/messages/all-{n}", f"/publish?from=all-{n}", f"/recurring?edit=all-{n}"]
        for path in lists:
            await opened(page, path)
            if await page.locator("[hx-trigger]").count():
                await refreshed(page)  # rows are matched by such ids, too
            assert not await page.evaluate("window.__pwned"), path
        for text in taken[::30]:
            for path in ("/messages/{}", "/publish?from={}", "/destinations/kafka%3A{}"):
                await page.goto(path.format(quote(text, safe="")))
                assert not await page.evaluate("window.__pwned"), (path, text)


@pytest.mark.slow
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
            told = page.locator("#alerts .warning", has_text="demo: w1 was killed on purpose")
            await expect(told).to_be_visible()
            await opened(page, "/workers")
            await expect(page.locator("main table").first).not_to_contain_text("w1")
        if PICTURES:
            await draw(program, url, Path(PICTURES))
    finally:
        demo.send_signal(signal.SIGINT)
        told, _ = await demo.communicate()
    assert demo.returncode == 0 and told.rstrip().endswith(b"PASS"), told


async def draw(program: Browser, url: str, folder: Path) -> None:
    looks: dict[str, Any] = {"light": {}, "dark": {"scheme": "dark"}, "phone": {"size": PHONE}}
    for look, how in looks.items():
        async with browser(program, url, **how) as page:
            for path in PLAIN:
                picture = folder / f"console-{path.strip('/') or 'overview'}-{look}.png"
                if not picture.exists():  # no page shows it
                    continue
                await opened(page, "/horizon?range=1m" if path == "/horizon" else path)
                for chart in await page.locator("[data-chart]:visible").all():
                    await expect(chart.locator("canvas")).to_be_visible()
                await page.screenshot(path=picture)
