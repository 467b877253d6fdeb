"""Commands for a whole namespace, without I/O: its record, its fleet; and Redis' clock and INFO."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from delaybridge.errors import StoreError
from delaybridge.store.namespace import rule_fields
from delaybridge.store.protocol import keys, replies
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.layout import Layout, record_text
from delaybridge.store.protocol.replies import Fleet
from delaybridge.store.protocol.verbs import Arg, Each, RedisCommand, Steps, as_received, plain

T = TypeVar("T")
KINDS = WORKER, INGEST, FRONT = "worker", "ingest", "front"  # of announced processes
UNRECORDED = 0  # the last argument of `set_rule` and `define`: the caller has no ledger


_KEYS = {
    WORKER: (keys.workers, keys.worker_info),
    INGEST: (keys.ingests, keys.ingest_info),
    FRONT: (keys.fronts, keys.front_info),
}


def born(namespace: str, layout: Layout, id: str) -> list[RedisCommand[Any]]:
    """Write the namespace's record if there is none, and read it: layout, birth id."""
    text = record_text(layout, id)
    written = plain("SET", keys.birth(namespace), text, "NX", parse=bool)
    return [written, read_layout(namespace)]


def read_birth(namespace: str) -> RedisCommand[tuple[int, str] | None]:
    """The namespace's record, None if there is none."""
    name = keys.birth(namespace)
    return plain("GET", name, parse=lambda reply: replies.read_birth(name, reply))


def relayout(namespace: str, before: Layout, after: Layout, id: str) -> RedisCommand[bool]:
    """Change the layout, if it is still `before`; False: another call was faster."""
    args = (record_text(before, id), record_text(after, id), keys.wake(namespace))
    return RedisCommand("relayout", (keys.birth(namespace),), args, bool)


def read_layout(namespace: str) -> RedisCommand[tuple[Layout, str] | None]:
    """Layout and birth id, by the namespace's record; None if there is none."""
    name = keys.birth(namespace)
    return plain("GET", name, parse=lambda reply: replies.read_layout(name, reply))


def announce(
    namespace: str,
    name: str,
    instance: str,
    ttl_ms: int,
    info: bytes = b"",
    *,
    kind: str = WORKER,
    now_ms: int | None = None,
    clock_ms: int | None = None,
    knows_ousted: bool = False,
) -> RedisCommand[Fleet]:
    """Announce this process among those of its kind for `ttl_ms`; with ttl_ms=0, withdraw it.

    clock_ms: the caller's own steady clock, as far as it takes it for the store's. knows_ousted: it
    need not be told that a fellow took it for dead.
    """
    times = ["" if each is None else each for each in (now_ms, clock_ms)]
    knows = "1" if knows_ousted else ""
    args = (times[0], name, instance, ttl_ms, info, keys.wake(namespace), times[1], knows)
    return RedisCommand("announce", _members(namespace, kind), args, replies.read_fleet)


def oust(namespace: str, name: str, instance: str, expires_ms: int, by: str) -> RedisCommand[int]:
    """End a worker's announcement, if it is still the one that ends then.

    by: the worker that found it gone. Answers 1 if it is over by that one, 2 otherwise, and 0 if it
    is not over.
    """
    args = (name, instance, expires_ms, json.dumps(by), keys.wake(namespace))
    return RedisCommand("oust", _members(namespace, WORKER), args, int)


def fleet(namespace: str, kind: str = WORKER) -> list[RedisCommand[Any]]:
    """The announcements of the processes of this kind, and when each expires."""
    members, info = _members(namespace, kind)
    return [
        plain("HGETALL", info, parse=replies.read_mapping),
        plain("ZRANGE", members, 0, -1, "WITHSCORES", parse=as_received),
    ]


def announcements(namespace: str, names: Sequence[str]) -> RedisCommand[list[bytes | None]]:
    """What these workers have announced, as it is stored."""
    return plain("HMGET", keys.worker_info(namespace), *names, parse=as_received)


def _members(namespace: str, kind: str) -> tuple[str, str]:
    members, info = _KEYS[kind]
    return members(namespace), info(namespace)


def set_rule(
    namespace: str,
    place: str,
    before: bytes,
    after: bytes,
    *,
    fields: Iterable[str] = (),
    limit: int,
) -> RedisCommand[int]:
    """Set the rule of a place if it is still `before`; empty: there is none, remove it.

    fields: those that are set, or removed, perhaps to what they are already (`rule_fields`).
    Answers 1 if it is set, 0 if another call was faster, -1 if there are `limit` rules already.
    """
    here = rule_fields.parts(after)
    kept, gone = (
        " ".join(each for each in sorted(fields) if (each in here) is is_here)
        for is_here in (True, False)
    )
    args = (place, before, after, limit, keys.wake(namespace), kept, gone, "", UNRECORDED)
    names = keys.destinations, keys.controls, keys.unrecorded
    return RedisCommand("set_rule", tuple(of(namespace) for of in names), args, written)


def written(reply: Sequence[int]) -> int:
    """The answer to `set_rule` or `define`, without the time of the change."""
    return int(reply[0])


def allow(
    namespace: str,
    wanted: Iterable[tuple[int, Sequence[tuple[str, float]]]],
    *,
    now_ms: int | None = None,
) -> RedisCommand[list[tuple[int, int]]]:
    """Ask for messages of destinations: how many, and the (place, messages/s) each must keep to.

    Answers for each how many are granted, and in how many ms one more can be. What is granted in
    any time, to all callers together, is at most rate x (time + 0.2 s) + 1. Sent again after a lost
    reply, it may grant less.
    """
    args: list[Arg] = ["" if now_ms is None else now_ms]
    for want, places in wanted:
        for number, (place, rate) in enumerate(places):
            args += ("" if number else want, place, repr(rate))
    return RedisCommand("allow", (keys.allowances(namespace),), args, replies.read_allowed)


def record(
    namespace: str,
    worker: str,
    instance: str,
    number: int,
    sample: bytes,
    *,
    now_ms: int | None = None,
) -> RedisCommand[bool]:
    """Add what a worker counted since its last sample to the series; False: it had been added.

    number: of the sample; it grows from 1; 0 adds nothing. sample: MessagePack, as
    `lua/record.lua` describes it.
    """
    args = ("" if now_ms is None else now_ms, worker, instance, number, sample)
    return RedisCommand("record", (keys.series(namespace),), args, bool)


def probe(bucket: Bucket, parse: Callable[[Any], T]) -> RedisCommand[T]:
    """Ask a bucket's server for the error of a write, empty if it would be done; writes nothing."""
    return RedisCommand("probe", (bucket.key("due"),), ("",), parse)


def probe_home(namespace: str) -> RedisCommand[str]:
    """The same of the namespace's own server."""
    return RedisCommand("probe", (keys.workers(namespace),), ("",), replies.read_text)


def buckets_of(namespace: str) -> Steps[list[Bucket]]:
    """All buckets; none if the namespace's record cannot be read."""
    (record,) = yield Each([read_layout(namespace)])
    if record is None or isinstance(record, StoreError):
        return []
    layout, birth = record
    return [Bucket(namespace, number, birth) for number in layout.here.numbers]


def store_time(near: str = "") -> RedisCommand[int]:
    """Redis' clock in microseconds since the epoch. near: a key; the clock of its server."""
    return plain("TIME", parse=_read_time, near=near)


def _read_time(reply: Sequence[bytes]) -> int:
    return int(reply[0]) * 1_000_000 + int(reply[1])


def info(section: str, near: str = "") -> RedisCommand[dict[str, str]]:
    """One section of INFO, of the server that has the key `near`."""
    return plain("INFO", section, parse=replies.read_info, near=near)
