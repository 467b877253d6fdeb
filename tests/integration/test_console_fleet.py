"""The console's workers, buckets, recurring messages and tail over HTTP."""

from __future__ import annotations

import httpx

from delaybridge.store.namespace import registry
from tests.rigs.api import api
from tests.rigs.crew import CALM, Crew
from tests.rigs.sessions import log_in
from tests.rigs.waiting import until_async

NIGHTLY = {
    "name": "nightly", "destination": "kafka:orders", "body": "secret <b>", "cron": "0 3 * * *",
    "tz": "Europe/Berlin", "headers": {"h": "<i>"}, "ttl": "10m", "start": "2050-01-01T00:00:00Z",
}  # fmt: skip


async def test_empty_pages_say_what_to_run(http: httpx.AsyncClient) -> None:
    assert "delaybridge scan" in (await http.get("/workers")).text
    assert "delaybridge recurring add" in (await http.get("/recurring")).text
    assert "delaybridge tail" in (await http.get("/tail")).text
    assert (await http.get("/buckets")).text.count('class="alone"') == 16


async def test_a_definition_is_in_the_list_and_in_its_form(http: httpx.AsyncClient) -> None:
    assert (await http.post("/v1/recurring", json=NIGHTLY)).status_code == 201
    text = (await http.get("/recurring")).text
    assert "At 03:00 every day" in text and "Europe/Berlin" in text
    text = (await http.get("/recurring?edit=nightly")).text
    assert "secret &lt;b&gt;" in text and "secret <b>" not in text
    assert 'value="600000ms"' in text and 'value="2050-01-01T00:00:00.000Z"' in text
    assert "nightly" not in (await http.get("/recurring?find=daily")).text
    assert (await http.get("/recurring?edit=nothing")).status_code == 404


async def test_a_viewer_sees_no_form_no_body_and_no_buttons(guarded: httpx.AsyncClient) -> None:
    writer = {**await log_in(guarded, "write"), "x-delaybridge-console": "1"}
    await guarded.post("/v1/recurring", json=NIGHTLY, headers=writer)
    viewer = await log_in(guarded, "read")
    for path in ("/recurring", "/recurring?edit=nightly", "/recurring?new=true"):
        text = (await guarded.get(path, headers=viewer)).text
        assert "nightly" in text and "data-act" not in text and "secret" not in text


async def test_the_tail_asks_for_what_is_in_its_url(http: httpx.AsyncClient) -> None:
    text = (await http.get("/tail?destination=kafka:orders&event=published,+odd")).text
    assert 'data-path="/v1/events?destination=kafka%3Aorders&amp;event=published%2Codd"' in text
    assert "odd," in text and "lease_acquired" in text
    refused = await http.get("/tail?destination=kafak:orders")
    assert refused.status_code == 422 and "did you mean" in refused.text


async def test_a_worker_is_shown_while_it_lives_and_after(redis_url: str, namespace: str) -> None:
    async with Crew(redis_url, namespace) as crew, api(redis_url, namespace) as client:
        crew.start("one", lease=CALM)
        await crew.shared("one")
        text = (await client.get("/workers")).text
        assert 'data-owner="one"' in text and 'id="t-gone"' not in text
        assert (await client.get("/buckets")).text.count('data-owner="one"') == 16
        await crew.stop("one")

        async def has_left() -> bool:
            return 'id="t-workers"' not in (await client.get("/workers")).text

        await until_async(has_left, "the worker is not shown")
        assert 'id="t-gone"' not in (await client.get("/workers")).text  # it said that it leaves
        (now_us,) = await crew.store.run([registry.store_time()])
        about = b'{"host": "h", "ousted_by": "three"}'
        killed = registry.announce(
            namespace, "two", "2", 1000, about, kind=registry.INGEST, now_ms=now_us // 1000 - 2000
        )
        await crew.store.run([killed])

        async def is_gone() -> bool:
            return 'id="t-gone"' in (await client.get("/workers")).text

        await until_async(is_gone, "the process is among those that vanished")
        text = (await client.get("/workers")).text
        assert ">two</td><td>ingest" in text and "ended, three freed its buckets" in text
