"""A namespace: which names are allowed, and how many buckets it may have."""

from __future__ import annotations

import re

from delaybridge.errors import ConfigError

MAX_BUCKETS = 16_384
NAMESPACE_FORM = "1 to 64 letters, digits, '.', '_' or '-', beginning with a letter or digit"
BUCKETS_FORM = f"a power of two from 1 to {MAX_BUCKETS}"
_NAMESPACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def is_namespace(text: str) -> bool:
    """Whether `text` can be part of a key and of an ACL pattern."""
    return _NAMESPACE.fullmatch(text) is not None


def is_bucket_count(count: int) -> bool:
    """Whether a namespace can have this many buckets."""
    return 1 <= count <= MAX_BUCKETS and not count & (count - 1)


def check_namespace(namespace: str) -> str:
    """Return `namespace`; ConfigError if it is not allowed."""
    if not is_namespace(namespace):
        raise ConfigError(f"namespace: {namespace[:80]!r} is not accepted; use {NAMESPACE_FORM}")
    return namespace


def check_buckets(buckets: int) -> int:
    """Return `buckets`; ConfigError if it is not allowed."""
    if not is_bucket_count(buckets):
        raise ConfigError(f"buckets: {buckets} is not accepted; use {BUCKETS_FORM}")
    return buckets
