"""The secret that signs the sessions of browsers; all servers of a namespace share it."""

from __future__ import annotations

from delaybridge.store import keys
from delaybridge.store.command import RedisCommand, plain


def keep(namespace: str, secret: str) -> RedisCommand[bytes | None]:
    """Make this the secret, unless there is one."""
    return plain("SET", keys.session_secret(namespace), secret, "NX")


def read(namespace: str) -> RedisCommand[bytes | None]:
    """The secret."""
    return plain("GET", keys.session_secret(namespace))
