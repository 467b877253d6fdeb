"""Names of every Redis key, one function each, and the bucket a message belongs to.

All keys of bucket b carry the hash tag `{namespace:b}`, so one script's keys lie in one slot
of a Redis Cluster. What each key holds is written in docs/keys.md, which a test compares with
this module.
"""

from __future__ import annotations

from zlib import crc32

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
