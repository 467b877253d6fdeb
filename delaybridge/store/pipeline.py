"""Commands on their way to their answers: sent again if need be; errors translated."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

import redis
from redis.backoff import ExponentialWithJitterBackoff
from redis.exceptions import (
    AuthenticationError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    TryAgainError,
)

from delaybridge.errors import (
    DelayBridgeError,
    StoreDamaged,
    StoreDenied,
    StoreError,
    StoreFull,
    StoreUnavailable,
    printable,
)
from delaybridge.store.command import RedisCommand
from delaybridge.store.connection import NotNow, WrongServer
from delaybridge.store.scripts import load_requests, request, scripts

_SILENT = (redis.ConnectionError, redis.TimeoutError, OSError)
_AGAIN = (*_SILENT, NotNow, NoScriptError, TryAgainError)
_UNREADABLE = (StoreError, ValueError, TypeError, LookupError, ArithmeticError)
_BACKOFF = ExponentialWithJitterBackoff(base=0.02, cap=0.5)


class Pipeline:
    """Commands that are sent together, and again until each has its answer or time is up.

    The same bytes are sent again, never new ones: a command may have run although its reply was
    lost, and every script recognizes its own call by those bytes (stamps, claim numbers, tokens).

    answers: of each command, its parsed reply or the error that it ended with.
    left: places of the commands to be sent next; pause_s: how long to wait before.
    """

    __slots__ = (
        "answers", "left", "pause_s", "_commands", "_error", "_failures", "_in_doubt", "_last_s",
        "_loading",
    )  # fmt: skip

    def __init__(self, commands: Sequence[RedisCommand[Any]], timeout_s: float) -> None:
        self._commands = commands
        self.left: Sequence[int] = range(len(commands))
        self.answers: list[Any] = [None] * len(commands)
        self.pause_s = 0.0
        self._error: Exception | None = None  # the first that a command ended with
        self._loading = False  # scripts are sent along, since Redis lacks one
        self._in_doubt = False  # an earlier try may have taken effect
        self._failures = 0
        # The answer to the last try may take the other half.
        self._last_s = time.monotonic() + timeout_s / 2

    def requests(self) -> Iterable[bytes]:
        """The bytes of the commands left; before them the scripts, if Redis lacks them."""
        if not self._failures and not self._loading:
            return map(request, self._commands)
        left = [request(self._commands[i]) for i in self.left]
        return [*load_requests(), *left] if self._loading else left

    def take(self, replies: Iterable[Any]) -> None:
        """Read the replies to `requests()`, each when it comes. Sets `left`.

        What `replies` raises is raised; then the answers so far do not count.
        """
        if self._loading:
            replies = _without_loads(list(replies))
        refused: dict[int, Exception] = {}
        misread: dict[int, StoreError] = {}
        for i, reply in zip(self.left, replies, strict=True):
            if isinstance(reply, Exception):
                refused[i] = reply
                continue
            try:
                self.answers[i] = self._commands[i].parse(reply)
            except _UNREADABLE as exc:
                misread[i] = self._misread(i, exc)
        for i, error in misread.items():
            self._end(i, error)
        sent, self.left, self.pause_s = self.left, (), 0.0
        if refused:
            self._refused(self._if_wrong_server(sent, refused))

    def lost(self, error: Exception) -> None:
        """No reply came. Sets `left`."""
        self._in_doubt = True
        self._refused(dict.fromkeys(self.left, error))

    def result(self) -> list[Any]:
        """The answers; raises the first error."""
        error, self._error = self._error, None
        if error is None:
            return self.answers
        self.answers = []
        try:
            raise error
        finally:
            del error  # or the frame and the error would hold each other

    def _misread(self, i: int, error: Exception) -> StoreError:
        if isinstance(error, StoreError):
            return error
        name = self._commands[i].name
        return StoreDamaged(
            f"redis: the answer to {name} cannot be read: {printable(str(error)[:120])}"
        )

    def _if_wrong_server(
        self, sent: Sequence[int], refused: dict[int, Exception]
    ) -> dict[int, Exception]:
        """The refused commands: all of them, if one reply says that this is the wrong server."""
        wrong = next((e for e in refused.values() if isinstance(e, WrongServer)), None)
        if wrong is None or len(refused) == len(sent):
            return refused
        self._in_doubt = True  # a demoted server may have run the others and lose them
        return dict.fromkeys(sent, wrong)

    def _refused(self, refused: dict[int, Exception]) -> None:
        """Send commands again that may succeed later; end the others with their error."""
        again = {i: error for i, error in refused.items() if _may_succeed(error)}
        lacks_scripts = [isinstance(error, NoScriptError) for error in again.values()]
        # A script is loaded and called at once, but only once: something else may remove it.
        self.pause_s = 0.0
        if self._loading or not all(lacks_scripts):
            self._failures += 1
            self.pause_s = float(_BACKOFF.compute(self._failures))
        if time.monotonic() + self.pause_s > self._last_s:
            again, lacks_scripts, self.pause_s = {}, [], 0.0
        self._loading = any(lacks_scripts)
        self.left = list(again)
        for i, error in refused.items():
            if i not in again:
                self._end(i, self._translated(error, self._commands[i]))

    def _translated(self, error: Exception, command: RedisCommand[Any]) -> DelayBridgeError:
        found = _wrong_type(command) if "WRONGTYPE" in str(error) else translate(error)
        if isinstance(found, StoreFull) and self._in_doubt:
            found = StoreUnavailable("redis: full; an earlier try may have been stored")
        # Its traceback goes: those frames hold all that was sent, and the cycle that they make with
        # this pipeline would keep it until a garbage collection, at each try while Redis is down.
        found.__cause__ = error.with_traceback(None)
        return found

    def _end(self, i: int, error: Exception) -> None:
        self.answers[i] = error
        self._error = self._error or error


def _without_loads(replies: Sequence[Any]) -> list[Any]:
    """The replies after those to SCRIPT LOAD.

    If Redis refused to load a script, that refusal stands in place of "no such script".
    """
    count = len(scripts())
    refusal = next((reply for reply in replies[:count] if isinstance(reply, Exception)), None)
    return [
        refusal if refusal is not None and isinstance(reply, NoScriptError) else reply
        for reply in replies[count:]
    ]


def _may_succeed(error: Exception) -> bool:
    """Whether the same command may succeed if it is sent again."""
    return isinstance(error, _AGAIN) and not isinstance(error, AuthenticationError)


def _wrong_type(command: RedisCommand[Any]) -> StoreDamaged:
    """Names the key, or those of a script: Redis does not say which of them it was."""
    names = [str(name) for name in command.keys or command.args[:1]]
    if len(names) > 1:
        what = f"one of these keys has a wrong type: {', '.join(names)}"
        return StoreDamaged(f"redis: {what}; which one, and how to mend it: delaybridge doctor")
    what = f"{names[0]} has a wrong type; move it away: redis-cli RENAME"
    return StoreDamaged(f"redis: {what} '{names[0]}' '{names[0]}.damaged'")


def translate(error: Exception) -> DelayBridgeError:
    """The delaybridge error for one of redis-py's or the system's, without addresses or secrets."""
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
