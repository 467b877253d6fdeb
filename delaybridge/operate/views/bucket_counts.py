"""The counts of one bucket: which commands are asked, and how their replies are read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from delaybridge.errors import DecodeError, StoreError
from delaybridge.message import State
from delaybridge.operate.notices import repairs
from delaybridge.operate.notices.repairs import Orphans
from delaybridge.store.namespace.damage import Damage
from delaybridge.store.protocol import replies
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.record import ORPHAN_SCORE, since_ms
from delaybridge.store.protocol.replies import Row
from delaybridge.store.protocol.verbs import Each, RedisCommand, Steps, grouped, plain

WAITING = (State.DELAYED, State.PARKED, State.IN_FLIGHT)
_SIZES = 6  # replies to `repairs.listing`


class BucketStats(NamedTuple):
    """One bucket: its number and the number of its messages in each state.

    next_due_ms: the earliest due time in epoch milliseconds, None if nothing is delayed.
    overdue_ms: how late the oldest waiting message is, 0 if none is late; without those that a
    pause or a rate of their destination holds back. owner: the worker that
    holds the lease, None if it is free; lease_ms: the milliseconds until the lease expires.
    damage: keys with data that delaybridge did not write; they are not counted. dead_dropped: dead
    messages deleted because there were too many or they were too old. node: the Redis server that
    has it, on a Cluster. unseen: why nothing is known of the bucket now; all counts are 0 then.
    orphans: messages that were found in no set of the bucket, until an operator clears the alarm.
    unlisted: messages that are in no set now, so they count as nothing, and as overdue neither.
    """

    bucket: int
    delayed: int
    in_flight: int
    parked: int
    dead: int
    next_due_ms: int | None
    overdue_ms: int
    owner: str | None
    lease_ms: int | None
    damage: tuple[Damage, ...] = ()
    dead_dropped: int = 0
    node: str = ""
    unseen: str = ""
    orphans: Orphans = Orphans()
    unlisted: int = 0


def count_commands(bucket: Bucket) -> list[RedisCommand[Any]]:
    """The commands whose replies `bucket_stats` reads, in this order."""
    others: list[RedisCommand[Any]] = [
        plain("ZRANGE", bucket.key("due"), 0, 0, "WITHSCORES", parse=replies.read_first_score),
        bucket.holder(),
        plain("PTTL", bucket.key("lease"), parse=int),
        plain("HGET", bucket.key("marks"), "dropped", parse=replies.read_count),
    ]
    return [*repairs.listing(bucket), *others, *repairs.commands(bucket)]


def bucket_stats(bucket: Bucket, replies: list[Any], found: Iterable[Damage]) -> BucketStats:
    """The counts in the replies to `count_commands`, but for `overdue_ms`; see `late`.

    found: the bucket's damage.
    """
    # A damaged key is not counted, but listed as damage.
    *replies, totals, waiting = replies
    counts = [None if isinstance(reply, StoreError) else reply for reply in replies]
    delayed, in_flight, parked, dead, *_ = sizes = counts[:_SIZES]
    head, holder, left_ms, dropped = counts[_SIZES:]
    return BucketStats(
        bucket=bucket.number,
        delayed=delayed or 0,
        in_flight=in_flight or 0,
        parked=parked or 0,
        dead=dead or 0,
        next_due_ms=None if head is None else int(head),
        overdue_ms=0,
        owner=holder,
        lease_ms=left_ms if holder is not None else None,
        damage=tuple(found),
        dead_dropped=dropped or 0,
        orphans=repairs.orphans_of(totals, waiting),
        unlisted=repairs.unlisted(sizes),
    )


def late(
    buckets: Sequence[Bucket],
    counts: Sequence[BucketStats],
    now_ms: int,
    waiting: Collection[State] = WAITING,
) -> Steps[list[BucketStats]]:
    """The same counts with `overdue_ms`: looks at the first message where one may be late.

    waiting: messages of these states are overdue if they are late.
    """
    asked = [
        (at, bucket.page(state, limit=1))
        for at, (bucket, count) in enumerate(zip(buckets, counts, strict=True))
        for state in waiting
        if getattr(count, state) and (state is not State.DELAYED or _is_due(count, now_ms))
    ]
    found = [*counts]
    pages = (yield Each(command for _, command in asked)) if asked else []
    for (at, _), page in zip(asked, pages, strict=True):
        for row in () if isinstance(page, StoreError) else page[0]:
            if (from_ms := late_from_ms(row)) is not None:
                late_ms = max(found[at].overdue_ms, now_ms - from_ms)
                found[at] = found[at]._replace(overdue_ms=late_ms)
    return found


def _is_due(count: BucketStats, now_ms: int) -> bool:
    return count.next_due_ms is not None and count.next_due_ms <= now_ms


def confirmed(buckets: Sequence[Bucket], counts: Sequence[BucketStats]) -> Steps[list[BucketStats]]:
    """The same counts; a message is `unlisted` only if a second look finds it so, too."""
    doubtful = [at for at, each in enumerate(counts) if each.unlisted]
    if not doubtful:
        return [*counts]
    looked = yield from grouped([repairs.listing(buckets[at]) for at in doubtful])
    found = [*counts]
    for at, sizes in zip(doubtful, looked, strict=True):
        again = repairs.unlisted([None if isinstance(n, StoreError) else n for n in sizes])
        found[at] = counts[at]._replace(unlisted=min(counts[at].unlisted, again))
    return found


def late_from_ms(row: Row) -> int | None:
    """The time a waiting message is late from; None if unknown, or if it waits for an operator."""
    if row.state is State.PARKED and row.score >= ORPHAN_SCORE:
        return None
    try:
        return since_ms(row.record)
    except DecodeError:
        return None if row.state is State.IN_FLIGHT else row.score_ms
