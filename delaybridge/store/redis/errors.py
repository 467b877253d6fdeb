"""What Redis answers instead of a reply, as exceptions; and as the errors of delaybridge."""

from __future__ import annotations

from typing import Any

import redis
from redis.exceptions import (
    AuthenticationError,
    InvalidResponse,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ResponseError,
    TryAgainError,
)

from delaybridge.errors import (
    DelayBridgeError,
    StoreDamaged,
    StoreDenied,
    StoreError,
    StoreFull,
    StoreMisnamed,
    StoreUnavailable,
    printable,
    refused_certificate,
)
from delaybridge.store.protocol.verbs import RedisCommand


class NotNow(redis.RedisError):
    """The server refuses for now; the same command may succeed later."""


class NotAsked(NotNow):
    """Who the masters are is not known yet; it will be in a moment."""


class WrongServer(NotNow):
    """The server is not, or not yet, the one to ask; another may answer under its address."""


class Misnamed(redis.RedisError):
    """The URL does not fit the servers behind it; says what to give instead."""


class MayNotLoad(NoPermissionError):
    """The user may not load the scripts, and the server lacks one."""


class Redirected(NotNow):
    """Another server of the Cluster has the key: host and port. asking: only for this once."""

    def __init__(self, text: str, asked: str) -> None:
        super().__init__(text)
        word, _, address = text.split()[:3]
        host, _, port = address.rpartition(":")
        self.asking, self.address = word == "ASK", (host.strip("[]") or asked, int(port))


class WrongType(StoreDamaged):
    """A key has another type than it should; or its bucket has other keys by now (`following`)."""


_SILENT = (redis.ConnectionError, redis.TimeoutError, OSError)
AGAIN = (*_SILENT, NotNow, NoScriptError, TryAgainError)
_STRANGERS = {  # by the first byte of their answer, as hiredis and redis-py show it
    'got "A"': "RabbitMQ",
    "AMQP": "RabbitMQ",
    'got "H"': "a web server",
    "HTTP": "a web server",
}
CLUSTERED = "this server is one of a Redis Cluster; give its URL as redis+cluster://HOST:PORT"


def is_plain_refusal(error: Exception) -> bool:
    """Whether Redis said no more than ERR; of what has a code word of its own, the class tells."""
    return type(error) is ResponseError


def wrong_type(command: RedisCommand[Any]) -> WrongType:
    """Names the key, or those of a script: Redis does not say which of them it was."""
    names = [str(name) for name in command.keys or command.args[:1]]
    if len(names) > 1:
        what = f"one of these keys has a wrong type: {', '.join(names)}"
        return WrongType(f"redis: {what}; which one, and how to mend it: delaybridge doctor")
    what = f"{names[0]} has a wrong type; move it away: redis-cli RENAME"
    return WrongType(f"redis: {what} '{names[0]}' '{names[0]}.damaged'")


def _of_one_address(reason: str) -> str:
    """Why the last address of a host did not answer; asyncio names each of them."""
    tried, mark, last = reason.rpartition("[Errno")
    return f"Error {mark}{last}" if "Multiple exceptions" in tried else reason


def translate(error: Exception) -> DelayBridgeError:
    """The delaybridge error for one of redis-py's or the system's, without addresses or secrets."""
    text = printable(str(error))[:200]
    if isinstance(error, OutOfMemoryError):
        return StoreFull()
    if isinstance(error, AuthenticationError | NoPermissionError):
        remedy = "check user, password and ACL"
        if isinstance(error, MayNotLoad):
            remedy = "allow +script|load, or let an operator run: delaybridge scripts load"
        return StoreDenied(f"redis: access refused: {text}; {remedy}")
    if isinstance(error, Redirected):
        return StoreUnavailable("redis: not ready: the key's slot is on its way to another server")
    if isinstance(error, Misnamed):
        return StoreMisnamed(f"redis: {text}")
    if isinstance(error, _SILENT):
        if refused := refused_certificate(error):
            return StoreUnavailable(f"redis: its certificate is refused: {refused}")
        reason = _of_one_address(str(error)) or type(error).__name__
        return StoreUnavailable(f"redis: no answer: {printable(reason)[:160]}")
    if isinstance(error, AGAIN):
        return StoreUnavailable(f"redis: not ready: {text[:160]}")
    if isinstance(error, InvalidResponse):
        name = next((name for said, name in _STRANGERS.items() if said in text), "another server")
        return StoreUnavailable(f"redis: {name} answers there, not Redis: check redis.url")
    return StoreError(f"redis: {text}")
