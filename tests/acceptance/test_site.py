"""The documentation's site in Chromium: on a phone, on paper, offline, with its search."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, expect

from tests.rigs.browser import browser, inaccessible, too_wide
from tests.rigs.site_build import build
from tests.servers.process import LOOPBACK

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]
NARROW, PAPER = (360, 740), (794, 1123)
CUT = """() => [...document.querySelectorAll("article pre code, .md-typeset__scrollwrap")]
  .filter(part => part.scrollWidth > part.clientWidth + 1).map(part => part.textContent)"""
THEME = "aria-dialog-name"  # of its search


class Quiet(SimpleHTTPRequestHandler):
    """Serves files, and prints nothing."""

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[str]]]:
    """The URL of the site, and the names of its pages."""
    folder = tmp_path_factory.mktemp("site")
    assert build(folder).returncode == 0
    handler = functools.partial(Quiet, directory=str(folder))
    with ThreadingHTTPServer((LOOPBACK, 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://{LOOPBACK}:{server.server_port}", sorted(page_names(folder))
        server.shutdown()


def page_names(folder: Path) -> list[str]:
    return [path.name for path in folder.glob("*.html") if path.name != "404.html"]


async def test_no_page_is_wider_than_a_phone_or_asks_another_host(
    pages: tuple[str, list[str]], program: Browser
) -> None:
    url, names = pages
    asked: set[str] = set()
    async with browser(program, url, size=NARROW) as page:
        page.on("request", lambda request: asked.add(request.url))
        for name in names:
            await page.goto(f"/{name}")
            assert not await too_wide(page), name
    assert {each for each in asked if not each.startswith((url, "data:", "about:"))} == set()


async def test_nothing_of_a_page_is_cut_off_on_paper(
    pages: tuple[str, list[str]], program: Browser
) -> None:
    async with browser(program, pages[0], size=PAPER) as page:
        await page.emulate_media(media="print")
        for name in pages[1]:
            await page.goto(f"/{name}")
            assert await page.evaluate(CUT) == [], name


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_the_site_is_accessible(
    pages: tuple[str, list[str]], program: Browser, node_modules: str, scheme: str
) -> None:
    async with browser(program, pages[0], scheme=scheme) as page:
        for name in ("index.html", "http.html", "cli.html"):
            await page.goto(f"/{name}")
            assert not await inaccessible(page, node_modules, THEME), name


async def test_the_search_finds_a_page_by_its_words(
    pages: tuple[str, list[str]], program: Browser
) -> None:
    async with browser(program, pages[0]) as page:
        await page.goto("/index.html")
        await page.get_by_placeholder("Search").click()
        await page.keyboard.type("quarantine")
        found = page.locator("a.md-search-result__link").first
        await expect(found).to_be_visible()
        await found.click()
        await expect(page.locator("article")).to_contain_text("quarantine", ignore_case=True)
