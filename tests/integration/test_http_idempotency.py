"""The HTTP API: a request with an Idempotency-Key may be sent again at any time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
import redis

from delaybridge.serve.stored import idempotency
from delaybridge.store.protocol import keys
from delaybridge.store.redis.store import AsyncStore
from tests.rigs.api import api
from tests.servers.redis import ON_EVERY_REDIS

BROKERS = {"memory": "memory://"}


async def post(
    http: httpx.AsyncClient, key: str = "k", path: str = "/v1/messages", **fields: Any
) -> httpx.Response:
    message = {"destination": "memory:orders", "body": "x", "delay": "15m", **fields}
    return await http.post(path, json=message, headers={"Idempotency-Key": key})


async def ids(http: httpx.AsyncClient) -> list[str]:
    return [item["id"] for item in (await http.get("/v1/messages")).json()["items"]]


@pytest.mark.parametrize(
    "fields", [{}, {"id": "mine"}, {"delay": None, "due": "2030-01-01T00:00:00Z"}]
)
async def test_a_repeat_gets_the_first_answer_whatever_became_of_the_message(
    http: httpx.AsyncClient, fields: dict[str, Any]
) -> None:
    first = await post(http, **fields)
    assert first.status_code == 201
    assert "Idempotent-Replayed" not in first.headers
    for change in ("patch", "delete"):
        again = await post(http, **fields)
        assert (again.status_code, again.content) == (200, first.content)
        assert again.headers["Idempotent-Replayed"] == "true"
        data = {"json": {"delay": "1h"}} if change == "patch" else {}
        done = await http.request(change, f"/v1/messages/{first.json()['id']}", **data)
        assert done.status_code == 200
    assert (await post(http, **fields)).content == first.content
    assert await ids(http) == []


async def test_the_key_stands_for_one_request(http: httpx.AsyncClient) -> None:
    await post(http)
    other = await post(http, body="y")
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_conflict")
    assert (await post(http, key="k2")).status_code == 201
    assert len(await ids(http)) == 2


@ON_EVERY_REDIS
async def test_twins_store_one_message_and_get_one_answer(http: httpx.AsyncClient) -> None:
    for fields in ({}, {"id": "mine"}):
        answers = await asyncio.gather(*(post(http, key=f"{fields}", **fields) for _ in range(20)))
        assert len({answer.content for answer in answers}) == 1
        assert {answer.status_code for answer in answers} <= {200, 201}
    assert len(await ids(http)) == 2


class Broken(Exception):
    """The process ends here."""


@contextmanager
def ending_after(monkeypatch: pytest.MonkeyPatch, step: int) -> Iterator[None]:
    """Each call of the client ends after so many round trips."""
    complete = AsyncStore.complete

    async def broken(self: AsyncStore, steps: Any) -> Any:
        def some() -> Any:
            replies = None
            for _ in range(step):
                try:
                    commands = steps.send(replies)
                except StopIteration as done:
                    return done.value
                replies = yield commands
            raise Broken

        return await complete(self, some())

    with monkeypatch.context() as patch:
        patch.setattr(AsyncStore, "complete", broken)
        yield


@ON_EVERY_REDIS
@pytest.mark.parametrize("fields", [{}, {"id": "mine"}])
@pytest.mark.parametrize("step", range(1, 8))
async def test_a_request_that_broke_off_anywhere_acts_once(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, step: int, fields: dict[str, Any]
) -> None:
    await ids(http)  # opens the namespace
    with ending_after(monkeypatch, step):
        tried = await post(http, **fields)
    was_stored = len(await ids(http)) == 1
    assert was_stored == (step >= 5)  # before: a look, the record, and twice a bucket that is new
    if was_stored:  # and it goes out before the request is repeated
        (id,) = await ids(http)
        await http.delete(f"/v1/messages/{id}")
    answers = [await post(http, **fields) for _ in range(2)]
    assert len(await ids(http)) == (0 if was_stored else 1)
    assert answers[0].content == answers[1].content
    assert answers[0].status_code == (200 if was_stored else 201)
    if tried.status_code == 201:
        assert answers[0].content == tried.content


async def test_what_stored_nothing_is_not_remembered(http: httpx.AsyncClient) -> None:
    taken = {"destination": "memory:orders", "body": "other", "delay": "1h", "id": "mine"}
    assert (await http.post("/v1/messages", json=taken)).status_code == 201
    refused = await post(http, id="mine")
    assert (refused.status_code, refused.json()["code"]) == (409, "conflict")
    assert (await post(http, delay="5")).json()["code"] == "bad_time"
    await http.delete("/v1/messages/mine")
    assert (await post(http, id="mine")).status_code == 201
    assert (await post(http, id="mine")).status_code == 200


async def test_a_duplicate_is_answered_as_one_again(http: httpx.AsyncClient) -> None:
    same = {"destination": "memory:orders", "body": "x", "delay": "15m", "id": "mine"}
    due_ms = (await http.post("/v1/messages", json=same)).json()["due_ms"]
    answers = [await post(http, id="mine") for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert {answer.content for answer in answers} == {answers[0].content}
    assert (answers[0].json()["duplicate"], answers[0].json()["due_ms"]) == (True, due_ms)
    replaced = [
        await post(http, key="r", id="mine", body="z", on_conflict="replace") for _ in range(2)
    ]
    assert {answer.json()["result"] for answer in replaced} == {"replaced"}


@pytest.mark.parametrize("key", ["", "x" * 256, "ü", "a\tb"])
async def test_a_key_is_short_and_printable(http: httpx.AsyncClient, key: str) -> None:
    message = {"destination": "memory:orders", "body": "x", "delay": "15m"}
    headers = {b"Idempotency-Key": key.encode("latin-1")}
    refused = await http.post("/v1/messages", json=message, headers=headers)  # type: ignore[arg-type]
    assert (refused.status_code, refused.json()["code"]) == (422, "bad_idempotency_key")


async def test_a_batch_takes_no_key(http: httpx.AsyncClient) -> None:
    refused = await http.post(
        "/v1/messages:batch", json={"messages": [{}]}, headers={"Idempotency-Key": "k"}
    )
    assert (refused.status_code, refused.json()["code"]) == (422, "bad_idempotency_key")


async def test_keys_are_forgotten_after_a_day_and_never_too_many(
    redis_url: str, namespace: str, raw: redis.Redis
) -> None:
    async with api(redis_url, namespace, brokers=BROKERS, idempotency_keys=2) as http:
        assert (await post(http, key="a")).status_code == 201
        (record,) = raw.scan_iter(f"{{{namespace}}}:idempotency:*")
        assert 0 < raw.pttl(record) <= idempotency.KEPT_MS
        assert (await post(http, key="b")).status_code == 201
        full = await post(http, key="c")
        assert (full.status_code, full.json()["code"]) == (507, "store_full")
        assert (await post(http, key="a")).status_code == 200
        assert len(await ids(http)) == 2

        index = keys.idempotency(namespace)
        for member in raw.zrange(index, 0, -1):  # a day later
            raw.zadd(index, {member: 1})
        assert (await post(http, key="c")).status_code == 201
    assert raw.zcard(index) == 1
    names = raw.scan_iter(f"{{{namespace}:*}}:sources")
    assert sum(raw.hlen(name) for name in names) == 1
