"""Sends the calls that are made in the same tick of the event loop together."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator
from contextvars import Context
from typing import Any, TypeVar, cast

import msgspec

from delaybridge.accept.accept import Accepted, Draft
from delaybridge.message import OnConflict
from delaybridge.store.calls import Calls
from delaybridge.store.messages.scheduling import Outgoing, Patience, Receipt, Stamped, bucket_for
from delaybridge.store.protocol.together import together
from delaybridge.store.protocol.verbs import LedgerSteps, Steps
from delaybridge.store.redis.store import AsyncStore

T = TypeVar("T")
_LARGE_CALL = 20  # from this many messages on, the overhead of a script call is negligible
_PIPELINE_CALLS = 250  # calls by id in a pipeline; each is a command to every bucket
_Message = Draft | Accepted | Stamped
_Waiting = tuple[_Message, asyncio.Future[Receipt | Exception]]  # a caller waits for the answer
_Late = tuple[Patience, _Waiting]  # its id is in flight
_PAUSE = 10  # between two tries of those, this many times as long as the last one at least
_LONGEST_PAUSE = 0.1  # of the time-out


class ClientStore(AsyncStore):
    """An `AsyncStore` that knows which of its calls have no answer yet."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._under_way = set[asyncio.Future[None]]()

    async def complete(self, steps: Steps[T] | LedgerSteps[T]) -> T:
        """As `AsyncStore.complete`; `close` waits for its answer."""
        over = asyncio.get_running_loop().create_future()
        self._under_way.add(over)
        try:
            return await super().complete(steps)
        finally:
            self._under_way.discard(over)
            over.set_result(None)

    async def close(self) -> None:
        """Wait until the calls so far have ended, then close every connection."""
        try:
            loop = asyncio.get_running_loop()  # those of another one were left behind by it
            if waiting := [each for each in self._under_way if each.get_loop() is loop]:
                await asyncio.wait(waiting)
        finally:
            await super().close()


class Batching:
    """Gathers the calls of one tick. Each caller gets its own answer or error.

    Messages to be scheduled share one script call per bucket, calls by id share a pipeline. On a
    Cluster no caller waits for a server that has none of its messages: each server has pipelines of
    its own, and while one is silent, calls by id, which may ask every server, go one by one.
    Whoever waits for an id that is in flight waits apart from the others of its tick, and together
    with all who wait for the same server.
    """

    def __init__(self, calls: Calls, store: AsyncStore) -> None:
        self._calls, self._store = calls, store
        self._schedules: dict[OnConflict, list[_Waiting]] = {}
        self._by_id: list[tuple[Steps[Any], asyncio.Future[Any]]] = []
        self._flushes: set[asyncio.Task[None]] = set()
        self._late: dict[tuple[OnConflict, str], list[_Late]] = {}  # by their server
        self._waits: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = os.getpid()

    def schedule(
        self, message: _Message, policy: OnConflict
    ) -> asyncio.Future[Receipt | Exception]:
        """Schedule a message together with all others of this tick.

        The future's result is the receipt, or the error to raise.
        """
        future: asyncio.Future[Receipt | Exception] = self._answer_after_this_tick()
        waiting = self._schedules.get(policy)
        if waiting is None:
            waiting = self._schedules[policy] = []
        waiting.append((message, future))
        return future

    def complete(self, steps: Steps[T]) -> asyncio.Future[T]:
        """Complete a call by id together with all others of this tick."""
        future: asyncio.Future[T] = self._answer_after_this_tick()
        self._by_id.append((steps, future))
        return future

    def _answer_after_this_tick(self) -> asyncio.Future[Any]:
        """The future answer to a call; all calls are sent when this tick ends."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._begin(loop)
        if not (self._schedules or self._by_id):
            loop.call_soon(self._flush)
        return loop.create_future()

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Serve this event loop; what an ended one, or that of the parent process, left is not."""
        if self._loop is not None and self._loop.is_running() and self._pid == os.getpid():
            raise RuntimeError("two event loops share an AsyncClient; make one for each")
        self.__init__(self._calls, self._store)  # type: ignore[misc]
        self._loop = loop

    def _flush(self) -> None:
        schedules, self._schedules = self._schedules, {}
        by_id, self._by_id = self._by_id, []
        for policy, waiting in schedules.items():
            for part in self._parts(waiting):
                self._start(self._schedule_together(policy, part), self._flushes, part)
        size = 1 if self._store.misses() else _PIPELINE_CALLS
        for first in range(0, len(by_id), size):
            asked = by_id[first : first + size]
            self._start(self._complete_together(asked), self._flushes, asked)

    def _start(
        self,
        work: Coroutine[Any, Any, None],
        tasks: set[asyncio.Task[None]],
        waiting: Iterable[tuple[Any, asyncio.Future[Any]]],
    ) -> None:
        def end(task: asyncio.Task[None]) -> None:
            tasks.discard(task)
            if task.cancelled():  # with the loop's others, but for callers
                for _, future in waiting:
                    future.cancel()

        task = asyncio.get_running_loop().create_task(work)
        tasks.add(task)
        task.add_done_callback(end)

    def _parts(self, waiting: list[_Waiting]) -> Iterable[list[_Waiting]]:
        """Split them in two: while Redis works on one half, the callers of the other continue.

        They are not split while an earlier flush is under way, or if script calls would become
        small. Messages for one bucket stay together, so that they are stored in order.
        """
        count = len(self._calls.buckets)
        if count and len(self._store.nodes()) > 1:
            return self._by_node(waiting, count)
        if self._flushes or not count or len(waiting) < 2 * _LARGE_CALL:
            return (waiting,)
        # New ones are for any bucket.
        new = [one for one in waiting if type(one[0]) is Draft and one[0].id is None]
        if len(new) == len(waiting):  # nearly always
            return new[: len(new) // 2], new[len(new) // 2 :]
        by_bucket: dict[int | None, list[_Waiting]] = {}
        for one in waiting:
            by_bucket.setdefault(bucket_for(one[0], count), []).append(one)
        by_bucket.pop(None, None)
        if len(waiting) < (len(by_bucket) + 2 * bool(new)) * _LARGE_CALL:
            return (waiting,)
        halves: tuple[list[_Waiting], list[_Waiting]] = [], []
        for of_bucket in by_bucket.values():
            min(halves, key=len).extend(of_bucket)
        middle = max(0, min(len(new), len(waiting) // 2 - len(halves[0])))
        halves[0].extend(new[:middle])
        halves[1].extend(new[middle:])
        return filter(None, halves)

    def _by_node(self, waiting: list[_Waiting], count: int) -> Iterable[list[_Waiting]]:
        """Split them by the server that has the message's bucket."""
        found: dict[str, list[_Waiting]] = {}
        for message, future in waiting:
            if (bucket := bucket_for(message, count)) is None:
                message = msgspec.structs.replace(cast(Draft, message), id=self._calls.ids.draw())
                bucket = cast(int, bucket_for(message, count))
            node = self._store.node_of(self._calls.buckets[bucket].key("due"))
            found.setdefault(node, []).append((message, future))
        return found.values()

    async def _schedule_together(self, policy: OnConflict, waiting: list[_Waiting]) -> None:
        late = await self._schedule(policy, waiting)
        if not late:
            return
        buckets = self._calls.buckets
        number = cast(int, bucket_for(late[0][0], len(buckets)))
        which = policy, self._store.node_of(buckets[number].key("due"))
        if which not in self._late:
            self._late[which] = []
            self._start(self._try_again(*which), self._waits, self._left(which))
        patience = Patience((1 - _LONGEST_PAUSE) * self._store.timeout_s)
        self._late[which] += [(patience, each) for each in late]

    def _left(self, which: tuple[OnConflict, str]) -> Iterator[_Waiting]:
        """Those that still wait when they are given up; read only then."""
        for _, each in self._late.pop(which):
            yield each

    async def _try_again(self, policy: OnConflict, node: str) -> None:
        """Make calls again until their ids are not in flight any more, or it is time to say so.

        All in one call, after the pause of those that wait the shortest.
        """
        late, took_s = self._late[policy, node], 0.0
        longest_s = _LONGEST_PAUSE * self._store.timeout_s
        while late:
            pauses_s = {patience: patience.pause_s() for patience in {one for one, _ in late}}
            await asyncio.sleep(max(min(pauses_s.values()), min(_PAUSE * took_s, longest_s)))
            since_s = time.monotonic()
            over = {patience for patience, pause_s in pauses_s.items() if not pause_s}
            late[:] = await self._tried(policy, late, over) + late
            took_s = time.monotonic() - since_s
        del self._late[policy, node]

    async def _tried(
        self, policy: OnConflict, late: list[_Late], over: Collection[Patience]
    ) -> list[_Late]:
        """Make calls again; returns those whose id is still in flight. Empties the list at once.

        over: whose time is over: these are answered in any case.
        """
        tried = [one for one in late if not one[1][1].done()]  # the others were cancelled
        late.clear()  # whoever comes meanwhile is tried next
        if not tried:
            return []
        tried.sort(key=lambda one: one[0] not in over)
        last = sum(patience in over for patience, _ in tried)
        try:
            again = await self._schedule(policy, [each for _, each in tried], again=True, last=last)
        except asyncio.CancelledError:
            late += tried
            raise
        patience_of = {future: patience for patience, (_, future) in tried}
        return [(patience_of[each[1]], each) for each in again]

    async def _schedule(
        self, policy: OnConflict, waiting: list[_Waiting], *, again: bool = False, last: int = 0
    ) -> list[_Waiting]:
        """Make these calls, and answer their callers; returns those whose id is in flight.

        again: they were made before. last: how many, from the front, are answered in any case.
        """
        sent = Outgoing([message for message, _ in waiting], self._calls.ids)
        late, answers = list[int](), list[Receipt | Exception | None]()
        try:
            steps = self._calls.schedule_each(sent, policy, again=again)
            answers += await self._store.complete(steps)
            late = [place for place in sent.late if place >= last]
        except Exception as exc:  # raised in each caller
            answers += [exc] * len(waiting)
        for place in late:
            answers[place] = None
        asyncio.get_running_loop().call_soon(_wake, waiting, answers)
        return [(sent[place], waiting[place][1]) for place in late]

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
        while tasks := self._flushes | self._waits:
            await asyncio.wait(tasks)  # cancelling this wait does not cancel them


def _wake(waiting: list[_Waiting], answers: list[Receipt | Exception | None]) -> None:
    """Give callers their answers, and let each go on; to be called by the loop, from no task.

    What a future does for its task takes a turn of the loop, and a handle, for each: 0.6 us.
    """
    waking = list[tuple[Callable[[Any], object], Context, asyncio.Future[Any]]]()
    for (_, future), answer in zip(waiting, answers, strict=True):
        if answer is None or future.done():  # in flight, or its caller was cancelled
            continue
        callbacks = getattr(future, "_callbacks", None)
        if callbacks and len(callbacks) == 1:  # its task's
            ((wake, context),) = callbacks
            future.remove_done_callback(wake)
            waking.append((wake, context, future))
        future.set_result(answer)
    rest = iter(waking)
    try:
        for wake, context, future in rest:
            context.run(wake, future)
    finally:  # a caller that ends the program ends no other's call
        for wake, context, future in rest:
            future.get_loop().call_soon(wake, future, context=context)


def _answer(future: asyncio.Future[T], answer: T | Exception) -> None:
    """Give a caller its answer, unless it was cancelled."""
    if future.done():
        return
    if isinstance(answer, Exception):
        future.set_exception(answer)
    else:
        future.set_result(answer)
