"""Bad values in messages, row by row: the status, the code, and nothing is stored."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx
import pytest
import pytest_asyncio

from tests.rigs.bad_input import BODY_BYTES, CREATED, MESSAGE, nothing_is_stored, post, strict_api

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Row(NamedTuple):
    """fields: of a message, as JSON text, besides its destination; body and delay are added if
    they are not there. code: of the problem, or `result` of what was stored."""

    name: str
    fields: str
    status: int = 422
    code: str = "bad_time"
    destination: str = "kafka:orders"


def text_of(row: Row) -> str:
    parts = [f'"destination": {json.dumps(row.destination)}', row.fields]
    if '"body' not in row.fields:
        parts.append('"body": "x"')
    if not any(name in row.fields for name in ('"delay"', '"due"', '"due_ms"', '"no time"')):
        parts.append('"delay": "15m"')
    return "{" + ", ".join(part for part in parts if part and part != '"no time"') + "}"


def each(name: str, values: str, *fields: str, **more: Any) -> list[Row]:
    return [Row(f"{name} {values} {n}".strip(), field, **more) for n, field in enumerate(fields)]


def created(name: str, *fields: str, **more: Any) -> list[Row]:
    return each(name, "ok", *fields, status=CREATED, code="created", **more)


def delays(name: str, *values: Any, **more: Any) -> list[Row]:
    return each(name, "", *(f'"delay": {json.dumps(value)}' for value in values), **more)


def ids(name: str, *values: str, **more: Any) -> list[Row]:
    return each(name, "", *(f'"id": {json.dumps(v)}' for v in values), **{"code": "bad_id", **more})


def good_ids(name: str, *values: str) -> list[Row]:
    return ids(name, *values, status=CREATED, code="created")


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
    *created("B null", '"body": "x", "body_json": null', '"body_base64": "", "body_json": null'),
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
    async with strict_api(redis_url) as client:
        yield client


@pytest.mark.parametrize("row", ROWS, ids=[row.name.replace(" ", "-") for row in ROWS])
async def test_shared_values(http: httpx.AsyncClient, row: Row) -> None:
    answer = await post(http, text_of(row))
    found = answer.json()
    assert (answer.status_code, found.get("code", found.get("result"))) == (row.status, row.code)
    if row.status == CREATED:
        gone = await http.delete(f"/v1/messages/{quote(found['id'], safe='')}")
        assert gone.status_code == 200, gone.text
    else:
        assert answer.headers["content-type"] == "application/problem+json"
        assert len(found["detail"]) <= 600
    await nothing_is_stored(http)


async def test_h53_every_bad_value_has_its_own_result_in_a_batch(http: httpx.AsyncClient) -> None:
    rows = [row for row in ROWS if row.status == 422]
    text = ",".join(text_of(row) for row in rows)
    answer = await post(http, f'{{"messages": [{text}, {MESSAGE}]}}', ":batch")
    assert answer.status_code == 207, answer.text
    *refused, made = answer.json()["items"]
    assert [(item["status"], item["code"]) for item in refused] == [row[2:4] for row in rows]
    assert all(item["at"].startswith(f"$.messages[{n}]") for n, item in enumerate(refused))
    assert made["status"] == CREATED
    assert (await http.delete(f"/v1/messages/{made['id']}")).status_code == 200
    await nothing_is_stored(http)
