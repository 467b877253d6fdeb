"""The HTTP API: bodies that are the message's own, and CloudEvents."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

TO = {"delaybridge-destination": "kafka:orders", "delaybridge-delay": "15m", "delaybridge-id": "m"}
EVENT = {"specversion": "1.0", "id": "e1", "source": "/shop", "type": "order.made"}
BINARY = {f"ce-{name}": value for name, value in EVENT.items()}
BROKERS = {
    "rabbitmq": "amqp://127.0.0.1", "kafka": "kafka://127.0.0.1", "hook": "http://127.0.0.1:1",
}  # fmt: skip
STRUCTURED = "application/cloudevents+json; charset=utf-8"


async def stored(http: httpx.AsyncClient, body: bytes | str, **headers: str) -> dict[str, Any]:
    made = await http.post("/v1/messages", content=body, headers=headers)
    assert made.status_code == 201, made.text
    found: dict[str, Any] = (await http.get(f"/v1/messages/{made.json()['id']}")).json()
    return found


async def test_any_bytes_are_a_body_and_the_headers_say_the_rest(http: httpx.AsyncClient) -> None:
    found = await stored(
        http, b"\xff\x00", **TO,
        **{"content-type": "image/png", "delaybridge-key": "k", "delaybridge-priority": "9",
           "delaybridge-ttl": "1h", "delaybridge-max-attempts": "3"},
    )  # fmt: skip
    assert found["body_base64"] == "/wA="
    assert (found["key"], found["priority"], found["ttl_ms"]) == ("k", 9, 3_600_000)
    assert found["retry"] == {"max_attempts": 3}
    assert found["headers"] == [["content-type", "image/png"]]
    again = {**TO, "content-type": "image/png", "delaybridge-key": "k", "delaybridge-priority": "9",
             "delaybridge-ttl": "1h", "delaybridge-max-attempts": "3"}  # fmt: skip
    repeated = await http.post("/v1/messages", content=b"\xff\x00", headers=again)
    assert (repeated.status_code, repeated.json()["duplicate"]) == (200, True)


async def test_json_with_a_destination_in_the_headers_is_a_body(http: httpx.AsyncClient) -> None:
    text = '{"a": 1,  "a": 2}'
    json = {"content-type": "application/json"}
    found = await stored(http, text, **TO | json)
    assert found["body"] == text
    queue = {"delaybridge-destination": "rabbitmq:/q", "delaybridge-id": "r"}
    found = await stored(http, text, **TO | json | queue)
    assert found["properties"] == {"content_type": "application/json"}
    due = {"delaybridge-destination": "kafka:o", "delaybridge-due": "2030-01-01T00:00:00Z"}
    assert (await stored(http, "", **due))["due"] == "2030-01-01T00:00:00.000Z"


@pytest.mark.parametrize(
    ("destination", "names", "subject"),
    [
        ("kafka:orders", "ce_", "Euro €"),
        ("rabbitmq:/q", "cloudEvents:", "Euro €"),
        ("hook:orders", "ce-", "Euro%20%E2%82%AC"),
    ],
)
async def test_a_binary_event_has_the_headers_of_its_broker_s_binding(
    http: httpx.AsyncClient, destination: str, names: str, subject: str
) -> None:
    to = {**TO, "delaybridge-destination": destination, "content-type": "text/plain"}
    found = await stored(http, "hello", **to, **BINARY, **{"ce-subject": "Euro%20%E2%82%AC"})
    assert found["body"] == "hello"
    headers = dict(found["headers"])
    assert {name: headers[f"{names}{name}"] for name in EVENT} == EVENT
    assert headers[f"{names}subject"] == subject
    kind = headers.get("content-type") or found["properties"]["content_type"]
    assert kind == "text/plain"


async def test_a_structured_event_stays_as_it_is(http: httpx.AsyncClient) -> None:
    text = (
        '{ "specversion":"1.0", "id":"e1", "source":"/shop", "type":"t", "data":{"b":1},'
        ' "delaybridgedestination":"kafka:orders", "delaybridgedelay":"15m", "delaybridgeid":"s" }'
    )
    found = await stored(http, text, **{"content-type": STRUCTURED})
    assert (found["id"], found["body"]) == ("s", text)
    assert found["headers"] == [["content-type", STRUCTURED]]


async def test_instructions_may_be_attributes_of_a_binary_event(http: httpx.AsyncClient) -> None:
    told = {"ce-delaybridgedestination": "kafka:orders", "ce-delaybridgedelay": "15m"}
    found = await stored(http, "x", **BINARY, **told)
    assert {name for name, _ in found["headers"]} == {f"ce_{name}" for name in EVENT}


@pytest.mark.parametrize(
    ("headers", "body", "status", "code"),
    [
        ({"delaybridge-delay": "5 s"}, b"", 422, "bad_time"),
        ({"delaybridge-delay": "-1"}, b"", 422, "negative_delay"),
        ({"delaybridge-delay": "3600"}, b"", 422, "bad_time"),  # seconds, or milliseconds?
        ({"delaybridge-due": "2030-01-01T00:00:00Z"}, b"", 422, "time_ambiguous"),
        ({"delaybridge-dely": "5s"}, b"", 422, "reserved_header"),
        ({"delaybridge-cancel": "true"}, b"", 422, "bad_flag"),
        ({"delaybridge-id": "a\tb"}, b"", 422, "bad_id"),
        ({"delaybridge-destination": "http://x"}, b"", 422, "unknown_destination"),
        ({**BINARY, "ce-id": ""}, b"", 422, "bad_event"),
        ({**BINARY, "ce-specversion": "0.3"}, b"", 422, "bad_event"),
        ({**BINARY, "ce-x_y": "1"}, b"", 422, "bad_event"),
        ({**BINARY, "ce-subject": "%ff"}, b"", 422, "bad_event"),
        ({**BINARY, "ce-delaybridgedelay": "1s"}, b"", 422, "duplicate_header"),
        ({"content-type": STRUCTURED}, b"{}", 422, "bad_event"),
        ({"content-type": STRUCTURED}, b"{", 400, "bad_json"),
        ({"content-type": STRUCTURED}, b"[]", 422, "bad_value"),
    ],
)
async def test_wrong_instructions_store_nothing(
    http: httpx.AsyncClient, headers: dict[str, str], body: bytes, status: int, code: str
) -> None:
    refused = await http.post("/v1/messages", content=body, headers=TO | headers)
    assert (refused.status_code, refused.json()["code"]) == (status, code)
    assert (await http.get("/v1/messages")).json()["items"] == []


async def test_no_time_or_a_header_given_twice_is_refused(http: httpx.AsyncClient) -> None:
    to = {"delaybridge-destination": "kafka:orders"}
    untimed = await http.post("/v1/messages", content=b"x", headers=to)
    assert (untimed.status_code, untimed.json()["code"]) == (422, "time_required")
    twice = [*TO.items(), ("delaybridge-delay", "1s")]
    refused = await http.post("/v1/messages", content=b"x", headers=twice)
    assert (refused.status_code, refused.json()["code"]) == (400, "duplicate_header")
