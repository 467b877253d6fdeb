"""A page of a real browser, which must not complain; what axe-core finds in it; pictures."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from playwright.async_api import (
    Browser,
    ConsoleMessage,
    Error,
    Page,
    Response,
    async_playwright,
    expect,
)

from tests.rigs.waiting import DEADLINE_S

DESKTOP, PHONE = (1280, 800), (360, 740)
expect.set_options(timeout=DEADLINE_S * 1000)
_AXE = """async leftOut => (await axe.run(document, {
    resultTypes: ["violations"], rules: leftOut ? {[leftOut]: {enabled: false}} : {}
  })).violations
  .filter(found => ["serious", "critical"].includes(found.impact))
  .map(found => `${found.id}: ${found.help}: ` +
    found.nodes.slice(0, 3).map(node => node.target + " " + node.failureSummary).join(" | "))"""
# A violation is an event of the document, and also a message of the console.
_WATCH = """addEventListener("securitypolicyviolation", event =>
  console.error(`CSP: ${event.violatedDirective} ${event.blockedURI} ${event.sample}`))"""
# The page gives an answer up after 20 s; on a machine that is starved none is late before ours.
_PATIENT = f"""addEventListener("DOMContentLoaded", () => {{
  if (window.htmx) htmx.config.defaultTimeout = {DEADLINE_S * 1000:.0f};
}})"""
# What a person sees for some seconds is there for minutes: who is starved looks later.
_LASTING = """const after = setTimeout;
window.setTimeout = (then, ms, ...more) => after(then, ms > 2000 ? 30 * ms : ms, ...more)"""
# After a change of size the page is as wide as before until it is drawn.
_TOO_WIDE = """async () => {
  const isTooWide = () => document.documentElement.scrollWidth > innerWidth;
  for (let left = 30; left && isTooWide(); left--) await new Promise(requestAnimationFrame);
  if (!isTooWide()) return [];
  const found = [...document.querySelectorAll("body *")].filter(element =>
    element.getBoundingClientRect().right > innerWidth + 1
      && !element.closest(".scroll, .side, svg"));
  return [...found.slice(0, 5).map(element => element.outerHTML.slice(0, 120)), "the page"];
}"""

# Numbers that run into their neighbours.
_OVERLAPPING = """() => [...document.querySelectorAll(".card")].filter(card => {
  const next = card.nextElementSibling?.getBoundingClientRect(), own = card.getBoundingClientRect();
  const range = document.createRange();
  range.selectNodeContents(card);
  const { right } = range.getBoundingClientRect();
  return right > innerWidth || next && next.top === own.top && right > next.left;
}).map(card => card.textContent.trim())"""
# What is drawn beyond its axes or as high as they are, and counts with parts of one on their axis.
# Bars begin at their x, and the last one is as wide as the others.
_CUT_OFF = """() => [...charts.made].filter(([element, plot]) => {
  const { x, y } = plot.scales, [at, ...rows] = plot.data;
  const isOfBars = ["minute", "counted", "ahead", "due", "reasons"].includes(element.dataset.chart);
  const width = isOfBars ? at.at(-1) - at.at(-2) : 0;
  const ofRates = ["rates", "expected"].includes(element.dataset.chart);
  const isHigh = Math.max(...rows.flat()) >= y.max || plot.step < 1 && !ofRates;
  return isHigh || at.at(-1) + width > x.max + width / 100;
}).map(([element]) => element.dataset.chart)"""


@asynccontextmanager
async def launched(chromium: str) -> AsyncIterator[Browser]:
    """A browser without a window, for many pages. It belongs to the loop that starts it."""
    sandbox = [] if os.geteuid() else ["--no-sandbox"]
    async with async_playwright() as driver:
        program = await driver.chromium.launch(executable_path=chromium, args=sandbox)
        yield program
        await program.close()


@asynccontextmanager
async def browser(
    program: Browser,
    url: str,
    *,
    size: tuple[int, int] = DESKTOP,
    scheme: str = "light",
    locale: str = "en-US",
    expected: Collection[int] = (),
) -> AsyncIterator[Page]:
    """A page in a profile of its own. AssertionError at the end if a page there complained.

    expected: statuses of 400 and more that are no complaint.
    """
    complaints: list[str] = []

    def said(message: ConsoleMessage) -> None:
        # The browser tells of each such status, too.
        if message.type in ("error", "warning") and not (
            expected and "Failed to load resource" in message.text
        ):
            complaints.append(message.text)

    def answered(response: Response) -> None:
        if response.status >= 400 and response.status not in expected:
            complaints.append(f"{response.status} {response.url}")

    shape: Any = {"width": size[0], "height": size[1]}
    how: Any = scheme
    context = await program.new_context(
        base_url=url, locale=locale, viewport=shape, color_scheme=how
    )
    context.set_default_timeout(DEADLINE_S * 1000)
    await context.add_init_script(_WATCH)
    await context.add_init_script(_PATIENT)
    await context.add_init_script(_LASTING)
    # Of all its pages, also those that a test opens beside.
    context.on("console", said)
    context.on("weberror", lambda found: complaints.append(str(found.error)))
    context.on("response", answered)
    try:
        yield await context.new_page()
    finally:
        for page in context.pages:
            await _left(page)
        await asyncio.wait_for(context.close(), DEADLINE_S)
    assert not complaints, complaints


async def _left(page: Page) -> None:
    """Let it show nothing: Chromium may forget to close a page that just loads another one."""
    for _ in range(3):
        with suppress(Error):  # the page itself leads to another one
            await page.goto("about:blank")
            return


async def opened(page: Page, path: str) -> None:
    """The page, when its first tick has come."""
    await page.goto(path)
    await expect(page.locator("h1").first).to_be_visible()
    await expect(page.locator(".beacon.on")).to_be_visible()


async def ticked(page: Page) -> None:
    """Wait for the page's next tick."""
    tick = "new Promise(done => document.addEventListener('tick', done, {once: true}))"
    await asyncio.wait_for(page.evaluate(tick), DEADLINE_S)


async def refreshed(page: Page) -> None:
    """Let the page fetch itself again, and wait until the answer has come."""
    async with page.expect_response(lambda found: "/static/" not in found.url):
        await page.keyboard.press(".")


async def confirm(page: Page, typed: str = "") -> None:
    """Press the button of the dialog, and wait until what it does is done. typed: asked first."""
    go = page.locator("#ask .go")
    if typed:
        await expect(page.locator("#ask .typed input")).to_be_visible()
        await expect(go).to_be_disabled()
        await page.locator("#ask .typed input").fill(typed)
    await go.click()
    await expect(page.locator("#ask")).to_be_hidden()


async def log_in_by_form(page: Page, token: str) -> None:
    """Log in on the form that is shown, and wait until the page behind it is live."""
    await page.get_by_label("Token").fill(token)
    await page.keyboard.press("Enter")
    await expect(page.locator(".beacon.on")).to_be_visible()


async def inaccessible(page: Page, node_modules: str, leaving_out: str = "") -> list[str]:
    """What axe-core finds serious in the page as it is now. leaving_out: one of its rules."""
    if not await page.evaluate("!!window.axe"):
        await page.evaluate((Path(node_modules) / "axe-core" / "axe.min.js").read_text())
    found: list[str] = await page.evaluate(_AXE, leaving_out)
    return found


async def too_wide(page: Page) -> list[str]:
    """What sticks out of the window, if the page can be scrolled sideways."""
    found: list[str] = await page.evaluate(_TOO_WIDE)
    return found


async def cut_off(page: Page) -> list[str]:
    """The charts that do not show all that they have."""
    found: list[str] = await page.evaluate(_CUT_OFF)
    return found


async def overlapping(page: Page) -> list[str]:
    """The numbers of the page that run into the next one."""
    found: list[str] = await page.evaluate(_OVERLAPPING)
    return found
