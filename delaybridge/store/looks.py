"""Plain commands that look at one bucket: counts, the lease's holder, what fails and why."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from delaybridge.store import replies
from delaybridge.store.command import Command, plain
from delaybridge.store.record import Failing
from delaybridge.store.verbs import Bucket


def counts(bucket: Bucket) -> list[Command[Any]]:
    """The commands behind `BucketStats`, in this order.

    Sizes of due, mirror, parked and dead; first score of due and of parked; the lease's holder
    and time left in ms; number of dead messages dropped.
    """
    sizes = [plain("ZCARD", bucket.key(k), parse=int) for k in ("due", "mirror", "parked", "dead")]
    heads = [
        plain("ZRANGE", bucket.key(k), 0, 0, "WITHSCORES", parse=replies.read_first_score)
        for k in ("due", "parked")
    ]
    lease: list[Command[Any]] = [
        holder(bucket),
        plain("PTTL", bucket.key("lease"), parse=int),
        plain("HGET", bucket.key("marks"), "dropped", parse=replies.read_count),
    ]
    return [*sizes, *heads, *lease]


def why_dead(bucket: Bucket, id: str) -> Command[str]:
    """Why it was buried; empty if unknown."""
    return plain("HGET", bucket.key("dead_reason"), id, parse=replies.read_text)


def holder(bucket: Bucket) -> Command[str | None]:
    """The worker that holds the lease, None if it is free."""
    return plain("GET", bucket.key("lease"), parse=replies.read_holder)


def failing(bucket: Bucket, most: int) -> Command[tuple[dict[bytes, Failing], bool]]:
    """About `most` messages whose last publish failed; and whether these are all of them."""
    asked = (0, "MATCH", "*\0", "COUNT", 2 * most)  # two fields each
    return plain("HSCAN", bucket.key("attempts"), *asked, parse=replies.read_failing)


def tried(bucket: Bucket, ids: Iterable[bytes]) -> Command[list[bytes | None]]:
    """The `attempts` entry of each id, None without one."""
    return plain("HMGET", bucket.key("attempts"), *ids)
