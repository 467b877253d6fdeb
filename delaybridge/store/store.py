"""The store's connections: run commands on Redis, load the scripts, translate what goes wrong.

`AsyncStore` (workers, AsyncClient) and `Store` (Client) differ in nothing but `await`: what they
share is above them. Every command may be sent again, so a lost connection or reply is tried again,
the very same bytes, until the time-out is used up; then `StoreUnavailable` is raised and the
outcome is unknown. The same goes for what Redis refuses for the moment only.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
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
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    RedisError,
    TryAgainError,
)
from redis.retry import Retry

from delaybridge.errors import (
    ConfigError,
    DelayBridgeError,
    StoreDamaged,
    StoreDenied,
    StoreError,
    StoreFull,
    StoreUnavailable,
    printable,
)
from delaybridge.events import Emit, StoreSilent
from delaybridge.store.command import Command
from delaybridge.store.connection import (
    AsyncWire,
    NotNow,
    Wire,
    WrongServer,
    head_of,
    packed,
    packed_after,
)
from delaybridge.store.keys import SCRIPT_KEYS
from delaybridge.store.login import logged_in
from delaybridge.store.steps import Each, Steps, of_all

T = TypeVar("T")

_SILENT = (redis.ConnectionError, redis.TimeoutError, OSError)
_AGAIN = (*_SILENT, NotNow, NoScriptError, TryAgainError)
_Run = Callable[[Sequence[Command[Any]]], Awaitable[list[Any]]]
_BACKOFF = ExponentialWithJitterBackoff(base=0.02, cap=0.5)
_SILENCE_S, _PONG_S = 1.0, 2.0  # a silent subscription is pinged; dead without an answer
_RESUBSCRIBE_S = 0.5


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
    return inside if inside.is_dir() else Path(__file__).parents[2] / "lua"


def translate(error: Exception) -> DelayBridgeError:
    """What a client library's error means to our callers; without addresses or secrets in it."""
    text = printable(str(error))[:200]
    if isinstance(error, OutOfMemoryError):
        return StoreFull()
    if isinstance(error, AuthenticationError | NoPermissionError):
        return StoreDenied(f"redis: access refused: {text}; check user, password and ACL")
    if isinstance(error, _SILENT):
        reason = str(error) or type(error).__name__
        return StoreUnavailable(f"redis: no answer: {printable(reason)[:160]}")
    if isinstance(error, _AGAIN):
        return StoreUnavailable(f"redis: not ready: {text[:160]}")
    return StoreError(f"redis: {text}")


def _connect(from_url: Callable[..., T], url: str, timeout_s: float) -> T:
    """A client of redis-py whose own re-sending is off: ours knows when to give up."""
    url, login = logged_in(url)
    try:
        return from_url(
            url,
            **login,
            protocol=2,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=timeout_s / 2,
            socket_connect_timeout=timeout_s / 2,
            socket_keepalive=True,
            health_check_interval=0,
        )
    except (ValueError, TypeError, RedisError) as exc:
        raise ConfigError(f"redis.url: {printable(str(exc))[:120]}") from None


class _Job:
    """Commands on their way to their answers: what is left to send, and how long to try.

    answers: of each command, its parsed reply or what it was refused with. error: the first of
    the latter.
    """

    __slots__ = (
        *("answers", "error", "left", "pause_s", "_commands"),
        *("_failures", "_in_doubt", "_last_s", "_loading"),
    )

    def __init__(self, commands: Sequence[Command[Any]], timeout_s: float) -> None:
        self._commands = commands
        self.left: Sequence[int] = range(len(commands))  # places of those to be sent
        self.answers: list[Any] = [None] * len(commands)
        self.error: Exception | None = None
        self.pause_s = 0.0  # before what is left is sent
        self._loading = False
        self._in_doubt = False  # an earlier try may have taken effect
        self._last_s = time.monotonic() + timeout_s / 2
        self._failures = 0

    def requests(self) -> Iterable[bytes]:
        """What is left, as it goes over the wire; before it the scripts, if Redis lacks them."""
        if not self._failures and not self._loading:
            return map(request, self._commands)
        left = [request(self._commands[i]) for i in self.left]
        return [*_loads(), *left] if self._loading else left

    def take(self, replies: Sequence[Any]) -> None:
        """The replies to all requests."""
        refusal = None  # of a script
        if self._loading:
            loads = len(scripts())
            refusal = next((r for r in replies[:loads] if isinstance(r, Exception)), None)
            replies = replies[loads:]
        refused: dict[int, Exception] = {}
        for i, reply in zip(self.left, replies, strict=True):
            if isinstance(reply, Exception):
                refused[i] = refusal or reply if isinstance(reply, NoScriptError) else reply
                continue
            try:
                self.answers[i] = self._commands[i].parse(reply)
            except (StoreError, ValueError, TypeError, LookupError, ArithmeticError) as exc:
                self._misread(i, exc)
        asked, self.left, self.pause_s = self.left, (), 0.0
        if refused:
            wrong = next((e for e in refused.values() if isinstance(e, WrongServer)), None)
            if wrong is not None and len(refused) < len(asked):
                self._in_doubt = True
                refused = dict.fromkeys(asked, wrong)  # its other answers do not count
            self._refused(refused)

    def lost(self, error: Exception) -> None:
        """No reply came."""
        self._in_doubt = True
        self._refused(dict.fromkeys(self.left, error))

    def result(self) -> list[Any]:
        """The answers; raises the first error."""
        error, self.error = self.error, None
        if error is None:
            return self.answers
        self.answers = []
        try:
            raise error
        finally:
            del error  # or the frame and the error would hold each other

    def _misread(self, i: int, error: Exception) -> None:
        if not isinstance(error, StoreError):
            what = f"the answer to {self._commands[i].name} cannot be read"
            error = StoreDamaged(f"redis: {what}: {printable(str(error)[:120])}")
        self._end(i, error)

    def _refused(self, refused: dict[int, Exception]) -> None:
        """Send again what may succeed then: what only lacked its script at once, but once."""
        again = {i: error for i, error in refused.items() if _may_succeed(error)}
        only_scripts = all(isinstance(error, NoScriptError) for error in again.values())
        self.pause_s = 0.0
        if not only_scripts or self._loading:
            self._failures += 1
            self.pause_s = float(_BACKOFF.compute(self._failures))
        if time.monotonic() + self.pause_s > self._last_s:
            again, self.pause_s = {}, 0.0
        self._loading = any(isinstance(error, NoScriptError) for error in again.values())
        self.left = list(again)
        for i, error in refused.items():
            if i not in again:
                self._end(i, self._translated(error))

    def _translated(self, error: Exception) -> DelayBridgeError:
        found = translate(error)
        if isinstance(found, StoreFull) and self._in_doubt:
            found = StoreUnavailable("redis: full; an earlier try may have been stored")
        # Without the way it came: those frames hold all that was sent, and the cycle that they make
        # with this job would keep it until a garbage collection, at each try while Redis is away.
        found.__cause__ = error.with_traceback(None)
        return found

    def _end(self, i: int, error: Exception) -> None:
        self.answers[i] = error
        self.error = self.error or error


def _may_succeed(error: Exception) -> bool:
    """Whether the same command may succeed if it is sent again."""
    return isinstance(error, _AGAIN) and not isinstance(error, AuthenticationError)


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


class AsyncStore:
    """Redis on an event loop. Any number of calls may be made at once."""

    def __init__(self, url: str, *, timeout_s: float = 5.0) -> None:
        self.timeout_s = timeout_s
        self.redis: Any = _connect(redis.asyncio.Redis.from_url, url, timeout_s)
        self._wire = AsyncWire(self.redis.connection_pool, timeout_s / 2)

    async def run(self, commands: Sequence[Command[Any]]) -> list[Any]:
        """One pipeline, one round trip; the parsed replies in order.

        StoreUnavailable within the time-out; StoreFull; StoreError. An error of one command does
        not undo the others of the pipeline: each is safe to send again.
        """
        return (await self._done(commands)).result()

    async def each(self, commands: Sequence[Command[Any]]) -> list[Any]:
        """As `run`; the error of a command is its answer, and raised nowhere."""
        return (await self._done(commands)).answers

    async def apart(self, commands: Sequence[Command[Any]]) -> list[Any]:
        """As `each`, for several buckets: what is no matter of one of them is raised.

        StoreUnavailable; StoreDenied. Any other StoreError is the answer to its own command.
        """
        answers = await self.each(commands)
        if (error := of_all(answers)) is not None:
            raise error
        return answers

    async def one(self, command: Command[T]) -> T:
        """The parsed reply of a single command."""
        (reply,) = await self.run([command])
        return reply  # type: ignore[no-any-return]

    async def _done(self, commands: Sequence[Command[Any]]) -> _Job:
        job = _Job(commands, self.timeout_s)
        while job.left:
            try:
                job.take(await self._wire.call(list(job.requests())))
            except (RedisError, OSError) as exc:
                job.lost(exc)
            if job.pause_s:
                await asyncio.sleep(job.pause_s)
        return job

    async def complete(self, steps: Steps[T]) -> T:
        """Run a call that is written sans I/O to its end."""
        try:
            asked = next(steps)
            while True:
                run = self.each if isinstance(asked, Each) else self.run
                asked = steps.send(await run(asked))
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]

    async def listen(self, channel: str) -> AsyncIterator[str | None]:
        """What is said on a channel; None first, and again whenever something may be missed.

        Subscribes again for as long as it takes, also where the connection has gone dead without
        a sign, or leads to a server that is no longer the right one.
        """
        while True:
            subscription, turn = self.redis.pubsub(), self._wire.turn
            try:
                await subscription.subscribe(channel)
                async for said in self._heard(subscription, turn):
                    yield said
            except (RedisError, OSError):
                await asyncio.sleep(_RESUBSCRIBE_S)
            finally:
                await subscription.aclose()

    async def _heard(self, subscription: Any, turn: int) -> AsyncIterator[str | None]:
        """What one subscription hears, from when it stands; an error once it is dead."""
        asked = False
        while self._wire.turn == turn:
            said = await subscription.get_message(timeout=_PONG_S if asked else _SILENCE_S)
            if said is None and asked:
                raise redis.TimeoutError("the subscription is dead")
            asked = said is None
            if said is None:
                await subscription.ping()
            elif said["type"] == "subscribe":
                yield None
            elif said["type"] == "message":
                yield said["data"].decode(errors="replace")

    async def close(self) -> None:
        """Close every connection."""
        await self._wire.close()
        await self.redis.aclose()


async def insist_each(store: AsyncStore, emit: Emit, commands: Sequence[Command[Any]]) -> list[Any]:
    """As `insist`, of `AsyncStore.apart`."""
    return await _insist(store.apart, emit, commands)


async def insist(store: AsyncStore, emit: Emit, commands: Sequence[Command[Any]]) -> list[Any]:
    """Run commands until the store answers: each of them may be sent any number of times."""
    return await _insist(store.run, emit, commands)


async def _insist(run: _Run, emit: Emit, commands: Sequence[Command[Any]]) -> list[Any]:
    while True:
        try:
            return await run(commands)
        except StoreUnavailable as exc:
            emit(StoreSilent(reason=str(exc)))
            await asyncio.sleep(0.2)


class Store:
    """Redis from ordinary code. Thread-safe: each call under way has its own connection."""

    def __init__(self, url: str, *, timeout_s: float = 5.0) -> None:
        self.timeout_s = timeout_s
        self.redis: Any = _connect(redis.Redis.from_url, url, timeout_s)
        self._wire = Wire(self.redis.connection_pool, timeout_s / 2)

    def run(self, commands: Sequence[Command[Any]]) -> list[Any]:
        """As `AsyncStore.run`."""
        return (self._done(commands)).result()

    def each(self, commands: Sequence[Command[Any]]) -> list[Any]:
        """As `AsyncStore.each`."""
        return self._done(commands).answers

    def _done(self, commands: Sequence[Command[Any]]) -> _Job:
        job = _Job(commands, self.timeout_s)
        while job.left:
            try:
                job.take(self._wire.call(job.requests()))
            except (RedisError, OSError) as exc:
                job.lost(exc)
            if job.pause_s:
                time.sleep(job.pause_s)
        return job

    def complete(self, steps: Steps[T]) -> T:
        """As `AsyncStore.complete`."""
        try:
            asked = next(steps)
            while True:
                run = self.each if isinstance(asked, Each) else self.run
                asked = steps.send(run(asked))
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]

    def close(self) -> None:
        """Close every connection."""
        self._wire.close()
        self.redis.close()
