"""Stats: the counts of a namespace and its buckets, and the state of its fleet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

from delaybridge.errors import StoreError
from delaybridge.ingest.fronted import listed
from delaybridge.ingest.routes import Route
from delaybridge.operate.notices import announcements, damaged_lists, repairs
from delaybridge.operate.notices.announcements import IngestInfo, LedgerDrift, WorkerInfo
from delaybridge.operate.notices.refused_writes import RefusedWrites, probes, refused
from delaybridge.operate.notices.repairs import Orphans
from delaybridge.operate.notices.silent_buckets import Unseen, by_node, why_unseen
from delaybridge.operate.views.bucket_counts import (
    BucketStats,
    bucket_stats,
    confirmed,
    count_commands,
    late,
)
from delaybridge.operate.views.retrying import Retrying, retrying_of
from delaybridge.operate.views.waiting_on_purpose import Paused, paused_places, unheld
from delaybridge.recurring import stored
from delaybridge.store.namespace import damage, history_alarm, registry, rules
from delaybridge.store.namespace.announcements import obeyed
from delaybridge.store.namespace.damage import Damage
from delaybridge.store.namespace.history_alarm import Setback
from delaybridge.store.namespace.namespace import Namespace
from delaybridge.store.namespace.rules import NO_RULES, Rules
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.record import Trouble
from delaybridge.store.protocol.verbs import RedisCommand, Steps, grouped, store_wide_error

_SUMMED = ("delayed", "in_flight", "parked", "dead", "dead_dropped")


class Stats(NamedTuple):
    """The namespace: the number of its messages in each state, its buckets and its processes.

    now_ms: the time of the count, in epoch milliseconds of Redis' clock. next_due_ms, overdue_ms,
    dead_dropped: as in `BucketStats`, for all buckets. workers, ingests, fronts: the living
    processes; gone: those that vanished within ten minutes. fronted: the exchanges that fronts
    have made.
    retrying: messages whose last publish failed, about a thousand of each bucket;
    retrying_sampled: there are more. troubles: which messages the workers park, and why. damage:
    of the namespace's own keys; odd_rules: of the rules of destinations. rules: those that can be
    read. paused: the places that operators have paused. recurring_late_ms: for how long no worker
    has made recurring messages that it should have looked at; 0 if it is less than ten seconds.
    redis: how its servers work together, empty for one alone. What is on a server of a Cluster that
    does not answer is missing from all counts: `unseen`.
    setbacks: Redis came back with an older past, or empty, and the alarm has not been cleared.
    refused: the masters that answer and take no writes.
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
    rules: Rules = NO_RULES
    odd_rules: Sequence[Damage] = ()
    paused: Sequence[Paused] = ()
    recurring_late_ms: int = 0
    setbacks: Sequence[Setback] = ()
    redis: str = ""
    fronts: Sequence[announcements.FrontInfo] = ()
    fronted: Sequence[Route] = ()
    gone: Sequence[announcements.Gone] = ()
    refused: Sequence[RefusedWrites] = ()

    @property
    def unseen(self) -> list[Unseen]:
        """The servers that do not answer, with their buckets."""
        return by_node((each.bucket, each.node, each.unseen) for each in self.buckets)

    @property
    def mended(self) -> dict[int, Orphans]:
        """Bucket -> what its owners found when its keys contradicted one another, if they did."""
        return {each.bucket: each.orphans for each in self.buckets if each.orphans.at_ms}

    @property
    def held_back(self) -> dict[int, Orphans]:
        """The same of the buckets with orphans that wait for the operator."""
        return {each.bucket: each.orphans for each in self.buckets if each.orphans.waiting}

    @property
    def orphans(self) -> Orphans:
        """The same of all buckets."""
        return repairs.summed(self.mended | self.held_back)

    @property
    def ledger(self) -> LedgerDrift | None:
        """How far ledger and Redis differed when they were compared last; None: no ledger."""
        return announcements.drift_of(self.workers)

    @property
    def ignoring(self) -> list[str]:
        """The workers of a version that knows no rules of destinations."""
        return [each.name for each in self.workers if not each.obeys_rules]

    @property
    def all_damage(self) -> list[Damage]:
        """Damage to the namespace's own keys, then to those of its buckets."""
        return [*self.damage, *(one for bucket in self.buckets for one in bucket.damage)]


def read_stats(calls: Namespace) -> Steps[Stats]:
    """Counts of every bucket, and the fleet. Takes two round trips, more if messages wait or fail.

    Buckets on a server of a Cluster that does not answer are `unseen`; without the server of
    the namespace's own keys nothing can be counted: StoreUnavailable.
    """
    buckets = yield from calls.every_bucket()
    parts = [each for one in buckets for each in (count_commands(one), damage.commands(one))]
    found = yield from grouped([*parts, *_of_namespace(calls), probes(buckets, calls.placement)])
    *of_buckets, workers, ingests, fronts, lists, (made_for, *others), probed = found
    look_ms, rules_kept, went_back, now_us = others
    needed = [*chain(workers, ingests, fronts), *lists, look_ms, rules_kept, now_us]
    if error := store_wide_error(needed):
        raise error
    now_ms = now_us // 1000
    pairs = zip(buckets, of_buckets[::2], of_buckets[1::2], strict=True)
    counts = yield from confirmed(buckets, [_counts_of(calls, *each) for each in pairs])
    counts = yield from late(buckets, counts, now_ms)
    seen = [bucket for bucket, count in zip(buckets, counts, strict=True) if not count.unseen]
    retrying, is_sampled = yield from retrying_of(seen)
    living = announcements.workers(workers, now_ms, [count.owner for count in counts])
    troubles = [trouble for each in living for trouble in each.said.troubles(each.name)]
    known = obeyed(rules_kept, (each.said for each in living))
    counts = yield from unheld(buckets, counts, known, calls.kinds, now_ms, troubles)
    return Stats(
        **_overall(counts),
        now_ms=now_ms,
        buckets=counts,
        workers=living,
        ingests=announcements.ingests(ingests, now_ms),
        fronts=announcements.fronts(fronts, now_ms),
        fronted=() if isinstance(made_for, StoreError) else made_for,
        gone=announcements.gone([workers, ingests, fronts], now_ms),
        refused=refused(probed),
        retrying=retrying,
        retrying_sampled=is_sampled,
        troubles=troubles,
        damage=(*damaged_lists.found(calls.namespace, lists), *_reported(living, counts)),
        setbacks=history_alarm.kept(went_back),
        recurring_late_ms=stored.late_look_ms(look_ms, now_ms),
        redis=calls.placement.describe(),
        rules=known,
        odd_rules=rules.damage(calls.namespace, rules_kept),
        paused=(yield from paused_places(seen, known, calls.kinds)),
    )


def _of_namespace(calls: Namespace) -> Iterator[list[RedisCommand[Any]]]:
    """Asks for the processes of each kind, and for what the namespace has of its own."""
    name = calls.namespace
    yield from (registry.fleet(name, kind) for kind in registry.KINDS)
    yield damaged_lists.commands(name)
    kept = rules.read(name), history_alarm.read(name)  # operators', workers'
    yield [listed(name), stored.first_look(name), *kept, calls.clock()]


def _counts_of(
    calls: Namespace, bucket: Bucket, counted: list[Any], looked: list[Any]
) -> BucketStats:
    node = calls.placement.node_of(bucket.key("due"))
    why = why_unseen(node, store_wide_error([*counted, *looked]))
    found = () if why else damage.found(bucket, looked)
    return bucket_stats(bucket, counted, found)._replace(node=node, unseen=why)


def _overall(counts: Sequence[BucketStats]) -> dict[str, Any]:
    """The counts of the namespace."""
    sums: dict[str, Any] = {field: sum(getattr(c, field) for c in counts) for field in _SUMMED}
    dues_ms = (count.next_due_ms for count in counts if count.next_due_ms is not None)
    overdue_ms = max(count.overdue_ms for count in counts)
    return sums | {"next_due_ms": min(dues_ms, default=None), "overdue_ms": overdue_ms}


def _reported(living: Sequence[WorkerInfo], counts: Sequence[BucketStats]) -> Iterable[Damage]:
    """Damage that workers reported and that `damage.commands` does not show."""
    shown = {str(count.bucket) for count in counts if count.damage}
    for worker in living:
        for bucket, text in worker.damaged.items():
            if bucket not in shown and text:
                what, _, remedy = text.partition("; mend it: ")
                yield Damage(f"bucket {bucket}", f"waits: {what}", remedy or "see the worker's log")
