"""Debounce and throttle while their namespace gets another number of buckets."""

from __future__ import annotations

import asyncio

import pytest

from delaybridge.gathering import Throttle, spanned
from delaybridge.resize import resizing
from tests.rigs.crew import CALM, Arrived, Crew
from tests.rigs.waiting import until_async

TO, HOUR_MS = "memory:q", 3_600_000
KEYS = [f"k{n}" for n in range(200)]


def test_a_span_that_is_known_goes_along() -> None:
    word = Throttle("k", "1m").word(HOUR_MS)
    assert spanned(f"{word}.99609375", 1_800_000_000_000) == "^60000:1800000000000.99609375"
    assert spanned("+5.00000000", 7) == "+5.00000000"


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(2, 8), (8, 2)])
async def test_spans_and_what_waits_are_the_same_in_other_buckets(
    redis_url: str, namespace: str, arrived: Arrived, before: int, after: int
) -> None:
    async with Crew(redis_url, namespace, before) as crew:
        client = crew.client
        crew.start("a", buckets=before, lease=CALM)

        async def are_held() -> bool:
            return (await crew.shares()).total() == before

        await until_async(are_held, "all buckets are held")
        first = {key: await client.throttle(TO, b"", key=key, every="1h") for key in KEYS}
        await arrived.all(KEYS)
        waits = {k: await client.debounce(TO, b"", key=f"d{k}", quiet="40m") for k in KEYS[:6]}
        n = 0

        async def call(keys: list[str]) -> None:
            nonlocal n
            n += 1
            for key in keys:
                kept = await client.throttle(TO, f"{n}", key=key, every="1h")
                assert kept.due_ms == first[key].due_ms + HOUR_MS, (key, str(kept))
            for key, was in waits.items():
                found = await client.debounce(TO, f"{n}", key=f"d{key}", quiet="1h")
                assert (str(found), found.due_ms) == ("replaced", was.due_ms + HOUR_MS // 3)

        ended = asyncio.Event()

        async def calls() -> None:
            while not ended.is_set():
                await call([KEYS[n % len(KEYS)]])  # of many only the span is there

        await call(KEYS[:1])
        calling = asyncio.create_task(calls())
        await client.run(lambda each: resizing.begin(each, after))

        async def is_over() -> bool:
            return (await client.run(resizing.progress)).to is None

        await until_async(is_over, "the messages have moved", interval_s=0.3)
        ended.set()
        await calling
        await call(KEYS)
        for key in (*KEYS, *[f"d{key}" for key in waits]):
            pending = await client.get(key)
            assert pending is not None and pending.body == f"{n}".encode()
        assert len(arrived.attempts) == len(KEYS)
