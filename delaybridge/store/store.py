"""Redis as delaybridge uses it: runs commands and calls, and waits as long as the time-out allows.

`AsyncStore` (workers, AsyncClient) and `Store` (Client) differ only in `await`. After a lost
connection or reply, or a refusal that may pass, the same bytes are sent again (`pipeline.py`) until
the time-out is over. Then `StoreUnavailable` is raised, and the outcome is unknown.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, TypeVar

import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from delaybridge.errors import ConfigError, DelayBridgeError, StoreUnavailable, printable
from delaybridge.events import Emit, StoreSilent
from delaybridge.store.command import Each, RedisCommand, Steps, store_wide_error
from delaybridge.store.connection import AsyncWire, Wire
from delaybridge.store.login import logged_in
from delaybridge.store.pipeline import Pipeline, translate

T = TypeVar("T")

_SILENCE_S, _PONG_S = 1.0, 2.0  # a silent subscription is pinged; dead without an answer
_RESUBSCRIBE_S = 0.5
_ASK_AGAIN_S = 0.2


def _connect(from_url: Callable[..., T], url: str, timeout_s: float) -> T:
    """A client of redis-py that never sends anything again by itself.

    Its retries multiply (connect inside command) and know no deadline; `Pipeline` does both.
    """
    url, login = logged_in(url)
    keepalive = {} if url.lower().startswith("unix:") else {"socket_keepalive": True}
    try:
        return from_url(
            url,
            **login,
            **keepalive,
            protocol=2,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=timeout_s / 2,
            socket_connect_timeout=timeout_s / 2,
            health_check_interval=0,
        )
    except (ValueError, TypeError, RedisError) as exc:
        raise ConfigError(f"redis.url: {printable(str(exc))[:120]}") from None


class AsyncStore:
    """Redis on an event loop. Any number of calls may be made at once."""

    def __init__(self, url: str, *, timeout_s: float = 5.0) -> None:
        self.timeout_s = timeout_s
        self.redis: Any = _connect(redis.asyncio.Redis.from_url, url, timeout_s)
        self._wire = AsyncWire(self.redis.connection_pool, timeout_s / 2)

    async def run(self, commands: Sequence[RedisCommand[Any]]) -> list[Any]:
        """The parsed replies in order; all commands go out in one round trip.

        Raises StoreUnavailable when the time-out is over, StoreDenied, StoreFull or StoreError. An
        error of one command does not undo the others: each is safe to send again.
        """
        return (await self._answered(commands)).result()

    async def run_one(self, command: RedisCommand[T]) -> T:
        """The parsed reply of a single command. Raises as `run`."""
        (reply,) = await self.run([command])
        return reply  # type: ignore[no-any-return]

    async def run_each(self, commands: Sequence[RedisCommand[Any]]) -> list[Any]:
        """As `run`, but raises nothing: the error of a command is its answer."""
        return (await self._answered(commands)).answers

    async def run_isolated(self, commands: Sequence[RedisCommand[Any]]) -> list[Any]:
        """As `run_each` for several buckets, but raises errors that concern more than one of them.

        That is StoreUnavailable and StoreDenied. Any other error is its command's answer, so one
        damaged bucket does not stop the others.
        """
        answers = await self.run_each(commands)
        if (error := store_wide_error(answers)) is not None:
            raise error
        return answers

    async def _answered(self, commands: Sequence[RedisCommand[Any]]) -> Pipeline:
        pipeline = Pipeline(commands, self.timeout_s)
        while pipeline.left:
            try:
                pipeline.take(await self._wire.call(pipeline.requests()))
            except (RedisError, OSError) as exc:
                pipeline.lost(exc)
            if pipeline.pause_s:
                await asyncio.sleep(pipeline.pause_s)
        return pipeline

    async def complete(self, steps: Steps[T]) -> T:
        """Run a call to its end and return its result. Raises what the call or the store raises."""
        try:
            asked = next(steps)
            while True:
                run = self.run_each if isinstance(asked, Each) else self.run
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
        while True:
            subscription, generation = self.redis.pubsub(), self._wire.generation
            try:
                await subscription.subscribe(channel)
                async for text in self._heard(subscription, generation):
                    yield text
            except (RedisError, OSError) as exc:
                on_lost(translate(exc))
                await asyncio.sleep(_RESUBSCRIBE_S)
            finally:
                await subscription.aclose()

    async def _heard(self, subscription: Any, generation: int) -> AsyncIterator[str | None]:
        """The messages of one subscription; None once it is made. Raises when it is dead.

        Ends when the connections of its generation are closed: it leads to the same wrong server.
        """
        pinged = False
        while self._wire.generation == generation:
            found = await subscription.get_message(timeout=_PONG_S if pinged else _SILENCE_S)
            if found is None and pinged:
                raise redis.TimeoutError("the subscription is dead")
            pinged = found is None
            if found is None:
                await subscription.ping()
            elif found["type"] == "subscribe":
                yield None
            elif found["type"] == "message":
                yield found["data"].decode(errors="replace")

    async def close(self) -> None:
        """Close every connection."""
        await self._wire.close()
        await self.redis.aclose()


async def insist(store: AsyncStore, emit: Emit, commands: Sequence[RedisCommand[Any]]) -> list[Any]:
    """As `AsyncStore.run_isolated`, repeated until Redis answers; emits StoreSilent each time."""
    while True:
        try:
            return await store.run_isolated(commands)
        except StoreUnavailable as exc:
            emit(StoreSilent(reason=str(exc)))
            await asyncio.sleep(_ASK_AGAIN_S)


class Store:
    """Redis from ordinary code. Thread-safe: each call under way has its own connection."""

    def __init__(self, url: str, *, timeout_s: float = 5.0) -> None:
        self.timeout_s = timeout_s
        self.redis: Any = _connect(redis.Redis.from_url, url, timeout_s)
        self._wire = Wire(self.redis.connection_pool, timeout_s / 2)

    def run(self, commands: Sequence[RedisCommand[Any]]) -> list[Any]:
        """As `AsyncStore.run`."""
        return self._answered(commands).result()

    def run_each(self, commands: Sequence[RedisCommand[Any]]) -> list[Any]:
        """As `AsyncStore.run_each`."""
        return self._answered(commands).answers

    def _answered(self, commands: Sequence[RedisCommand[Any]]) -> Pipeline:
        pipeline = Pipeline(commands, self.timeout_s)
        while pipeline.left:
            try:
                pipeline.take(self._wire.replies(pipeline.requests()))
            except (RedisError, OSError) as exc:
                pipeline.lost(exc)
            if pipeline.pause_s:
                time.sleep(pipeline.pause_s)
        return pipeline

    def complete(self, steps: Steps[T]) -> T:
        """As `AsyncStore.complete`."""
        try:
            asked = next(steps)
            while True:
                run = self.run_each if isinstance(asked, Each) else self.run
                asked = steps.send(run(asked))
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]

    def close(self) -> None:
        """Close every connection."""
        self._wire.close()
        self.redis.close()
