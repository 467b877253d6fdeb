"""The console's horizon in a browser: zoomed, clicked, and a span moved."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from delaybridge.times import format_time
from tests.rigs.api import api
from tests.rigs.browser import confirm, cut_off

pytestmark = pytest.mark.asyncio(loop_scope="session")
HOUR_MS, DAY_MS = 3_600_000, 86_400_000


@pytest_asyncio.fixture(loop_scope="session")
async def http(redis_url: str, namespace: str) -> AsyncIterator[httpx.AsyncClient]:
    async with api(redis_url, namespace, brokers={"memory": "memory://"}) as client:
        for id, delay in (("soon", "30m"), ("late", "50m"), ("other", "5h")):
            message = {"id": id, "destination": f"memory:{id}", "body": "x", "delay": delay}
            assert (await client.post("/v1/messages", json=message)).status_code == 201
        yield client


async def due_ms(http: httpx.AsyncClient, id: str) -> int:
    return int((await http.get(f"/v1/messages/{id}")).json()["due_ms"])


def span(url: str, *names: str) -> tuple[int, int]:
    query = parse_qs(urlsplit(url).query)
    low, high = (int(query[name][0]) for name in names or ("from_ms", "to_ms"))
    return low, high


async def place(page: Page, part: float) -> tuple[float, float]:
    """A point of the chart, so far from its left edge."""
    box = await page.locator("[data-chart=horizon] .u-over").bounding_box()
    assert box
    return box["x"] + box["width"] * part, box["y"] + box["height"] / 2


async def double_click(page: Page, x: float, y: float) -> None:
    """However long a starved browser takes: a click waits 300 ms for its second."""
    await page.evaluate("""() => {
      const after = setTimeout;
      window.setTimeout = (then, ms, ...more) => after(then, ms === 300 ? 1000 * ms : ms, ...more);
    }""")
    await page.mouse.dblclick(x, y)


async def drag(page: Page, low: float, high: float) -> None:
    await page.mouse.move(*await place(page, low))
    await page.mouse.down()
    await page.mouse.move(*await place(page, (low + high) / 2))
    # The bars that come meanwhile do not take the span that is being drawn.
    async with page.expect_response("**/horizon*"):
        await page.evaluate("document.body.dispatchEvent(new Event('refresh'))")
    await page.mouse.move(*await place(page, high))
    await page.mouse.up()
    await page.wait_for_url("**from_ms=*")


async def test_a_drag_zooms_in_and_a_double_click_out(http: httpx.AsyncClient, page: Page) -> None:
    """The scale stays as it was chosen."""
    await page.goto("/horizon")
    await page.get_by_role("link", name="log", exact=True).click()
    await page.wait_for_url("**scale=log*")
    due = await due_ms(http, "soon")
    assert due
    await drag(page, 0.4, 0.6)
    low, high = span(page.url)
    assert low < due < high and 0.19 < (high - low) / HOUR_MS < 0.21
    assert await cut_off(page) == []
    await expect(page.locator("#t-due")).to_contain_text("memory:soon")
    await expect(page.locator("#t-due")).not_to_contain_text("memory:late")
    await double_click(page, *await place(page, 0.9))
    await page.wait_for_url(lambda url: span(url) != (low, high))
    wider = span(page.url)
    assert wider[0] < low and high < wider[1] and "/horizon" in page.url
    await page.keyboard.press("ArrowRight")
    await page.wait_for_url(lambda url: span(url) != wider)
    assert span(page.url)[0] > wider[0] and "scale=log" in page.url


async def test_each_destination_has_a_colour_and_the_first_bar_is_seen_whole(
    http: httpx.AsyncClient, page: Page
) -> None:
    """Of a span that begins amid a bar: of the first 15 minutes it shows ten."""
    begin = (await due_ms(http, "soon") // HOUR_MS + 2) * HOUR_MS + 5 * 60_000
    some = [
        {"destination": f"memory:{name}", "body": "x", "due": format_time(begin + 60_000)}
        for name, count in (("now", 40), ("a", 3), ("b", 2), ("c", 1))
        for _ in range(count)
    ]
    assert (await http.post("/v1/messages:batch", json={"messages": some})).status_code == 207
    await page.goto(f"/horizon?from_ms={begin}&to_ms={begin + DAY_MS}")
    labels = page.locator("[data-chart=horizon] .u-label")
    await expect(labels).to_have_text([" ", "all others", "memory:now", "memory:b", "memory:a"])
    assert await cut_off(page) == []
    await page.mouse.move(*await place(page, 5 * 60_000 / DAY_MS))
    values = page.locator("[data-chart=horizon] .u-value")
    await expect(values.nth(2)).to_have_text("40")
    await page.get_by_label("Destination", exact=True).fill("memory:now")
    await page.keyboard.press("Enter")
    await expect(labels).to_have_text([" ", "due"])


async def test_a_bar_leads_to_its_messages(http: httpx.AsyncClient, page: Page) -> None:
    due = await due_ms(http, "soon")
    assert due
    await page.goto(f"/horizon?from_ms={due - 30_000}&to_ms={due + 30_000}")
    await page.mouse.click(*await place(page, 0.5005))
    await page.wait_for_url("**/messages?*")
    low, high = span(page.url, "due_from_ms", "due_to_ms")
    assert low <= due <= high < low + 1000
    await expect(page.get_by_role("link", name="soon", exact=True)).to_be_visible()
    await expect(page.get_by_role("link", name="late", exact=True)).to_have_count(0)


async def test_a_span_is_moved_after_its_count_was_typed(
    http: httpx.AsyncClient, page: Page
) -> None:
    before = {id: await due_ms(http, id) for id in ("soon", "late", "other")}
    assert all(before.values())
    await page.goto("/horizon?range=1h")
    await page.get_by_label("by", exact=True).fill("+10m")
    await page.get_by_role("button", name="Move").click()
    await expect(page.locator("#ask .count")).to_have_text(re.compile("2 messages"))
    await confirm(page, "2")
    moved = {id: ((await due_ms(http, id)) or 0) - (was or 0) for id, was in before.items()}
    assert moved == {"soon": 600_000, "late": 600_000, "other": 0}


@pytest.mark.slow
async def test_the_move_follows_the_span_that_is_shown(page: Page) -> None:
    await page.goto("/horizon?range=1h")
    move = page.locator("#move")
    first = await move.get_attribute("data-filter")
    # A look is shared for a second: the page may get the same span at first.
    await expect(move).not_to_have_attribute("data-filter", first or "")
