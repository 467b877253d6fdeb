"""The store's connections: run commands on Redis, load the scripts, translate what goes wrong.

`AsyncStore` (workers, AsyncClient) and `Store` (Client) differ in nothing but `await`: what they
share is above them. Every command may be sent again, so a lost connection or reply is tried again,
the very same bytes, until the time-out is used up; then `StoreUnavailable` is raised and the
outcome is unknown.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from functools import cache, lru_cache
from hashlib import sha1
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, TypeVar

import redis
import redis.asyncio
from redis.backoff import ExponentialWithJitterBackoff, NoBackoff
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    TryAgainError,
)
from redis.retry import Retry

from delaybridge.commands import SCRIPT_KEYS, Command
from delaybridge.errors import (
    ConfigError,
    DelayBridgeError,
    StoreError,
    StoreFull,
    StoreUnavailable,
    printable,
)
from delaybridge.events import Emit, StoreSilent
from delaybridge.redis_wire import AsyncWire, Wire, head_of, packed, packed_after

T = TypeVar("T")
Steps = Generator[Sequence[Command[Any]], list[Any], T]
"""A call of several commands, sans I/O: yields what to run, is sent the replies."""

_AGAIN = (
    redis.ConnectionError,
    redis.TimeoutError,
    BusyLoadingError,
    ReadOnlyError,
    ClusterDownError,
    TryAgainError,
    OSError,
)
_BACKOFF = ExponentialWithJitterBackoff(base=0.02, cap=0.5)


@cache
def scripts() -> dict[str, tuple[str, str]]:
    """Verb -> (source, SHA-1) of every script; StoreError if the files are not those we know."""
    sources = {
        file.name.removesuffix(".lua"): file.read_text()
        for file in _folder().iterdir()
        if file.name.endswith(".lua")
    }
    if sources.keys() != SCRIPT_KEYS.keys():
        odd = ", ".join(sorted(sources.keys() ^ SCRIPT_KEYS.keys()))
        raise StoreError(f"the scripts installed are not those of this version: {odd}")
    return {
        verb: (source, sha1(source.encode(), usedforsecurity=False).hexdigest())
        for verb, source in sources.items()
    }


def _folder() -> Traversable:
    """lua/ inside the wheel; in an editable install the folder beside the package."""
    inside = files("delaybridge") / "lua"
    return inside if inside.is_dir() else Path(__file__).parent.parent / "lua"


def translate(error: Exception) -> DelayBridgeError:
    """What a client library's error means to our callers; without addresses or secrets in it."""
    text = printable(str(error))[:200]
    # Redis 6.2 tells of it inside another error: "Error running script ...: -OOM command not ...".
    if isinstance(error, OutOfMemoryError) or "OOM command not allowed" in text:
        return StoreFull()
    if isinstance(error, AuthenticationError | NoPermissionError):
        return StoreError(f"redis: access refused: {text}; check user, password and ACL")
    if isinstance(error, _AGAIN):
        reason = str(error) or type(error).__name__
        return StoreUnavailable(f"redis: no answer: {printable(reason)[:160]}")
    return StoreError(f"redis: {text}")


def _connect(from_url: Callable[..., T], url: str, timeout_s: float | None) -> T:
    """A client of redis-py whose own re-sending is off: ours knows when to give up."""
    half_s = None if timeout_s is None else timeout_s / 2
    try:
        return from_url(
            url,
            protocol=2,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=half_s,
            socket_connect_timeout=half_s or 5.0,
            socket_keepalive=True,
            health_check_interval=0,
        )
    except (ValueError, TypeError, RedisError) as exc:
        raise ConfigError(f"redis.url: {printable(str(exc))[:120]}") from None


class _Tries:
    """How often one call is sent: again after a lost reply, while there is time for an answer."""

    def __init__(self, timeout_s: float) -> None:
        self._last_s = time.monotonic() + timeout_s / 2
        self._failures = 0

    def pause_s(self, error: Exception) -> float:
        """How long to wait before sending again; raises what the error means if time is up."""
        if isinstance(error, AuthenticationError) or not isinstance(error, _AGAIN):
            raise translate(error) from error
        self._failures += 1
        pause_s = float(_BACKOFF.compute(self._failures))
        if time.monotonic() + pause_s > self._last_s:
            raise translate(error) from error
        return pause_s


def request(command: Command[Any]) -> bytes:
    """The command as it goes over the wire."""
    if command.plain:
        return packed(*command.name.split(), *command.args)
    return packed_after(*_head(command.name, command.keys), command.args)


@lru_cache(10_000)
def _head(name: str, keys: tuple[str, ...]) -> tuple[bytes, int]:
    """What the calls of one bucket's verb have in common, and how many words that is."""
    words = ("EVALSHA", scripts()[name][1], len(keys), *keys)
    return head_of(words), len(words)


def _loads() -> list[bytes]:
    return [packed("SCRIPT", "LOAD", source) for source, _ in scripts().values()]


def _unloaded(replies: Sequence[Any]) -> list[int]:
    """Which commands found their script missing (a new, restarted or flushed server)."""
    return [i for i, reply in enumerate(replies) if isinstance(reply, NoScriptError)]


def _parsed(commands: Sequence[Command[Any]], replies: Sequence[Any]) -> Iterator[Any]:
    for command, reply in zip(commands, replies, strict=True):
        if isinstance(reply, Exception):
            raise reply
        yield command.parse(reply)


class AsyncStore:
    """Redis on an event loop. Any number of `run` calls may be under way at once."""

    def __init__(self, url: str, *, timeout_s: float = 5.0) -> None:
        self.timeout_s = timeout_s
        self.redis: Any = _connect(redis.asyncio.Redis.from_url, url, timeout_s)
        self._wire = AsyncWire(self.redis.connection_pool, timeout_s / 2)
        # A subscription waits for as long as nobody says anything.
        self._patient: Any = _connect(redis.asyncio.Redis.from_url, url, None)

    async def run(self, commands: Sequence[Command[Any]]) -> list[Any]:
        """One pipeline, one round trip; the parsed replies in order.

        StoreUnavailable within the time-out; StoreFull; StoreError. An error of one command does
        not undo the others of the pipeline: each is safe to send again.
        """
        tries = _Tries(self.timeout_s)
        while True:
            try:
                return list(_parsed(commands, await self._send(commands)))
            except (RedisError, OSError) as exc:
                pause_s = tries.pause_s(exc)
            await asyncio.sleep(pause_s)

    async def one(self, command: Command[T]) -> T:
        """The parsed reply of a single command."""
        (reply,) = await self.run([command])
        return reply  # type: ignore[no-any-return]

    async def _send(self, commands: Sequence[Command[Any]]) -> list[Any]:
        requests = [request(command) for command in commands]
        replies = await self._wire.call(requests)
        if missing := _unloaded(replies):
            await self._wire.call(_loads())
            again = await self._wire.call([requests[i] for i in missing])
            for i, reply in zip(missing, again, strict=True):
                replies[i] = reply
        return replies

    async def complete(self, steps: Steps[T]) -> T:
        """Run a call that is written sans I/O to its end."""
        try:
            asked = next(steps)
            while True:
                asked = steps.send(await self.run(asked))
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]

    async def listen(self, channel: str) -> AsyncIterator[str | None]:
        """What is said on a channel; None first, and again whenever something may be missed.

        Subscribes anew for as long as it takes. No commands are sent while it listens.
        """
        while True:
            subscription = self._patient.pubsub()
            try:
                await subscription.subscribe(channel)
                yield None
                async for said in subscription.listen():
                    if said["type"] == "message":
                        yield said["data"].decode(errors="replace")
            except (RedisError, OSError):
                await asyncio.sleep(0.5)
            finally:
                await subscription.aclose()

    async def close(self) -> None:
        """Close every connection."""
        await self._wire.close()
        await self._patient.aclose()
        await self.redis.aclose()


async def insist(store: AsyncStore, emit: Emit, commands: Sequence[Command[Any]]) -> list[Any]:
    """Run commands until the store answers: each of them may be sent any number of times."""
    while True:
        try:
            return await store.run(commands)
        except StoreUnavailable as exc:
            emit(StoreSilent(reason=str(exc)))
            await asyncio.sleep(0.2)


class Store:
    """Redis from ordinary code. Thread-safe: each call under way has its own connection."""

    def __init__(self, url: str, *, timeout_s: float = 5.0) -> None:
        self.timeout_s = timeout_s
        self.redis: Any = _connect(redis.Redis.from_url, url, timeout_s)
        self._wire = Wire(self.redis.connection_pool)

    def run(self, commands: Sequence[Command[Any]]) -> list[Any]:
        """As `AsyncStore.run`."""
        tries = _Tries(self.timeout_s)
        while True:
            try:
                return list(_parsed(commands, self._send(commands)))
            except (RedisError, OSError) as exc:
                time.sleep(tries.pause_s(exc))

    def complete(self, steps: Steps[T]) -> T:
        """As `AsyncStore.complete`."""
        try:
            asked = next(steps)
            while True:
                asked = steps.send(self.run(asked))
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]

    def _send(self, commands: Sequence[Command[Any]]) -> list[Any]:
        replies = self._wire.call(map(request, commands)) if commands else []
        if missing := _unloaded(replies):
            self._wire.call(_loads())
            again = self._wire.call([request(commands[i]) for i in missing])
            for i, reply in zip(missing, again, strict=True):
                replies[i] = reply
        return replies

    def close(self) -> None:
        """Close every connection."""
        self._wire.close()
        self.redis.close()
