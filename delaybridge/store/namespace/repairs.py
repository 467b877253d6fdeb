"""Repairs: in words, what owners found when the keys of a bucket contradicted one another.

The counts are kept in Redis, so they outlive the worker that found them; operators clear them.
"""

from __future__ import annotations

from collections.abc import Mapping

from delaybridge.errors import StoreError
from delaybridge.store.namespace import registry
from delaybridge.store.namespace.orphans import TOTALS, Orphans, commands, orphans_of
from delaybridge.store.namespace.translatable import Sentence
from delaybridge.store.protocol.command import Each, Steps, grouped, plain
from delaybridge.store.protocol.verbs import Bucket
from delaybridge.times import format_time

RELEASE = "delaybridge message publish-now --state parked --reason orphaned --yes"
_NAMED = 10  # buckets


def read(namespace: str) -> Steps[dict[int, Orphans]]:
    """Bucket -> what was mended there; nothing of a namespace whose record cannot be read."""
    buckets = yield from buckets_of(namespace)
    replies = yield from grouped([commands(bucket) for bucket in buckets])
    found = {b.number: orphans_of(*each) for b, each in zip(buckets, replies, strict=True)}
    return {number: each for number, each in found.items() if each.at_ms}


def clear(namespace: str) -> Steps[bool]:
    """Forget it; whether there was anything. What is held back stays so."""
    buckets = yield from buckets_of(namespace)
    gone = yield Each([plain("HDEL", b.key("marks"), *TOTALS, parse=int) for b in buckets])
    return any(each for each in gone if not isinstance(each, StoreError))


def buckets_of(namespace: str) -> Steps[list[Bucket]]:
    """All buckets; none if the namespace's record cannot be read."""
    (record,) = yield Each([registry.read_birth(namespace)])
    if record is None or isinstance(record, StoreError):
        return []
    return [Bucket(namespace, number, record[1]) for number in range(record[0])]


def summed(found: Mapping[int, Orphans]) -> Orphans:
    """Of all buckets."""
    columns = zip(*found.values(), strict=True)
    at_ms, *counts = columns if found else [(0,)] * len(Orphans._fields)
    return Orphans(max(at_ms), *map(sum, counts))


def told(found: Mapping[int, Orphans]) -> str:
    """In one sentence what was found; empty if nothing was."""
    return str(sentence(found)) if found else ""


def sentence(found: Mapping[int, Orphans]) -> Sentence:
    """The same of at least one bucket. found: bucket -> what was mended there."""
    counts = {name: f"{count:,}" for name, count in summed(found)._asdict().items()}
    told = {name: counts[name] for name in ("due", "dead", "parked", "bare", "other")}
    return Sentence(
        "keys were lost in buckets {buckets}: {due} messages are delayed again, "
        "{dead} are dead again, {parked} were held back, {bare} lost their body and are dead, "
        "{other} other entries were mended, at {time}",
        {**told, "buckets": _numbers([*found]), "time": format_time(summed(found).at_ms)},
    )


def held(found: Mapping[int, Orphans]) -> Sentence:
    """Of at least one bucket with orphans that wait for the operator."""
    told = {"count": f"{summed(found).waiting:,}", "buckets": _numbers([*found])}
    return Sentence(
        "{count} messages of buckets {buckets} were found over an hour late and are held back", told
    )


def _numbers(buckets: list[int]) -> str:
    shown = ", ".join(map(str, buckets[:_NAMED]))
    return f"{shown}, …" if len(buckets) > _NAMED else shown
