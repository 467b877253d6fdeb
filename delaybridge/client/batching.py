"""Sends the calls that are made in the same tick of the event loop together."""

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
_LARGE_CALL = 20  # from this many messages on, the overhead of a script call is negligible
_PIPELINE_CALLS = 250  # calls by id in a pipeline; each is a command to every bucket
# The shard keys of a call's messages, the messages with their stamps, the caller's answer.
_Call = tuple[list[bytes], Sequence[tuple[bytes, Accepted]], asyncio.Future[list[Receipt]]]


class Batching:
    """Gathers the calls of one tick. Each caller gets its own answer or error.

    Messages to be scheduled share one script call per bucket, calls by id share a pipeline.
    """

    def __init__(self, calls: Calls, store: AsyncStore) -> None:
        self._calls, self._store = calls, store
        self._schedules: dict[OnConflict, list[_Call]] = {}
        self._by_id: list[tuple[Steps[Any], asyncio.Future[Any]]] = []
        self._flushes: set[asyncio.Task[None]] = set()

    def schedule(
        self, messages: Sequence[tuple[bytes, Accepted]], policy: OnConflict
    ) -> asyncio.Future[list[Receipt]]:
        """Schedule messages together with all others of this tick."""
        # A bad message raises here, in the caller that passed it.
        shard_keys = [one.shard_key for _, one in messages]
        future: asyncio.Future[list[Receipt]] = self._answer_after_this_tick()
        self._schedules.setdefault(policy, []).append((shard_keys, messages, future))
        return future

    def complete(self, steps: Steps[T]) -> asyncio.Future[T]:
        """Complete a call by id together with all others of this tick."""
        future: asyncio.Future[T] = self._answer_after_this_tick()
        self._by_id.append((steps, future))
        return future

    def _answer_after_this_tick(self) -> asyncio.Future[Any]:
        """The future answer to a call; all calls are sent when this tick ends."""
        loop = asyncio.get_running_loop()
        if not (self._schedules or self._by_id):
            loop.call_soon(self._flush)
        return loop.create_future()

    def _flush(self) -> None:
        schedules, self._schedules = self._schedules, {}
        by_id, self._by_id = self._by_id, []
        for policy, calls in schedules.items():
            for part in self._parts(calls):
                self._start(self._schedule_together(policy, part))
        for first in range(0, len(by_id), _PIPELINE_CALLS):
            self._start(self._complete_together(by_id[first : first + _PIPELINE_CALLS]))

    def _start(self, flush: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(flush)
        self._flushes.add(task)
        task.add_done_callback(self._flushes.discard)

    def _parts(self, calls: list[_Call]) -> Iterable[list[_Call]]:
        """Split the calls in two: while Redis works on one half, the callers of the other continue.

        They are not split while an earlier flush is under way, or if script calls would become
        small. Calls for one bucket stay together, so that they are stored in order.
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
        for of_bucket in by_bucket.values():
            min(halves, key=len).extend(of_bucket)
        return filter(None, halves)

    async def _schedule_together(self, policy: OnConflict, calls: list[_Call]) -> None:
        messages = [message for _, mine, _ in calls for message in mine]
        try:
            found = iter(await self._store.complete(self._calls.schedule_each(messages, policy)))
            answers = [receipts(list(islice(found, len(mine)))) for _, mine, _ in calls]
        except Exception as exc:  # raised in each caller
            answers = [exc] * len(calls)
        for (_, _, future), answer in zip(calls, answers, strict=True):
            _answer(future, answer)

    async def _complete_together(self, asked: list[tuple[Steps[Any], asyncio.Future[Any]]]) -> None:
        try:
            answers = await self._store.complete(together([steps for steps, _ in asked]))
        except Exception as exc:
            answers = [exc] * len(asked)
        for (_, future), answer in zip(asked, answers, strict=True):
            _answer(future, answer)

    async def drain(self) -> None:
        """Send the calls of this tick now, and wait for all answers."""
        self._flush()
        if self._flushes:
            await asyncio.wait(self._flushes)  # cancelling this wait does not cancel them


def _answer(future: asyncio.Future[T], answer: T | Exception) -> None:
    """Give a caller its answer, unless it was cancelled."""
    if future.done():
        return
    if isinstance(answer, Exception):
        future.set_exception(answer)
    else:
        future.set_result(answer)
