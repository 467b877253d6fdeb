"""The HTTP API: what a request says of itself, row by row."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.rigs.api import api

BODY = b'{"destination": "kafka:orders", "body": "x", "delay": "1h"}'
JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("row", "headers", "status"),
    [
        ("H-19", JSON | {"Content-Encoding": "gzip"}, 415),
        ("H-20", {}, 415),
        ("H-21", {"Content-Type": "text/xml"}, 415),
        ("H-21 form", {"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ("H-21 plain", {"Content-Type": "text/plain"}, 415),
        ("H-22", {"Content-Type": "application/json; charset=utf-16"}, 415),
        ("H-22 utf-8", {"Content-Type": 'Application/JSON; charset="UTF-8"'}, 201),
        ("H-23", JSON | {"Accept": "text/html"}, 406),
        ("H-23 any", JSON | {"Accept": "text/html, */*;q=0.1"}, 201),
        ("H-32", JSON | {"Origin": "https://evil.example"}, 403),
        ("H-32 null", JSON | {"Origin": "null"}, 403),
    ],
)
async def test_what_a_request_says_of_itself(
    http: httpx.AsyncClient, row: str, headers: dict[str, str], status: int
) -> None:
    answer = await http.post("/v1/messages", content=BODY, headers=headers)
    assert answer.status_code == status, row
    assert "access-control-allow-origin" not in answer.headers


async def test_h32_the_server_s_own_pages_may(http: httpx.AsyncClient) -> None:
    origin = str(http.base_url).rstrip("/")
    answer = await http.post("/v1/messages", content=BODY, headers=JSON | {"Origin": origin})
    assert answer.status_code == 201


async def test_h32_a_foreign_page_may_not_delete(http: httpx.AsyncClient) -> None:
    evil = {"Origin": "https://evil.example"}
    assert (await http.delete("/v1/messages/x", headers=evil)).status_code == 403
    assert (await http.post("/v1/dead/x:kick", headers=evil)).status_code == 403
    assert (await http.get("/v1/messages", headers=evil)).status_code == 200


@pytest.mark.parametrize(
    ("host", "status"), [("good.example", 200), ("good.example:8645", 200), ("evil.example", 421)]
)
async def test_h24_another_host_is_refused(
    redis_url: str, namespace: str, host: str, status: int
) -> None:
    hosts: Any = ["good.example", "127.0.0.1"]
    async with api(redis_url, namespace, allowed_hosts=hosts) as http:
        answer = await http.get("/v1/messages", headers={"Host": host})
        assert answer.status_code == status


@pytest.mark.parametrize(
    ("host", "status"),
    [("127.0.0.1:1", 200), ("localhost:8645", 200), ("evil.example:8645", 421), ("evil", 421)],
)
async def test_without_tokens_no_other_site_s_name_leads_here(
    http: httpx.AsyncClient, host: str, status: int
) -> None:
    for path in ("/v1/messages", "/"):
        assert (await http.get(path, headers={"Host": host})).status_code == status


async def test_h25_a_forwarded_address_is_not_believed(guarded: httpx.AsyncClient) -> None:
    statuses = []
    for number in range(12):
        headers = {"Authorization": "Bearer wrong", "X-Forwarded-For": f"10.0.0.{number}"}
        statuses.append((await guarded.get("/v1/messages", headers=headers)).status_code)
    assert statuses[0] == 401
    assert statuses[-1] == 429
