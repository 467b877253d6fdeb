"""Whether the Redis user may do its work, tried command by command before a message depends on it.

The commands of a role are those in the sources of its scripts, and the plain ones named here. Each
is really called, on keys of a bucket number that no namespace uses, all in one pipeline.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from delaybridge.errors import StoreDenied, StoreError, StoreFull, StoreMisnamed, StoreUnavailable
from delaybridge.store.calls import Calls
from delaybridge.store.namespace.placement import ONE_SERVER, Placement
from delaybridge.store.protocol import keys
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.keys import SCRIPT_KEYS
from delaybridge.store.protocol.layout import UNUSED
from delaybridge.store.protocol.scripts import scripts
from delaybridge.store.protocol.verbs import RedisCommand, Steps, as_received, grouped, plain
from delaybridge.worker.parts import Part

_CALLED = re.compile(r"redis\.call\('(\w+)'")
_EXPIRE_MS = 10_000  # how long test keys stay if DEL is denied


_PRODUCES = (
    "schedule", "schedule_one", "cancel", "reschedule", "get", "quarantine", "announce", "sample",
    "probe", "land",
)  # fmt: skip
_OWNS = (
    "acquire", "renew", "release", "claim", "fire", "settle", "retry", "park", "offer", "unpark",
    "page", "schedule", "schedule_one",
    "bury", "reclaim", "trim", "announce", "allow", "cancel", "define", "recur",
    "fence", "record", "seal", "restore", "drop", "count", "mend", "reinstate", "probe",
    "oust", "begin", "lift", "land", "retire", "relayout",
)  # fmt: skip
ROLES: dict[str, tuple[str, ...]] = {
    "producer": _PRODUCES,
    "consumer": (*_PRODUCES, "receive"),
    "front": _PRODUCES,
    "worker": _OWNS,
    "operator": tuple(SCRIPT_KEYS),
}
"""The scripts of each kind of process. producer: clients and ingest; consumer: clients that
receive; front: fronts and their ingest; operator: the command line, whose doctor runs every
script."""

_ALL, _LISTENS, _READS, _OPERATES = "pcfwo", "cfwo", "fwo", "o"  # first letters of roles
_HASH, _ZSET, _STRING, _KEYLESS = "messages", "due", "lease", ""
_CHANNEL, _SHARDED = "channel", "sharded channel"


class Allowed(NamedTuple):
    """A command that Redis must allow, and how it is tried.

    on: one of a bucket's keys, or what it is about instead. args: after the key. by: the first
    letters of the roles that send it, besides those whose scripts call it.
    """

    on: str
    args: tuple[str | int, ...] = ()
    by: str = ""


COMMANDS = {
    "SET": Allowed(_STRING, ("x", "PX", 1), _ALL),
    "GET": Allowed(_STRING, (), _ALL),
    "EXISTS": Allowed(_STRING),
    "TYPE": Allowed(_STRING),
    "PTTL": Allowed(_STRING, (), _OPERATES),
    "HSET": Allowed(_HASH, ("field", "1")),
    "HSETNX": Allowed(_HASH, ("field", "1")),
    "HINCRBY": Allowed(_HASH, ("field", 1)),
    "RENAME": Allowed(_HASH, (_HASH,)),  # it exists: of what does not, RENAME is an error
    "HGET": Allowed(_HASH, ("field",), _READS),
    "HMGET": Allowed(_HASH, ("field",), _ALL),
    "HGETALL": Allowed(_HASH, (), _READS),
    "HSCAN": Allowed(_HASH, (0,), _OPERATES),
    "HSTRLEN": Allowed(_HASH, ("field",)),
    "HEXISTS": Allowed(_HASH, ("field",)),
    "HLEN": Allowed(_HASH, (), _ALL),
    "HRANDFIELD": Allowed(_HASH, (1,)),
    "HDEL": Allowed(_HASH, ("field",)),
    "ZADD": Allowed(_ZSET, (1, "member")),
    "ZSCORE": Allowed(_ZSET, ("member",)),
    "ZMSCORE": Allowed(_ZSET, ("member",)),
    "ZSCAN": Allowed(_ZSET, (0,)),
    "ZCARD": Allowed(_ZSET, (), _ALL),
    "ZCOUNT": Allowed(_ZSET, (0, 1)),
    "ZRANGE": Allowed(_ZSET, (0, 0), _ALL),
    "ZRANGEBYSCORE": Allowed(_ZSET, (0, 1)),
    "ZREVRANGEBYSCORE": Allowed(_ZSET, (1, 0)),
    "ZRANGEBYLEX": Allowed(_ZSET, ("-", "+"), "co"),
    "ZREM": Allowed(_ZSET, ("member",)),
    "ZREMRANGEBYSCORE": Allowed(_ZSET, (0, 1)),
    "PEXPIRE": Allowed(_STRING, (_EXPIRE_MS,)),
    "XADD": Allowed(_STRING, ("NOMKSTREAM", "*", "field", "1"), _OPERATES),
    "XREVRANGE": Allowed(_STRING, ("+", "-"), _OPERATES),
    "UNLINK": Allowed(_STRING),
    "DEL": Allowed(_STRING, (), _OPERATES),
    "TIME": Allowed(_KEYLESS, (), _READS),
    "PING": Allowed(_KEYLESS, (), _LISTENS),
    "INFO": Allowed(_KEYLESS, ("memory",), _ALL),
    "PUBLISH": Allowed(_CHANNEL, ("fleet",)),
    "SUBSCRIBE": Allowed(_CHANNEL, (), _LISTENS),
    "UNSUBSCRIBE": Allowed(_CHANNEL, (), _LISTENS),
    "SPUBLISH": Allowed(_SHARDED, ("0 0",), _ALL),
    "SSUBSCRIBE": Allowed(_SHARDED, (), _LISTENS),
    "SUNSUBSCRIBE": Allowed(_SHARDED, (), _LISTENS),
}
"""What Redis must allow; those that make a key come before those that remove it."""
OF_A_CLUSTER = ("CLUSTER SLOTS", "CLUSTER INFO", "ASKING")
_LOAD, _EXISTS, _CLEANUP = "SCRIPT LOAD", "SCRIPT EXISTS", "cleanup"
_TRIED = 100_000  # numbers, to find one on a server that has few slots


def commands_of(role: str) -> list[str]:
    """Every Redis command of a role, by name: those of its scripts and those it sends itself."""
    called = {name for verb in ROLES[role] for name in _CALLED.findall(scripts()[verb][0])}
    sent = {name for name, each in COMMANDS.items() if role[0] in each.by}
    return sorted(name for name in called | sent if COMMANDS[name].on != _SHARDED)


def clustered(role: str) -> list[str]:
    """What a role runs on a Cluster besides; Redis 6.2 does not have it."""
    return [name for name, of in COMMANDS.items() if of.on == _SHARDED and role[0] in of.by]


class RightsCheck(Part):
    """At the start of a process: whether its Redis user may do its work. role: one of ROLES."""

    name = "rights"

    def __init__(self, role: str) -> None:
        self._role = role

    def check(self, calls: Calls) -> Steps[None]:
        """Raise StoreDenied, with every right that the user lacks for the role on any master."""
        if lacking := (yield from lacking_for(calls.namespace, self._role, calls.placement)):
            raise StoreDenied(
                f"redis: the user lacks rights that a {self._role} needs: {', '.join(lacking)}; "
                "see docs/security.md"
            )


def lacking_for(namespace: str, role: str, placement: Placement = ONE_SERVER) -> Steps[list[str]]:
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
    for number in range(UNUSED, UNUSED + _TRIED):
        if placement.node_of(keys.bucket_key(namespace, number, "lease")) == node:
            break
    return Bucket(namespace, number, "rights")


def _refused(names: Sequence[str], answers: Sequence[Any], namespace: str) -> Iterator[str]:
    by_name = dict(zip(names, answers, strict=True))
    loaded = by_name.get(_EXISTS)
    is_loaded = isinstance(loaded, list) and all(loaded)
    may_not_load = isinstance(by_name.get(_LOAD), StoreDenied) and not is_loaded
    for name, reply in _lacked(names, answers):
        if name in (_EXISTS, _CLEANUP) or (name == _LOAD and is_loaded):
            continue
        if name in COMMANDS and COMMANDS[name].on == _SHARDED and _is_unknown(reply):
            continue  # Redis 6.2: its Clusters wake workers by plain channels
        yield _in_acl(_LOAD if name == "EVALSHA" and may_not_load else name, str(reply), namespace)


def _lacked(names: Sequence[str], answers: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    still_subscribed = False  # then Redis refuses all else
    takes_writes = not any(isinstance(each, StoreFull) for each in answers)  # else keys are missing
    for name, reply in zip(names, answers, strict=True):
        if isinstance(reply, StoreMisnamed):
            raise reply
        is_denied = isinstance(reply, StoreDenied)
        if is_denied or _is_unknown(reply):
            still_subscribed |= name in ("UNSUBSCRIBE", "SUNSUBSCRIBE")
            # A script fails for a command that it may not call: that is tried by itself.
            if is_denied or (takes_writes and not (name == "EVALSHA" or still_subscribed)):
                yield name, reply


def _asked(
    bucket: Bucket, namespace: str, role: str, node: str
) -> Iterator[tuple[str, RedisCommand[Any]]]:
    """(Name, harmless call) of each command; those that make a key before those that remove it."""
    near = bucket.key("lease")
    yield "EVALSHA", bucket.renew("rights", _EXPIRE_MS)
    yield _LOAD, plain(_LOAD, scripts()["renew"][0], near=near)
    yield _EXISTS, plain(_EXISTS, *(scripts()[verb][1] for verb in ROLES[role]), near=near)
    names = {*commands_of(role), *(clustered(role) if node else ())}
    for name in (name for name in COMMANDS if name in names):
        # Sent to this server: a channel's name would lead to another.
        args = _args(name, bucket, namespace)
        yield name, RedisCommand(name, (near,), args, as_received, is_plain=True)
    if node:
        yield from ((name, plain(name, near=near)) for name in OF_A_CLUSTER)
    # Every key of a bucket, and one of the namespace: a key pattern may leave some out.
    for key in (bucket.key(name) for name in keys.BUCKET_KEYS):
        yield "GET", plain("GET", key)
    yield "GET", plain("GET", f"{keys.workers(namespace)}:rights")
    for key in (_HASH, _ZSET):  # if DEL is denied, the keys expire
        yield _CLEANUP, plain("PEXPIRE", bucket.key(key), _EXPIRE_MS)
    yield _CLEANUP, plain("DEL", *(bucket.key(key) for key in keys.BUCKET_KEYS))


def _args(name: str, bucket: Bucket, namespace: str) -> tuple[str | int, ...]:
    """The words of the call that tries a command."""
    on, args, _ = COMMANDS[name]
    if on == _KEYLESS:
        return args
    if on == _CHANNEL:  # listening at the fleet's own, messages would come between two replies
        return (keys.wake(namespace) + ("" if args else ":rights"), *args)
    if on == _SHARDED:
        return (keys.bucket_key(namespace, bucket.number, "wake", bucket.birth), *args)
    return (bucket.key(on), *(bucket.key(on) if arg == on else arg for arg in args))


def _is_unknown(reply: object) -> bool:
    return type(reply) is StoreError  # Redis' ERR: any other code word has a class of its own


def _in_acl(name: str, why: str, namespace: str) -> str:
    # Each version of Redis has its own words: "one of the keys", "a key". The text also holds the
    # user's name, so the match has to be this narrow.
    what = why.partition("to access ")[2]
    if re.search(r"\bkeys?\b", what):
        return f"~{{{namespace}:* ~{{{namespace}}}*"
    if re.search(r"\bchannels?\b", what):
        return f"&{{{namespace}:* &{{{namespace}}}*"
    return f"+{name.lower().replace(' ', '|')}"
