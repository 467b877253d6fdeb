"""A namespace: what it may be called, and how many buckets it may have."""

from __future__ import annotations

import re

from delaybridge.errors import ConfigError

MAX_BUCKETS = 16_384
_NAMESPACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def check_namespace(namespace: str) -> str:
    """`namespace` itself; ConfigError if it could not be part of a key and of an ACL pattern."""
    if not _NAMESPACE.fullmatch(namespace):
        raise ConfigError(
            f"namespace: {namespace[:80]!r} is not accepted; use 1 to 64 letters, digits, "
            "'.', '_' or '-', beginning with a letter or digit"
        )
    return namespace


def check_buckets(buckets: int) -> int:
    """`buckets` itself; ConfigError unless it is a power of two within 1..16384."""
    if not 1 <= buckets <= MAX_BUCKETS or buckets & (buckets - 1):
        raise ConfigError(
            f"buckets: {buckets} is not accepted; use a power of two from 1 to {MAX_BUCKETS}"
        )
    return buckets
