"""The counts of one bucket: which commands are asked, and how their replies are read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
from delaybridge.store.protocol.verbs import RedisCommand, Steps, grouped, plain

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


def count_commands(bucket: Bucket, waiting: Iterable[State] = WAITING) -> list[RedisCommand[Any]]:
    """The commands whose replies `bucket_stats` reads, in this order.

    waiting: messages of these states are overdue if they are late.
    """
    due = bucket.key("due")
    others: list[RedisCommand[Any]] = [
        plain("ZRANGE", due, 0, 0, "WITHSCORES", parse=replies.read_first_score),
        bucket.holder(),
        plain("PTTL", bucket.key("lease"), parse=int),
        plain("HGET", bucket.key("marks"), "dropped", parse=replies.read_count),
    ]
    firsts = (bucket.page(state, limit=1) for state in waiting)
    return [*repairs.listing(bucket), *others, *firsts, *repairs.commands(bucket)]


def bucket_stats(
    bucket: Bucket, replies: list[Any], found: Iterable[Damage], now_ms: int
) -> BucketStats:
    """The counts in the replies to `count_commands`. found: the bucket's damage."""
    # A damaged key is not counted, but listed as damage.
    *replies, totals, waiting = replies
    counts = [None if isinstance(reply, StoreError) else reply for reply in replies]
    delayed, in_flight, parked, dead, *_ = sizes = counts[:_SIZES]
    head, holder, left_ms, dropped, *firsts = counts[_SIZES:]
    rows = (row for page in firsts if page for row in page[0])
    late_ms = [at_ms for row in rows if (at_ms := late_from_ms(row)) is not None]
    return BucketStats(
        bucket=bucket.number,
        delayed=delayed or 0,
        in_flight=in_flight or 0,
        parked=parked or 0,
        dead=dead or 0,
        next_due_ms=None if head is None else int(head),
        overdue_ms=max(0, now_ms - min(late_ms, default=now_ms)),
        owner=holder,
        lease_ms=left_ms if holder is not None else None,
        damage=tuple(found),
        dead_dropped=dropped or 0,
        orphans=repairs.orphans_of(totals, waiting),
        unlisted=repairs.unlisted(sizes),
    )


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
