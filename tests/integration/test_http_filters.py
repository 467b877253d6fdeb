"""The HTTP API: lists by filters, page by page, as CSV, and the dead set by reason."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from delaybridge.operate.views import listing
from delaybridge.store.redis.store import Store
from tests.rigs.burials import buried

BROKERS = {"rabbitmq": "amqp://h", "kafka": "kafka://h"}


async def add(http: httpx.AsyncClient, messages: list[dict[str, Any]]) -> None:
    filled = [
        {"body": "x", **each} if "due_ms" in each else {"body": "x", "delay": "15m", **each}
        for each in messages
    ]
    for at in range(0, len(filled), 1000):
        made = await http.post("/v1/messages:batch", json={"messages": filled[at : at + 1000]})
        assert {item["status"] for item in made.json()["items"]} == {201}, made.text[:500]


async def listed(http: httpx.AsyncClient, path: str, **query: Any) -> tuple[list[str], list[int]]:
    """The ids of all pages in order, and how many each page had."""
    ids: list[str] = []
    sizes: list[int] = []
    while True:
        answer = await http.get(path, params=query)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        ids += [item["id"] for item in page["items"]]
        sizes.append(len(page["items"]))
        if page["next_cursor"] is None:
            return ids, sizes
        query["cursor"] = page["next_cursor"]


MESSAGES: list[dict[str, Any]] = [
    {"id": "a1", "destination": "rabbitmq:orders/new", "headers": {"tenant": "blue", "n": "7"}},
    {"id": "a2", "destination": "rabbitmq:orders/old", "headers": {"tenant": "blue=2"}},
    {"id": "b1", "destination": "kafka:orders", "headers": {"tenant": ""}},
    {"id": "b2", "destination": "rabbitmq:my%20orders/x y"},
]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, ["a1", "a2", "b1", "b2"]),
        ({"id_prefix": "a"}, ["a1", "a2"]),
        ({"id_prefix": "A"}, []),
        ({"header": "tenant"}, ["a1", "a2", "b1"]),
        ({"header": "tenant=blue"}, ["a1"]),
        ({"header": "tenant=blue=2"}, ["a2"]),
        ({"header": "tenant="}, ["b1"]),
        ({"header": "n=7"}, ["a1"]),
        ({"header": "Tenant"}, []),
        ({"header": "tenant", "id_prefix": "b"}, ["b1"]),
        ({"attempts": 0}, ["a1", "a2", "b1", "b2"]),
        ({"attempts": 1}, []),
        ({"reason": "unroutable"}, []),
        ({"destination": "rabbitmq"}, ["a1", "a2", "b2"]),
        ({"destination": "rabbitmq:orders"}, ["a1", "a2"]),
        ({"destination": "rabbitmq:orders/old"}, ["a2"]),
        ({"destination": "rabbitmq:%6Frders/old"}, ["a2"]),
        ({"destination": "rabbitmq:my%20orders"}, ["b2"]),
        ({"destination": "kafka:orders", "header": "tenant"}, ["b1"]),
        ({"destination": "rabbitmq:orders/*"}, ["a1", "a2"]),
    ],
    ids=str,
)
async def test_a_list_and_a_bulk_verb_find_the_messages_that_fit_every_filter(
    http: httpx.AsyncClient, query: dict[str, Any], expected: list[str]
) -> None:
    await add(http, MESSAGES)
    ids, _ = await listed(http, "/v1/messages", **query)
    assert sorted(ids) == expected
    tried = await http.post("/v1/messages:cancel", json={"filter": query, "dry_run": True})
    assert tried.json()["matched"] == len(expected), tried.text


@pytest.mark.parametrize(
    "query",
    [
        *({"destination": wrong} for wrong in ("nowhere:x", "kafka:a/b", "kafka:", "kafka/orders")),
        *({"header": "=x"}, {"attempts": -1}, {"attempts": "many"}, {"format": "xml"}),
        {"heder": "x"},
    ],
    ids=str,
)
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/dead", "/v1/in-flight"])
async def test_a_filter_that_makes_no_sense(
    http: httpx.AsyncClient, path: str, query: dict[str, Any]
) -> None:
    assert (await http.get(path, params=query)).status_code == 422


@pytest.mark.parametrize("limit", [1, 7, 500])
async def test_every_message_that_fits_is_on_one_page_in_order(
    http: httpx.AsyncClient, limit: int
) -> None:
    await add(http, [
        {
            "id": f"m{n:04}", "destination": "kafka:t", "due_ms": 2_051_222_400_000 + n // 3,
            "headers": {"third": str(n % 3)},
        }
        for n in range(300)
    ])  # fmt: skip
    expected = [f"m{n:04}" for n in range(0, 300, 3)]
    ids, sizes = await listed(http, "/v1/messages", header="third=0", limit=limit)
    assert ids == expected
    assert max(sizes) <= limit


async def test_a_page_that_looked_at_many_records_in_vain_is_empty_and_leads_on(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "LOOKED", 20)
    early, late = 2_051_222_400_000, 2_051_222_500_000
    await add(http, [
        *({"id": f"m{n:04}", "destination": "kafka:t", "due_ms": early + n} for n in range(1000)),
        {"id": "z", "destination": "kafka:t", "due_ms": late, "headers": {"n": "1"}},
    ])  # fmt: skip
    ids, sizes = await listed(http, "/v1/messages", header="n=1", limit=5)
    assert ids == ["z"]
    assert sizes[0] == 0 and 2 < len(sizes) < 20


FILTERS = {
    "destination": "kafka:t", "id_prefix": "m", "header": "n", "attempts": 0, "reason": "x",
    "due_to_ms": 2_051_222_400_000,
}  # fmt: skip


@pytest.mark.parametrize("name", FILTERS)
async def test_a_cursor_of_a_list_with_other_filters_is_refused(
    http: httpx.AsyncClient, name: str
) -> None:
    await add(http, [{"id": f"m{n}", "destination": "kafka:t"} for n in range(3)])
    cursor = (await http.get("/v1/messages", params={"limit": 1})).json()["next_cursor"]
    value = 1 if name == "attempts" else FILTERS[name]
    refused = await http.get("/v1/messages", params={"cursor": cursor, name: value})
    assert (refused.status_code, refused.json()["code"]) == (422, "bad_cursor")
    as_csv = await http.get("/v1/messages", params={"cursor": cursor, "format": "csv"})
    assert as_csv.status_code == 200  # the same messages in another form


# CSV


def rows_of(answer: httpx.Response) -> list[dict[str, str]]:
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert answer.headers["content-disposition"].startswith("attachment; filename=")
    return list(csv.DictReader(io.StringIO(answer.text, newline="")))


async def test_a_page_is_csv_that_a_spreadsheet_does_not_run(http: httpx.AsyncClient) -> None:
    hostile = ["=1+1", "+1", "-1", "@x", 'a"b,c', "＝1", "x;=1+1"]
    await add(http, [
        {"id": id, "destination": "kafka:t", "headers": {"=h": "a\nb", "@i": "\tz"}}
        for id in hostile
    ])  # fmt: skip
    answer = await http.get("/v1/messages", params={"format": "csv"})
    rows = rows_of(answer)
    shown = {row["id"] for row in rows}
    assert shown == {"'=1+1", "'+1", "'-1", "'@x", 'a"b,c', "'＝1", "x;=1+1"}
    # Where a semicolon separates cells, what follows one within a cell begins none.
    elsewhere = csv.reader(
        io.StringIO(answer.text.replace('","', '";"'), newline=""), delimiter=";"
    )
    assert {row[0] for row in elsewhere} == {"id", *shown}
    for row in rows:
        assert (row["destination"], row["state"], row["attempts"]) == ("kafka:t", "delayed", "0")
        assert row["bytes"] == "1" and row["due"].endswith("Z")
        assert row["headers"].startswith("'=h=a\nb") and row["why"] == ""


async def test_a_csv_page_can_be_filtered_and_tells_where_the_next_one_begins(
    http: httpx.AsyncClient,
) -> None:
    await add(http, [{"id": f"m{n}", "destination": "kafka:t"} for n in range(5)])
    query: dict[str, Any] = {"format": "csv", "limit": 2, "id_prefix": "m"}
    ids: list[str] = []
    while True:
        answer = await http.get("/v1/messages", params=query)
        ids += [row["id"] for row in rows_of(answer)]
        if "next-cursor" not in answer.headers:
            break
        query["cursor"] = answer.headers["next-cursor"]
    assert sorted(ids) == [f"m{n}" for n in range(5)]
    assert len(ids) == 5


# dead messages

BURIED = [
    ("d0", "kafka:t", "unroutable: no such topic"),
    ("d1", "kafka:t", "unroutable: gone"),
    ("d2", "rabbitmq:orders/a", "unroutable: no queue"),
    ("d3", "kafka:t", "expired: 1 h late"),
    ("d4", "kafka:t", "=cmd: x"),
]


@pytest.fixture
def dead(redis_url: str, namespace: str, store: Store) -> Iterator[None]:
    with buried(store, redis_url, namespace, BROKERS, BURIED):
        yield


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"reason": "unroutable"}, ["d0", "d1", "d2"]),
        ({"reason": "unrout"}, []),
        ({"reason": "expired", "destination": "kafka:t"}, ["d3"]),
        ({"reason": "expired", "destination": "rabbitmq"}, []),
        ({"header": "h=d2"}, ["d2"]),
        ({"id_prefix": "d1"}, ["d1"]),
        ({"attempts": 1}, ["d0", "d1", "d2", "d3", "d4"]),
        ({"attempts": 2}, []),
    ],
    ids=str,
)
@pytest.mark.usefixtures("dead")
async def test_dead_messages_are_filtered(
    http: httpx.AsyncClient, query: dict[str, Any], expected: list[str]
) -> None:
    ids, _ = await listed(http, "/v1/dead", **query)
    assert sorted(ids) == expected
    tried = await http.post("/v1/dead:kick", json={"filter": query, "dry_run": True})
    assert tried.json()["matched"] == len(expected), tried.text


@pytest.mark.usefixtures("dead")
async def test_dead_messages_as_csv_say_why(http: httpx.AsyncClient) -> None:
    rows = rows_of(await http.get("/v1/dead", params={"format": "csv"}))
    why = {row["id"]: row["why"] for row in rows}
    assert why == {**{id: reason for id, _, reason in BURIED}, "d4": "'=cmd: x"}


@pytest.mark.usefixtures("dead")
async def test_dead_messages_are_counted_by_reason_and_destination(http: httpx.AsyncClient) -> None:
    found = (await http.get("/v1/dead:summary")).json()
    assert (found["looked"], found["more"]) == (5, False)
    groups = {(each["reason"], each["destination"]): each for each in found["items"]}
    assert {place: each["messages"] for place, each in groups.items()} == {
        ("unroutable", "kafka:t"): 2,
        ("unroutable", "rabbitmq:orders/a"): 1,
        ("expired", "kafka:t"): 1,
        ("=cmd", "kafka:t"): 1,
    }
    assert found["items"][0]["messages"] == 2
    dead_ms = {item["id"]: item["dead_ms"] for item in (await http.get("/v1/dead")).json()["items"]}
    first = groups["unroutable", "kafka:t"]
    assert first["oldest_ms"] == min(dead_ms["d0"], dead_ms["d1"])
    assert first["latest_ms"] == max(dead_ms["d0"], dead_ms["d1"])
    assert first["example"] in ("unroutable: no such topic", "unroutable: gone")


async def test_no_dead_messages_have_no_reasons(http: httpx.AsyncClient) -> None:
    found = (await http.get("/v1/dead:summary")).json()
    assert found == {"items": [], "looked": 0, "more": False}
