"""The console's lists of messages, one message, what is in flight and jobs, over HTTP."""

from __future__ import annotations

import hashlib
import html
import re
from typing import Any
from urllib.parse import quote

import httpx
import msgspec

from tests.rigs.api import api, job_of
from tests.rigs.crew import BUCKETS, CALM, Crew
from tests.rigs.sessions import TOKENS
from tests.rigs.waiting import until_async

TO = "memory:q"
BROKERS = {"memory": "memory://"}


def bearer(scope: str) -> dict[str, str]:
    return {"authorization": f"Bearer {TOKENS[scope]}"}


async def schedule(http: httpx.AsyncClient, id: str, **fields: Any) -> None:
    message = {"destination": TO, "body": "x", "delay": "30m", "id": id, **fields}
    headers = fields.pop("_headers", bearer("write"))
    answer = await http.post("/v1/messages", json=message, headers=headers)
    assert answer.status_code == 201, answer.text


def shown(text: str) -> list[str]:
    return [html.unescape(id) for id in re.findall(r'<td class="id" title="([^"]*)">', text)]


async def listed(http: httpx.AsyncClient, query: str) -> list[str]:
    answer = await http.get(f"/messages?{query}")
    assert answer.status_code == 200, answer.text
    return shown(answer.text)


async def test_messages_are_found_by_every_filter(http: httpx.AsyncClient) -> None:
    await schedule(http, "a-1", delay="5m", headers={"tenant": "acme", "n": "1"})
    await schedule(http, "a-2", delay="2h")
    await schedule(http, "b-1", destination="memory:other", delay="3h")
    assert await listed(http, "") == ["a-1", "a-2", "b-1"]
    assert await listed(http, "destination=memory:other") == ["b-1"]
    assert await listed(http, "id_prefix=a-") == ["a-1", "a-2"]
    assert await listed(http, "header=tenant%3Dacme") == ["a-1"]
    assert await listed(http, "due_to=1h") == ["a-1"]
    assert await listed(http, "due_from=1h&due_to=150m") == ["a-2"]
    assert await listed(http, "attempts=1") == []
    assert await listed(http, "state=dead") == []
    for query, ids in (
        ("header=tenant%3Dacme", ["a-1"]),
        ("destination=memory:other&due_from=now", ["b-1"]),
    ):
        page = (await http.get(f"/messages?{query}")).text
        api_path = html.unescape(re.findall(r'<a href="([^"]*)" download="messages.json"', page)[0])
        assert [each["id"] for each in (await http.get(api_path)).json()] == ids
    csv = html.unescape(re.findall(r'<a href="([^"]*)" download="messages.csv"', page)[0])
    assert (await http.get(csv)).text.splitlines()[1].startswith('"b-1","memory:other",')


async def test_a_wrong_query_is_a_page_that_says_so_and_leads_on(http: httpx.AsyncClient) -> None:
    filters = ("due_from=tomorrow", "limit=0", "cursor=x", "state=lost", "attempts=many")
    for query in ("/?range=<script>alert(1)", *(f"/messages?{each}" for each in filters)):
        answer = await http.get(query)
        assert answer.status_code == 422 and "text/html" in answer.headers["content-type"], query
        assert "<h1>This cannot be shown</h1>" in answer.text and "<script>alert" not in answer.text
        path, _, field = query.partition("?")
        problem = answer.text.split('<section class="problem')[1].split("</section>")[0]
        assert field.partition("=")[0] in problem and f'href="{path}"' in problem, query


async def test_pages_lead_through_all_messages_and_back(http: httpx.AsyncClient) -> None:
    ids = [f"m-{number:02}" for number in range(60)]
    for number, id in enumerate(ids):
        await schedule(http, id, delay=f"{100 + number}m")
    path, seen = "/messages?limit=25&due_from=1m", []
    back = ""
    while path:
        text = (await http.get(path)).text
        seen.append(shown(text))
        (back,) = re.findall(r'rel="prev" href="([^"]*)"', text) or [""]
        (path,) = re.findall(r'rel="next" href="([^"]*)"', text) or [""]
        path, back = html.unescape(path), html.unescape(back)
    assert sum(seen, []) == ids and [len(page) for page in seen] == [25, 25, 10]
    text = (await http.get(back)).text
    assert shown(text) == seen[1]
    first = html.unescape(re.findall(r'rel="prev" href="([^"]*)"', text)[0])
    assert shown((await http.get(first)).text) == seen[0]


async def test_the_search_leads_to_a_message_a_destination_or_ids(http: httpx.AsyncClient) -> None:
    await schedule(http, "a/b c")
    for asked, path in (
        ("a/b c", "/messages/a%2Fb%20c"),
        ("memory:q", "/messages?destination=memory%3Aq"),
        ("memory", "/messages?destination=memory"),
        ("kafka:orders", "/messages?destination=kafka%3Aorders"),
        ("a/", "/messages?id_prefix=a%2F"),
        ("//evil.example", "/messages?id_prefix=%2F%2Fevil.example"),
    ):
        answer = await http.get(f"/messages?q={quote(asked, safe='')}")
        assert (answer.status_code, answer.headers["location"]) == (303, path)
    assert (await http.get("/messages/a%2Fb%20c")).status_code == 200


async def test_a_message_shows_all_that_is_known(http: httpx.AsyncClient) -> None:
    trace = "0af7651916cd43dd8448eb211c80319c"
    headers = {"tenant": "acme", "traceparent": f"00-{trace}-b7ad6b7169203331-01"}
    body = b'{"order":42}'
    await schedule(http, "a", body=body.decode(), headers=headers, priority=3, ttl="1h")
    text = html.unescape((await http.get("/messages/a")).text)
    for part in ("acme", trace, '"order": 42', hashlib.sha256(body).hexdigest(), "12 B", TO):
        assert part in text
    assert "delaybridge message cancel -- a" in text
    assert '<a href="?as=json#body" aria-current="true">' in text
    assert "7b 22 6f 72" in (await http.get("/messages/a?as=hex")).text
    saved = await http.get("/messages/a/body")
    assert saved.content == body and saved.headers["content-type"] == "application/octet-stream"
    assert saved.headers["content-disposition"] == "attachment; filename=body.bin"
    assert saved.headers["x-content-type-options"] == "nosniff"


async def test_a_trace_leads_to_where_the_setting_says(redis_url: str, namespace: str) -> None:
    given = {"trace_url": "https://jaeger.example/trace/{trace_id}", "brokers": BROKERS}
    async with api(redis_url, namespace, **given) as http:
        header = {"traceparent": f"00-{'ab' * 16}-b7ad6b7169203331-01"}
        await schedule(http, "a", headers=header)
        text = (await http.get("/messages/a")).text
        assert f'href="https://jaeger.example/trace/{"ab" * 16}"' in text
        await schedule(http, "b", headers={"traceparent": "javascript:alert(1)"})
        assert "jaeger" not in (await http.get("/messages/b")).text


async def test_one_id_under_two_keys_is_two_messages(http: httpx.AsyncClient) -> None:
    await schedule(http, "a", key="one", body="first")
    await schedule(http, "a", key="two", body="second")
    text = (await http.get("/messages")).text
    links = [html.unescape(link) for link in re.findall(r'<a href="(/messages/a[^"]*)"', text)]
    assert sorted(links) == ["/messages/a?key=one", "/messages/a?key=two"]
    text = (await http.get("/messages/a?key=two")).text
    assert "second" in text and 'data-path="/v1/messages/a:publish?key=two"' in text


async def test_a_message_that_is_not_there_says_what_may_have_happened(
    http: httpx.AsyncClient,
) -> None:
    for id in ("gone", "x" * 300, "%00"):
        answer = await http.get(f"/messages/{id}")
        assert answer.status_code in (400, 404) and "text/html" in answer.headers["content-type"]
    text = (await http.get("/messages/gone")).text
    assert "delivered" in text and "Without a ledger" in text


async def test_a_viewer_sees_neither_bodies_nor_buttons(guarded: httpx.AsyncClient) -> None:
    await schedule(guarded, "a", body="a secret")
    digest = hashlib.sha256(b"a secret").hexdigest()
    for path in ("/messages", "/messages/a", "/messages/a?as=text", "/jobs", "/in-flight"):
        text = (await guarded.get(path, headers=bearer("read"))).text
        assert "a secret" not in text and "data-act=" not in text, path
        assert (digest in text) == ("/a" in path)
    saved = await guarded.get("/messages/a/body", headers=bearer("read"))
    assert saved.status_code == 403 and "a secret" not in saved.text
    text = (await guarded.get("/messages", headers=bearer("write"))).text
    assert "data-ids" in text and "data-filter=" not in text  # a filter is for administrators
    assert "data-filter=" in (await guarded.get("/messages", headers=bearer("admin"))).text


async def test_a_list_shows_how_bodies_begin(http: httpx.AsyncClient) -> None:
    bodies = {
        "text": b"<b>\n one </b>" + "é".encode() * 100,
        "long": "漢".encode() * 70_000,
        "map": msgspec.msgpack.encode({"n": 1}),
        "bytes": bytes(range(128, 160)),
    }
    for id, body in bodies.items():
        await http.post(
            "/v1/messages",
            content=body,
            headers={"delaybridge-destination": TO, "delaybridge-delay": "1h"}
            | {"delaybridge-id": id},
        )
    text = (await http.get("/messages")).text
    found = {
        html.unescape(id): html.unescape(begun)
        for id, begun in re.findall(
            r'<td class="id" title="([^"]*)">.*?<td class="preview body" title="([^"]*)">', text
        )
    }
    assert found == {
        "text": "<b> one </b>" + "é" * 68 + "…",
        "long": "漢" * 80 + "…",
        "map": 'msgpack { "n": 1 }',
        "bytes": f"hex {bytes(range(128, 144)).hex(' ')}…",
    }


async def test_all_that_match_is_refused_to_a_page_without_a_filter(
    http: httpx.AsyncClient,
) -> None:
    await schedule(http, "a")
    wanted = {"filter": {"state": "delayed"}, "dry_run": True}
    page = {"x-delaybridge-console": "1"}
    refused = await http.post("/v1/messages:cancel", json=wanted, headers=page)
    assert (refused.status_code, refused.json()["code"]) == (422, "bad_selection")
    assert (await http.post("/v1/messages:cancel", json=wanted)).json()["matched"] == 1
    wanted["filter"] = {"destination": "memory"}
    answer = await http.post("/v1/messages:cancel", json=wanted, headers=page)
    assert answer.json()["matched"] == 1


async def test_the_audit_says_who_read_a_body(guarded: httpx.AsyncClient) -> None:
    await schedule(guarded, "a", body="a secret")
    assert "a secret" in (await guarded.get("/messages/a", headers=bearer("write"))).text
    await guarded.get("/messages/a/body", headers=bearer("admin"))
    await guarded.get("/messages/a", headers=bearer("read"))
    for scope in ("write", "write", "read"):  # a page refreshes itself
        await guarded.get("/messages?id_prefix=a", headers=bearer(scope))
    again = (await guarded.get("/messages/a?as=none", headers=bearer("write"))).text
    assert "a secret" not in again  # as a page refreshes itself
    listed = "/v1/messages?state=delayed&id_prefix=a"
    records = (await guarded.get("/v1/audit", headers=bearer("admin"))).json()["items"]
    assert [(each["who"], each["what"]) for each in records] == [
        ("write", f"read the beginning of the body of each message in {listed}"),
        ("admin", "read the body of a"), ("write", "read the body of a"),
    ]  # fmt: skip
    text = (await guarded.get("/jobs", headers=bearer("admin"))).text
    assert text.count("read the body of a") == 2
    assert "read the body" not in (await guarded.get("/jobs", headers=bearer("write"))).text


async def test_jobs_are_listed_with_what_they_did(http: httpx.AsyncClient) -> None:
    assert "Nothing was done to many messages" in (await http.get("/jobs")).text
    for number in range(3):
        await schedule(http, f"m-{number}")
    job = await job_of(http, "/v1/messages:cancel", {"filter": {"id_prefix": "m-"}})
    assert job["state"] == "done"
    text = (await http.get("/jobs")).text
    assert "cancelled 3" in text and "POST /v1/messages:cancel" in text


async def test_what_workers_hold_is_shown_with_its_owner(
    redis_url: str, namespace: str, crew: Crew
) -> None:
    given = {"brokers": BROKERS, "top": {"buckets": BUCKETS}}
    async with api(redis_url, namespace, **given) as http:
        assert "No worker runs" in (await http.get("/in-flight")).text
        await schedule(http, "soon", delay="5m")
        crew.start(lease=CALM, scan={"claim_ahead_ms": 600_000})  # it is held for long

        async def row() -> str:
            text = (await http.get("/in-flight")).text
            has_owner = '<td class="wide">w</td>' in text
            return text if shown(text) == ["soon"] and has_owner else ""

        text = await until_async(row, "it is claimed")
        assert ">in the worker<" in text
        held = (await http.get("/v1/in-flight")).json()["items"]
        assert [each["id"] for each in held] == ["soon"]
        await crew.stop()
