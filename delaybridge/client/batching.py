"""Calls made in the same tick of the event loop travel together."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from itertools import islice
from typing import Any, TypeVar

from delaybridge.accept.accept import Accepted
from delaybridge.message import OnConflict
from delaybridge.store.calls import Calls
from delaybridge.store.command import Steps, together
from delaybridge.store.keys import bucket_of
from delaybridge.store.scheduling import Receipt, receipts
from delaybridge.store.store import AsyncStore

T = TypeVar("T")
_LARGE_CALL = 20  # schedules in a script call: call overhead is then negligible
_PIPELINE_CALLS = 250  # by id, in one pipeline: each is a command to every bucket
_Call = tuple[
    list[bytes],  # the shard key of each
    Sequence[tuple[bytes, Accepted]],
    asyncio.Future[list[Receipt]],
]


class Batching:
    """Gathers the calls of one tick: schedules in a script call per bucket, others in a pipeline.

    Each caller gets its own answer or error.
    """

    def __init__(self, calls: Calls, store: AsyncStore) -> None:
        self._calls, self._store = calls, store
        self._waiting: dict[OnConflict, list[_Call]] = {}
        self._asked: list[tuple[Steps[Any], asyncio.Future[Any]]] = []  # by id
        self._flushes: set[asyncio.Task[None]] = set()

    def schedule(
        self, messages: Sequence[tuple[bytes, Accepted]], policy: OnConflict
    ) -> asyncio.Future[list[Receipt]]:
        """Schedule messages together with all others of this tick; the receipts, or an error."""
        # A bad message raises here, in the caller that passed it.
        shard_keys = [one.shard_key for _, one in messages]
        future: asyncio.Future[list[Receipt]] = self._in_this_tick()
        self._waiting.setdefault(policy, []).append((shard_keys, messages, future))
        return future

    def complete(self, steps: Steps[T]) -> asyncio.Future[T]:
        """Complete a call by id in one pipeline with all others of this tick."""
        future: asyncio.Future[T] = self._in_this_tick()
        self._asked.append((steps, future))
        return future

    def _in_this_tick(self) -> asyncio.Future[Any]:
        """A future for an answer; a flush at the end of the tick is arranged."""
        loop = asyncio.get_running_loop()
        if not (self._waiting or self._asked):
            loop.call_soon(self._flush)
        return loop.create_future()

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, {}
        asked, self._asked = self._asked, []
        for policy, calls in waiting.items():
            for part in self._parts(calls):
                self._start(self._schedule_together(policy, part))
        for first in range(0, len(asked), _PIPELINE_CALLS):
            self._start(self._ask_together(asked[first : first + _PIPELINE_CALLS]))

    def _start(self, flush: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(flush)
        self._flushes.add(task)
        task.add_done_callback(self._flushes.discard)

    def _parts(self, calls: list[_Call]) -> Iterable[list[_Call]]:
        """The calls in two halves: while Redis works on one, the callers of the other continue.

        In one part while a flush is under way, or if script calls would become small. Calls for
        one bucket stay together, so that they are stored in their order.
        """
        count = len(self._calls.buckets)
        if self._flushes or not count or len(calls) < 2 * _LARGE_CALL:
            return (calls,)
        by_bucket: dict[int, list[_Call]] = {}
        for call in calls:
            shard_keys, _, _ = call
            numbers = {bucket_of(shard_key, count) for shard_key in shard_keys}
            if len(numbers) != 1:
                return (calls,)
            by_bucket.setdefault(numbers.pop(), []).append(call)
        if len(calls) < len(by_bucket) * _LARGE_CALL:
            return (calls,)
        halves: tuple[list[_Call], list[_Call]] = [], []
        for ours in by_bucket.values():
            min(halves, key=len).extend(ours)
        return filter(None, halves)

    async def _schedule_together(self, policy: OnConflict, calls: list[_Call]) -> None:
        messages = [message for _, mine, _ in calls for message in mine]
        try:
            found = iter(await self._store.complete(self._calls.schedule_each(messages, policy)))
            answers = [receipts(list(islice(found, len(mine)))) for _, mine, _ in calls]
        except Exception as exc:  # each caller gets it
            answers = [exc] * len(calls)
        for (_, _, future), answer in zip(calls, answers, strict=True):
            _tell(future, answer)

    async def _ask_together(self, asked: list[tuple[Steps[Any], asyncio.Future[Any]]]) -> None:
        try:
            answers = await self._store.complete(together([steps for steps, _ in asked]))
        except Exception as exc:
            answers = [exc] * len(asked)
        for (_, future), answer in zip(asked, answers, strict=True):
            _tell(future, answer)

    async def drain(self) -> None:
        """Send what is waiting, and wait for all answers."""
        self._flush()
        if self._flushes:
            await asyncio.wait(self._flushes)  # cancelling this wait does not cancel them


def _tell(future: asyncio.Future[T], answer: T | Exception) -> None:
    """Give a caller its answer, unless it was cancelled."""
    if future.done():
        return
    if isinstance(answer, Exception):
        future.set_exception(answer)
    else:
        future.set_result(answer)
