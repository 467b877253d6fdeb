"""A message that is being delivered for as long as a test wants: fired, and not settled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

import redis

from tests.rigs.bucket import Owner
from tests.rigs.waiting import until_async

T = TypeVar("T")


class Delivering:
    """All messages of a bucket that are due, handed to the broker."""

    def __init__(self, owner: Owner) -> None:
        self.owner, copies = owner, owner.claim(limit=2000)
        owner.fire(max(copy.score for copy in copies))
        self._copies = copies

    def settle(self) -> None:
        """The broker has confirmed them."""
        self.owner.settle(*self._copies)

    async def settle_once_asked(self, raw: redis.Redis, call: Awaitable[T]) -> T:
        """The answer of a call that waits for this; it is settled once the call was made again."""
        before, made = script_calls(raw), asyncio.ensure_future(call)
        # The third call of it: what it came with may have been stored by then.
        await until_async(lambda: made.done() or script_calls(raw) >= before + 3, "it asks again")
        assert not made.done(), made.result()
        self.settle()
        return await made


def script_calls(raw: redis.Redis) -> int:
    """How many scripts a Redis has run."""
    found = raw.info("commandstats").get("cmdstat_evalsha", {"calls": 0})
    return int(found["calls"])
