"""Whether the Redis user may do its work, tried command by command before a message depends on it.

The commands of a role are those in the sources of its scripts, and the plain ones named here. Each
is really called, on keys of a bucket number that no namespace uses, all in one pipeline.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from delaybridge.errors import StoreDenied, StoreError, StoreUnavailable
from delaybridge.settings.namespace import MAX_BUCKETS
from delaybridge.store import keys
from delaybridge.store.command import Each, RedisCommand, Steps, plain
from delaybridge.store.keys import SCRIPT_KEYS
from delaybridge.store.scripts import scripts
from delaybridge.store.verbs import Bucket

_CALLED = re.compile(r"redis\.call\('(\w+)'")
_EXPIRE_MS = 10_000  # how long test keys stay if DEL is denied


class Role(NamedTuple):
    """What one kind of process runs on Redis. verbs: scripts; plain: all other commands."""

    verbs: tuple[str, ...]
    plain: tuple[str, ...]


_OPENS = ("INFO", "GET", "SET")
_LOOKS = ("HLEN", "HMGET", "ZRANGE", "ZCARD")  # to find damage
_PRODUCES = ("schedule", "cancel", "reschedule", "get", "quarantine", "announce", "sample")
_OWNS = (
    "acquire", "renew", "release", "claim", "fire", "settle", "retry", "park", "unpark", "page",
    "bury", "reclaim", "trim", "announce", "allow", "schedule", "cancel", "define", "recur",
    "fence", "record",
)  # fmt: skip
ROLES = {
    "producer": Role(_PRODUCES, (*_OPENS, *_LOOKS)),
    "worker": Role(
        _OWNS, (*_OPENS, *_LOOKS, "TIME", "HGET", "HGETALL", "SUBSCRIBE", "UNSUBSCRIBE", "PING")
    ),
    "operator": Role(
        tuple(SCRIPT_KEYS),
        (
            *(*_OPENS, *_LOOKS, "TIME", "HGET", "HGETALL", "HSCAN", "PTTL", "DEL"),
            *("SUBSCRIBE", "UNSUBSCRIBE", "PING"),
        ),
    ),
}
"""producer: clients and ingest; operator: the command line, whose doctor runs every script."""

_HASH, _ZSET, _STRING = "messages", "due", "lease"
# Command -> one of a bucket's keys of its type, and the arguments after the key.
PROBES: dict[str, tuple[str, tuple[str | int, ...]]] = {
    "SET": (_STRING, ("x", "PX", 1)),
    "GET": (_STRING, ()),
    "EXISTS": (_STRING, ()),
    "PTTL": (_STRING, ()),
    "HSET": (_HASH, ("field", "1")),
    "HSETNX": (_HASH, ("field", "1")),
    "HINCRBY": (_HASH, ("field", 1)),
    "HGET": (_HASH, ("field",)),
    "HMGET": (_HASH, ("field",)),
    "HGETALL": (_HASH, ()),
    "HSCAN": (_HASH, (0,)),
    "HEXISTS": (_HASH, ("field",)),
    "HLEN": (_HASH, ()),
    "HRANDFIELD": (_HASH, (1,)),
    "HDEL": (_HASH, ("field",)),
    "ZADD": (_ZSET, (1, "member")),
    "ZSCORE": (_ZSET, ("member",)),
    "ZMSCORE": (_ZSET, ("member",)),
    "ZCARD": (_ZSET, ()),
    "ZCOUNT": (_ZSET, (0, 1)),
    "ZRANGE": (_ZSET, (0, 0)),
    "ZRANGEBYSCORE": (_ZSET, (0, 1)),
    "ZREM": (_ZSET, ("member",)),
    "ZREMRANGEBYSCORE": (_ZSET, (0, 1)),
    "PEXPIRE": (_STRING, (_EXPIRE_MS,)),
    "DEL": (_STRING, ()),
}
KEYLESS = {"TIME": (), "PING": (), "INFO": ("memory",)}
SUBSCRIBING = ("SUBSCRIBE", "UNSUBSCRIBE")


def commands_of(role: Role) -> list[str]:
    """Every Redis command of a role, by name: those of its scripts and the plain ones."""
    called = {name for verb in role.verbs for name in _CALLED.findall(scripts()[verb][0])}
    return sorted(called.union(role.plain))


def check(namespace: str, role: str) -> Steps[None]:
    """Raise StoreDenied, with every right that the user lacks for this role."""
    if lacking := (yield from lacking_for(namespace, ROLES[role])):
        raise StoreDenied(
            f"redis: the user lacks rights that a {role} needs: {', '.join(lacking)}; "
            "see docs/keys.md"
        )


def lacking_for(namespace: str, role: Role) -> Steps[list[str]]:
    """The rights that the user lacks, as an ACL writes them: `+hdel`, `~{ns:*`.

    Leaves no keys behind. StoreUnavailable if Redis does not answer.
    """
    bucket = Bucket(namespace, MAX_BUCKETS + 1, "rights")
    asked = list(_asked(bucket, namespace, commands_of(role)))
    cleanup: list[RedisCommand[Any]] = [
        # If DEL is denied, the keys expire.
        *(plain("PEXPIRE", bucket.key(key), _EXPIRE_MS) for key in (_HASH, _ZSET)),
        plain("DEL", *(bucket.key(key) for key in keys.BUCKET_KEYS)),
    ]
    replies = yield Each([*(command for _, command in asked), *cleanup])
    lacking = []
    for (name, _), reply in zip(asked, replies, strict=False):
        if isinstance(reply, StoreUnavailable):
            raise reply
        if isinstance(reply, StoreDenied) or _is_unknown(reply):
            lacking.append(_in_acl(name, str(reply), namespace))
    return list(dict.fromkeys(lacking))


def _asked(
    bucket: Bucket, namespace: str, names: list[str]
) -> Iterator[tuple[str, RedisCommand[Any]]]:
    """(Name, harmless call) of each command; those that make a key before those that remove it."""
    channel = keys.wake(namespace)
    yield "EVALSHA", bucket.renew("rights", _EXPIRE_MS)
    yield "SCRIPT LOAD", plain("SCRIPT LOAD", scripts()["renew"][0])
    words: dict[str, tuple[str | int, ...]] = {
        **{name: (bucket.key(key), *args) for name, (key, args) in PROBES.items()},
        **KEYLESS,
        "PUBLISH": (channel, "fleet"),
        # Not the fleet's own channel: its messages would come between two replies.
        **dict.fromkeys(SUBSCRIBING, (f"{channel}:rights",)),
    }
    yield from ((name, plain(name, *words[name])) for name in words if name in names)
    # Every key of a bucket, and one of the namespace: a key pattern may leave some out.
    of_bucket = [bucket.key(name) for name in keys.BUCKET_KEYS]
    for key in (*of_bucket, f"{keys.workers(namespace)}:rights"):
        yield "GET", plain("GET", key)


def _is_unknown(reply: object) -> bool:
    return isinstance(reply, StoreError) and "unknown command" in str(reply).lower()


def _in_acl(name: str, why: str, namespace: str) -> str:
    # Each version of Redis has its own words: "one of the keys", "a key". The text also holds the
    # user's name, so the match has to be this narrow.
    if re.search(r"to access .*\bkeys?\b", why):
        return f"~{{{namespace}:* ~{{{namespace}}}*"
    if re.search(r"to access .*\bchannels?\b", why):
        return f"&{{{namespace}}}*"
    return f"+{name.lower().replace(' ', '|')}"
