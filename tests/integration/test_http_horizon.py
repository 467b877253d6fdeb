"""The HTTP API: the horizon of a span that begins later, and what a span is due for."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from delaybridge import Client, Message

BROKERS = {"rabbitmq": "amqp://h", "kafka": "kafka://h"}
START_MS = 2_051_222_400_000
HOUR_MS = 3_600_000


def schedule(redis_url: str, namespace: str, dues: list[tuple[str, int]]) -> None:
    with Client(redis_url, namespace=namespace, brokers=BROKERS) as client:
        client.schedule_many(
            # Priority 0 is due a little after the whole millisecond, 255 is not.
            Message(to, b"x", at=datetime.fromtimestamp(ms / 1000, UTC), priority=n % 2 * 255)
            for n, (to, ms) in enumerate(dues)
        )


async def test_a_horizon_begins_where_it_is_asked_to(
    http: httpx.AsyncClient, redis_url: str, namespace: str
) -> None:
    inside = [START_MS, START_MS, START_MS + HOUR_MS - 1, START_MS + HOUR_MS]
    outside = [START_MS - 1, START_MS - 1, START_MS + 2 * HOUR_MS]
    schedule(redis_url, namespace, [("kafka:t", ms) for ms in (*inside, *outside)])
    for destination in ({}, {"destination": "kafka:t"}):
        asked = {"for": "2h", "step": "1h", "from_ms": START_MS, **destination}
        found = (await http.get("/v1/horizon", params=asked)).json()
        assert [cell["messages"] for cell in found["cells"]] == [3, 1]
        assert [cell["from_ms"] for cell in found["cells"]] == [START_MS, START_MS + HOUR_MS]
        assert found["cells"][-1]["to_ms"] == START_MS + 2 * HOUR_MS
        assert (found["overdue"], found["messages"], found["later"]) == (2, 4, 1)
        assert found["next_due"] == "2035-01-01T00:00:00.000Z"
        assert found["now_ms"] < START_MS


async def test_what_a_span_is_due_for_is_counted(
    http: httpx.AsyncClient, redis_url: str, namespace: str
) -> None:
    end_ms = START_MS + HOUR_MS
    inside = {"rabbitmq:orders/a": 3, "rabbitmq:orders/b": 2, "rabbitmq:other/a": 1, "kafka:t": 4}
    dues = [(to, START_MS + n * 60_000) for to, many in inside.items() for n in range(many)]
    dues += [("kafka:t", end_ms - 1), ("kafka:t", end_ms - 1)]
    dues += [("kafka:late", end_ms), ("kafka:late", end_ms), ("kafka:early", START_MS - 1)] * 2
    schedule(redis_url, namespace, dues)
    asked = {"from_ms": START_MS, "to_ms": end_ms}
    found = (await http.get("/v1/horizon:destinations", params=asked)).json()
    assert found == {
        "items": [
            {"destination": "kafka:t", "messages": 6, "error": 0},
            {"destination": "rabbitmq:orders", "messages": 5, "error": 0},
            {"destination": "rabbitmq:other", "messages": 1, "error": 0},
        ],
        "messages": 12,
    }


async def test_of_many_messages_the_share_of_each_destination_is_estimated(
    http: httpx.AsyncClient, redis_url: str, namespace: str
) -> None:
    many = 20_000
    schedule(redis_url, namespace, [
        ("kafka:t" if n % 4 else "rabbitmq:orders/a", START_MS + n * HOUR_MS // many)
        for n in range(many)
    ])  # fmt: skip
    asked = {"from_ms": START_MS, "to_ms": START_MS + HOUR_MS}
    found = (await http.get("/v1/horizon:destinations", params=asked)).json()
    assert [each["destination"] for each in found["items"]] == ["kafka:t", "rabbitmq:orders"]
    assert abs(found["messages"] - many) <= 2
    for each, expected in zip(found["items"], (many * 3 / 4, many / 4), strict=True):
        assert 0 < each["error"] < many / 10
        assert abs(each["messages"] - expected) <= 2 * each["error"]


@pytest.mark.parametrize("length_ms", [1, 3, 8])
async def test_a_span_of_a_few_milliseconds_has_its_messages(
    http: httpx.AsyncClient, redis_url: str, namespace: str, length_ms: int
) -> None:
    schedule(redis_url, namespace, [("kafka:t", START_MS + n) for n in range(10)])
    asked = {"from_ms": START_MS, "to_ms": START_MS + length_ms}
    found = (await http.get("/v1/horizon:destinations", params=asked)).json()
    assert found["items"] == [{"destination": "kafka:t", "messages": length_ms, "error": 0}]


async def test_nothing_is_due_for_nobody(http: httpx.AsyncClient) -> None:
    asked = {"from_ms": 0, "to_ms": START_MS}
    found = (await http.get("/v1/horizon:destinations", params=asked)).json()
    assert found == {"items": [], "messages": 0}


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("/v1/horizon", {"from_ms": -1}),
        ("/v1/horizon", {"from_ms": 2**60}),
        ("/v1/horizon", {"from_ms": "soon"}),
        ("/v1/horizon:destinations", {}),
        ("/v1/horizon:destinations", {"from_ms": 5, "to_ms": 5}),
        ("/v1/horizon:destinations", {"from_ms": -1, "to_ms": 5}),
        ("/v1/horizon:destinations", {"from_ms": 0, "to_ms": 2**60}),
    ],
    ids=str,
)
async def test_a_span_that_makes_no_sense(
    http: httpx.AsyncClient, path: str, query: dict[str, Any]
) -> None:
    assert (await http.get(path, params=query)).status_code == 422
