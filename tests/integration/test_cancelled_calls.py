"""A task that is cancelled while redis-py sends for it ends, at whatever turn of the loop it is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from delaybridge.store.namespace import registry
from delaybridge.store.redis import store as module
from delaybridge.store.redis.store import AsyncStore
from tests.rigs.waiting import DEADLINE_S

TURNS = 40  # of the loop: more than a connection takes to be made


async def is_ended(task: asyncio.Task[Any], turns: int) -> bool:
    """Whether it ends if it is cancelled after so many turns."""
    for _ in range(turns):
        await asyncio.sleep(0)
    if not task.cancel():
        return True
    await asyncio.wait([task], timeout=DEADLINE_S)
    return task.cancelled()


async def test_a_call_that_is_cancelled_while_it_connects_goes_no_further(redis_url: str) -> None:
    lost = []
    for turns in range(TURNS):
        store = AsyncStore(redis_url, timeout_s=DEADLINE_S)
        call = asyncio.create_task(store.run_one(registry.store_time()))
        if not await is_ended(call, turns):
            lost.append(turns)
        await store.close()
    assert lost == []


@pytest.mark.parametrize("is_subscribed", [False, True])
async def test_whoever_listens_ends_when_it_is_cancelled(
    redis_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch, is_subscribed: bool
) -> None:
    """While it subscribes, and while it asks whether a silent subscription lives."""
    monkeypatch.setattr(module, "_SILENCE_S", 0.0)
    for turns in range(TURNS):
        store, subscribed = AsyncStore(redis_url, timeout_s=DEADLINE_S), asyncio.Event()

        async def hear(store: AsyncStore = store, subscribed: Any = subscribed) -> None:
            async for _ in store.listen(namespace):
                subscribed.set()

        hearing = asyncio.create_task(hear())
        if is_subscribed:
            await subscribed.wait()
        assert await is_ended(hearing, turns), turns
        await store.close()
