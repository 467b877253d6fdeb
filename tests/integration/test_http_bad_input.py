"""The HTTP API and bad input, row by row: the status, the code, and nothing is stored."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx
import pytest
import pytest_asyncio

from delaybridge.client.async_client import AsyncClient
from delaybridge.store.calls import Calls
from delaybridge.store.command import Steps
from delaybridge.store.keys import bucket_of
from tests.rigs.api import api

pytestmark = pytest.mark.asyncio(loop_scope="module")

BROKERS = {
    "rabbitmq": "amqp://127.0.0.1:1",
    "kafka": "kafka://127.0.0.1:1",
    "memory": "memory://",
}
BODY_BYTES = 1000  # limits.body_bytes
OK = 201
DEEP = 100_000


class Row(NamedTuple):
    """fields: of a message, as JSON text, besides its destination; body and delay are added if
    they are not there. code: of the problem, or `result` of what was stored."""

    name: str
    fields: str
    status: int = 422
    code: str = "bad_time"
    destination: str = "kafka:orders"


def text_of(row: Row) -> str:
    """The whole request."""
    parts = [f'"destination": {json.dumps(row.destination)}', row.fields]
    if '"body' not in row.fields:
        parts.append('"body": "x"')
    if not any(name in row.fields for name in ('"delay"', '"due"', '"due_ms"', '"no time"')):
        parts.append('"delay": "15m"')
    return "{" + ", ".join(part for part in parts if part and part != '"no time"') + "}"


def each(name: str, values: str, *fields: str, **more: Any) -> list[Row]:
    """A row for each of these fields."""
    return [Row(f"{name} {values} {n}".strip(), field, **more) for n, field in enumerate(fields)]


def created(name: str, *fields: str, **more: Any) -> list[Row]:
    return each(name, "ok", *fields, status=OK, code="created", **more)


def delays(name: str, *values: Any, **more: Any) -> list[Row]:
    return each(name, "", *(f'"delay": {json.dumps(value)}' for value in values), **more)


def ids(name: str, *values: str, **more: Any) -> list[Row]:
    return each(name, "", *(f'"id": {json.dumps(v)}' for v in values), **{"code": "bad_id", **more})


def good_ids(name: str, *values: str) -> list[Row]:
    return ids(name, *values, status=OK, code="created")


def dues(name: str, *values: Any, **more: Any) -> list[Row]:
    return each(name, "due", *(f'"due": {json.dumps(value)}' for value in values), **more)


TIMES = [
    *delays("T1", "-1s", "-5m", code="negative_delay"),
    *created("T2", '"delay": "0s"', '"delay": "0ms"'),
    *created("T3", '"delay": "-0s"'),
    *delays("T4", 1.5),
    *each("T4", "due_ms", '"due_ms": 1.5'),
    *created("T4", '"delay": "1.5s"'),
    *delays("T5", "5000", 5000),
    *created("T6", '"delay": "5s"', '"delay": "1h30m"'),
    *delays("T7", "5 s", " 5s", "5s\n"),
    *delays("T8", "1_000", "1_000ms"),
    *delays("T9", "٥s", "５s"),
    *delays("T10", "0x10", "1e3s", "+5s"),
    *each("T11", "", '"delay": NaN', '"due_ms": NaN', status=400, code="bad_json"),
    *each("T12", "", '"delay": Infinity', '"due_ms": -Infinity', status=400, code="bad_json"),
    *each("T12", "number", '"delay": 1e999', '"due_ms": 1e999'),
    *delays("T13", True),
    *each("T13", "due_ms", '"due_ms": true'),
    *each("T14", "", '"delay": null', '"due": null', '"no time"', code="time_required"),
    *each("T15", "", '"delay": "1s", "due": "2030-01-01T00:00:00Z"', code="time_ambiguous"),
    *each("T15", "ms", '"due_ms": 1900000000000, "delay": "1s"', code="time_ambiguous"),
    *delays("T16", ""),
    *delays("T17", [5], {"ms": 5}),
    *created("T18", f'"delay": "{2**31}ms"'),
    *created("T19", f'"delay": "{2**32}ms"'),
    *delays("T20", f"{2**53 + 1}ms", code="too_far"),
    *delays("T21", f"{2**63}ms", f"{2**64}ms", code="too_far"),
    *each("T21", "due_ms", f'"due_ms": {2**63}', f'"due_ms": {2**64}', code="too_far"),
    *delays("T22", "9" * 10_000, "9" * 10_000 + "ms"),
    *each("T22", "due_ms", f'"due_ms": {"9" * 10_000}'),
    *created("T23", f'"due_ms": {time.time_ns() // 10**6 - 1}'),
    *each("T24", "", '"due_ms": 0', '"due_ms": 1900000000', code="looks_like_seconds"),
    *each("T25", "", '"due_ms": 1900000000000000', '"due_ms": 1900000000000000000', code="too_far"),
    *dues("T26", "3000-01-01T00:00:00Z", code="too_far"),
    *each("T26", "ms", '"due_ms": 32503680000000', code="too_far"),
    *dues("T27", "9999-12-31T23:59:59-14:00", code="too_far"),
    *dues("T28", "2030-01-01T00:00:00", code="zone_required"),
    *dues("T29", "2024-02-30T00:00:00Z"),
    *dues("T30", "2030-01-01T24:00:00Z", "2030-01-01T00:00:60Z"),
    *dues("T31", "2030-W01-1", "20300101T000000Z"),
    *dues("T32", "tomorrow"),
    *delays("T32", "tomorrow", "in 5 min"),
    *delays("T33", "*/5 * * * *"),
    *delays("T34", "4000d", code="too_far"),
]
IDS = [
    *ids("I1", ""),
    *ids("I2", "x" * 256),
    *good_ids("I3", "€" * 85),
    *ids("I3", "€" * 86),
    *ids("I4", "a\nb", "a\r\n"),
    *ids("I5", "a\0b"),
    *ids("I6", "\x1b[2J"),
    *ids("I7", "\x7f", "\x85"),
    *ids("I8", "\u2028", "\u2029"),
    *ids("I9", "a\u202eb"),
    *each("I10", "", '"id": "\\ud800"', status=400, code="bad_json"),
    *ids("I12", " a", "a "),
    *good_ids("I13", "{x}"),
    *good_ids("I14", "'); redis.call('FLUSHALL') --"),
    *good_ids("I15", '") return 1 --', "]] .. os.exit()"),
    *good_ids("I16", "*", "?", "[a-z]"),
    *good_ids("I17", "../../etc/passwd", "%2e%2e%2f"),
    *good_ids("I18", "<script>alert(1)</script>"),
    *good_ids("I19", "' OR 1=1 --"),
    *good_ids("I20", "S|x", "a|b"),
    *each("I24", "", '"id": 5', '"id": true', '"id": ["a"]', code="bad_id"),
]
BODIES = [
    *created("B1", '"body": ""', '"body_base64": ""'),
    *created("B2", '"body": null'),
    *each("B2", "amqp", '"body": null', destination="rabbitmq:/q", code="null_body"),
    *created("B3", f'"body": "{"x" * BODY_BYTES}"'),
    *each("B4", "", f'"body": "{"x" * (BODY_BYTES + 1)}"', status=413, code="body_too_large"),
    *created("B6", '"body_base64": "/wA="'),
    *each("B7", "", *(f'"body_base64": "{text}"' for text in ("====", "YQ =", "_-==", "YQ")),
          code="bad_base64"),
    *each("B8", "", '"body": "\\ud800"', status=400, code="bad_json"),
    *each("B9", "", '"body": {"a": 1}', '"body": 5', code="bad_body"),
    *created("B10", '"body_base64": "H4sIAAAAAAAA/w=="'),
    *each("B", "none", '"body_": 1', code="unknown_field"),
    *each("B", "two", '"body": "x", "body_json": 1', code="body_ambiguous"),
]  # fmt: skip
MANY = json.dumps({f"h{n}": "x" for n in range(65)})
HEADERS = [
    *each("H1", "", f'"headers": {MANY}', code="too_many_headers"),
    *each("H2", "", f'"headers": {{"a": "{"x" * 33_000}"}}', code="headers_too_large"),
    *each("H3", "", '"headers": {"": "x"}', code="bad_header"),
    *each("H4", "", f'"headers": {{"{"n" * 256}": "x"}}', code="bad_header"),
    *each("H5", "", '"headers": {"a\\u0000": "x"}', '"headers": {"a\\n": "x"}', code="bad_header"),
    *each("H6", "", '"headers": [[5, "x"]]', code="bad_header"),
    *each("H7", "", '"headers": {"delaybridge-x": "x"}', code="reserved_header"),
    *each("H8", "", '"headers": {"a": NaN}', status=400, code="bad_json"),
    *created("H9", '"headers": {"a": 1.5}', destination="rabbitmq:/q"),
    *each("H9", "kafka", '"headers": {"a": 1.5}', code="unsupported_header_type"),
    *each("H10", "", f'"headers": {{"a": {2**63}}}', destination="rabbitmq:/q",
          code="header_out_of_range"),
    *each("H11", "", '"headers": {"a": "\\ud800"}', status=400, code="bad_json"),
    *each("H13", "", '"headers": {"a": {"b": 1}}', code="unsupported_header_type"),
    *each("H14", "", '"headers": {"a": [[[[[1]]]]]}', destination="rabbitmq:/q",
          code="nested_too_deep"),
    *created("H16", '"headers": [["a", "1"], ["a", "2"]]'),
    *each("H16", "amqp", '"headers": [["a", "1"], ["a", "2"]]', destination="rabbitmq:/q",
          code="duplicate_header"),
    *created("H17", '"headers": {"a": null}'),
    *created("H20", '"headers": {"x-delay": "5"}'),
    *created("H21", '"headers": {"CC": ["a"]}', destination="rabbitmq:/q"),
    *each("H22", "", f'"headers": {{"a": "{"x" * 70_000}"}}', code="headers_too_large"),
]  # fmt: skip


def to(name: str, *destinations: str, code: str = "bad_destination", **more: Any) -> list[Row]:
    return [Row(f"{name} {n}", "", destination=each, code=code, **more)
            for n, each in enumerate(destinations)]  # fmt: skip


def option(name: str, code: str, *fields: str, destination: str = "rabbitmq:/q") -> list[Row]:
    return each(name, "", *fields, code=code, destination=destination)


OPTIONS = [
    *to("D1", "rabbitmqq:/q", "nowhere:x", code="unknown_destination"),
    *to("D2", "", "orders"),
    *to("D3", f"rabbitmq:{'x' * 256}/k"),
    *to("D4", f"rabbitmq:x/{'k' * 256}"),
    *to("D5", "kafka:.", "kafka:..", f"kafka:{'t' * 250}", "kafka:a b", "kafka:é"),
    *to("D6", "http://169.254.169.254/", "kafka://x/y", code="unknown_destination"),
    *created("D7", "", destination="rabbitmq:/nowhere"),
    *to("D9", "other-tenant:orders", code="unknown_destination"),
    *option("D10", "bad_priority", '"priority": -1', '"priority": 256', '"priority": 300'),
    *option("D10 type", "bad_priority", '"priority": 1.5', '"priority": "high"'),
    *option("D11", "bad_expiration", '"properties": {"expiration": "-1"}'),
    *option("D11 text", "bad_expiration", '"properties": {"expiration": "abc"}'),
    *option("D11 type", "bad_expiration", '"properties": {"expiration": 5}'),
    *option("D13", "bad_property", '"properties": {"delivery_mode": 7}'),
    *option("D15", "bad_partition", '"properties": {"partition": -5}', destination="kafka:o"),
    *created("D15", '"properties": {"partition": 99}'),
]  # fmt: skip
ROWS = [*TIMES, *IDS, *BODIES, *HEADERS, *OPTIONS]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def http(redis_url: str) -> AsyncIterator[httpx.AsyncClient]:
    limits = {"body_bytes": BODY_BYTES}
    async with api(redis_url, f"bad-{time.time_ns()}", brokers=BROKERS, limits=limits) as client:
        yield client


async def nothing_is_stored(http: httpx.AsyncClient) -> None:
    assert (await http.get("/v1/messages")).json()["items"] == []


async def post(http: httpx.AsyncClient, body: str | bytes, path: str = "") -> httpx.Response:
    return await http.post(
        f"/v1/messages{path}", content=body, headers={"content-type": "application/json"}
    )


@pytest.mark.parametrize("row", ROWS, ids=[row.name.replace(" ", "-") for row in ROWS])
async def test_shared_values(http: httpx.AsyncClient, row: Row) -> None:
    answer = await post(http, text_of(row))
    found = answer.json()
    assert (answer.status_code, found.get("code", found.get("result"))) == (row.status, row.code)
    if row.status == OK:
        gone = await http.delete(f"/v1/messages/{quote(found['id'], safe='')}")
        assert gone.status_code == 200, gone.text
    else:
        assert answer.headers["content-type"] == "application/problem+json"
        assert len(found["detail"]) <= 600
    await nothing_is_stored(http)


JSON = {"Content-Type": "application/json"}
MESSAGE = '{"destination": "kafka:orders", "body": "x", "delay": "15m"}'
WIDE = "{" + ", ".join(f'"k{n}": 1' for n in range(100_000)) + "}"
# The whole request, its status and its code.
TEXTS: dict[str, tuple[str | bytes, int, str]] = {
    "H-33": ("", 400, "bad_json"),
    "H-33 spaces": (" \n", 400, "bad_json"),
    "H-34": ("destination=kafka:orders", 400, "bad_json"),
    "H-35 list": (f"[{MESSAGE}]", 422, "bad_value"),
    "H-35 text": ('"x"', 422, "bad_value"),
    "H-35 null": ("null", 422, "bad_value"),
    "H-36 garbage": (f"{MESSAGE} x", 400, "bad_json"),
    "H-36 two": (MESSAGE * 2, 400, "bad_json"),
    "H-37 comma": (MESSAGE.replace("}", ",}"), 400, "bad_json"),
    "H-37 comment": (MESSAGE.replace("{", "{ // x\n"), 400, "bad_json"),
    "H-37 quotes": (MESSAGE.replace('"', "'"), 400, "bad_json"),
    "H-38": (MESSAGE.replace("}", ', "delay": "1s"}'), 400, "bad_json"),
    "H-38 inner": (MESSAGE.replace("}", ', "headers": {"a": "1", "a": "2"}}'), 400, "bad_json"),
    "H-39": (MESSAGE.replace('"x"', "[" * DEEP + "]" * DEEP), 400, "bad_json"),
    "H-39 objects": ('{"a":' * (DEEP // 5) + "1" + "}" * (DEEP // 5), 400, "bad_json"),
    "H-40": (MESSAGE.replace('"15m"', "NaN"), 400, "bad_json"),
    "H-41": (WIDE, 413, "body_too_large"),
    "H-42": (MESSAGE.replace('"x"', "9" * 100_000), 422, "bad_body"),
    "H-43": (MESSAGE.encode().replace(b"x", b"\xff\xfe"), 400, "bad_json"),
    "H-45": (MESSAGE.replace('"x"', '"\\ud800"'), 400, "bad_json"),
    "H-46": (MESSAGE.replace("delay", "dely"), 422, "unknown_field"),
    "H-47": (MESSAGE.replace("delay", "Delay"), 422, "unknown_field"),
    "H-48 proto": (MESSAGE.replace("}", ', "__proto__": {}}'), 422, "unknown_field"),
    "H-48 class": (MESSAGE.replace("}", ', "__class__": "x"}'), 422, "unknown_field"),
    "H-49": (MESSAGE.replace("}", ', "properties": "x"}'), 422, "bad_property"),
    "H-50": (MESSAGE.replace('"kafka:orders"', "null"), 422, "bad_destination"),
    "H-50 missing": ('{"body": "x", "delay": "1s"}', 422, "bad_value"),
}


@pytest.mark.parametrize("name", TEXTS)
async def test_json(http: httpx.AsyncClient, name: str) -> None:
    text, status, code = TEXTS[name]
    answer = await post(http, text)
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    await nothing_is_stored(http)


async def test_h44_a_byte_order_mark_is_skipped(http: httpx.AsyncClient) -> None:
    made = await post(http, b"\xef\xbb\xbf" + MESSAGE.encode())
    assert made.status_code == OK
    assert (await http.delete(f"/v1/messages/{made.json()['id']}")).status_code == 200


async def test_h46_a_near_miss_is_named(http: httpx.AsyncClient) -> None:
    assert "did you mean `delay`" in (await post(http, TEXTS["H-46"][0])).json()["detail"]
    assert "did you mean `delay`" in (await post(http, TEXTS["H-47"][0])).json()["detail"]


@pytest.mark.parametrize(
    ("name", "text", "status", "code"),
    [
        ("H-51", '{"messages": []}', 422, "batch_empty"),
        ("H-52", f'{{"messages": [{",".join([MESSAGE] * 1001)}]}}', 413, "batch_too_large"),
        ("H-52 type", '{"messages": {}}', 422, "bad_value"),
    ],
)
async def test_batches(
    http: httpx.AsyncClient, name: str, text: str, status: int, code: str
) -> None:
    answer = await post(http, text, ":batch")
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    await nothing_is_stored(http)


async def test_h53_every_bad_value_has_its_own_result_in_a_batch(http: httpx.AsyncClient) -> None:
    rows = [row for row in ROWS if row.status == 422]
    text = ",".join(text_of(row) for row in rows)
    answer = await post(http, f'{{"messages": [{text}, {MESSAGE}]}}', ":batch")
    assert answer.status_code == 207, answer.text
    *refused, made = answer.json()["items"]
    assert [(item["status"], item["code"]) for item in refused] == [row[2:4] for row in rows]
    assert all(item["at"].startswith(f"$.messages[{n}]") for n, item in enumerate(refused))
    assert made["status"] == OK
    assert (await http.delete(f"/v1/messages/{made['id']}")).status_code == 200
    await nothing_is_stored(http)


async def test_h54_the_same_id_twice_in_a_batch(http: httpx.AsyncClient) -> None:
    same = MESSAGE.replace("}", ', "id": "twice"}')
    other = same.replace('"x"', '"y"')
    items = (await post(http, f'{{"messages": [{same}, {same}, {other}]}}', ":batch")).json()[
        "items"
    ]
    assert [(item["status"], item.get("result")) for item in items[:2]] == [
        (201, "created"), (200, "duplicate"),
    ]  # fmt: skip
    assert (items[2]["status"], items[2]["code"]) == (409, "conflict")
    assert (await http.delete("/v1/messages/twice")).status_code == 200


async def test_i21_i22_i23_an_id_again(http: httpx.AsyncClient) -> None:
    same = MESSAGE.replace("}", ', "id": "again"}')
    for _ in range(2):
        assert (await post(http, same)).status_code == OK
        found = await post(http, same)
        assert (found.status_code, found.json()["duplicate"]) == (200, True)
        other = await post(http, same.replace('"x"', '"y"'))
        assert (other.status_code, other.json()["code"]) == (409, "conflict")
        assert (await http.delete("/v1/messages/again")).status_code == 200
    await nothing_is_stored(http)


@pytest.mark.parametrize(("method", "path"), [("DELETE", ""), ("PATCH", ""), ("POST", ":publish")])
async def test_h56_an_unknown_message(http: httpx.AsyncClient, method: str, path: str) -> None:
    body = {"json": {"delay": "1s"}} if method == "PATCH" else {}
    answer = await http.request(method, f"/v1/messages/none{path}", **body)
    assert (answer.status_code, answer.json()["code"]) == (404, "unknown")


async def test_h58_rescheduled_into_the_past_is_due_now(http: httpx.AsyncClient) -> None:
    await post(http, MESSAGE.replace("}", ', "id": "past"}'))
    moved = await http.patch("/v1/messages/past", json={"due": "2020-01-01T00:00:00Z"})
    assert (moved.status_code, moved.json()["result"]) == (200, "rescheduled")
    assert (await http.get("/v1/scaling")).json()["due_now"] == 1
    assert (await http.delete("/v1/messages/past")).status_code == 200


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("limit=-1", "bad_limit"), ("limit=0", "bad_limit"), ("limit=1000000000", "bad_limit"),
        ("limit=abc", "bad_limit"), ("limit=1.5", "bad_limit"), ("limit=", "bad_limit"),
        (f"limit={'9' * 5000}", "bad_limit"), ("cursor=x", "bad_cursor"), ("cursor=", "bad_cursor"),
        ("cursor=%C3%A9", "bad_cursor"), ("cursor=k8tB2QAAAAAAAAChYQA=", "bad_cursor"),
        ("state=gone", "bad_value"), ("due_from=tomorrow", "bad_time"),
        ("due_to_ms=x", "bad_value"), ("limit=1&limit=2", "bad_query"),
        ("limt=1", "unknown_field"), ("search=(a%2B)%2B%24", "unknown_field"),
    ],
)  # fmt: skip
async def test_h59_h60_lists(http: httpx.AsyncClient, query: str, code: str) -> None:
    answer = await http.get(f"/v1/messages?{query}")
    assert (answer.status_code, answer.json()["code"]) == (422, code), answer.text


@pytest.mark.parametrize(
    ("name", "path", "status"),
    [
        ("H-27", "/v1/messages/a%00b", 400), ("H-28", "/v1/messages/a%2Fb", 404),
        ("H-29", "/v1/messages/a%252Fb", 404), ("H-30", "/v1/messages/%c0%ae", 400),
        ("I11", "/v1/messages/%ff%fe", 400), ("escape", "/v1/messages/%2", 400),
        ("I1", "/v1/messages/", 404), ("I2", f"/v1/messages/{'x' * 256}", 422),
        ("I17", "/v1/messages/%2e%2e%2fetc", 404), ("dots", "/v1/messages/a%20", 422),
    ],
)  # fmt: skip
async def test_ids_in_paths(http: httpx.AsyncClient, name: str, path: str, status: int) -> None:
    for method in ("GET", "DELETE"):
        answer = await http.request(method, path)
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"] == "application/problem+json"


async def test_h29_is_decoded_once(http: httpx.AsyncClient) -> None:
    for id in ("%2F", "a/b", "100%", ".."):
        made = await post(http, MESSAGE.replace("}", f', "id": "{id}"}}'))
        assert made.status_code == OK
        path = f"/v1/messages/{quote(id, safe='')}".replace("..", "%2E%2E")
        assert (await http.get(path)).json()["id"] == id
        assert (await http.delete(path)).status_code == 200


async def test_b5_a_stream_without_a_length_is_cut_while_it_is_read(
    http: httpx.AsyncClient,
) -> None:
    async def stream() -> AsyncIterator[bytes]:
        for _ in range(64):
            yield MESSAGE.encode() + b" " * 2**16

    answer = await http.post("/v1/messages", content=stream(), headers=JSON)
    assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")
    await nothing_is_stored(http)


async def test_b12_a_full_namespace_takes_no_more(redis_url: str, namespace: str) -> None:
    limits = {"pending_messages": 2}
    async with api(redis_url, namespace, brokers=BROKERS, limits=limits) as http:
        for name in "ab":
            assert (await post(http, MESSAGE.replace("x", name))).status_code == OK
        for headers in (JSON, JSON | {"Idempotency-Key": "k"}):
            full = await http.post("/v1/messages", content=MESSAGE, headers=headers)
            assert (full.status_code, full.json()["code"]) == (507, "store_full")
            assert full.headers["Retry-After"]
        (item,) = (await post(http, f'{{"messages": [{MESSAGE}]}}', ":batch")).json()["items"]
        assert (item["status"], item["code"]) == (507, "store_full")


async def test_d8_a_paused_destination_takes_messages(http: httpx.AsyncClient) -> None:
    assert (await http.post("/v1/destinations/kafka%3Aorders:pause")).status_code == 200
    made = await post(http, MESSAGE)
    assert made.status_code == OK
    assert (await http.delete(f"/v1/messages/{made.json()['id']}")).status_code == 200
    assert (await http.post("/v1/destinations/kafka%3Aorders:resume")).status_code == 200


async def test_h56_a_message_in_flight(redis_url: str, namespace: str) -> None:
    async with api(redis_url, namespace, brokers=BROKERS) as http:
        message = MESSAGE.replace("}", ', "id": "flies"}').replace("15m", "0s")
        assert (await post(http, message)).status_code == OK
        await fire(redis_url, namespace, "flies")
        path = "/v1/messages/flies"
        for answer in (
            await http.delete(path),
            await http.patch(path, json={"delay": "1h"}),
            await http.post(f"{path}:publish"),
            await post(http, message.replace("}", ', "on_conflict": "replace"}')),
        ):
            assert (answer.status_code, answer.json()["code"]) == (409, "in_flight")


async def fire(redis_url: str, namespace: str, id: str) -> None:
    """As a worker that has handed this message to its broker."""
    async with AsyncClient(redis_url, namespace=namespace, brokers=BROKERS) as client:

        def steps(calls: Calls) -> Steps[None]:
            buckets = yield from calls.open()
            bucket = buckets[bucket_of(id.encode(), len(buckets))]
            (held,) = yield [bucket.acquire("w:1", 60_000)]
            (claim,) = yield [
                bucket.claim(
                    held.token, 60_000, held.turn, ahead_ms=1000, limit=10, max_bytes=10**6
                )
            ]
            assert [bytes(each).decode() for each in claim.ids] == [id]
            yield [bucket.fire(held.token, 60_000, 2.0**45, claim.number, 0)]

        await client.run(steps)
