"""Names of every Redis key, one function each, and the bucket a message belongs to.

All keys of bucket b carry the hash tag `{namespace:b}`, so one script's keys lie in one slot
of a Redis Cluster. What each key holds is written in docs/keys.md, which a test compares with
this module.
"""

from __future__ import annotations

import re
from zlib import crc32

from delaybridge.errors import ConfigError

_NAMESPACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
MAX_BUCKETS = 16_384

BUCKET_KEYS = (
    "due",
    "messages",
    "mirror",
    "attempts",
    "parked",
    "dead",
    "dead_reason",
    "lease",
    "marks",
    "revoked",
    "calls",
    "sources",
)


def bucket_of(basis: bytes, buckets: int) -> int:
    """The bucket of a message: CRC-32 (zlib) of its key, else of its id, modulo `buckets`."""
    return crc32(basis) % buckets


def bucket_key(namespace: str, bucket: int, name: str) -> str:
    """The key `name` (one of BUCKET_KEYS) of one bucket."""
    return f"{{{namespace}:{bucket}}}:{name}"


def birth(namespace: str) -> str:
    """String `buckets:birth id`: written once, by whoever comes first."""
    return f"{{{namespace}}}:birth"


def workers(namespace: str) -> str:
    """Zset: worker name -> when its announcement runs out (ms on the store's clock)."""
    return f"{{{namespace}}}:workers"


def worker_info(namespace: str) -> str:
    """Hash: worker name -> what it said of itself (JSON)."""
    return f"{{{namespace}}}:worker_info"


def ingests(namespace: str) -> str:
    """Zset: name of an ingest process -> when its announcement runs out (the store's clock)."""
    return f"{{{namespace}}}:ingests"


def ingest_info(namespace: str) -> str:
    """Hash: name of an ingest process -> what it said of itself (JSON)."""
    return f"{{{namespace}}}:ingest_info"


def wake(namespace: str) -> str:
    """Channel: `bucket due_ms` when an idle owner must look again, `fleet` when shares changed."""
    return f"{{{namespace}}}:wake"


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
