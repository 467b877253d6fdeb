"""The counts of a namespace and of its buckets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple

from delaybridge.errors import (
    DecodeError,
    StoreError,
)
from delaybridge.message import (
    State,
)
from delaybridge.store import announcements, damage, registry, replies
from delaybridge.store.announcements import IngestInfo, WorkerInfo
from delaybridge.store.command import Each, RedisCommand, Steps, plain, store_wide_error
from delaybridge.store.damage import Damage
from delaybridge.store.namespace import Namespace
from delaybridge.store.record import Failing, since_ms
from delaybridge.store.replies import Row
from delaybridge.store.troubles import Retrying, Trouble, counted
from delaybridge.store.verbs import Bucket

_WAITING = (State.DELAYED, State.PARKED, State.IN_FLIGHT)
_SAMPLE = 1000  # retried messages of a bucket that stats looks at


class BucketStats(NamedTuple):
    """One bucket: its number and the number of its messages in each state.

    next_due_ms: the earliest due time in epoch milliseconds, None if nothing is delayed.
    overdue_ms: how late the oldest waiting message is, 0 if none is late. owner: the worker that
    holds the lease, None if it is free; lease_ms: the milliseconds until the lease expires.
    damage: keys with data that delaybridge did not write; they are not counted. dead_dropped: dead
    messages deleted because there were too many or they were too old.
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


class Stats(NamedTuple):
    """The namespace: the number of its messages in each state, its buckets and its processes.

    now_ms: the time of the count, in epoch milliseconds of Redis' clock. next_due_ms, overdue_ms,
    dead_dropped: as in `BucketStats`, for all buckets. workers, ingests: the living processes.
    retrying: messages whose last publish failed, about a thousand of each bucket;
    retrying_sampled: there are more. troubles: which messages the workers park, and why. damage:
    of the namespace's own keys.
    """

    now_ms: int
    delayed: int
    in_flight: int
    parked: int
    dead: int
    next_due_ms: int | None
    overdue_ms: int
    buckets: list[BucketStats]
    workers: list[WorkerInfo]
    ingests: Sequence[IngestInfo] = ()
    retrying: Sequence[Retrying] = ()
    retrying_sampled: bool = False
    troubles: Sequence[Trouble] = ()
    damage: tuple[Damage, ...] = ()
    dead_dropped: int = 0

    @property
    def all_damage(self) -> list[Damage]:
        """Damage to the namespace's own keys, then to those of its buckets."""
        return [*self.damage, *(one for bucket in self.buckets for one in bucket.damage)]


class Counting(Namespace):
    """The calls that count."""

    def stats(self) -> Steps[Stats]:
        """Counts of every bucket, and the fleet; in two pipelines, a third if messages fail."""
        buckets = yield from self.open()
        parts = [_looks(bucket) for bucket in buckets]
        parts += (registry.fleet(self.namespace, ingests=ingests) for ingests in (False, True))
        parts.append(damage.look_at_lists(self.namespace))
        asked = Each(chain.from_iterable(parts))
        *flat, now_us = yield Each([*asked, registry.store_time()])
        if (error := store_wide_error([*flat, now_us])) is not None:
            raise error
        now_ms, replies = now_us // 1000, iter(flat)
        *of_buckets, workers, ingests, lists = (list(islice(replies, len(p))) for p in parts)
        retrying, is_sampled = yield from self._retrying()
        counts = [
            _bucket_stats(bucket, of, now_ms)
            for bucket, of in zip(buckets, of_buckets, strict=True)
        ]
        owners = [count.owner for count in counts]
        living = announcements.workers(announcements.intact(workers), owners, now_ms)
        return _totals(counts)._replace(
            now_ms=now_ms,
            workers=living,
            ingests=announcements.ingests(announcements.intact(ingests), now_ms),
            retrying=retrying,
            retrying_sampled=is_sampled,
            troubles=[trouble for each in living for trouble in each.said.troubles(each.name)],
            damage=(*damage.found_in_lists(self.namespace, lists), *_reported(living, counts)),
        )

    def _retrying(self) -> Steps[tuple[list[Retrying], bool]]:
        """Retried messages by destination and reason; and whether that is only a sample."""
        buckets = self._buckets
        replies = yield Each(_failing(bucket, _SAMPLE) for bucket in buckets)
        answers = [({}, True) if isinstance(reply, StoreError) else reply for reply in replies]
        asked = [(b, found) for b, (found, _) in zip(buckets, answers, strict=True) if found]
        # A worker of an older version settles a message and leaves its error behind.
        tried = (yield [_tried(bucket, found) for bucket, found in asked]) if asked else []
        failing = [
            each
            for (_, found), known in zip(asked, tried, strict=True)
            for each, now in zip(found.values(), known, strict=True)
            if now is not None
        ]
        return counted(failing), not all(whole for _, whole in answers)


def _looks(bucket: Bucket) -> list[RedisCommand[Any]]:
    """The commands whose replies `_bucket_stats` reads."""
    firsts = [bucket.page(state, limit=1) for state in _WAITING]
    return [*_counts(bucket), *firsts, *damage.look(bucket)]


def _counts(bucket: Bucket) -> list[RedisCommand[Any]]:
    """The commands behind `BucketStats`, in this order.

    Sizes of due, mirror, parked and dead; first score of due and of parked; the lease's holder
    and time left in ms; number of dead messages dropped.
    """
    sizes = [plain("ZCARD", bucket.key(k), parse=int) for k in ("due", "mirror", "parked", "dead")]
    heads = [
        plain("ZRANGE", bucket.key(k), 0, 0, "WITHSCORES", parse=replies.read_first_score)
        for k in ("due", "parked")
    ]
    lease: list[RedisCommand[Any]] = [
        bucket.holder(),
        plain("PTTL", bucket.key("lease"), parse=int),
        plain("HGET", bucket.key("marks"), "dropped", parse=replies.read_count),
    ]
    return [*sizes, *heads, *lease]


def _failing(bucket: Bucket, most: int) -> RedisCommand[tuple[dict[bytes, Failing], bool]]:
    """About `most` messages whose last publish failed; and whether these are all of them."""
    asked = (0, "MATCH", "*\0", "COUNT", 2 * most)  # two fields each
    return plain("HSCAN", bucket.key("attempts"), *asked, parse=replies.read_failing)


def _tried(bucket: Bucket, ids: Iterable[bytes]) -> RedisCommand[list[bytes | None]]:
    """The `attempts` entry of each id, None without one."""
    return plain("HMGET", bucket.key("attempts"), *ids)


def _totals(counts: list[BucketStats]) -> Stats:
    return Stats(
        now_ms=0,
        delayed=sum(count.delayed for count in counts),
        in_flight=sum(count.in_flight for count in counts),
        parked=sum(count.parked for count in counts),
        dead=sum(count.dead for count in counts),
        next_due_ms=min((c.next_due_ms for c in counts if c.next_due_ms is not None), default=None),
        overdue_ms=max(count.overdue_ms for count in counts),
        buckets=counts,
        workers=[],
        dead_dropped=sum(count.dead_dropped for count in counts),
    )


def _bucket_stats(bucket: Bucket, replies: list[Any], now_ms: int) -> BucketStats:
    # An unreadable key is not counted; it is listed as damage.
    looks = len(replies) - len(damage.look(bucket))
    counts = [None if isinstance(reply, StoreError) else reply for reply in replies[:looks]]
    delayed, in_flight, parked, dead, head, parked_head, holder, left_ms, dropped, *firsts = counts
    rows = (row for page in firsts if page for row in page[0])
    waiting = [at_ms for row in rows if (at_ms := _late_from_ms(row)) is not None]
    return BucketStats(
        bucket.number,
        *(delayed or 0, in_flight or 0, parked or 0, dead or 0),
        None if head is None else int(head),
        max(0, now_ms - min(waiting, default=now_ms)),
        holder,
        left_ms if holder is not None else None,
        tuple(damage.found(bucket, replies[looks:])),
        dropped or 0,
    )


def _reported(living: Sequence[WorkerInfo], counts: Sequence[BucketStats]) -> Iterable[Damage]:
    """Damage that workers met and that `damage.look` does not show."""
    shown = {str(count.bucket) for count in counts if count.damage}
    for worker in living:
        for bucket, said in worker.damaged.items():
            if bucket not in shown and said:
                what, _, remedy = said.partition("; mend it: ")
                yield Damage(f"bucket {bucket}", f"waits: {what}", remedy or "see the worker's log")


def _late_from_ms(row: Row) -> int | None:
    """The time from which a waiting message is late; None if its record does not tell."""
    try:
        return since_ms(row.record)
    except DecodeError:
        return None if row.state is State.IN_FLIGHT else row.score_ms
