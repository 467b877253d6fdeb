"""The console's fleet, recurring messages and tail in a browser."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import httpx
import pytest
from playwright.async_api import Page, expect

from delaybridge.front.counts import FrontCounts
from delaybridge.operate.notices.event_channel import Beat, Told, publish
from delaybridge.store.namespace import registry
from delaybridge.store.redis.store import Store
from tests.rigs.browser import confirm
from tests.rigs.fleet import Fleet
from tests.rigs.waiting import until_async

pytestmark = pytest.mark.asyncio(loop_scope="session")
BROKERS = {"file": "memory://"}
NOW_MS = 1_900_000_000_000


@pytest.fixture
def fleet(tmp_path: Path, redis_url: str, namespace: str) -> Iterator[Fleet]:
    with Fleet(tmp_path, redis_url, namespace, ttl_ms=3000) as made:
        yield made


@pytest.mark.slow
async def test_a_killed_worker_and_the_takeover_are_seen(page: Page, fleet: Fleet) -> None:
    fleet.schedule(40, seconds=3600, first_s=600)
    first = fleet.start("first")
    second = fleet.start("second")
    fleet.wait_shared("first", "second")
    await page.goto("/workers")
    await expect(page.locator("#t-workers tbody tr")).to_have_count(2)
    color = await page.locator("#t-workers [data-owner=second]").get_attribute("class")
    await page.goto("/buckets")
    of_first = page.locator('#cells button[aria-label*=": first,"]')
    of_second = page.locator('#cells button[aria-label*=": second,"]')
    await expect(of_first).to_have_count(8)
    await expect(page.locator("#legend")).to_contain_text("first 8")
    mark = await of_second.first.locator("i").get_attribute("class")
    assert color == f"dot {mark}"
    first.kill()
    await expect(of_second).to_have_count(16)
    await expect(page.locator("#changed")).not_to_have_text("0")
    await expect(page.locator("#changes")).to_contain_text("second")
    await of_second.first.focus()
    await page.keyboard.press("ArrowRight")
    await expect(page.locator("#about")).to_contain_text("bucket 1: second")
    await expect(page.locator("#about")).to_contain_text("lease ends in")
    await page.goto("/workers")
    await expect(page.locator("#t-workers tbody tr")).to_have_count(1)
    await expect(page.locator("#t-gone")).to_contain_text("first")

    await page.goto("/brokers")
    await page.get_by_role("button", name="Reconnect").click()
    await page.locator("#ask .go").click()
    connected = "broker_connected name=file "
    await until_async(lambda: second.log.count(connected) == 2, "it connects again")
    assert set(fleet.owners().values()) == {"second"}
    await page.goto("/workers")
    await page.get_by_role("button", name="Drain").click()
    await page.locator("#ask .go").click()
    await expect(page.locator("#live .empty")).to_be_visible()
    await expect(page.locator("#t-gone tbody tr")).to_have_count(1)  # it said that it leaves
    assert await asyncio.to_thread(second.wait) == 0
    assert fleet.owners() == {}


@pytest.mark.slow
async def test_a_recurring_message_from_its_preview_to_its_end(
    page: Page, http: httpx.AsyncClient
) -> None:
    await page.goto("/recurring")
    await page.get_by_role("link", name="New").click()
    await page.get_by_label("Name", exact=True).fill("report")
    await page.get_by_label("Destination", exact=True).fill("file:q")
    await page.get_by_label("Cron").fill("0 3 * * *")
    await page.get_by_label("Time zone").fill("Europe/Berlin")
    await expect(page.locator("#preview .words")).to_have_text("At 03:00 every day")
    await expect(page.locator("#preview li")).to_have_count(5)
    await expect(page.locator("#preview li").first).to_contain_text("T03:00:00+0")
    await page.locator("#definition textarea").fill("it is ${due}")
    await page.get_by_role("button", name="Create").click()
    await page.wait_for_url("**/recurring")
    row = page.locator("#t-recurring tbody tr")
    await expect(row).to_contain_text("At 03:00 every day")
    made = (await http.get("/v1/recurring/report")).json()["definition"]
    assert made["body"] == "it is ${due}" and made["tz"] == "Europe/Berlin"

    await row.get_by_role("button", name="Pause").click()
    await page.locator("#ask .go").click()
    await expect(row.locator(".state")).to_have_text("paused")
    assert (await http.get("/v1/recurring/report")).json()["state"] == "paused"
    await row.get_by_role("button", name="Resume").click()
    await expect(row.locator(".state")).to_have_text("active")
    await row.get_by_role("button", name="Run now").click()
    await confirm(page)
    assert (await http.get("/v1/stats")).json()["delayed"] == 1

    await row.get_by_role("link", name="report").click()
    await page.get_by_label("Cron").fill("30 4 * * *")
    await page.get_by_role("button", name="Save").click()
    await page.locator("#ask .go").click()
    await page.wait_for_url("**/recurring")
    await expect(row).to_contain_text("At 04:30 every day")
    changed = (await http.get("/v1/recurring/report")).json()["definition"]
    assert changed == {**made, "cron": "30 4 * * *"}

    await row.get_by_role("link", name="report").click()
    since = datetime.now(UTC) - timedelta(days=3)
    await page.locator("#backfill [name=start]").fill(since.isoformat())
    await page.get_by_role("button", name="Backfill").click()
    await confirm(page)
    assert (await http.get("/v1/stats")).json()["delayed"] == 4
    await page.get_by_role("button", name="Delete").click()
    await expect(page.locator("#ask .go")).to_be_disabled()
    await page.locator("#ask .typed input").fill("report")
    await page.locator("#ask .go").click()
    await page.wait_for_url("**/recurring")
    assert (await http.get("/v1/recurring/report")).status_code == 404


async def test_who_is_connected_to_a_front_and_who_waits(
    page: Page, redis_url: str, namespace: str
) -> None:
    counts = FrontCounts(lambda event: None)
    busy, late = counts.opened("10.0.0.1:5000"), counts.opened("10.0.0.2:6000")
    busy.state, busy.product, busy.vhost = "running", "<b>shop</b>", "/"
    counts.held(late, "declare orders")
    counts.method_refused("audit", 406, "it is another's")
    announce = partial(registry.announce, namespace, "f", "0" * 16, 60_000, kind=registry.FRONT)
    with closing(Store(redis_url)) as store:
        store.run([announce(json.dumps(counts.announcement()).encode())])
        await page.goto("/connections")
        rows = page.locator("#t-clients tbody tr")
        await expect(rows).to_have_count(2)
        await expect(rows.first).to_contain_text("waits declare orders")
        await expect(rows.last).to_contain_text("<b>shop</b>")
        await page.get_by_role("button", name="Client", exact=True).click()
        await expect(rows.first).to_contain_text("10.0.0.1:5000")
        await expect(page.locator("#t-fronts")).to_contain_text(
            "refused audit 406: it is another's"
        )
        counts.released(late)
        counts.unreachable("broker:5672", "refused")
        store.run([announce(json.dumps(counts.announcement()).encode())])
        await page.goto("/connections")
        await expect(page.locator("#t-clients .trouble")).to_have_count(0)
        alert = page.get_by_role("link", name="front f reaches no node of the broker")
        await expect(alert).to_have_attribute("href", "/connections")


async def test_the_tail_shows_events_pauses_and_filters(
    page: Page, fleet: Fleet, http: httpx.AsyncClient
) -> None:
    fleet.start("worker")
    await page.goto("/tail?event=published")
    rows = page.locator("#t-tail tbody tr")
    fleet.schedule(600, seconds=60)  # however late its stream is
    published = rows.filter(has_text="destination=file:q")
    await expect(published.first).to_be_visible()
    await expect(rows.last).to_contain_text("listening")
    await page.get_by_role("button", name="Pause").click()
    before = await rows.count()
    await expect(page.locator("#held")).to_have_text(re.compile(r"\d+ waiting"))
    assert await rows.count() == before
    await page.get_by_role("button", name="Go on").click()
    await expect(page.locator("#held")).to_have_text("")
    assert await rows.count() > before
    events = set(await rows.locator("td:nth-child(3)").all_inner_texts())
    assert events <= {"published", "listening"}
    path = await published.last.get_by_role("link").get_attribute("href")
    gone = await http.get(str(path))  # a browser would complain of its status
    assert gone.status_code == 404 and "This message was delivered" in gone.text
    assert "<td>file:q</td>" in gone.text


async def test_of_many_messages_the_tail_shows_some_and_says_of_how_many(
    page: Page, redis_url: str, namespace: str
) -> None:
    beats, sampled = 0, page.locator("#sampled")
    fields = {"n": 1000, "destination": "file:q", "lateness_ms": 7}
    ids = [f"m/{n}" for n in range(50)]
    alone = Told(NOW_MS, 30, "buried", {"n": 1, "reason": "unroutable"}, ["<b>lost</b>"])
    older = Told(NOW_MS, 20, "published", {"n": 212, "destination": "file:old"})

    async def is_sampled() -> bool:
        nonlocal beats
        beats += 1
        lines = [Told(NOW_MS, 20, "published", fields, ids), alone, older]
        with closing(Store(redis_url)) as store:
            store.run([publish(namespace, Beat("w", "i", beats, lines))])
        return re.fullmatch(r"1 of [1-9]\d+ shown", await sampled.inner_text()) is not None

    await page.goto("/tail")
    await until_async(is_sampled, "it says how many it shows")
    rows = page.locator("#t-tail tbody tr")
    await expect(rows.filter(has_text="destination=file:q").first).to_have_text(
        re.compile(r"published\s*m/\d+\s*destination=file:q$")
    )
    lost = rows.get_by_role("link", name="<b>lost</b>").first
    await expect(lost).to_have_attribute("href", "/messages/%3Cb%3Elost%3C%2Fb%3E")
    await expect(rows.filter(has_text="n=212").first).to_be_visible()  # of an earlier version
