"""Storing lines: those to be delivered as any message, the dead ones in the dead set at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from delaybridge.accept.carried import Carried
from delaybridge.carry.accepting import Ready
from delaybridge.errors import StoreError
from delaybridge.message import CARRIED, Answer, ConflictPolicy, OnConflict
from delaybridge.store.calls import Calls
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.record import ForDeadSet, split_record
from delaybridge.store.protocol.replies import Row
from delaybridge.store.protocol.verbs import Each, Steps, bucket_of, new_stamp

Outcome = Answer | StoreError


def store(calls: Calls, batch: Sequence[Ready]) -> Steps[list[Outcome]]:
    """The answer for each: created, duplicate, conflict or in_flight; or why it has none."""
    outcomes: dict[int, Outcome] = {}
    places: dict[str, list[int]] = defaultdict(list)
    for i, one in enumerate(batch):
        is_tried = isinstance(one.message, Carried)
        places["dead" if one.reason is not None else "tried" if is_tried else "new"].append(i)
    yield from _schedule(calls, batch, places["new"], OnConflict.FAIL, outcomes)
    yield from _schedule(calls, batch, places["tried"], CARRIED, outcomes)
    left = {i: new_stamp() for i in places["dead"]}
    for first in (False, True):  # again if the namespace's record is new or has changed
        if left:
            yield from calls.open(again=first)
            left = yield from _bury(calls, batch, left, outcomes, first=first)
    return [outcomes.get(i) or calls.wiped() for i in range(len(batch))]


def _schedule(
    calls: Calls,
    batch: Sequence[Ready],
    places: Sequence[int],
    policy: ConflictPolicy,
    outcomes: dict[int, Outcome],
) -> Steps[None]:
    found = yield from calls.schedule_each([batch[i].message for i in places], policy)
    for i, each in zip(places, found, strict=True):
        if isinstance(each, Exception):
            if not isinstance(each, StoreError):
                raise each
            outcomes[i] = each
        else:
            outcomes[i] = each.answer


def _bury(
    calls: Calls,
    batch: Sequence[Ready],
    stamps: dict[int, bytes],
    outcomes: dict[int, Outcome],
    *,
    first: bool,
) -> Steps[dict[int, bytes]]:
    """Put those with stamps into the dead set; returns those whose bucket answered None."""
    by_bucket: dict[int, list[int]] = defaultdict(list)
    for i in stamps:
        by_bucket[_bucket(calls, batch[i]).number].append(i)
    left: dict[int, bytes] = {}
    asked = [
        calls.buckets[number].quarantine([_buried(batch[i], stamps[i]) for i in own], first=first)
        for number, own in by_bucket.items()
    ]
    for (number, own), answers in zip(by_bucket.items(), (yield Each(asked)), strict=True):
        if answers is None:
            left |= {i: stamps[i] for i in own}
        elif isinstance(answers, StoreError):
            error = yield from calls.explained(calls.buckets[number], answers)
            outcomes |= dict.fromkeys(own, error)
        else:
            outcomes |= zip(own, answers, strict=True)
    return left


def _buried(one: Ready, stamp: bytes) -> ForDeadSet:
    message, dead_ms = one.message, "" if one.dead_ms is None else one.dead_ms
    score = one.due_ms + message.rank / 256
    reason = one.reason or ""
    return ForDeadSet(stamp, message.id, message.payload, reason, score, dead_ms, one.tried)


def foresee(calls: Calls, batch: Sequence[Ready]) -> Steps[list[Outcome]]:
    """What `store` would answer now; of ids that were delivered lately it may say `created`."""
    yield from calls.open()
    rows = yield Each(_bucket(calls, one).get(one.message.id) for one in batch)
    return [_foreseen(one, row) for one, row in zip(batch, rows, strict=True)]


def _foreseen(one: Ready, row: Row | StoreError | None) -> Outcome:
    if row is None or isinstance(row, StoreError):
        return Answer.CREATED if row is None else row
    if row.fired:
        return Answer.IN_FLIGHT
    is_same = bool(row.record) and split_record(row.record)[1] == one.message.payload
    return Answer.DUPLICATE if is_same else Answer.CONFLICT


def _bucket(calls: Calls, one: Ready) -> Bucket:
    return calls.buckets[bucket_of(one.message.shard_key, len(calls.buckets))]
