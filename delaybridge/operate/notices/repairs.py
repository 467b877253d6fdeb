"""Repairs: in words, what owners found when the keys of a bucket contradicted one another.

The counts are kept in Redis, so they outlive the worker that found them; operators clear them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from delaybridge.errors import StoreError
from delaybridge.store.namespace import registry
from delaybridge.store.namespace.orphans import waiting
from delaybridge.store.namespace.translatable import Sentence, some
from delaybridge.store.protocol import replies
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.verbs import Each, RedisCommand, Steps, grouped, plain
from delaybridge.times import format_time

_NAMED = 10  # buckets


TOTALS = ("orphans_ms", "orphans_due", "orphans_dead", "orphans_parked", "orphans_bare",
          "orphans_other")  # fmt: skip
"""Fields of a bucket's marks: what was mended, for people."""


class Orphans(NamedTuple):
    """What was mended in a bucket so far, as in `Mended`. at_ms: when last, 0 if never.

    waiting: parked orphans that wait for an operator now.
    """

    at_ms: int = 0
    due: int = 0
    dead: int = 0
    parked: int = 0
    bare: int = 0
    other: int = 0
    waiting: int = 0


def read(namespace: str) -> Steps[dict[int, Orphans]]:
    """Bucket -> what was mended there; nothing of a namespace whose record cannot be read."""
    buckets = yield from registry.buckets_of(namespace)
    answers = yield from grouped([commands(bucket) for bucket in buckets])
    found = {b.number: orphans_of(*each) for b, each in zip(buckets, answers, strict=True)}
    return {number: each for number, each in found.items() if each.at_ms}


def clear(namespace: str) -> Steps[bool]:
    """Forget what was mended; whether there was anything. Messages held back stay so."""
    buckets = yield from registry.buckets_of(namespace)
    gone = yield Each([plain("HDEL", b.key("marks"), *TOTALS, parse=int) for b in buckets])
    return any(each for each in gone if not isinstance(each, StoreError))


def summed(found: Mapping[int, Orphans]) -> Orphans:
    """The sums over all buckets."""
    columns = zip(*found.values(), strict=True)
    at_ms, *counts = columns if found else [(0,)] * len(Orphans._fields)
    return Orphans(max(at_ms), *map(sum, counts))


def mended_text(found: Mapping[int, Orphans]) -> str:
    """One sentence about what was mended; empty if nothing was."""
    return str(sentence(found)) if found else ""


def sentence(found: Mapping[int, Orphans]) -> Sentence:
    """The sentence about one bucket or more. found: bucket -> what was mended there."""
    counts = {name: f"{count:,}" for name, count in summed(found)._asdict().items()}
    told = {name: counts[name] for name in ("due", "dead", "parked", "bare", "other")}
    return Sentence(
        "keys were lost in buckets {buckets}: {due} messages are delayed again, "
        "{dead} are dead again, {parked} were held back, {bare} lost their body and are dead, "
        "{other} other entries were mended, at {time}",
        {**told, "buckets": some([*found], _NAMED), "time": format_time(summed(found).at_ms)},
    )


def held(found: Mapping[int, Orphans]) -> Sentence:
    """The sentence about the orphans that wait for the operator, of one bucket or more."""
    told = {"count": f"{summed(found).waiting:,}", "buckets": some([*found], _NAMED)}
    return Sentence(
        "{count} messages of buckets {buckets} were found over an hour late and are held back", told
    )


def listing(bucket: Bucket) -> list[RedisCommand[int]]:
    """How many messages each set lists, and what else `unlisted` reads."""
    return [
        *bucket.sizes(),
        plain("HLEN", bucket.key("messages"), parse=int),
        plain("HGET", bucket.key("marks"), "bare", parse=replies.read_count),
    ]


def unlisted(sizes: Sequence[int | None]) -> int:
    """How many messages are in no set, by the replies to `listing`; 0 if a key is damaged.

    Other calls may come between two of these commands: who finds some looks once more.
    """
    if any(size is None for size in sizes):
        return 0
    *listed, records, bare = map(int, sizes)  # type: ignore[arg-type]
    return max(0, records - sum(listed) + bare)


def commands(bucket: Bucket) -> list[RedisCommand[Any]]:
    """The commands whose replies `orphans_of` reads."""
    totals = plain("HMGET", bucket.key("marks"), *TOTALS, parse=_read_totals)
    return [totals, waiting(bucket)]


def orphans_of(totals: Sequence[int] | StoreError, waiting: int | StoreError) -> Orphans:
    """What the replies to `commands` tell; of a damaged key nothing."""
    known = Orphans() if isinstance(totals, StoreError) else Orphans(*totals)
    return known if isinstance(waiting, StoreError) else known._replace(waiting=waiting)


def _read_totals(reply: Sequence[bytes | None]) -> list[int]:
    return [replies.read_count(each) for each in reply]
