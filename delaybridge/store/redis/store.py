"""Redis as delaybridge uses it: runs commands and calls, and waits as long as the time-out allows.

`AsyncStore` (workers, AsyncClient) and `Store` (Client) differ only in `await`. After a lost
connection or reply, or a refusal that may pass, the same bytes are sent again (`pipeline.py`) until
the time-out is over. Then `StoreUnavailable` is raised, and the outcome is unknown.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import (
    AsyncIterator,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar, cast

import redis.asyncio
from redis.exceptions import RedisError, ResponseError

from delaybridge.errors import DelayBridgeError, StoreUnavailable
from delaybridge.events import Emit, StoreSilent
from delaybridge.store.protocol.recorder import Recorded, ledger_of
from delaybridge.store.protocol.verbs import (
    Each,
    LedgerSteps,
    RedisCommand,
    Steps,
    Work,
    store_wide_error,
)
from delaybridge.store.redis.async_wire import AsyncWire, cancels_told, lost_if_closed
from delaybridge.store.redis.base import BaseStore, Follower, W
from delaybridge.store.redis.clocks import Commands
from delaybridge.store.redis.errors import NotAsked, translate
from delaybridge.store.redis.lifeline import Lifeline, lifeline
from delaybridge.store.redis.pipeline import Pipeline, Portion
from delaybridge.store.redis.wire import Wire

T = TypeVar("T")

_SILENCE_S, _PONG_S = 1.0, 2.0  # a silent subscription is pinged; dead without an answer
_RESUBSCRIBE_S, _ASK_AGAIN_S = 0.5, 0.2
_LOOK_S = 0.02  # until the masters are known, when a store is new


class _Sending(BaseStore[W]):
    """How both stores make pipelines of commands."""

    def _rounds(self, commands: Commands) -> Iterator[Pipeline]:
        """The pipelines to be sent for these commands, one after the other; the last has answers.

        That may be without anything to send.
        """
        if self._clocks or (self.follower and self.follower.is_resizing):
            yield from self._slower(commands)
        else:
            yield (pipeline := self._pipeline(commands))
            if pipeline.error and self.follower and self.follower.is_outdated(pipeline.answers):
                yield from self._followed(commands, self.follower)

    def _slower(self, commands: Commands) -> Iterator[Pipeline]:
        """As `_rounds`, where servers are told the time, or messages move to other buckets."""
        follower = self.follower
        if follower is None or not follower.is_resizing:
            pipeline = yield from self._timed(commands)
            if follower is None or not follower.is_outdated(pipeline.answers):
                return
        yield from self._followed(commands, follower)

    def _followed(self, commands: Commands, follower: Follower) -> Iterator[Pipeline]:
        steps, answers = follower.run(commands), cast(Any, None)
        try:
            while True:
                answers = (yield from self._timed(steps.send(answers))).answers
        except StopIteration as done:
            yield Pipeline.answered(done.value)

    def _timed(self, commands: Commands) -> Generator[Pipeline, None, Pipeline]:
        """That of these commands; before it that of the times which their scripts must be told."""
        errors: Mapping[int, Exception] = {}
        if self._clocks:
            asked: Mapping[str, Any] = self._clocks.asked(commands)
            found = (yield from self._timed([*asked.values()])).answers if asked else ()
            failed = {node: error for node, error in zip(asked, found, strict=True) if error}
            commands, errors = self._clocks.with_times(commands, failed)
        pipeline = self._pipeline(commands)
        pipeline.refuse(errors)
        yield pipeline
        return pipeline

    def _pipeline(self, commands: Commands) -> Pipeline:
        return Pipeline(commands, self.timeout_s, self.assurance, follows=self._servers.follows)


class AsyncStore(_Sending[AsyncWire]):
    """Redis on an event loop. Any number of calls may be made at once."""

    _kind, _from_url = AsyncWire, redis.asyncio.Redis.from_url

    @property
    def redis(self) -> redis.asyncio.Redis:
        """A client of redis-py for the server (on a Cluster, one of them), for a subscription."""
        return redis.asyncio.Redis(connection_pool=self._servers.wire_at("").pool)

    async def run(self, commands: Commands) -> list[Any]:
        """The parsed replies in order; all commands go out in one round trip.

        Raises StoreUnavailable when the time-out is over, StoreDenied, StoreFull or StoreError. An
        error of one command does not undo the others: each is safe to send again.
        """
        return (await self._answered(commands)).result()

    async def run_one(self, command: RedisCommand[T]) -> T:
        """The parsed reply of a single command. Raises as `run`."""
        (reply,) = await self.run([command])
        return reply  # type: ignore[no-any-return]

    async def run_each(self, commands: Commands, *, redis_only: bool = False) -> list[Any]:
        """As `run`; the error of a command is its answer. redis_only: no ledger is asked."""
        run = self._piped if redis_only else self._answered
        return (await run(commands)).answers

    async def run_isolated(self, commands: Commands) -> list[Any]:
        """As `run_each` for several buckets, but raises errors that concern more than one of them.

        That is StoreUnavailable and StoreDenied. Any other error is its command's answer, so one
        damaged bucket does not stop the others.
        """
        answers = await self.run_each(commands)
        if (error := store_wide_error(answers)) is not None:
            raise error
        return answers

    async def _answered(self, commands: Commands) -> Pipeline | Recorded:
        if self.recorder is None or not self.recorder.concerns(commands):
            return await self._piped(commands)
        found = self.recorder.record(commands, self.node_of)
        while (asked := found.asked) is not None:
            try:
                if isinstance(asked, Work):
                    result = await self.recorder.ledger.run_async(asked)
                else:
                    result = (await self._piped(asked)).answers
            except Exception as exc:
                found.fail(exc)
            else:
                found.take_result(result)
        return found

    async def _piped(self, commands: Commands) -> Pipeline:
        for pipeline in self._rounds(commands):
            await self._sent(pipeline)
        return pipeline

    async def _sent(self, pipeline: Pipeline) -> None:
        while pipeline.left:
            portions = self._servers.portions(pipeline)
            if len(portions) == 1:
                await self._send(pipeline, *portions[0])
            elif portions:
                await asyncio.gather(*(self._send(pipeline, *each) for each in portions))
            if pipeline.pause_s:
                self._servers.failed()
                await asyncio.sleep(pipeline.pause_s)

    async def _send(self, pipeline: Pipeline, wire: AsyncWire, portion: Portion) -> None:
        try:
            pipeline.take_replies(
                portion, await wire.call(pipeline.requests(portion), pipeline.wait_s)
            )
        except (RedisError, OSError) as exc:
            pipeline.lost(portion, exc)

    async def complete(self, steps: Steps[T] | LedgerSteps[T]) -> T:
        """Run a call to its end and return its result. Raises what the call or the store raises."""
        try:
            asked = next(steps)
            while True:
                if isinstance(asked, Work):
                    asked = steps.send(await ledger_of(self.recorder).run_async(asked))
                    continue
                run = self.run_each if isinstance(asked, Each) else self.run
                if not asked or (isinstance(asked, Each) and asked.after_s):
                    await asyncio.sleep(asked.after_s if isinstance(asked, Each) else 0)
                asked = steps.send(await run(asked))
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]

    async def listen(
        self, channel: str, on_lost: Callable[[DelayBridgeError], None] = lambda error: None
    ) -> AsyncIterator[str | None]:
        """Messages of a channel; None first, and again whenever some may have been missed.

        Never ends. Subscribes again until it succeeds, also after its connection went dead without
        a sign, or turned out to lead to the wrong server. on_lost: called with each failure.
        """
        await self._first_look()
        while True:
            try:
                # A Cluster passes it on, but PUBLISH counts who listens at the channel's server.
                wire = self._servers.wire_at(node := self.node_of(channel))
                async with self._subscription(wire) as subscription:
                    generation = wire.generation
                    with cancels_told():
                        await subscription.subscribe(channel)
                    async for text in self._heard(subscription, wire, generation):
                        yield text
                        if self._servers.node_of(channel) != node:
                            break
            except NotAsked:
                await asyncio.sleep(_LOOK_S)
            except (RedisError, OSError) as exc:
                on_lost(translate(exc))
                self._servers.failed()
                await asyncio.sleep(_RESUBSCRIBE_S)

    async def _first_look(self) -> None:
        """Wait a moment until it is known who the masters are."""
        until_s = time.monotonic() + self.timeout_s / 2
        while not self._servers.is_known and time.monotonic() < until_s:
            await asyncio.sleep(_LOOK_S)

    async def listen_sharded(self, node: str, channels: Sequence[str]) -> AsyncIterator[str | None]:
        """As `listen`, of sharded channels of one server, one after the other.

        Ends when the server is no master any more, or no longer has one of the channels; at once if
        there are none, which redis-py refuses to listen to.
        """
        while channels and node in self.nodes():
            try:
                wire = self._servers.wire_at(node)
                async with self._subscription(wire) as subscription:
                    generation = wire.generation
                    for channel in channels:  # each in its own slot
                        with cancels_told():
                            await subscription.ssubscribe(channel)
                    async for text in self._heard(subscription, wire, generation):
                        yield text
                    if wire.generation == generation:
                        return  # the server has given a channel away
            except ResponseError:
                return  # MOVED: it had given one away before
            except (RedisError, OSError):
                self._servers.failed()
                await asyncio.sleep(_RESUBSCRIBE_S)

    def lifeline(self, node: str) -> AbstractAsyncContextManager[Lifeline]:
        """A line to one server, by its name, empty where there is no Cluster. Raises as it says."""
        return lifeline(self._servers.wire_at, node)

    @asynccontextmanager
    async def _subscription(self, wire: AsyncWire) -> AsyncIterator[Any]:
        """A subscription on a connection of its own, to where the wire leads now."""
        pool = type(wire.pool)(**wire.recipe)
        subscription = redis.asyncio.Redis(connection_pool=pool).pubsub()
        try:
            with lost_if_closed():
                yield subscription
        finally:
            await subscription.aclose()  # type: ignore[no-untyped-call]
            await pool.disconnect()

    async def _heard(
        self, subscription: Any, wire: AsyncWire, generation: int
    ) -> AsyncIterator[str | None]:
        """The messages of one subscription; None once it is made. Raises when it is dead.

        Ends when the connections of its generation are closed: it leads to the same wrong server;
        and when the server ends it, because it has given a sharded channel away.
        """
        pinged = False
        while wire.generation == generation:
            with cancels_told():
                found = await subscription.get_message(timeout=_PONG_S if pinged else _SILENCE_S)
                if found is None and pinged:
                    raise redis.TimeoutError("the subscription is dead")
                if pinged := found is None:
                    await subscription.ping()
            kind = None if found is None else found["type"]
            if kind in ("subscribe", "ssubscribe"):
                yield None
            elif kind == "sunsubscribe":
                return
            elif kind in ("message", "smessage"):
                yield found["data"].decode(errors="replace")

    async def close(self) -> None:
        """Close all connections, and the ledger's."""
        self._servers.end()
        for wire in self._servers.wires():
            await wire.close()
        if self.recorder is not None:
            self.recorder.ledger.close()


async def insist(store: AsyncStore, emit: Emit, commands: Commands) -> list[Any]:
    """As `AsyncStore.run_isolated`, repeated until Redis answers; emits StoreSilent each time."""
    while True:
        try:
            return await store.run_isolated(commands)
        except StoreUnavailable as exc:
            emit(StoreSilent(reason=str(exc)))
            await asyncio.sleep(_ASK_AGAIN_S)


class Store(_Sending[Wire]):
    """Redis from ordinary code. Thread-safe: each call under way has its own connection."""

    _kind, _from_url = Wire, redis.Redis.from_url

    @property
    def redis(self) -> redis.Redis:
        """A client of redis-py, as `AsyncStore.redis` makes it."""
        return redis.Redis(connection_pool=self._servers.wire_at("").pool)

    def run(self, commands: Commands) -> list[Any]:
        """The parsed replies, as `AsyncStore.run` returns them."""
        return self._answered(commands).result()

    def run_each(self, commands: Commands) -> list[Any]:
        """Replies and errors, as `AsyncStore.run_each` returns them."""
        return self._answered(commands).answers

    def _answered(self, commands: Commands) -> Pipeline | Recorded:
        if self.recorder is None or not self.recorder.concerns(commands):
            return self._piped(commands)
        found = self.recorder.record(commands, self.node_of)
        while (asked := found.asked) is not None:
            try:
                if isinstance(asked, Work):
                    result = self.recorder.ledger.run(asked)
                else:
                    result = (self._piped(asked)).answers
            except Exception as exc:
                found.fail(exc)
            else:
                found.take_result(result)
        return found

    def _piped(self, commands: Commands) -> Pipeline:
        for pipeline in self._rounds(commands):
            self._sent(pipeline)
        return pipeline

    def _sent(self, pipeline: Pipeline) -> None:
        while pipeline.left:
            # All servers have their portion before the replies of the first are read.
            sent: list[tuple[Portion, Iterable[Any]]] = []
            for wire, portion in self._servers.portions(pipeline):
                try:
                    replies: Iterable[Any] = wire.replies(
                        pipeline.requests(portion), pipeline.wait_s
                    )
                except (RedisError, OSError) as exc:
                    replies = _raising(exc)
                sent.append((portion, replies))
            for portion, replies in sent:
                try:
                    pipeline.take_replies(portion, replies)
                except (RedisError, OSError) as exc:
                    pipeline.lost(portion, exc)
            if pipeline.pause_s:
                self._servers.failed()
                time.sleep(pipeline.pause_s)

    def complete(self, steps: Steps[T] | LedgerSteps[T]) -> T:
        """Run a call to its end, as `AsyncStore.complete` does."""
        try:
            asked = next(steps)
            while True:
                if isinstance(asked, Work):
                    asked = steps.send(ledger_of(self.recorder).run(asked))
                    continue
                run = self.run_each if isinstance(asked, Each) else self.run
                if isinstance(asked, Each) and asked.after_s:
                    time.sleep(asked.after_s)
                asked = steps.send(run(asked))
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]

    def close(self) -> None:
        """Close all connections, and the ledger's."""
        self._servers.end()
        for wire in self._servers.wires():
            wire.close()
        if self.recorder is not None:
            self.recorder.ledger.close()


def _raising(error: Exception) -> Iterator[Any]:
    """Replies whose first is an error that is raised."""
    raise error
    yield
