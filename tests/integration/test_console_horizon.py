"""The console's horizon over HTTP: what it counts, its spans, and who may move them."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx

from tests.rigs.api import api
from tests.rigs.sessions import TOKENS

HOSTILE = "rabbitmq:<script>alert(1)"
HOUR_MS = 3_600_000


async def schedule(http: httpx.AsyncClient, destination: str, delays: list[str]) -> None:
    some = [{"destination": destination, "body": "x", "delay": each} for each in delays]
    answer = await http.post("/v1/messages:batch", json={"messages": some})
    assert all(each["status"] == 201 for each in answer.json()["items"]), answer.text


def cells(text: str) -> list[list[Any]]:
    found = re.search(r'id="cells"[^>]*>(.*?)</script>', text)
    assert found
    return json.loads(found[1])  # type: ignore[no-any-return]


def table(text: str) -> list[list[str]]:
    rows = re.findall(
        r"<tr>(<td>.*?)</tr>", text.partition('id="t-due"')[2].partition("</table>")[0]
    )
    return [[re.sub("<.*?>", "", cell) for cell in re.findall(r"<td.*?</td>", row)] for row in rows]


async def test_the_bars_and_destinations_of_a_span(redis_url: str, namespace: str) -> None:
    async with api(redis_url, namespace, brokers={"rabbitmq": "amqp://127.0.0.1:1"}) as http:
        await schedule(http, f"{HOSTILE}/key", ["30m"] * 3)
        await schedule(http, "pull:b", ["40m", "5h"])
        text = (await http.get("/horizon")).text
        assert sum(cell[2] for cell in cells(text)) == 4
        assert table(text) == [
            ["rabbitmq:&lt;script&gt;alert(1)", "3", "0", "75.0 %"],
            ["pull:b", "1", "0", "25.0 %"],
        ]
        assert "<script>alert" not in text
        names = re.search(r"data-names='(.*?)'", text)
        assert names and len(json.loads(names[1])) == 2
        assert [sum(cell[4][n] for cell in cells(text)) for n in (0, 1)] == [1, 3]
        only = (await http.get("/horizon", params={"destination": "pull:b", "range": "1d"})).text
        assert sum(cell[2] for cell in cells(only)) == 2


async def test_a_chosen_span_has_some_60_to_200_bars(http: httpx.AsyncClient) -> None:
    low = 1_900_000_000_123  # amid a bar
    hours = (47 * HOUR_MS, 2000 * HOUR_MS)
    for length_ms in (1000, 60_000, 17 * 60_000, HOUR_MS, 5 * HOUR_MS, *hours):
        found = cells((await http.get(f"/horizon?from_ms={low}&to_ms={low + length_ms}")).text)
        assert (found[0][0], found[-1][1]) == (low, low + length_ms)
        assert 60 <= len(found) <= 200, length_ms


async def test_a_span_that_is_none_is_refused(http: httpx.AsyncClient) -> None:
    for query in ("from_ms=9&to_ms=8", "from_ms=-1", "range=2h", "from_ms=x", "scale=cube"):
        answer = await http.get(f"/horizon?{query}")
        assert answer.status_code == 422, query
        assert answer.headers["content-type"].startswith("text/html")


async def test_the_calendar_shows_the_day_and_leads_to_it(http: httpx.AsyncClient) -> None:
    await schedule(http, "pull:a", ["10d"])
    text = (await http.get("/horizon")).text
    full = re.findall(r'href="([^"]*)"[^>]*><title>([^<]*)</title><rect class="l[1-4]"', text)
    assert len(full) == 1 and full[0][1].endswith(": 1")
    # 91 times 24 hours end in a 92nd.
    assert len(re.findall(r'</title><rect class="l\d"', text)) == 92
    day = (await http.get(full[0][0].replace("&amp;", "&"))).text
    assert sum(cell[2] for cell in cells(day)) == 1


async def test_who_may_not_administer_sees_no_move(guarded: httpx.AsyncClient) -> None:
    for scope, sees in (("admin", True), ("write", False), ("read", False)):
        headers = {"authorization": f"Bearer {TOKENS[scope]}"}
        assert ('id="move"' in (await guarded.get("/horizon", headers=headers)).text) is sees
