"""Names of every Redis key, the keys that each script uses, and the bucket of a message.

All keys of bucket b carry the hash tag `{namespace:b}`, so the keys of one script are in one slot
of a Redis Cluster. In a namespace that was created on a Cluster the tag is `{namespace:b.n}`, with
n such that the buckets are spread evenly over the slots. docs/keys.md says what each key holds.
"""

from __future__ import annotations

from binascii import crc_hqx
from collections.abc import Callable
from functools import lru_cache
from itertools import count

from delaybridge.message import State
from delaybridge.settings.namespace import MAX_BUCKETS

SLOTS = 16_384


def slot_of(key: str) -> int:
    """The slot of a key: CRC-16 (XMODEM) of its hash tag, if it has one (Redis Cluster spec)."""
    begin = key.find("{")
    end = key.find("}", begin + 1) if begin >= 0 else -1
    tag = key[begin + 1 : end] if end > begin + 1 else key
    return crc_hqx(tag.encode(), 0) % SLOTS


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
    "ready",
    "gone",
    "delivered",
)
BUCKET_KEYS_MOVED = tuple(name for name in BUCKET_KEYS if name != "lease")
LEAVING = "leaving"
"""String, of a bucket that gives its messages away: the page on its way (`lua/lift.lua`)."""

_WHOLE = ("messages", "due", "mirror", "attempts", "parked", "dead", "dead_reason", "marks")
# fmt: off
SCRIPT_KEYS: dict[str, tuple[str, ...]] = {
    "schedule": (*_WHOLE, "revoked", "calls", "sources", "gone", "delivered"),
    "schedule_one": (
        "messages", "due", "marks", "calls", "mirror", "parked", "dead", "attempts", "delivered",
    ),
    "quarantine": (
        "messages", "dead", "dead_reason", "marks", "attempts", "calls", "gone", "due", "mirror",
        "parked",
    ),
    "cancel": (*_WHOLE, "revoked", "calls", "sources", "gone", "delivered"),
    "reschedule": (
        "messages", "due", "mirror", "attempts", "parked", "dead", "marks", "revoked", "calls",
        "sources", "dead_reason",
    ),
    "kick": (
        "messages", "due", "attempts", "dead", "dead_reason", "marks", "calls", "mirror", "parked",
    ),
    "discard": (
        "messages", "attempts", "dead", "dead_reason", "calls", "marks", "gone", "due", "mirror",
        "parked",
    ),
    "get": ("messages", "mirror", "attempts", "parked", "dead", "dead_reason", "marks"),
    "page": ("listed", "messages", "attempts", "dead_reason", "marks"),
    "sample": ("messages", "due"),
    "tally": ("listed", "messages"),
    "acquire": ("lease", "marks", "revoked", "messages"),
    "renew": ("lease", "due", "marks"),
    "release": ("lease",),
    "claim": (
        "lease", "due", "mirror", "messages", "attempts", "dead", "dead_reason", "marks", "calls",
    ),
    "fire": ("lease", "marks", "revoked"),
    "settle": (
        "lease", "mirror", "messages", "attempts", "calls", "marks", "gone", "delivered",
    ),
    "retry": ("lease", "due", "mirror", "messages", "attempts"),
    "park": ("lease", "mirror", "parked"),
    "unpark": ("lease", "parked", "due"),
    "offer": ("lease", "mirror", "parked", "ready"),
    "receive": ("messages", "due", "parked", "attempts", "marks", "ready"),
    "bury": ("lease", "mirror", "attempts", "dead", "dead_reason"),
    "reclaim": ("lease", "due", "mirror", "messages", "attempts", "dead", "dead_reason", "marks"),
    "trim": ("lease", "messages", "attempts", "dead", "dead_reason", "marks", "calls", "parked",
             "ready", "gone", "delivered", "due", "mirror"),
    "count": ("lease", "messages", "due", "mirror", "parked", "dead", "dead_reason", "marks"),
    "mend": (
        "lease", "messages", "due", "mirror", "parked", "dead", "dead_reason", "attempts", "marks",
        "ready", "calls",
    ),
    "seal": ("lease", "marks", "gone"),
    "drop": ("lease", "messages", "due", "parked", "dead", "dead_reason", "attempts"),
    "restore": (
        "messages", "due", "dead", "dead_reason", "marks", "calls", "gone", "attempts",
    ),
    "begin": (*BUCKET_KEYS, *BUCKET_KEYS_MOVED),
    "lift": (
        "due", "messages", "mirror", "attempts", "parked", "dead", "dead_reason", "marks", "calls",
        "sources", "delivered", LEAVING, "gone",
    ),
    "land": (
        "due", "messages", "attempts", "parked", "dead", "dead_reason", "marks", "calls", "sources",
        "delivered",
    ),
    "retire": (
        "messages", "lease", "marks", "due", "mirror", "attempts", "revoked", "calls", "ready",
        LEAVING, "gone",
    ),
    "relayout": ("birth",),
    "probe": ("due",),
    "announce": ("workers", "worker_info"),
    "oust": ("workers", "worker_info"),
    "set_rule": ("destinations", "controls", "unrecorded"),
    "allow": ("allowances",),
    "record": ("series",),
    "fence": ("sources",),
    "define": ("recurring", "recurring_due", "recurring_state", "controls", "unrecorded"),
    "recur": ("recurring", "recurring_due", "recurring_state"),
    "reinstate": (
        "destinations", "recurring", "recurring_due", "recurring_state", "controls", "unrecorded",
    ),
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


def moving(key: str) -> str:
    """The same key of the bucket once it gives its messages to others."""
    tag, _, name = key.rpartition(":")
    return f"{tag}:moving:{name}"


def bucket_key(namespace: str, bucket: int, name: str, birth: str = "") -> str:
    """The key `name` (one of BUCKET_KEYS) of one bucket. birth: the namespace's birth id."""
    return f"{{{namespace}:{bucket}{_suffix(namespace, bucket, birth)}}}:{name}"


def spread(birth: str, buckets: int, *, sharded: bool) -> str:
    """The birth id for a namespace whose buckets are spread over the slots of a Cluster.

    sharded: its servers know sharded channels, and wake-ups use them.
    """
    return f"{birth}:{min(buckets, _MOST_WINDOWS)}{'s' if sharded else ''}"


@lru_cache(MAX_BUCKETS)
def _suffix(namespace: str, bucket: int, birth: str) -> str:
    """What moves a bucket's tag to the middle of its window; masters have slots in a row."""
    windows = int(birth.partition(":")[2].rstrip("s") or 0)
    if not windows:
        return ""
    number, eighth = bucket % windows, SLOTS // windows // 8
    middle = range(number * 8 * eighth + 3 * eighth, number * 8 * eighth + 5 * eighth)
    return next(f".{n}" for n in count() if slot_of(f"{namespace}:{bucket}.{n}") in middle)


def wake_channel(namespace: str, bucket: int, birth: str) -> str:
    """Where a bucket's owner is woken; a `+` before it says that the channel is sharded."""
    if birth.endswith("s"):
        return f"+{bucket_key(namespace, bucket, 'wake', birth)}"
    return wake(namespace)


_MOST_WINDOWS = 64  # of the slots; more buckets share them, or finding their tags takes long


def idempotent(namespace: str, name: str) -> str:
    """Hash of one HTTP request with an Idempotency-Key, for a day: its record and its answer."""
    return f"{{{namespace}}}:idempotency:{name}"


def _of_namespace(name: str) -> Callable[[str], str]:
    return lambda namespace: f"{{{namespace}}}:{name}"


birth = _of_namespace("birth")
"""String `buckets:birth id`: written once, by the first process that opens the namespace.

On a Cluster the birth id ends with `:windows`, and `s` if wake-ups are sharded."""
workers = _of_namespace("workers")
"""Zset: worker name -> when its announcement expires, in ms on Redis' clock."""
worker_info = _of_namespace("worker_info")
"""Hash: worker name -> its announcement, JSON."""
ingests = _of_namespace("ingests")
"""Zset: name of an ingest process -> when its announcement expires, in ms on Redis' clock."""
ingest_info = _of_namespace("ingest_info")
"""Hash: name of an ingest process -> its announcement, JSON."""
fronts = _of_namespace("fronts")
"""Zset: name of a front -> when its announcement expires, in ms on Redis' clock."""
front_info = _of_namespace("front_info")
"""Hash: name of a front -> its announcement with its connections, JSON."""
fronted = _of_namespace("fronted")
"""Hash: `BROKER:EXCHANGE` that a front made -> its target and intake, JSON. Also a channel: one was
added."""
destinations = _of_namespace("destinations")
"""Hash: place (a broker, an exchange or topic, a destination) -> its rule, JSON."""
controls = _of_namespace("controls")
"""Hash, with a ledger: `KIND:NAME` of a rule or a definition -> the time of its last change; and
how far they agree with the ledger (`ledger/comparing/reinstating.py`)."""
unrecorded = _of_namespace("unrecorded")
"""Zset, with a ledger: `KIND:NAME` of a change that the ledger may lack -> its time."""
ledger = _of_namespace("ledger")
"""Hash, with a ledger: tells that it lost something (`ledger/comparing/older_ledger.py`)."""
allowances = _of_namespace("allowances")
"""Hash: place with a rate -> until when (us on Redis' clock) all that it saved up is spent."""
alarms = _of_namespace("alarms")
"""Hash: bucket, or `wiped` -> what a worker noticed (`store/namespace/history_alarm.py`), JSON."""
events = _of_namespace("events")
"""Channel: each second a `Beat` of every process, for `tail`."""
jobs = _of_namespace("jobs")
"""Hash: id -> the progress of a bulk verb over HTTP, JSON."""
audit = _of_namespace("audit")
"""Stream: what administrators did over HTTP that cannot be undone; the last 10,000 or so."""
audit_others = _of_namespace("audit_others")
"""Stream: the same of all others."""
session_secret = _of_namespace("session_secret")
"""String: signs the sessions of browsers; all servers share it."""
sessions_ended = _of_namespace("sessions_ended")
"""Zset: number of a session that was logged out -> when it would end by itself, in epoch s."""
idempotency = _of_namespace("idempotency")
"""Zset: `token:bucket` of a source for one HTTP request -> when it is forgotten, in epoch ms."""
recurring = _of_namespace("recurring")
"""Hash: name -> a recurring definition, JSON."""
recurring_due = _of_namespace("recurring_due")
"""Zset: name of a definition -> when a worker looks at it, in ms on Redis' clock."""
recurring_state = _of_namespace("recurring_state")
"""Hash: name of a definition -> its progress, JSON."""
series = _of_namespace("series")
"""Hash: what workers counted in each of the last seconds, minutes and half hours, MessagePack."""
waits = _of_namespace("waits")
"""String without a meaning, on each server: what is written before a WAIT, which counts from it."""
offers = _of_namespace("offers")
"""Channel: the destination of a pull topic that has messages to receive."""
wake = _of_namespace("wake")
"""Channel: `bucket due_ms` when an idle owner must look again, `fleet` when shares change,
`destinations` when a rule changes."""
