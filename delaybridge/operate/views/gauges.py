"""Gauges: what a scrape or a probe asks Redis, about some buckets of a namespace."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from delaybridge.errors import StoreError
from delaybridge.message import State
from delaybridge.operate.notices.refused_writes import RefusedWrites, probes, refused
from delaybridge.operate.notices.silent_buckets import why_unseen
from delaybridge.operate.views.bucket_counts import (
    WAITING,
    BucketStats,
    bucket_stats,
    count_commands,
    late,
)
from delaybridge.operate.views.horizon import count_due
from delaybridge.operate.views.retrying import Retrying, retrying_of
from delaybridge.operate.views.tally import DestinationCounts, by_destination, tallied
from delaybridge.operate.views.waiting_on_purpose import unheld
from delaybridge.store.namespace import registry, rules
from delaybridge.store.namespace.placement import ONE_SERVER, Placement, at
from delaybridge.store.protocol import keys, replies
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.layout import Layout
from delaybridge.store.protocol.replies import Tallied
from delaybridge.store.protocol.verbs import (
    Each,
    RedisCommand,
    Steps,
    grouped,
    plain,
    store_wide_error,
)

_UNPARKED = (State.DELAYED, State.IN_FLIGHT)  # why a message is parked, its worker knows
_ACCEPTED = ("scheduled", "cancelled", "rescheduled", "kicked")  # in a bucket's marks
WINDOWS_MS = {"1m": 60_000, "5m": 300_000, "1h": 3_600_000, "1d": 86_400_000}


class Gauges(NamedTuple):
    """The namespace as Redis has it. now_us: its clock. memory: INFO memory, numbers summed over
    the masters of a Cluster. unseen: buckets on servers that do not answer; nothing here counts
    them.

    accepted: how many messages were scheduled, cancelled, rescheduled, kicked in all buckets since
    the namespace began, by anyone; empty if a bucket's count cannot be read.
    buckets: of the namespace. unowned: those without a lease. held: the counts of the buckets that
    were asked for, whose parked messages are not overdue; alone: of the unowned ones, `overdue_ms`
    as in `stats`. horizon: window -> messages of the held buckets that are in flight, or delayed
    and due within it. retrying, destinations: of the held buckets. refused: the masters that answer
    and take no writes.
    """

    now_us: int
    memory: Mapping[str, str] = {}
    accepted: Mapping[str, int] = {}
    buckets: int = 0
    unseen: Collection[int] = ()
    unowned: Collection[int] = ()
    held: Sequence[BucketStats] = ()
    alone: Sequence[BucketStats] = ()
    horizon: Mapping[str, int] = {}
    retrying: Sequence[Retrying] = ()
    destinations: Sequence[DestinationCounts] = ()
    refused: Sequence[RefusedWrites] = ()


def read_gauges(
    namespace: str,
    held: Collection[int],
    kinds: Mapping[str, str] = {},
    *,
    destinations: Sequence[DestinationCounts] | None = None,
    placement: Placement = ONE_SERVER,
) -> Steps[Gauges]:
    """Read them; writes nothing, and does not create the namespace.

    Takes up to seven round trips. destinations: as read before; None: they are read again, with
    the round trips of `tallied`, up to 30 if 16 buckets are held. kinds: broker -> its kind. A
    damaged key counts as empty. StoreUnavailable, StoreDenied: nothing can be read.
    """
    birth, now_us, known = yield from _record(namespace, placement)
    if birth is None or isinstance(birth, StoreError):
        return Gauges(now_us, known)
    buckets = [Bucket(namespace, number, birth[1]) for number in birth[0].numbers]
    # A server that was silent a moment ago is not waited for again: a scrape has little time.
    asked = [bucket for bucket in buckets if not placement.misses(bucket.key("due"))]
    asking = [bucket.holder() for bucket in asked], [_accepted(bucket) for bucket in asked]
    holders, accepted, probed = yield from grouped([*asking, probes(asked, placement)])
    silent = _silent(asked, holders, placement) | {b.number for b in buckets if b not in asked}
    free = _free(zip(asked, holders, strict=True), birth[0])
    ours = [b for b in buckets if b.number in held and b.number not in silent]
    counts = yield from _counted(ours, now_us // 1000, waiting=_UNPARKED)
    alone = yield from _alone(namespace, free, kinds, now_us // 1000)
    in_flight = sum(count.in_flight for count in counts)
    horizon = yield from _horizon(ours, in_flight, now_us // 1000)
    retrying, _ = yield from retrying_of(ours)
    if destinations is None:
        destinations = yield from _destinations(ours, kinds)
    return Gauges(
        now_us=now_us,
        memory=known,
        accepted=_summed(accepted),
        buckets=len(buckets),
        unseen=silent,
        unowned=[bucket.number for bucket in free],
        held=counts,
        alone=alone,
        horizon=horizon,
        retrying=retrying,
        destinations=destinations,
        refused=refused(probed),
    )


def _free(found: Iterable[tuple[Bucket, object]], layout: Layout) -> list[Bucket]:
    """Buckets without a holder that should have one: others may have given all away."""
    kept = layout.next or layout.here
    return [bucket for bucket, holder in found if holder is None and bucket.number in kept]


def _record(namespace: str, placement: Placement) -> Steps[tuple[Any, int, Mapping[str, str]]]:
    """The namespace's record or its error, Redis' clock in us, and INFO memory."""
    nodes = [node for node in placement.nodes() if not placement.misses(at(node))]
    asked = [registry.info("memory", at(node)) for node in nodes or [""]]
    clock = registry.store_time(keys.birth(namespace))
    birth, now_us, *memory = yield Each([registry.read_layout(namespace), clock, *asked])
    if (error := store_wide_error([birth, now_us])) is not None:
        raise error
    return birth, now_us, _memory(memory)


def _silent(buckets: Sequence[Bucket], holders: Sequence[object], placement: Placement) -> set[int]:
    """The buckets whose server does not answer."""
    return {
        bucket.number
        for bucket, holder in zip(buckets, holders, strict=True)
        if why_unseen(placement.node_of(bucket.key("due")), store_wide_error([holder]))
    }


def _memory(answers: Iterable[Mapping[str, str] | StoreError]) -> Mapping[str, str]:
    """INFO memory of one server; the numbers of several summed. No maxmemory if one has none."""
    known = [each for each in answers if not isinstance(each, StoreError)]
    if len(known) < 2:
        return known[0] if known else {}
    most = [int(each.get("maxmemory", 0)) for each in known]
    used = sum(int(each.get("used_memory", 0)) for each in known)
    return {"used_memory": str(used), "maxmemory": str(sum(most) if all(most) else 0)}


def _alone(
    namespace: str, free: Sequence[Bucket], kinds: Mapping[str, str], now_ms: int
) -> Steps[list[BucketStats]]:
    """The counts of buckets that no worker holds. What a rule holds back is not overdue."""
    counts = yield from _counted(free, now_ms)
    if not any(count.overdue_ms for count in counts):
        return counts
    (stored,) = yield Each([rules.read(namespace)])
    known = rules.understood({} if isinstance(stored, StoreError) else stored)
    return (yield from unheld(free, counts, known, kinds, now_ms))


def _counted(
    buckets: Sequence[Bucket], now_ms: int, waiting: Collection[State] = WAITING
) -> Steps[list[BucketStats]]:
    found = yield from grouped([*map(count_commands, buckets)])
    if (error := store_wide_error(chain.from_iterable(found))) is not None:
        raise error
    counts = [bucket_stats(*each, ()) for each in zip(buckets, found, strict=True)]
    return (yield from late(buckets, counts, now_ms, waiting))


def _destinations(
    buckets: Sequence[Bucket], kinds: Mapping[str, str]
) -> Steps[list[DestinationCounts]]:
    by_state = yield from tallied(buckets)
    intact = [[one for one in found if isinstance(one, Tallied)] for found in by_state]
    return by_destination(intact, kinds)


def _accepted(bucket: Bucket) -> RedisCommand[list[int]]:
    return plain(
        "HMGET",
        bucket.key("marks"),
        *_ACCEPTED,
        parse=lambda reply: [*map(replies.read_count, reply)],
    )


def _summed(counts: Sequence[list[int] | StoreError]) -> dict[str, int]:
    """The sums over all buckets; none if one is missing, since a total may not fall."""
    known = [count for count in counts if not isinstance(count, StoreError)]
    if len(known) < len(counts):
        return {}
    return {what: sum(count[place] for count in known) for place, what in enumerate(_ACCEPTED)}


def _horizon(buckets: Sequence[Bucket], in_flight: int, now_ms: int) -> Steps[dict[str, int]]:
    """Window -> delayed messages due within it, and those in flight."""
    ends_ms = [now_ms + 1 + ms for ms in WINDOWS_MS.values()]
    found = yield from grouped([[count_due(b, "-inf", end) for b in buckets] for end in ends_ms])
    return {
        window: in_flight + sum(n for n in replies if not isinstance(n, StoreError))
        for window, replies in zip(WINDOWS_MS, found, strict=True)
    }
