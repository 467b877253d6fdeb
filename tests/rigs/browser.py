"""A page of a real browser, which must not complain; what axe-core finds in it; pictures."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from playwright.async_api import ConsoleMessage, Page, Response, async_playwright, expect

DESKTOP, PHONE = (1280, 800), (390, 844)
_AXE = """async () => (await axe.run(document, {resultTypes: ["violations"]})).violations
  .filter(found => ["serious", "critical"].includes(found.impact))
  .map(found => `${found.id}: ${found.help}: ` +
    found.nodes.slice(0, 3).map(node => node.target + " " + node.failureSummary).join(" | "))"""
# A violation is an event of the document, and also a message of the console.
_WATCH = """addEventListener("securitypolicyviolation", event =>
  console.error(`CSP: ${event.violatedDirective} ${event.blockedURI} ${event.sample}`))"""
_TOO_WIDE = """() => [...document.querySelectorAll("body *")].filter(element =>
  element.getBoundingClientRect().right > innerWidth + 1 && !element.closest(".scroll, .side, svg"))
  .slice(0, 5).map(element => element.outerHTML.slice(0, 120))"""

# Numbers that run into their neighbours.
_OVERLAPPING = """() => [...document.querySelectorAll(".card")].filter(card => {
  const next = card.nextElementSibling?.getBoundingClientRect(), own = card.getBoundingClientRect();
  const range = document.createRange();
  range.selectNodeContents(card);
  const { right } = range.getBoundingClientRect();
  return right > innerWidth || next && next.top === own.top && right > next.left;
}).map(card => card.textContent.trim())"""
# What is drawn beyond its axes. Bars begin at their x, and the last one is as wide as the others.
_CUT_OFF = """() => [...charts.made].filter(([element, plot]) => {
  const { x, y } = plot.scales, [at, ...rows] = plot.data;
  const isOfBars = ["minute", "counted", "ahead", "due", "reasons"].includes(element.dataset.chart);
  const width = isOfBars ? at.at(-1) - at.at(-2) : 0;
  return Math.max(...rows.flat()) > y.max || at.at(-1) + width > x.max + width / 100;
}).map(([element]) => element.dataset.chart)"""


@asynccontextmanager
async def browser(
    url: str,
    chromium: str,
    *,
    size: tuple[int, int] = DESKTOP,
    scheme: str = "light",
    locale: str = "en-US",
    expected: Collection[int] = (),
) -> AsyncIterator[Page]:
    """A page of a browser. AssertionError at the end if it complained about anything.

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

    sandbox = [] if os.geteuid() else ["--no-sandbox"]
    async with async_playwright() as driver:
        program = await driver.chromium.launch(executable_path=chromium, args=sandbox)
        shape: Any = {"width": size[0], "height": size[1]}
        how: Any = scheme
        context = await program.new_context(
            base_url=url, locale=locale, viewport=shape, color_scheme=how
        )
        await context.add_init_script(_WATCH)
        page = await context.new_page()
        page.on("console", said)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("response", answered)
        yield page
        await program.close()
    assert not complaints, complaints


async def confirm(page: Page) -> None:
    """Press the button of the dialog, and wait until what it does is done."""
    await page.locator("#ask .go").click()
    await expect(page.locator("#ask")).to_be_hidden(timeout=20_000)


async def log_in_by_form(page: Page, token: str) -> None:
    """Log in on the form that is shown, and wait until the page behind it is live."""
    await page.get_by_label("Token").fill(token)
    await page.keyboard.press("Enter")
    await expect(page.locator(".beacon.on")).to_be_visible()


async def inaccessible(page: Page, node_modules: str) -> list[str]:
    """What axe-core finds serious in the page as it is now."""
    await page.evaluate((Path(node_modules) / "axe-core" / "axe.min.js").read_text())
    found: list[str] = await page.evaluate(_AXE)
    return found


async def too_wide(page: Page) -> list[str]:
    """What sticks out of the window, if the page can be scrolled sideways."""
    if not await page.evaluate("document.documentElement.scrollWidth > innerWidth"):
        return []
    found: list[str] = await page.evaluate(_TOO_WIDE)
    return found or ["something"]


async def cut_off(page: Page) -> list[str]:
    """The charts that do not show all that they have."""
    found: list[str] = await page.evaluate(_CUT_OFF)
    return found


async def overlapping(page: Page) -> list[str]:
    """The numbers of the page that run into the next one."""
    found: list[str] = await page.evaluate(_OVERLAPPING)
    return found
