"""The console's redirect dialogs in a browser: where the messages go, and what is told."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from delaybridge.store.redis.store import Store
from tests.rigs.browser import PHONE, browser, confirm, inaccessible
from tests.rigs.burials import buried

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]
BROKERS = {"rabbitmq": "amqp://h", "kafka": "kafka://h"}
BURIED = [(f"dead-{n}", "rabbitmq:orders/k", "unroutable: no queue") for n in range(3)]


@pytest_asyncio.fixture(loop_scope="session")
async def page(program: Browser, http: httpx.AsyncClient) -> AsyncIterator[Page]:
    async with browser(program, str(http.base_url), expected={422}) as opened:
        yield opened


@pytest.fixture
def dead(redis_url: str, namespace: str) -> Iterator[None]:
    store = Store(redis_url)
    with buried(store, redis_url, namespace, BROKERS, BURIED):
        yield
    store.close()


async def schedule(http: httpx.AsyncClient, *ids: str) -> None:
    for id in ids:
        message = {"id": id, "destination": "rabbitmq:orders/k", "body": "x", "delay": "30m"}
        fields = {"headers": {"table": {"a": 1}}, "properties": {"type": "t"}}
        answer = await http.post("/v1/messages", json=message | fields)
        assert answer.status_code == 201, answer.text


async def going_to(http: httpx.AsyncClient, path: str) -> dict[str, str]:
    items = (await http.get(path)).json()["items"]
    return {each["id"]: each["destination"] for each in items}


@pytest.mark.usefixtures("dead")
async def test_ticked_messages_and_all_that_match_are_redirected(
    http: httpx.AsyncClient, page: Page, node_modules: str
) -> None:
    await schedule(http, "a-0", "a-1", "b-0")
    # A destination that cannot be is refused, and the dialog stays.
    await page.goto("/messages")
    await page.get_by_role("checkbox", name="b-0").check()
    await page.get_by_role("button", name="Redirect", exact=True).click()
    dialog = page.locator("#to-ticked")
    await dialog.get_by_label("New destination").fill("nowhere:q")
    assert await inaccessible(page, node_modules) == []
    await dialog.locator(".go").click()
    await page.locator("#ask .go").click()
    await expect(page.locator("body")).to_contain_text("nowhere")
    assert await going_to(http, "/v1/messages") == dict.fromkeys(
        ("a-0", "a-1", "b-0"), "rabbitmq:orders/k"
    )
    # Ticked, to a broker of another kind.
    await page.goto("/messages")
    await page.get_by_role("checkbox", name="b-0").check()
    await page.get_by_role("button", name="Redirect", exact=True).click()
    await dialog.get_by_label("New destination").fill("kafka:orders")
    await dialog.locator(".go").click()
    await confirm(page)
    assert (await going_to(http, "/v1/messages"))["b-0"] == "kafka:orders"
    # All that match, which needs a filter.
    await page.goto("/messages")
    await page.get_by_text("All that match", exact=True).click()
    await expect(page.get_by_role("button", name="Redirect all")).to_be_disabled()
    await page.set_viewport_size(dict(zip(("width", "height"), PHONE, strict=True)))  # type: ignore[arg-type]
    await page.goto("/messages?id_prefix=a-")
    await page.get_by_text("All that match", exact=True).click()
    await page.get_by_role("button", name="Redirect all").click()
    await page.locator("#to-all").get_by_label("New destination").fill("kafka:orders")
    await page.locator("#to-all .go").click()
    await confirm(page, "2")
    found = await going_to(http, "/v1/messages")
    assert found == dict.fromkeys(("a-0", "a-1", "b-0"), "kafka:orders")
    # They are downloaded as lines that can be imported.
    async with page.expect_download() as started:
        await page.get_by_role("link", name="JSONL").click()
    lines = (await (await started.value).path()).read_text().splitlines()
    assert {json.loads(line)["id"] for line in lines} == {"a-0", "a-1"}
    # What Kafka cannot carry is told by the job.
    jobs = (await http.get("/v1/jobs")).json()["items"]
    assert {each["verb"] for each in jobs} == {"redirect"}
    notes = [note for each in jobs for note in each["notes"]]
    assert any(
        note.startswith("header table is left out: 2 messages, such as a-") for note in notes
    )


async def test_lines_are_imported_after_a_look(
    http: httpx.AsyncClient, page: Page, tmp_path: Path
) -> None:
    line = {"v": 1, "destination": "kafka:t", "due": "2030-01-31T09:00:00Z", "body": "x"}
    file = tmp_path / "some.jsonl"
    texts = [json.dumps({**line, "id": id}) for id in ("a", "b")]
    file.write_text("\n".join([*texts, "no line"]))
    await page.goto("/jobs")
    for is_look in (True, False):
        await page.get_by_role("button", name="Import messages").first.click()
        dialog = page.locator("#import")
        await dialog.locator("[type=file]").set_input_files(file)
        await dialog.get_by_role("checkbox").set_checked(is_look)
        await dialog.locator(".go").click()
        await confirm(page)
        assert [*await going_to(http, "/v1/messages")] == ([] if is_look else ["a", "b"])
    jobs = (await http.get("/v1/jobs")).json()["items"]
    assert [each["answers"] for each in jobs] == [{"created": 2, "bad": 1}] * 2
    assert "line 3" in jobs[0]["notes"][0]


@pytest.mark.usefixtures("dead")
async def test_dead_messages_stay_dead_at_their_new_destination(
    http: httpx.AsyncClient, page: Page
) -> None:
    await page.goto("/dead")
    await page.get_by_role("checkbox", name="dead-0").check()
    await page.get_by_role("button", name="Redirect", exact=True).click()
    dialog = page.locator("#to-ticked")
    await expect(dialog).to_contain_text("They stay dead")
    await dialog.get_by_label("New destination").fill("rabbitmq:other/k")
    await dialog.locator(".go").click()
    await confirm(page)
    old = "rabbitmq:orders/k"
    wanted = {"dead-0": "rabbitmq:other/k", "dead-1": old, "dead-2": old}
    assert await going_to(http, "/v1/dead") == wanted
    await page.goto("/dead?reason=unroutable")
    await page.get_by_role("button", name="Redirect all that match").click()
    await page.locator("#to-all").get_by_label("New destination").fill("kafka:orders")
    await page.locator("#to-all .go").click()
    await confirm(page, "3")
    assert {*(await going_to(http, "/v1/dead")).values()} == {"kafka:orders"}
