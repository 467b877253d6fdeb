"""Names of every Redis key, the keys that each script uses, and the bucket of a message.

All keys of bucket b carry the hash tag `{namespace:b}`, so the keys of one script are in one slot
of a Redis Cluster. docs/keys.md describes what each key holds.
"""

from __future__ import annotations

from collections.abc import Callable
from zlib import crc32

from delaybridge.message import State

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

_WHOLE = ("messages", "due", "mirror", "attempts", "parked", "dead", "dead_reason", "marks")
# fmt: off
SCRIPT_KEYS: dict[str, tuple[str, ...]] = {
    "schedule": (*_WHOLE, "revoked", "calls", "sources"),
    "quarantine": ("messages", "dead", "dead_reason", "marks"),
    "cancel": (*_WHOLE, "revoked", "calls", "sources"),
    "reschedule": (
        "messages", "due", "mirror", "attempts", "parked", "dead", "marks", "revoked", "calls",
        "sources",
    ),
    "kick": ("messages", "due", "attempts", "dead", "dead_reason", "marks", "calls"),
    "discard": ("messages", "attempts", "dead", "dead_reason", "calls"),
    "get": ("messages", "mirror", "attempts", "parked", "dead", "dead_reason", "marks"),
    "page": ("listed", "messages", "attempts", "dead_reason", "marks"),
    "sample": ("messages", "due"),
    "tally": ("listed", "messages"),
    "acquire": ("lease", "marks", "revoked"),
    "renew": ("lease", "due"),
    "release": ("lease",),
    "claim": (
        "lease", "due", "mirror", "messages", "attempts", "dead", "dead_reason", "marks", "calls",
    ),
    "fire": ("lease", "marks", "revoked"),
    "settle": ("lease", "mirror", "messages", "attempts", "calls"),
    "retry": ("lease", "due", "mirror", "messages", "attempts"),
    "park": ("lease", "mirror", "parked"),
    "unpark": ("lease", "parked", "due"),
    "bury": ("lease", "mirror", "attempts", "dead", "dead_reason"),
    "reclaim": ("lease", "due", "mirror", "messages", "attempts", "dead", "dead_reason", "marks"),
    "trim": ("lease", "messages", "attempts", "dead", "dead_reason", "marks", "calls"),
    "announce": ("workers", "worker_info"),
    "set_rule": ("destinations",),
    "allow": ("allowances",),
    "record": ("series",),
    "fence": ("sources",),
    "define": ("recurring", "recurring_due", "recurring_state"),
    "recur": ("recurring", "recurring_due", "recurring_state"),
}
# fmt: on
"""Script -> its KEYS in order; `listed` of `page` and `tally` is the set of the requested state."""

LISTED = {
    State.DELAYED: "due",
    State.IN_FLIGHT: "mirror",
    State.PARKED: "parked",
    State.DEAD: "dead",
}
"""State -> the set that lists its messages."""


def bucket_of(shard_key: bytes, buckets: int) -> int:
    """The bucket of a message: CRC-32 (zlib) of its key, else of its id, modulo `buckets`."""
    return crc32(shard_key) % buckets


def bucket_key(namespace: str, bucket: int, name: str) -> str:
    """The key `name` (one of BUCKET_KEYS) of one bucket."""
    return f"{{{namespace}:{bucket}}}:{name}"


def _of_namespace(name: str) -> Callable[[str], str]:
    return lambda namespace: f"{{{namespace}}}:{name}"


birth = _of_namespace("birth")
"""String `buckets:birth id`: written once, by the first process that opens the namespace."""
workers = _of_namespace("workers")
"""Zset: worker name -> when its announcement expires, in ms on Redis' clock."""
worker_info = _of_namespace("worker_info")
"""Hash: worker name -> its announcement, JSON."""
ingests = _of_namespace("ingests")
"""Zset: name of an ingest process -> when its announcement expires, in ms on Redis' clock."""
ingest_info = _of_namespace("ingest_info")
"""Hash: name of an ingest process -> its announcement, JSON."""
destinations = _of_namespace("destinations")
"""Hash: place (a broker, an exchange or topic, a destination) -> its rule, JSON."""
allowances = _of_namespace("allowances")
"""Hash: place with a rate -> until when (us on Redis' clock) all that it saved up is spent."""
events = _of_namespace("events")
"""Channel: a `store/beats.py: Beat` of every process each second, for `delaybridge tail`."""
recurring = _of_namespace("recurring")
"""Hash: name -> a recurring definition, JSON."""
recurring_due = _of_namespace("recurring_due")
"""Zset: name of a definition -> when a worker looks at it, in ms on Redis' clock."""
recurring_state = _of_namespace("recurring_state")
"""Hash: name of a definition -> its progress, JSON."""
series = _of_namespace("series")
"""Hash: what workers counted in each of the last seconds, minutes and half hours, MessagePack."""
wake = _of_namespace("wake")
"""Channel: `bucket due_ms` when an idle owner must look again, `fleet` when shares change,
`destinations` when a rule changes."""
