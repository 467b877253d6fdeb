"""Storing lines: those to be delivered as any message, the dead ones in the dead set at once."""

from __future__ import annotations

from collections.abc import Sequence

from delaybridge.accept.carried import Carried
from delaybridge.carry.accepting import Ready
from delaybridge.errors import StoreError
from delaybridge.message import CARRIED, Answer, OnConflict
from delaybridge.store.calls import Calls
from delaybridge.store.messages.scheduling import Receipt
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.record import HEAD_SIZE, ForDeadSet
from delaybridge.store.protocol.replies import Row
from delaybridge.store.protocol.verbs import Each, Steps, bucket_of, new_stamp

Outcomes = dict[int, Answer | StoreError]


def store(calls: Calls, batch: Sequence[Ready]) -> Steps[Outcomes]:
    """The answer for each: created, duplicate, conflict or in_flight; or why it has none."""
    outcomes: Outcomes = {}
    dead = {i: new_stamp() for i, one in enumerate(batch) if one.reason is not None}
    tried = {i for i, one in enumerate(batch) if isinstance(one.message, Carried)}
    new = [i for i in range(len(batch)) if i not in tried and i not in dead]
    for policy, places in ((OnConflict.FAIL, new), (CARRIED, [*tried])):
        found = yield from calls.schedule_each([batch[i].message for i in places], policy)
        outcomes |= zip(places, map(_outcome, found), strict=True)
    for first in (False, True):  # again if the namespace's record is new or has changed
        if dead:
            yield from calls.open(again=first)
            dead = yield from _bury(calls, batch, dead, outcomes, first)
    return outcomes | {i: calls.wiped() for i in dead}


def _outcome(found: Receipt | Exception) -> Answer | StoreError:
    if isinstance(found, Exception) and not isinstance(found, StoreError):
        raise found
    return found if isinstance(found, StoreError) else found.answer


def _bury(
    calls: Calls, batch: Sequence[Ready], dead: dict[int, bytes], outcomes: Outcomes, first: bool
) -> Steps[dict[int, bytes]]:
    """Put those with stamps into the dead set; returns those whose bucket answered None."""
    buckets = {i: _bucket(calls, batch[i]) for i in dead}
    asked = [buckets[i].quarantine([_buried(batch[i], dead[i])], first=first) for i in dead]
    for i, answers in zip(dead, (yield Each(asked)), strict=True):
        if isinstance(answers, StoreError):
            outcomes[i] = yield from calls.explained(buckets[i], answers)
        elif answers is not None:
            (outcomes[i],) = answers
    return {i: stamp for i, stamp in dead.items() if i not in outcomes}


def _buried(one: Ready, stamp: bytes) -> ForDeadSet:
    message, dead_ms = one.message, "" if one.dead_ms is None else one.dead_ms
    score, reason = one.due_ms + message.rank / 256, one.reason or ""
    return ForDeadSet(stamp, message.id, message.payload, reason, score, dead_ms, one.tried)


def foresee(calls: Calls, batch: Sequence[Ready]) -> Steps[Outcomes]:
    """What `store` would answer now; of ids that were delivered lately it may say `created`."""
    yield from calls.open()
    rows = yield Each(_bucket(calls, one).get(one.message.id) for one in batch)
    return {i: _foreseen(batch[i].message.payload, row) for i, row in enumerate(rows)}


def _foreseen(payload: bytes, row: Row | StoreError | None) -> Answer | StoreError:
    if row is None or isinstance(row, StoreError):
        return Answer.CREATED if row is None else row
    if row.fired:
        return Answer.IN_FLIGHT
    own = row.record[HEAD_SIZE:]  # of one that was overdue when it came its time follows
    return Answer.DUPLICATE if payload in (own, own[:-8]) else Answer.CONFLICT


def _bucket(calls: Calls, one: Ready) -> Bucket:
    return calls.buckets[bucket_of(one.message.shard_key, len(calls.buckets))]
