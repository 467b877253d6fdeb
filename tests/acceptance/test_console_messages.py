"""The console's messages in a browser: every action is done, and its effect is looked up."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from playwright.async_api import Browser, Page, expect

from tests.rigs.browser import PHONE, browser, confirm
from tests.rigs.waiting import until_async

pytestmark = pytest.mark.asyncio(loop_scope="session")
TO, MANY = "memory:q", 2000
BROKERS = {"memory": "memory://"}


async def schedule(http: httpx.AsyncClient, ids: list[str], **fields: Any) -> None:
    some = [{"destination": TO, "body": "x", "delay": "30m", "id": id, **fields} for id in ids]
    for at in range(0, len(some), 500):
        answer = await http.post("/v1/messages:batch", json={"messages": some[at : at + 500]})
        assert answer.status_code == 207, answer.text


async def due_ms(http: httpx.AsyncClient, id: str) -> int | None:
    answer = await http.get(f"/v1/messages/{id}")
    return int(answer.json()["due_ms"]) if answer.status_code == 200 else None


async def becomes(get: Callable[[], Awaitable[object]], wanted: object) -> None:
    async def is_so() -> bool:
        return await get() == wanted

    await until_async(is_so, f"{wanted}")


async def test_a_message_is_moved_published_and_cancelled(
    http: httpx.AsyncClient, page: Page
) -> None:
    await schedule(http, ["a/b"], body='{"order": 42}')
    await page.goto("/messages")
    await page.get_by_role("link", name="a/b").click()
    before = await due_ms(http, "a%2Fb")
    assert before is not None
    await page.get_by_role("button", name="Reschedule").click()
    await page.locator("#when select").select_option("by")
    await page.locator("#when-to").fill("+10m")
    await page.locator("#when .go").click()
    await confirm(page)
    assert await due_ms(http, "a%2Fb") == before + 600_000
    await page.get_by_role("button", name="Reschedule").click()
    await page.locator("#when select").select_option("due")
    await page.locator("#when-to").fill("2032-01-31T09:00:00Z")
    await page.locator("#when .go").click()
    await confirm(page)
    assert await due_ms(http, "a%2Fb") == 1_959_152_400_000
    await expect(page.locator("#live")).to_contain_text("2032-01-31T09:00:00.000Z")
    await page.get_by_role("link", name="hex", exact=True).click()
    await expect(page.locator("pre.body")).to_contain_text("7b 22 6f 72")
    await page.get_by_role("button", name="Publish now").click()
    await confirm(page)
    due = await due_ms(http, "a%2Fb")
    assert due is not None and due < before
    await page.get_by_role("button", name="Cancel it").click()
    await page.locator("#ask .go").click()
    await page.wait_for_url("**/messages")
    assert await due_ms(http, "a%2Fb") is None


async def test_ticked_messages_are_moved_and_copied_as_commands(
    http: httpx.AsyncClient, page: Page
) -> None:
    await schedule(http, ["a", "it's", "c"])
    before = await due_ms(http, "a")
    assert before is not None
    await page.goto("/messages")
    await expect(page.get_by_role("button", name="Publish now")).to_be_disabled()
    await page.get_by_role("checkbox", name="a", exact=True).check()
    await page.get_by_role("checkbox", name="it's").check()
    await page.get_by_role("button", name="Copy as CLI").click()
    command = page.locator("#cli [data-ticked-commands] pre").first
    text = await command.inner_text()
    assert text.startswith("delaybridge message cancel -- ")
    assert set(text.split(" -- ")[1].split(" ")) == {"'a'", "'it'\\''s'"}
    await page.keyboard.press("Escape")
    await page.get_by_role("button", name="Reschedule").first.click()
    await page.locator("#when-ticked select").select_option("by")
    await page.locator("#when-ticked-to").fill("-10m")
    await page.locator("#when-ticked .go").click()
    await confirm(page)
    assert await due_ms(http, "a") == before - 600_000
    moved, stayed = await due_ms(http, "it's"), await due_ms(http, "c")
    assert moved is not None and stayed is not None and stayed - moved > 590_000


async def test_all_that_match_are_cancelled_after_their_number_was_typed(
    http: httpx.AsyncClient, page: Page
) -> None:
    await schedule(http, [f"gone-{number:04}" for number in range(MANY)])
    await schedule(http, ["kept-1", "kept-2"])
    await page.goto("/messages")
    await page.get_by_text("All that match", exact=True).click()
    for name in ("Publish all now", "Reschedule all", "Cancel all"):
        await expect(page.get_by_role("button", name=name)).to_be_disabled()
    await page.goto("/messages?id_prefix=gone-")
    await page.get_by_text("All that match", exact=True).click()
    await page.get_by_role("button", name="Cancel all").click()
    await expect(page.locator("#ask .count")).to_have_text("2,000 messages match")
    await expect(page.locator("#ask .go")).to_be_disabled()
    await page.locator("#ask input").fill("200")
    await expect(page.locator("#ask .go")).to_be_disabled()
    await page.locator("#ask input").fill("2,000")
    await expect(page.locator("#ask .go")).to_be_enabled()
    await page.locator("#ask input").fill("2000")
    await confirm(page)
    await expect(page.locator("#said")).to_contain_text("cancelled 2,000")
    left = (await http.get("/v1/messages")).json()["items"]
    assert [each["id"] for each in left] == ["kept-1", "kept-2"]
    await page.goto("/jobs")
    await expect(page.locator("#t-jobs tbody")).to_contain_text("cancelled 2,000")
    await expect(page.locator("#t-audit tbody")).to_contain_text('"id_prefix":"gone-"')
    await expect(page.locator("#t-audit tbody")).to_contain_text('"cancelled":2000')


async def test_everything_is_done_without_a_mouse(http: httpx.AsyncClient, page: Page) -> None:
    for number, id in enumerate(["first", "second", "third"]):
        await schedule(http, [id], delay=f"{number + 1}h")
    await page.goto("/")
    await page.keyboard.press("/")
    await page.keyboard.type("second")
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/messages/second")
    await page.keyboard.press("g")
    await page.keyboard.press("m")
    await page.wait_for_url("**/messages")
    for key in "jjkjx":  # the second row
        await page.keyboard.press(key)
    await expect(page.locator("#t-messages :checked")).to_have_value("second")
    await page.keyboard.press("x")
    await page.keyboard.press("j")
    await page.keyboard.press("x")
    await page.keyboard.press(".")  # a refresh keeps the row
    await expect(page.locator("tr[aria-selected=true]")).to_contain_text("third")

    async def focused() -> str:
        return str(await page.evaluate("document.activeElement.textContent"))

    for _ in range(60):
        if await focused() == "Cancel them":
            break
        await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    await expect(page.locator("#ask .go")).to_be_focused()
    await page.keyboard.press("Escape")
    await expect(page.locator("#ask")).to_be_hidden()
    assert await due_ms(http, "third") is not None
    await page.keyboard.press("Enter")
    await expect(page.locator("#ask .go")).to_be_focused()
    await page.keyboard.press("Enter")
    await becomes(lambda: due_ms(http, "third"), None)
    await expect(page.locator("#ask")).to_be_hidden()
    await page.evaluate("document.activeElement.blur()")
    await page.keyboard.press("k")
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/messages/*")


async def test_a_filter_is_saved_and_found_again(http: httpx.AsyncClient, page: Page) -> None:
    await schedule(http, ["a-1", "b-1"])
    await page.goto("/messages")
    await page.get_by_text("Add filter", exact=True).click()
    for name in ("Destination", "Attempts at least"):
        await expect(page.locator(f".filter label:has-text('{name}')")).to_be_in_viewport(ratio=1)
    await page.get_by_label("Id begins with").fill("b-")
    await page.get_by_role("button", name="Filter", exact=True).click()
    await page.wait_for_url("**id_prefix=b-**")
    await expect(page.locator("#t-messages tbody tr")).to_have_count(1)
    await page.get_by_text("Saved filters").click()
    await page.get_by_placeholder("Name of this filter").fill("<b>mine</b>")
    await page.get_by_role("button", name="Save").click()
    await page.goto("/messages")
    await page.get_by_text("Saved filters").click()
    await page.get_by_role("link", name="<b>mine</b>").click()
    await page.wait_for_url("**id_prefix=b-**")
    await expect(page.locator("#t-messages tbody tr")).to_have_count(1)
    await page.get_by_role("button", name="Id", exact=True).click()
    await page.reload()  # the order is in the URL
    await expect(page.locator("th[data-sort=id]")).to_have_attribute("aria-sort", "ascending")


async def test_a_long_page_shows_every_row_and_keeps_them(
    http: httpx.AsyncClient, page: Page
) -> None:
    await schedule(http, [f"m-{n}" for n in range(150)])
    await page.goto("/messages?limit=500")
    shown = page.locator("main tbody tr:visible")
    await expect(shown).to_have_count(150)
    async with page.expect_response("**/messages*"):
        await page.evaluate("document.body.dispatchEvent(new Event('refresh'))")
    await expect(shown).to_have_count(150)
    await expect(page.locator("main tbody")).to_have_count(1)
    # What moves all the time does not make the browser paint the page again.
    moved = (
        "document.getAnimations().flatMap(each => each.effect.getKeyframes().flatMap(Object.keys))"
    )
    await page.wait_for_selector(".beacon.beat")
    assert set(await page.evaluate(moved)) - {
        "offset",
        "computedOffset",
        "easing",
        "composite",
    } <= {"opacity", "transform"}


async def test_the_first_screen_of_a_phone_has_the_table_below_its_filters(
    http: httpx.AsyncClient, program: Browser
) -> None:
    await schedule(http, ["a-1", "b-1"], body='{"order": 42}')
    async with browser(program, str(http.base_url), size=PHONE) as page:
        await page.goto("/messages?id_prefix=a-&destination=memory:q")
        rows = page.locator("#t-messages tbody tr")
        await expect(rows).to_have_count(1)
        await expect(rows.first).to_be_in_viewport()
        await page.get_by_role("link", name="Remove the filter Id begins with").click()
        await page.wait_for_url("**/messages?destination=memory%3Aq&limit=50")
        await expect(rows).to_have_count(2)
        await expect(rows.last).to_be_in_viewport()
        await expect(page.locator(".chip")).to_have_text(["Destination memory:q×"])
