"""The console's dead messages, destinations and brokers in a browser: what is done is in Redis."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from playwright.async_api import Page, expect

from delaybridge.store.redis.store import Store
from tests.rigs.browser import confirm
from tests.rigs.burials import buried

pytestmark = pytest.mark.asyncio(loop_scope="session")
BROKERS = {"rabbitmq": "amqp://h", "kafka": "kafka://h"}
BURIED = [
    *((f"gone-{n}", "rabbitmq:orders/a b", "unroutable: no queue") for n in range(4)),
    *((f"late-{n}", "kafka:t", "expired: 1 h late") for n in range(4)),
]
MINUTE = 60_000  # ms


@pytest.fixture
def dead(redis_url: str, namespace: str) -> Iterator[None]:
    store = Store(redis_url)
    with buried(store, redis_url, namespace, BROKERS, BURIED):
        yield
    store.close()


async def ids(http: httpx.AsyncClient, path: str) -> list[str]:
    return sorted(item["id"] for item in (await http.get(path)).json()["items"])


async def of(http: httpx.AsyncClient, segment: str) -> dict[str, Any]:
    found: dict[str, Any] = (await http.get(f"/v1/destinations/{segment}")).json()
    return found


@pytest.mark.usefixtures("dead")
async def test_a_group_and_ticked_rows_are_kicked_over_a_span(
    page: Page, http: httpx.AsyncClient
) -> None:
    await page.goto("/dead")
    group = page.locator("#t-groups tbody tr", has_text="unroutable")
    await page.locator("form:has(#t-groups) [name=over]").fill("10m")
    await group.get_by_role("button", name="Try again").click()
    await confirm(page, "4")
    await expect(page.locator("#t-groups tbody tr")).to_have_count(1)
    kicked = (await http.get("/v1/messages")).json()["items"]
    assert sorted(each["id"] for each in kicked) == [f"gone-{n}" for n in range(4)]
    due = [each["due_ms"] for each in kicked]
    assert 5 * MINUTE < max(due) - min(due) < 10 * MINUTE

    for id in ("late-0", "late-1"):
        await page.get_by_role("checkbox", name=id).check()
    bar = page.locator("form.bar", has=page.get_by_role("button", name="Try all that match again"))
    await bar.locator("[name=over]").fill("1h")
    await bar.get_by_role("button", name="Try again", exact=True).click()
    await confirm(page)
    await expect(page.locator("#t-dead tbody tr")).to_have_count(2)
    assert await ids(http, "/v1/dead") == ["late-2", "late-3"]
    due = [each["due_ms"] for each in (await http.get("/v1/messages")).json()["items"]]
    assert max(due) - min(due) > 20 * MINUTE


@pytest.mark.usefixtures("dead")
async def test_discarding_must_be_typed(page: Page, http: httpx.AsyncClient) -> None:
    await page.goto("/dead")
    for name in ("Try all that match again", "Discard all that match"):
        await expect(page.get_by_role("button", name=name)).to_be_disabled()
    await page.goto("/dead?reason=expired")
    await page.get_by_role("checkbox", name="late-0").check()
    await page.get_by_role("button", name="Discard", exact=True).click()
    await confirm(page, "discard")
    await expect(page.locator("#t-dead tbody tr")).to_have_count(3)
    assert "late-0" not in await ids(http, "/v1/dead")
    await page.get_by_role("button", name="Discard all that match").click()
    await confirm(page, "3")
    await expect(page.locator("#t-dead")).to_have_count(0)
    assert await ids(http, "/v1/dead") == [f"gone-{n}" for n in range(4)]
    assert await ids(http, "/v1/messages") == []


@pytest.mark.usefixtures("dead")
async def test_a_destination_is_paused_resumed_and_purged(
    page: Page, http: httpx.AsyncClient
) -> None:
    message = {"destination": "rabbitmq:orders/c", "body": "x", "delay": "1h"}
    assert (await http.post("/v1/messages", json=message)).status_code == 201
    await page.goto("/destinations")
    row = page.locator("#t-places tbody tr", has_text="rabbitmq:orders")
    await row.get_by_role("button", name="Pause").click()
    await confirm(page)
    await expect(row.locator(".state")).to_have_text("paused")
    assert (await of(http, "rabbitmq%3Aorders"))["paused_by"] == "rabbitmq:orders"
    await row.get_by_role("button", name="Resume").click()
    await confirm(page)
    await expect(row.locator(".state")).not_to_have_text("paused")
    assert (await of(http, "rabbitmq%3Aorders"))["paused_by"] is None
    await row.get_by_role("button", name="Purge").click()
    await confirm(page, "rabbitmq:orders")
    await expect(row).to_have_count(0)
    assert await ids(http, "/v1/dead") == [f"late-{n}" for n in range(4)]
    assert await ids(http, "/v1/messages") == []

    await page.goto("/brokers")
    row = page.locator("#t-brokers tbody tr", has_text="kafka")
    await row.get_by_role("button", name="Pause").click()
    await confirm(page)
    await expect(row).to_contain_text("paused")
    assert (await of(http, "kafka"))["state"] == "paused"


async def test_a_rule_is_edited_and_the_rest_of_it_stays(
    page: Page, http: httpx.AsyncClient
) -> None:
    segment = "rabbitmq%3Aorders%2Fa%20b"
    rule = {"spread": "630500ms", "retry": {"base_ms": 700, "jitter": 0.0}, "dead_letter": ""}
    assert (await http.put(f"/v1/destinations/{segment}", json=rule)).status_code == 200
    await http.post(f"/v1/destinations/{segment}:pause")
    before = (await of(http, segment))["rule"]
    await page.goto("/destinations")
    await page.get_by_role("link", name="rabbitmq:orders/a b", exact=True).click()
    await page.get_by_label("Rate, messages per second").fill("2.5")
    await page.get_by_role("button", name="Save the rule").click()
    await expect(page.locator("main table")).to_contain_text("2.5")
    assert (await of(http, segment))["rule"] == {**before, "rate": 2.5}

    graveyard = page.get_by_label("Dead letters go to", exact=True)
    await graveyard.fill("rabbitmq:graveyard/x")
    await page.get_by_role("button", name="Save the rule").click()
    await expect(page.locator("main table")).to_contain_text("rabbitmq:graveyard/x")
    await expect(graveyard).to_have_value("rabbitmq:graveyard/x")
    assert (await of(http, segment))["rule"]["dead_letter"] == "rabbitmq:graveyard/x"
    await page.get_by_role("button", name="Remove the rule").click()
    await page.locator("#ask .go").click()
    await expect(page.get_by_label("Spread over")).to_have_value("")
    assert (await of(http, segment))["rule"] == {}
