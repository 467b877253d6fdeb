"""The HTTP API: large requests."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from delaybridge.serve.api.messages import batch
from tests.rigs.api import api

BROKERS = {"memory": "memory://"}
LIMITS = {"body_bytes": 100_000}
SIZE = 90_000


def message(**fields: Any) -> dict[str, Any]:
    return {"destination": "memory:orders", "body": "x" * SIZE, "delay": "15m", **fields}


async def post(http: httpx.AsyncClient, messages: list[Any]) -> httpx.Response:
    return await http.post("/v1/messages:batch", json={"messages": messages})


async def test_a_large_batch_is_stored_in_order_and_one_bad_message_hinders_no_other(
    redis_url: str, namespace: str
) -> None:
    messages = [message(id=f"m{n}") for n in range(20)]  # two groups
    messages[3:3] = [message(id="b", delay=5), message(id="c", body="x" * 100_001), "no object"]
    messages += [message(id="m0"), message(id="m1", body="other"), message(id="last")]
    async with api(redis_url, namespace, brokers=BROKERS, limits=LIMITS) as http:
        answer = await post(http, messages)
        assert answer.status_code == 207
        found = [each["status"] for each in answer.json()["items"]]
        assert found == [201] * 3 + [422, 413, 422] + [201] * 17 + [200, 409, 201]
        assert (await http.get("/v1/stats")).json()["delayed"] == 21
        # What is no JSON, or is too large for any message, refuses all of it.
        whole = json.dumps({"messages": messages})
        for text, status, code in (
            (whole[:-2] + ',{"id": "n", "id": "n"}]}', 400, "bad_json"),
            (whole[:-2], 400, "bad_json"),
            (
                json.dumps({"messages": [*messages, message(body="x" * 1_200_000)]}),
                413,
                "message_too_large",
            ),
            (json.dumps({"messages": [{}] * 99_000}), 413, "batch_too_large"),
            (json.dumps({"message": messages}), 422, "bad_value"),
            ('{"messages": [' + " " * 300_000 + "]}", 422, "batch_empty"),
        ):
            headers = {"Content-Type": "application/json"}
            answer = await http.post("/v1/messages:batch", content=text, headers=headers)
            assert answer.status_code == status, text[-80:]
            assert answer.json()["code"] == code
        assert (await http.get("/v1/stats")).json()["delayed"] == 21


async def test_too_large_a_request_is_told_the_limit_and_the_remedy(
    redis_url: str, namespace: str
) -> None:
    async with api(
        redis_url, namespace, brokers=BROKERS, limits=LIMITS, batch_bytes=200_000
    ) as http:
        refused = await post(http, [message()] * 3)
        assert (refused.status_code, refused.json()["code"]) == (413, "body_too_large")
        assert "200,000 bytes" in refused.json()["detail"]
        assert "serve.batch_bytes" in refused.json()["detail"]
        refused = await http.post("/v1/messages", json=message(body="x" * 2_000_000))
        assert refused.status_code == 413
        assert "limits.body_bytes" in refused.json()["detail"]
        assert (await post(http, [message()] * 2)).status_code == 207


async def test_while_redis_is_away_a_large_batch_waits_for_it_twice_at_most(
    namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups: list[range] = []
    group = batch._group

    def counted(raws: list[bytes], first: int, most: int) -> range:
        groups.append(group(raws, first, most))
        return groups[-1]

    monkeypatch.setattr(batch, "_group", counted)
    patience = {"redis_s": 0.2}
    async with api(
        "redis://127.0.0.1:1", namespace, brokers=BROKERS, limits=LIMITS, transport=patience
    ) as http:
        answer = await post(http, [message() for _ in range(40)])
    assert {each["status"] for each in answer.json()["items"]} == {503}
    assert [len(each) for each in groups] == [11, 29]


@pytest.mark.parametrize("most", [4096, 2**20])
async def test_many_short_values_are_taken_where_they_are_meant(
    redis_url: str, namespace: str, most: int
) -> None:
    serve = {"compat": "mykit", "compat_destination": "memory:{topic}"}
    limits = {"body_bytes": most}
    async with api(redis_url, namespace, brokers=BROKERS, limits=limits, **serve) as http:
        # As many as one call receives, however small the bodies are.
        receipts = [{"id": f"orders-service:{n:032}", "receipt": f"{n:012x}"} for n in range(1000)]
        answer = await http.post("/v1/topics/t:finish", json={"items": receipts})
        assert answer.status_code in (200, 207), answer.text
        # All that a namespace has, where it may be exported.
        recurring = [{"name": f"every-{n}", "cron": "0 0 * * *"} for n in range(most // 200)]
        answer = await http.put("/v1/definitions", json={"delaybridge": 2, "recurring": recurring})
        assert answer.status_code == 422, answer.text
        # A job of a dialect: its body may be any JSON.
        job = {"topic": "t", "delay": 3_600_000, "body": {"rows": [1] * (most // 4)}}
        answer = await http.post("/push", json=job)
        assert answer.json()["code"] == 200, answer.text
