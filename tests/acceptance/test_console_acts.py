"""What the console's buttons and forms do, and say of it, in a browser; also when it goes wrong."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, Route, expect

from delaybridge.client.async_client import AsyncClient
from delaybridge.serve.shared import jobs
from tests.rigs.api import api
from tests.rigs.browser import browser, confirm, log_in_by_form
from tests.rigs.sessions import TOKENS, token_file_in
from tests.rigs.waiting import until_async

pytestmark = pytest.mark.asyncio(loop_scope="session")
BROKERS = {"memory": "memory://", "other": "memory://"}


@pytest_asyncio.fixture(loop_scope="session")
async def page(http: httpx.AsyncClient, program: Browser) -> AsyncIterator[Page]:
    async with browser(program, str(http.base_url), expected={404, 406, 422, 503}) as opened:
        yield opened


async def stored(http: httpx.AsyncClient) -> list[str]:
    return sorted(each["id"] for each in (await http.get("/v1/messages")).json()["items"])


async def schedule(http: httpx.AsyncClient, **message: object) -> None:
    whole = {"destination": "memory:t", "body": "x", "delay": "1h", **message}
    assert (await http.post("/v1/messages", json=whole)).status_code == 201


async def test_json_is_published_as_it_was_written(http: httpx.AsyncClient, page: Page) -> None:
    text = '{"n": 12345678901234567890,  "d": 1.0}'
    await page.goto("/publish?destination=memory:t")
    await page.get_by_label("Id, made if empty").fill("by-hand")
    await page.get_by_label("JSON", exact=True).check()
    await page.get_by_label("Body", exact=True).fill(text)
    await expect(page.locator("#as-curl")).to_contain_text("12345678901234567890")
    await expect(page.locator("#as-cli")).to_contain_text("'memory:t' --in '15m'")
    await page.get_by_role("button", name="Schedule").click()
    await page.wait_for_url("**/messages/by-hand")
    assert (await http.get("/v1/messages/by-hand")).json()["body"] == text


async def test_invalid_json_names_its_field_and_a_double_click_schedules_one_message(
    http: httpx.AsyncClient, page: Page
) -> None:
    await page.goto("/publish?destination=memory:t")
    await page.get_by_label("Headers, JSON").fill("{")
    await page.get_by_role("button", name="Schedule").click()
    await expect(page.locator("#said")).to_contain_text("Headers, JSON: ")
    await page.get_by_label("Headers, JSON").fill("")
    await page.get_by_role("button", name="Schedule").dblclick()
    await page.wait_for_url("**/messages/*")
    assert len(await stored(http)) == 1


async def test_a_duplicate_has_all_that_the_message_has(
    http: httpx.AsyncClient, page: Page
) -> None:
    kinds: list[tuple[str, dict[str, object]]] = [
        ("\nA\r\nB\x00", {"at_most_once": True}),
        ("\n\nline", {"retry": {"max_attempts": 3}}),
        ("ü 1", {"headers": {"n": "12345678901234567"}}),
    ]
    for n, (body, how) in enumerate(kinds):
        more = {"ttl": "10m", "priority": 7, "headers": {"h": '"<b>'}, **how}
        await schedule(http, id=f"first-{n}", body=body, key="k", **more)
        await page.goto(f"/messages/first-{n}")
        await page.get_by_role("link", name="Duplicate").click()
        await page.get_by_label("Id, made if empty").fill(f"second-{n}")
        await page.get_by_role("button", name="Schedule").click()
        await page.wait_for_url(f"**/messages/second-{n}")
        ids = f"first-{n}", f"second-{n}"
        first, second = [(await http.get(f"/v1/messages/{id}")).json() for id in ids]
        for name in ("body", "headers", "key", "ttl_ms", "priority", "at_most_once", "retry"):
            assert first.get(name) == second.get(name), name
        assert first["ttl_ms"] == 600_000


async def test_a_message_whose_answer_was_lost_is_scheduled_once(
    http: httpx.AsyncClient, page: Page
) -> None:
    async def lose(route: Route) -> None:
        await route.fetch()
        await route.abort()

    await page.goto("/publish?destination=memory:t")
    await page.route("**/v1/messages", lose, times=1)
    await page.get_by_role("button", name="Schedule").click()
    await expect(page.locator("#said")).to_contain_text("it may have been done")
    assert len(await stored(http)) == 1
    await page.get_by_role("button", name="Schedule").click()
    await page.wait_for_url("**/messages/*")
    assert len(await stored(http)) == 1


async def test_an_unknown_outcome_is_said_and_looked_at(
    http: httpx.AsyncClient, page: Page
) -> None:
    async def lose(route: Route) -> None:
        await route.fetch()
        problem = {"status": 503, "code": "store_unavailable", "detail": "redis: no answer"}
        await route.fulfill(status=503, json=problem)

    await schedule(http, id="m")
    await page.goto("/messages")
    await page.route("**/v1/messages:cancel", lose)
    await page.locator("[name=id]").check()
    await page.get_by_role("button", name="Cancel them").click()
    await expect(page.locator("#ask h2")).to_have_text("Cancel them: 1 ticked")
    await page.locator("#ask .go").click()
    await expect(page.locator("#ask .problem")).to_contain_text("it may have been done")
    await expect(page.locator("#ask .problem")).to_contain_text("redis: no answer")
    await expect(page.locator("#live .empty")).to_be_visible()  # read anew: it is gone


async def test_what_was_left_under_way_changes_nothing_of_the_next_dialog(
    http: httpx.AsyncClient, page: Page
) -> None:
    answers: list[Route] = []
    await schedule(http)
    await page.goto("/destinations")
    await page.route("**:pause", lambda route: answers.append(route))
    row = page.locator("#t-places tbody tr", has_text="memory:t")
    await row.get_by_role("button", name="Pause").click()
    await expect(page.locator("#ask h2")).to_have_text("Pause: memory:t")
    await page.locator("#ask .go").click()
    await page.keyboard.press("Escape")
    await expect(page.locator("#said")).to_contain_text("Pause: memory:t: still under way")
    await row.get_by_role("button", name="Purge").click()
    await until_async(lambda: answers, "the request is on its way")
    await answers[0].abort()
    await expect(page.locator("#said")).to_contain_text("Pause: memory:t: No clear answer came")
    await expect(page.locator("#ask .problem")).to_be_hidden()
    await expect(page.locator("#ask .go")).to_be_disabled()
    await expect(page.locator("#ask .go")).to_have_text("Purge: memory:t")


async def test_a_count_that_comes_late_is_not_asked_of_the_next_act(
    http: httpx.AsyncClient, page: Page
) -> None:
    counts: list[Route] = []
    for n in range(3):
        await schedule(http, id=f"m{n}")
    await page.goto("/messages?destination=memory")
    await page.route("**/v1/messages:publish", lambda route: counts.append(route))
    await page.locator("summary", has_text="All that match").click()
    await page.get_by_role("button", name="Publish all now").click()
    await expect(page.locator("#ask .count")).to_have_text("counting …")
    await page.keyboard.press("Escape")
    await page.locator("[name=id]").first.check()
    await page.get_by_role("button", name="Cancel them").click()
    await until_async(lambda: counts, "the count is on its way")
    async with page.expect_response("**/v1/messages:publish"):
        await counts[0].continue_()
    await expect(page.locator("#ask .typed")).to_be_hidden()
    await confirm(page)
    assert len(await stored(http)) == 2


async def test_a_job_whose_progress_is_refused_cannot_be_started_again(
    http: httpx.AsyncClient, page: Page
) -> None:
    refused = {"status": 404, "code": "unknown", "detail": "no such job"}
    await schedule(http)
    await page.goto("/messages?destination=memory")
    await page.route("**/v1/jobs/*", lambda route: route.fulfill(status=404, json=refused))
    await page.locator("summary", has_text="All that match").click()
    await page.get_by_role("button", name="Publish all now").click()
    await page.locator("#ask .typed input").fill("1")
    await page.locator("#ask .go").click()
    await expect(page.locator("#ask .problem")).to_have_text("no such job")
    await expect(page.locator("#ask .go")).to_be_hidden()
    await expect(page.locator("#ask progress")).to_be_hidden()


async def test_a_job_goes_on_when_its_dialog_is_left(
    http: httpx.AsyncClient, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, cancel_many = asyncio.Event(), AsyncClient.cancel_many

    async def late(client: AsyncClient, *what: Any, **how: Any) -> Any:
        await left.wait()
        return await cancel_many(client, *what, **how)

    monkeypatch.setattr(AsyncClient, "cancel_many", late)
    monkeypatch.setattr(jobs, "BATCH_MESSAGES", 1)  # a job that is stopped ends its batch
    await schedule(http)
    await schedule(http)
    await page.goto("/messages?destination=memory")
    await page.locator("summary", has_text="All that match").click()
    await page.get_by_role("button", name="Cancel all").click()
    await page.locator("#ask .typed input").fill("2")
    await page.locator("#ask .go").click()
    await expect(page.locator("#ask progress")).to_be_visible()  # it has begun
    await expect(page.locator("#ask .go")).to_be_hidden()
    await page.keyboard.press("Escape")
    await expect(page.locator("#said")).to_contain_text("the job goes on")
    await page.close()
    left.set()

    async def is_done() -> bool:
        return await stored(http) == []

    await until_async(is_done, "the job does all")


async def test_everything_is_paused_and_resumed(http: httpx.AsyncClient, page: Page) -> None:
    async def paused() -> list[object]:
        asked = [await http.get(f"/v1/destinations/{name}") for name in BROKERS]
        return [each.json()["paused_by"] for each in asked]

    await page.goto("/")
    await page.get_by_role("button", name="Pause all").click()
    await confirm(page)
    assert await paused() == ["memory", "other"]
    alert = page.locator("#alerts a", has_text="memory is paused")
    await expect(alert).to_have_attribute("href", "/destinations/memory")
    await page.get_by_role("button", name="Resume all").click()
    await expect(page.locator("#said")).to_contain_text("Resume all: ")
    assert await paused() == [None, None]


async def test_what_a_definition_has_is_no_attribute_and_can_be_saved(
    redis_url: str, namespace: str, program: Browser, tmp_path: Path
) -> None:
    """Who may write must not act with the browser of who may do everything."""
    trap = (
        " hx-trigger=load hx-post=/v1/destinations/memory%3Avictim:pause hx-swap=none "
        'hx-headers=X-Delaybridge-Console:1,Accept:application/json data-z="'
    )
    definition = {
        "name": "trap", "destination": "memory:t", "body": "x", "every": "1h",
        "headers": {"h": trap}, "retry": {"max_attempts": 3},
    }  # fmt: skip
    file, roles = token_file_in(tmp_path), {}
    for role, token in TOKENS.items():
        roles[role] = {"authorization": f"Bearer {token}"}
    async with (
        api(redis_url, namespace, brokers=BROKERS, token_file=str(file)) as http,
        browser(program, str(http.base_url), expected={401}) as page,
    ):
        made = await http.post("/v1/recurring", json=definition, headers=roles["write"])
        assert made.status_code == 201, made.text
        await page.goto("/recurring?edit=trap")
        await log_in_by_form(page, TOKENS["admin"])
        await expect(page.locator("#definition")).to_be_visible()
        assert await page.locator("[hx-post], [hx-headers]").count() == 0
        of = await http.get("/v1/destinations/memory%3Avictim", headers=roles["admin"])
        assert of.json()["paused_by"] is None
        await page.get_by_role("button", name="Save").click()
        await confirm(page)
        found = (await http.get("/v1/recurring/trap", headers=roles["admin"])).json()
        assert json.dumps(trap) in json.dumps(found)


async def test_htmx_can_only_read(http: httpx.AsyncClient, page: Page) -> None:
    await page.goto("/")
    for how, sent in (("hx-post", False), ("hx-get", True)):
        seen = await page.evaluate(
            """([how]) => new Promise(seen => {
              const it = document.createElement("i");
              it.setAttribute(how, "/v1/destinations/memory:pause");
              it.setAttribute("hx-trigger", "now");
              it.setAttribute("hx-headers", "X-DelayBridge-Console:1");
              document.querySelector("main").append(it);
              htmx.process(it);
              // After the page's own listener, which stands at the document.
              window.addEventListener("htmx:config:request", event => seen({
                sent: !event.defaultPrevented,
                headers: Object.keys(event.detail.ctx.request.headers),
              }), { once: true });
              it.dispatchEvent(new Event("now"));
            })""",
            [how],
        )
        assert seen["sent"] is sent
        assert "x-delaybridge-console" not in [name.lower() for name in seen["headers"]]
    assert (await http.get("/v1/destinations/memory")).json()["paused_by"] is None
