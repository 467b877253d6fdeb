"""The HTTP API: messages one by one, and the errors of a request."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.rigs.api import accepted, api


@pytest.fixture
async def http(redis_url: str, namespace: str) -> AsyncIterator[httpx.AsyncClient]:
    async with api(redis_url, namespace) as client:
        yield client


def message(**fields: Any) -> dict[str, Any]:
    return {"destination": "kafka:orders", "body": "x", "delay": "15m", **fields}


async def test_a_message_from_post_to_delete(http: httpx.AsyncClient) -> None:
    made = await http.post("/v1/messages", json=message(id="a/b", headers={"n": "1"}))
    assert made.status_code == 201
    assert made.json()["result"] == "created"
    found = (await http.get("/v1/messages/a%2Fb")).json()
    assert (found["body"], found["state"], found["headers"]) == ("x", "delayed", [["n", "1"]])
    moved = await http.patch("/v1/messages/a%2Fb", json={"due": "2030-01-01T00:00:00Z"})
    assert moved.json() == {"id": "a/b", "result": "rescheduled"}
    assert (await http.get("/v1/messages/a%2Fb")).json()["due"] == "2030-01-01T00:00:00.000Z"
    assert (await http.delete("/v1/messages/a%2Fb")).json()["result"] == "cancelled"
    gone = await http.delete("/v1/messages/a%2Fb")
    assert (gone.status_code, gone.json()["code"]) == (404, "unknown")


async def test_a_repeated_id_is_a_duplicate_or_a_conflict(http: httpx.AsyncClient) -> None:
    first = (await http.post("/v1/messages", json=message(id="one"))).json()
    again = await http.post("/v1/messages", json=message(id="one"))
    assert (again.status_code, again.json()["duplicate"]) == (200, True)
    assert again.json()["due_ms"] == first["due_ms"]
    other = await http.post("/v1/messages", json=message(id="one", body="y"))
    assert (other.status_code, other.json()["code"]) == (409, "conflict")


async def test_pages_follow_the_cursor(http: httpx.AsyncClient) -> None:
    for number in range(5):
        made = message(id=f"m{number}", delay=f"{number + 1}m")
        assert (await http.post("/v1/messages", json=made)).status_code == 201
    found: list[str] = []
    query: dict[str, Any] = {"limit": 2}
    while True:
        page = (await http.get("/v1/messages", params=query)).json()
        found += [item["id"] for item in page["items"]]
        if page["next_cursor"] is None:
            break
        query["cursor"] = page["next_cursor"]
    assert found == [f"m{number}" for number in range(5)]
    other = {**query, "destination": "kafka:other"}
    refused = await http.get("/v1/messages", params=other)
    assert (refused.status_code, refused.json()["code"]) == (422, "bad_cursor")


@pytest.mark.parametrize(
    "text",
    [
        '{"id":"a","id":"b","destination":"kafka:x","body":"y","delay":"1h"}',
        '{"id":"a","id" :"b","destination":"kafka:x","body":"y","delay":"1h"}',
        '{"id":"a","\\u0069d":"b","destination":"kafka:x","body":"y","delay":"1h"}',
        '{"headers":{"h":"1","h":"2"},"destination":"kafka:x","body":"y","delay":"1h"}',
        '{"body_json":[{"h":"1","h":"2"}],"destination":"kafka:x","delay":"1h"}',
    ],
)
async def test_h38_a_key_given_twice_is_refused(http: httpx.AsyncClient, text: str) -> None:
    json = {"Content-Type": "application/json"}
    refused = await http.post("/v1/messages", content=text, headers=json)
    assert (refused.status_code, refused.json()["code"]) == (400, "bad_json"), refused.text


async def test_an_answer_does_not_wait_for_an_acknowledgement(http: httpx.AsyncClient) -> None:
    """It would wait 40 ms, but not in every case: the option is looked at, not the clock."""
    assert (await http.get("/health/live")).status_code == 200
    (own,) = accepted(http)
    with socket.socket(fileno=os.dup(own.fd)) as sock:
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
