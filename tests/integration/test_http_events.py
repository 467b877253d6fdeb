"""The HTTP API: the fleet's events as a stream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import httpx
import pytest

from tests.rigs.api import api
from tests.rigs.crew import Crew
from tests.rigs.waiting import DEADLINE_S

BROKERS = {"memory": "memory://"}


async def told(
    http: httpx.AsyncClient, until: str, headers: Mapping[str, str] = {}, **query: str
) -> list[dict[str, Any]]:
    """The events of a stream, up to the first of this name; each with its id and name."""
    found: list[dict[str, Any]] = []
    current: dict[str, Any] = {}
    stream = http.stream("GET", "/v1/events", headers=headers, params=query)
    async with asyncio.timeout(DEADLINE_S), stream as answer:
        assert answer.headers["content-type"] == "text/event-stream"
        async for line in answer.aiter_lines():
            name, _, value = line.partition(": ")
            if name == "data":
                current["data"] = json.loads(value)
            elif name:
                current[name] = value
            elif "event" in current:
                found.append(current)
                if current["event"] == until:
                    return found
                current = {}
    raise AssertionError(f"the stream ended: {found}")


async def published(crew: Crew, count: int) -> None:
    await crew.schedule(count, seconds=0.1)
    await crew.settled()


@pytest.mark.usefixtures("stall")  # a Redis that is silent for seconds is a gap
async def test_a_stream_begins_now_and_goes_on_after_the_last_id(
    redis_url: str, namespace: str, http: httpx.AsyncClient, crew: Crew
) -> None:
    crew.start()
    await crew.shared("w")
    listening = asyncio.create_task(told(http, "published", event="published"))
    while not listening.done():
        await published(crew, 3)
    *_, first = listening.result()
    assert first["data"]["worker"] == "w"
    assert first["data"]["fields"]["n"] >= 1
    resumed = asyncio.create_task(
        told(http, "published", {"Last-Event-ID": first["id"]}, event="published")
    )
    while not resumed.done():
        await published(crew, 3)
    *gaps, second = resumed.result()
    assert not gaps
    assert second["id"] > first["id"]
    # Another server has not heard what was before: it says so, and goes on.
    async with api(redis_url, namespace) as other:
        elsewhere = asyncio.create_task(told(other, "published", {"Last-Event-ID": first["id"]}))
        while not elsewhere.done():
            await published(crew, 3)
        assert elsewhere.result()[0]["event"] == "gap"


async def test_a_stream_of_one_destination_tells_of_no_other(
    http: httpx.AsyncClient, crew: Crew
) -> None:
    crew.start()
    await crew.shared("w")
    listening = asyncio.create_task(told(http, "published", destination="memory:elsewhere"))
    for _ in range(3):
        await published(crew, 3)
    assert not listening.done()
    message = {"destination": "memory:elsewhere", "body": "x", "delay": "0s"}
    while not listening.done():
        await http.post("/v1/messages", json=message)
        await crew.settled()
    *_, last = listening.result()
    assert last["data"]["fields"]["destination"] == "memory:elsewhere"
