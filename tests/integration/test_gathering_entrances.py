"""Debounce and throttle over HTTP and from the shell."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.rigs.command_line import Run

PAGE: dict[str, Any] = {"destination": "kafka:t", "body": "1", "debounce": "page:42"}
USER: dict[str, Any] = {"destination": "kafka:t", "body": "1", "throttle": "user:7"}


async def test_http(http: httpx.AsyncClient) -> None:
    first = await http.post("/v1/messages", json=PAGE | {"quiet": "10m", "longest": "30m"})
    again = await http.post("/v1/messages", json=PAGE | {"body": "2", "quiet": "20m"})
    answers = [(each.status_code, each.json()["result"]) for each in (first, again)]
    assert answers == [(201, "created"), (200, "replaced")]
    assert {first.json()["id"], again.json()["id"]} == {"page:42"}
    assert again.json()["due_ms"] > first.json()["due_ms"]
    assert (await http.get("/v1/messages/page:42")).json()["body"] == "2"
    headers = {"delaybridge-destination": "kafka:t", "delaybridge-debounce": "page:42"}
    raw = await http.post("/v1/messages", content=b"3", headers=headers)
    assert (raw.status_code, raw.json()["result"]) == (200, "replaced")
    elsewhere = await http.post("/v1/messages", json=PAGE | {"destination": "kafka:other"})
    assert (elsewhere.status_code, elsewhere.json()["code"]) == (409, "conflict")
    assert (await http.delete("/v1/messages/page:42")).json()["result"] == "cancelled"
    many = await http.post("/v1/messages:batch", json={"messages": [USER, PAGE]})
    assert [each["result"] for each in many.json()["items"]] == ["created", "created"]
    await http.delete("/v1/messages/user:7")  # its span goes on
    kept = await http.post("/v1/messages", json=USER)
    assert (kept.status_code, kept.json()["result"]) == (200, "kept")


async def test_http_once(http: httpx.AsyncClient) -> None:
    """The same request again has the first answer, and postpones nothing."""
    key = {"idempotency-key": "one"}
    answers = [(await http.post("/v1/messages", json=PAGE, headers=key)).json() for _ in range(2)]
    assert answers[0] == answers[1] and answers[0]["result"] == "created"


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    (PAGE | {"delay": "5m"}, "time_ambiguous", "$.delay"),
    (PAGE | {"id": "x"}, "time_ambiguous", "$.delay"),
    (PAGE | {"throttle": "x"}, "time_ambiguous", "$.throttle"),
    (PAGE | {"every": "1m"}, "bad_time", "$.every"),
    (PAGE | {"quiet": "2h"}, "bad_time", "$.longest"),
    (PAGE | {"debounce": " "}, "bad_id", "$.key"),
]


@pytest.mark.parametrize(("body", "code", "place"), REFUSED)
async def test_http_refuses(
    http: httpx.AsyncClient, body: dict[str, Any], code: str, place: str
) -> None:
    problem = (await http.post("/v1/messages", json=body)).json()
    assert (problem["code"], problem["at"]) == (code, place)


def test_the_shell(run: Run) -> None:
    to = ("schedule", "kafka:t")
    first = run("--json", *to, "1", "--debounce", "page:42", "--quiet", "10m", "--longest", "30m")
    again = run("--json", *to, "2", "--debounce", "page:42", "--quiet", "20m")
    assert [each.objects[0]["answer"] for each in (first, again)] == ["created", "replaced"]
    assert again.objects[0]["id"] == "page:42"
    taken = run("--json", "schedule", "kafka:u", "1", "--debounce", "page:42")
    assert (taken.code, taken.error["code"]) == (4, "conflict")
    assert run("message", "cancel", "page:42").code == 0
    sent = run("--json", *to, "1", "--throttle", "user:7", "--every", "1h")
    assert sent.objects[0]["answer"] == "created"
    for words, field in (
        (("--debounce", "k", "--in", "5m"), "--in"),
        (("--debounce", "k", "--throttle", "k"), "--debounce"),
        (("--debounce", "k", "--id", "x"), "--id"),
        (("--debounce", "k", "--every", "1m"), "--every"),
        (("--debounce", "k", "--quiet", "2h"), "--longest"),
        (("--in", "5m", "--quiet", "2h"), "--quiet"),
    ):
        refused = run("--json", *to, "1", *words)
        assert (refused.code, refused.error["field"]) == (2, field)
    assert run("--json", *to, "--throttle", "k", "--lines").error["field"] == "--throttle"
