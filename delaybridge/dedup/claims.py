"""Marks of processed messages in Redis: claimed before the effect, done after it."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import redis
from redis import asyncio as redis_asyncio
from redis.exceptions import RedisError

from delaybridge import times
from delaybridge.dedup.ids import checked
from delaybridge.errors import (
    ConfigError,
    DelayBridgeError,
    MessageError,
    StoreDamaged,
    StoreError,
    printable,
    quoted,
    text_of,
)

PREFIX, WINDOW, PROCESSING = "delaybridge:dedup", "24h", "5m"
_DONE, _CLAIM = "done", "claim:"
# A client library may send a command again after a lost reply: each script knows its own token.
_CLAIM_LUA = """
local found = redis.call('GET', KEYS[1])
if found then return {found, redis.call('PTTL', KEYS[1])} end
redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])
return {ARGV[1], 0}
"""
_DONE_LUA = """
local found = redis.call('GET', KEYS[1])
if found and found ~= ARGV[1] and found ~= 'done' then return found end
redis.call('SET', KEYS[1], 'done', 'PX', ARGV[2])
return 'done'
"""
_RELEASE_LUA = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""


class InProgress(DelayBridgeError):
    """Another consumer is processing this id now: return the message to its queue, or wait.

    wait_ms: how long the other one's claim holds at most.
    """

    def __init__(self, id: str, wait_ms: int) -> None:
        self.id, self.wait_ms = id, wait_ms
        super().__init__(f"{quoted(id)} is being processed; its claim ends in {wait_ms} ms")

    def __reduce__(self) -> tuple[type[InProgress], tuple[str, int]]:
        return type(self), (self.id, self.wait_ms)


class ClaimLost(DelayBridgeError):
    """The effect took longer than `processing`, and another consumer has claimed the id meanwhile.

    The effect happened here, and may happen a second time there.
    """


class _Claims:
    """Keys, tokens and replies of both clients; without I/O."""

    _is_async: bool

    def __init__(
        self, redis_client_or_url: Any, *, prefix: str = PREFIX,
        window: times.Delay = WINDOW, processing: times.Delay = PROCESSING,
    ) -> None:  # fmt: skip
        """ConfigError if an argument is wrong; nothing is sent."""
        client, self._is_own = redis_client_or_url, isinstance(redis_client_or_url, str)
        if self._is_own:
            client = self._opened(redis_client_or_url)
        is_async = any(".asyncio" in parent.__module__ for parent in type(client).__mro__)
        if is_async != self._is_async:
            name = "AsyncRedisDedup" if is_async else "RedisDedup"
            raise ConfigError(f"this client of Redis is for {name}")
        self._client, self._prefix = client, prefix
        self._window_ms = _span_ms(window, "window")
        self._processing_ms = _span_ms(processing, "processing")

    def _opened(self, url: str) -> Any:
        kind: Any = redis_asyncio.Redis if self._is_async else redis.Redis
        try:
            return kind.from_url(url)
        except (ValueError, TypeError) as exc:
            what = printable(str(exc))[:120]
            raise ConfigError(f"{what}; for a Cluster or Sentinels give a client") from None

    def key(self, id: str) -> str:
        """The key in Redis of an id."""
        return f"{self._prefix}:{checked(id, 'id')}"

    def _claimed(self, id: str, token: str, reply: Any) -> str | None:
        found, wait_ms = text_of(reply[0]), int(reply[1])
        if found == token:
            return token
        if found == _DONE:
            return None
        if found.startswith(_CLAIM):
            raise InProgress(id, max(wait_ms, 0))
        raise _damaged(self.key(id))

    def _ended(self, id: str, reply: Any) -> None:
        found = text_of(reply)
        if found == _DONE:
            return
        if found.startswith(_CLAIM):
            late = f"{quoted(id)} took longer than {self._processing_ms} ms"
            raise ClaimLost(f"{late}, and another consumer has claimed it meanwhile")
        raise _damaged(self.key(id))


class RedisDedup(_Claims):
    """Marks of processed messages in Redis; thread-safe, as the client of redis-py is.

    An id is claimed before the effect, for `processing`, and marked as done after it, for `window`.

    - A consumer that dies before its effect loses nothing: its claim expires, and the message that
      the broker delivers again is processed then.
    - The effect happens twice if the process dies, or Redis cannot be reached, between the effect
      and its mark; if the effect takes longer than `processing`; if the second delivery comes later
      than `window`; or if Redis loses the mark (a fail-over, an eviction, no append-only file).

    redis_client_or_url: a `redis.Redis`, a `redis.RedisCluster`, or a URL of redis-py; a client
    made from a URL is closed by `close`. The user needs `+eval +get +set +del +pttl` on `prefix:*`.

    Calls raise MessageError `bad_id`; StoreDamaged if the key holds something else; and
    StoreUnavailable, StoreFull, StoreDenied or StoreError if Redis does not answer or refuses.
    """

    _is_async = False

    @contextmanager
    def once(self, id: str) -> Iterator[bool]:
        """Enter with True: do it. With False: it was done before, acknowledge the message.

        When the block ends, the id is marked as done. If the block raises, the claim is taken back,
        so that the next delivery is processed at once; if that fails too, it expires.
        Raises InProgress before the block, and ClaimLost after it.
        """
        token = self.claim(id)
        if token is None:
            yield False
            return
        try:
            yield True
        except BaseException:
            with suppress(StoreError):  # the block's own error says more
                self.release(id, token)
            raise
        self.done(id, token)

    def claim(self, id: str) -> str | None:
        """Claim an id for `processing`: a token for `done` and `release`; None if it was done.

        Raises InProgress if another consumer has claimed it.
        """
        token = _new_token()
        reply = self._eval(_CLAIM_LUA, id, token, self._processing_ms)
        return self._claimed(id, token, reply)

    def done(self, id: str, token: str) -> None:
        """Mark an id as done for `window`, unless another consumer has claimed it: ClaimLost."""
        self._ended(id, self._eval(_DONE_LUA, id, token, self._window_ms))

    def release(self, id: str, token: str) -> bool:
        """Take a claim back; False if it had expired or is another consumer's."""
        return bool(self._eval(_RELEASE_LUA, id, token))

    def close(self) -> None:
        """Close the client if it was made from a URL."""
        if self._is_own:
            self._client.close()

    def _eval(self, script: str, id: str, *args: str | int) -> Any:
        key = self.key(id)
        try:
            return self._client.eval(script, 1, key, *args)
        except (RedisError, OSError) as exc:
            raise _translated(exc, key) from exc


class AsyncRedisDedup(_Claims):
    """`RedisDedup` for asyncio, with a client of `redis.asyncio`, or a URL."""

    _is_async = True

    @asynccontextmanager
    async def once(self, id: str) -> AsyncIterator[bool]:
        """`RedisDedup.once`; a cancelled block is one that raised."""
        token = await self.claim(id)
        if token is None:
            yield False
            return
        try:
            yield True
        except BaseException:
            with suppress(StoreError):
                await self.release(id, token)
            raise
        await self.done(id, token)

    async def claim(self, id: str) -> str | None:
        """Begin to process an id, as `RedisDedup.claim` does."""
        token = _new_token()
        reply = await self._eval(_CLAIM_LUA, id, token, self._processing_ms)
        return self._claimed(id, token, reply)

    async def done(self, id: str, token: str) -> None:
        """Remember an id as processed, as `RedisDedup.done` does."""
        self._ended(id, await self._eval(_DONE_LUA, id, token, self._window_ms))

    async def release(self, id: str, token: str) -> bool:
        """Give a claim up, as `RedisDedup.release` does."""
        return bool(await self._eval(_RELEASE_LUA, id, token))

    async def aclose(self) -> None:
        """Close the client if it was made from a URL."""
        if self._is_own:
            await self._client.aclose()

    async def _eval(self, script: str, id: str, *args: str | int) -> Any:
        key = self.key(id)
        try:
            return await self._client.eval(script, 1, key, *args)
        except (RedisError, OSError) as exc:
            raise _translated(exc, key) from exc


def _new_token() -> str:
    return _CLAIM + secrets.token_urlsafe(12)


def _span_ms(value: times.Delay, field: str) -> int:
    """A time span in milliseconds, at least 1; ConfigError for anything else."""
    try:
        span_ms = times.delay_ms(value, field=field)  # type: ignore[arg-type]
    except MessageError as exc:
        raise ConfigError(str(exc)) from None
    if span_ms < 1:
        raise ConfigError(f"{field}: got 0; give a time, such as 5m")
    return span_ms


def _damaged(key: str) -> StoreDamaged:
    return StoreDamaged(f"redis: {quoted(key)} holds no mark of `dedup`; choose another prefix")


def _translated(error: Exception, key: str) -> DelayBridgeError:
    from delaybridge.store.redis.errors import translate

    return _damaged(key) if "WRONGTYPE" in str(error) else translate(error)
