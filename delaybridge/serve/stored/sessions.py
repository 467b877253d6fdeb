"""What all servers of a namespace know of browsers' sessions: the secret that signs them, and which
were ended."""

from __future__ import annotations

from collections.abc import Mapping

from delaybridge.store.protocol import keys
from delaybridge.store.protocol.verbs import RedisCommand, plain


def keep(namespace: str, secret: str) -> RedisCommand[bytes | None]:
    """Make this the secret, unless there is one."""
    return plain("SET", keys.session_secret(namespace), secret, "NX")


def read(namespace: str) -> RedisCommand[bytes | None]:
    """Read the secret; None if there is none yet."""
    return plain("GET", keys.session_secret(namespace))


def end(namespace: str, ended: Mapping[str, int], before_s: int) -> list[RedisCommand[int]]:
    """End sessions, and forget those that ended by themselves before a time.

    ended: number -> when it would end by itself, in s.
    """
    key = keys.sessions_ended(namespace)
    pairs = [word for number, ends_s in ended.items() for word in (ends_s, number)]
    return [plain("ZADD", key, *pairs), plain("ZREMRANGEBYSCORE", key, "-inf", before_s)]


def has_ended(namespace: str, number: str) -> RedisCommand[bool]:
    """Whether a session was ended."""
    return plain(
        "ZSCORE", keys.sessions_ended(namespace), number, parse=lambda score: score is not None
    )
