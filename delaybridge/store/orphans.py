"""Orphans: what became of messages that were in no set of their bucket, as its marks tell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from delaybridge.store import replies
from delaybridge.store.command import RedisCommand, plain
from delaybridge.store.verbs import Bucket

ORPHANED = 2**52  # added to the score of one that is parked for the operator


class Orphans(NamedTuple):
    """at_ms: when something was mended last. waiting: how many wait for the operator now."""

    at_ms: int = 0
    due: int = 0
    dead: int = 0
    parked: int = 0
    bare: int = 0
    other: int = 0
    waiting: int = 0


FIELDS = tuple(f"orphans_{'ms' if name == 'at_ms' else name}" for name in Orphans._fields[:-1])


def commands(bucket: Bucket) -> list[RedisCommand[Any]]:
    """Read them; for `parse`."""
    return [
        plain("HMGET", bucket.key("marks"), *FIELDS),
        plain("ZCOUNT", bucket.key("parked"), ORPHANED, "+inf", parse=int),
    ]


def parse(mended: Sequence[Any] | None, waiting: int | None) -> Orphans:
    """The replies to `commands`; None for one of a damaged key."""
    counts = [replies.read_count(each) for each in mended or [None] * len(FIELDS)]
    return Orphans._make([*counts, waiting or 0])
