"""Whether the Redis user may do its work, tried command by command before a message depends on it.

The commands of a role are those in the sources of its scripts, and the plain ones named here. Each
is really called, on keys of a bucket number that no namespace uses, all in one pipeline.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from delaybridge.errors import StoreDenied, StoreError, StoreMisnamed, StoreUnavailable
from delaybridge.settings.namespace import MAX_BUCKETS
from delaybridge.store.namespace.namespace import refuse_eviction_anywhere
from delaybridge.store.namespace.placement import ONE_SERVER, Placement
from delaybridge.store.protocol import keys
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.command import (
    RedisCommand,
    Steps,
    as_received,
    grouped,
    plain,
    scripts,
)
from delaybridge.store.protocol.keys import SCRIPT_KEYS

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
    "acquire", "renew", "release", "claim", "fire", "settle", "retry", "park", "offer", "unpark",
    "page",
    "bury", "reclaim", "trim", "announce", "allow", "schedule", "cancel", "define", "recur",
    "fence", "record", "seal", "restore", "drop", "count", "mend", "reinstate",
)  # fmt: skip
ROLES = {
    "producer": Role(_PRODUCES, (*_OPENS, *_LOOKS)),
    "consumer": Role(
        (*_PRODUCES, "receive"),
        (*_OPENS, *_LOOKS, "ZRANGEBYLEX", "SUBSCRIBE", "UNSUBSCRIBE", "PING"),
    ),
    "worker": Role(
        _OWNS, (*_OPENS, *_LOOKS, "TIME", "HGET", "HGETALL", "SUBSCRIBE", "UNSUBSCRIBE", "PING")
    ),
    "operator": Role(
        tuple(SCRIPT_KEYS),
        (
            *(*_OPENS, *_LOOKS, "TIME", "HGET", "HGETALL", "HSCAN", "PTTL", "DEL"),
            *("SUBSCRIBE", "UNSUBSCRIBE", "PING", "XADD", "XREVRANGE", "ZRANGEBYLEX"),
        ),
    ),
}
"""producer: clients and ingest; consumer: clients that receive; operator: the command line,
whose doctor runs every script."""

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
    "ZSCAN": (_ZSET, (0,)),
    "ZCARD": (_ZSET, ()),
    "ZCOUNT": (_ZSET, (0, 1)),
    "ZRANGE": (_ZSET, (0, 0)),
    "ZRANGEBYSCORE": (_ZSET, (0, 1)),
    "ZRANGEBYLEX": (_ZSET, ("-", "+")),
    "ZREM": (_ZSET, ("member",)),
    "ZREMRANGEBYSCORE": (_ZSET, (0, 1)),
    "PEXPIRE": (_STRING, (_EXPIRE_MS,)),
    "XADD": (_STRING, ("NOMKSTREAM", "*", "field", "1")),
    "XREVRANGE": (_STRING, ("+", "-")),
    "DEL": (_STRING, ()),
}
KEYLESS = {"TIME": (), "PING": (), "INFO": ("memory",)}
SUBSCRIBING = ("SUBSCRIBE", "UNSUBSCRIBE")
SHARDED = ("SPUBLISH",)  # used on a Cluster; Redis 6.2 does not have it
SHARDED_SUBSCRIBING = ("SSUBSCRIBE", "SUNSUBSCRIBE")
OF_A_CLUSTER = ("CLUSTER SLOTS", "CLUSTER INFO", "ASKING")
_LOAD, _EXISTS, _CLEANUP = "SCRIPT LOAD", "SCRIPT EXISTS", "cleanup"
_TRIED = 100_000  # numbers, to find one on a server that has few slots


def commands_of(role: Role) -> list[str]:
    """Every Redis command of a role, by name: those of its scripts and the plain ones."""
    called = {name for verb in role.verbs for name in _CALLED.findall(scripts()[verb][0])}
    return sorted(called.union(role.plain).difference(SHARDED))


def clustered(role: Role) -> list[str]:
    """What a role runs on a Cluster besides."""
    return [*SHARDED, *(SHARDED_SUBSCRIBING if "SUBSCRIBE" in role.plain else ())]


def check(namespace: str, role: str, placement: Placement = ONE_SERVER) -> Steps[None]:
    """Raise StoreDenied, with every right that the user lacks for this role on any master.

    Raises ConfigError if a master evicts keys when it is full.
    """
    if lacking := (yield from lacking_for(namespace, ROLES[role], placement)):
        raise StoreDenied(
            f"redis: the user lacks rights that a {role} needs: {', '.join(lacking)}; "
            "see docs/security.md"
        )
    yield from refuse_eviction_anywhere(placement)


def lacking_for(namespace: str, role: Role, placement: Placement = ONE_SERVER) -> Steps[list[str]]:
    """The rights that the user lacks, as an ACL writes them: `+hdel`, `~{ns:*`.

    Tried on every master that answers: each has its own users. Leaves no keys behind.
    StoreUnavailable if none answers. The right to load scripts is not needed where all of them are
    loaded, which the user may ask.
    """
    nodes = [*placement.nodes()] or [""]
    asked = [list(_asked(_bucket_at(node, namespace, placement), namespace, role, node))
             for node in nodes]  # fmt: skip
    replies = yield from grouped([[command for _, command in each] for each in asked])
    answers = dict(zip(nodes, zip(asked, replies, strict=True), strict=True))
    # Whether it answers shows in the first command; others may be for the namespace's own server.
    silent = {n: own[0] for n, (_, own) in answers.items() if isinstance(own[0], StoreUnavailable)}
    if len(silent) == len(nodes):
        raise silent[nodes[0]]
    lacking: dict[str, list[str]] = {}
    for node in answers.keys() - silent.keys():
        names, own = answers[node]
        for right in dict.fromkeys(_refused([name for name, _ in names], own, namespace)):
            lacking.setdefault(right, []).append(node)
    everywhere = len(nodes) - len(silent)
    return [
        right if len(on) == everywhere else f"{right} (on {', '.join(sorted(on))})"
        for right, on in lacking.items()
    ]


def _bucket_at(node: str, namespace: str, placement: Placement) -> Bucket:
    """A bucket that no namespace uses, on this server."""
    for number in range(MAX_BUCKETS + 1, MAX_BUCKETS + _TRIED):
        if placement.node_of(keys.bucket_key(namespace, number, "lease")) == node:
            break
    return Bucket(namespace, number, "rights")


def _refused(names: Sequence[str], answers: Sequence[Any], namespace: str) -> Iterator[str]:
    loaded = dict(zip(names, answers, strict=True)).get(_EXISTS)
    is_loaded = isinstance(loaded, list) and all(loaded)
    for name, reply in zip(names, answers, strict=True):
        if isinstance(reply, StoreMisnamed):
            raise reply
        if not isinstance(reply, StoreDenied) and not _is_unknown(reply):
            continue
        if name in (_EXISTS, _CLEANUP) or (name == _LOAD and is_loaded):
            continue
        if name in (*SHARDED, *SHARDED_SUBSCRIBING) and _is_unknown(reply):
            continue  # Redis 6.2: its Clusters wake workers by plain channels
        yield _in_acl(_LOAD if "'script" in str(reply) else name, str(reply), namespace)


def _asked(
    bucket: Bucket, namespace: str, role: Role, node: str
) -> Iterator[tuple[str, RedisCommand[Any]]]:
    """(Name, harmless call) of each command; those that make a key before those that remove it."""
    names, near = commands_of(role), bucket.key("lease")
    yield "EVALSHA", bucket.renew("rights", _EXPIRE_MS)
    yield _LOAD, plain(_LOAD, scripts()["renew"][0], near=near)
    yield _EXISTS, plain(_EXISTS, *(scripts()[verb][1] for verb in role.verbs), near=near)
    channel = keys.wake(namespace)
    words: dict[str, tuple[str | int, ...]] = {
        **{name: (bucket.key(key), *args) for name, (key, args) in PROBES.items()},
        **KEYLESS,
        "PUBLISH": (channel, "fleet"),
        # Not the fleet's own channel: its messages would come between two replies.
        **dict.fromkeys(SUBSCRIBING, (f"{channel}:rights",)),
    }
    if node:
        own = keys.bucket_key(namespace, bucket.number, "wake", bucket.birth)
        words |= {"SPUBLISH": (own, "0 0"), **dict.fromkeys(SHARDED_SUBSCRIBING, (own,))}
        names = [*names, *clustered(role)]
    for name in (name for name in words if name in names):
        # Sent to this server: a channel's name would lead to another.
        yield name, RedisCommand(name, (near,), words[name], as_received, is_plain=True)
    if node:
        yield from ((name, plain(name, near=near)) for name in OF_A_CLUSTER)
    # Every key of a bucket, and one of the namespace: a key pattern may leave some out.
    for key in (bucket.key(name) for name in keys.BUCKET_KEYS):
        yield "GET", plain("GET", key)
    yield "GET", plain("GET", f"{keys.workers(namespace)}:rights")
    for key in (_HASH, _ZSET):  # if DEL is denied, the keys expire
        yield _CLEANUP, plain("PEXPIRE", bucket.key(key), _EXPIRE_MS)
    yield _CLEANUP, plain("DEL", *(bucket.key(key) for key in keys.BUCKET_KEYS))


def _is_unknown(reply: object) -> bool:
    return isinstance(reply, StoreError) and "unknown command" in str(reply).lower()


def _in_acl(name: str, why: str, namespace: str) -> str:
    # Each version of Redis has its own words: "one of the keys", "a key". The text also holds the
    # user's name, so the match has to be this narrow.
    what = why.partition("to access ")[2]
    if re.search(r"\bkeys?\b", what):
        return f"~{{{namespace}:* ~{{{namespace}}}*"
    if re.search(r"\bchannels?\b", what):
        return f"&{{{namespace}:* &{{{namespace}}}*"
    return f"+{name.lower().replace(' ', '|')}"
