"""The scripts of consumers of pull topics: receive, finish, extend, release."""

from __future__ import annotations

from typing import NamedTuple

from delaybridge.message import Answer
from tests.protocol.bucket import Bucket, Effect, Record
from tests.protocol.calls import ClientCall


class Received(NamedTuple):
    """A message as its consumer gets it. count: of deliveries. until: the tick when it is due."""

    id: int
    record: Record
    count: int
    until: int


def receive(bucket: Bucket, call: ClientCall, now: int) -> list[Received]:
    """The earliest, if one is ready."""
    for entry in bucket.ready:
        score, id = entry
        if score // 2 > now:
            break
        bucket.ready = tuple(other for other in bucket.ready if other != entry)
        record = bucket.messages[id]
        is_offered = bucket.parked[id] == score or not bucket.rules.offered
        if record is not None and record.score == score and is_offered:
            return [_give(bucket, call, id, record, now)]
    return []


def _give(bucket: Bucket, call: ClientCall, id: int, record: Record, now: int) -> Received:
    until, head = now + call.ttr, bucket.next_score()
    score = 2 * until + record.score % 2 if bucket.rules.holds else record.score
    bucket.set("parked", id, None)
    bucket.move(id, score)
    maybe, count = bucket.attempts[id] or (False, 0)
    bucket.set("attempts", id, (maybe or bucket.rules.counts, count + 1))
    bucket.set("receipts", id, call.receipt)
    bucket.effects.append(Effect("given", id, record.stamp, score=record.score))
    bucket.wake(score, head)
    return Received(id, record, count + 1, until)


def _is_void(bucket: Bucket, call: ClientCall, id: int) -> bool:
    return bucket.rules.receipts and bucket.receipts[id] != call.receipt


def finish(bucket: Bucket, call: ClientCall, now: int) -> Answer:
    """A cancel under a receipt: also of a message that counts as handed to the broker."""
    ((id, _, stamp),) = call.targets
    if past := bucket.past(stamp, id):
        return past
    old = bucket.messages[id]
    if old is None or _is_void(bucket, call, id):
        return Answer.UNKNOWN
    maybe = bucket.maybe(id)
    bucket.leave(id, published=True)
    bucket.revoke(id)
    bucket.remove(id)
    bucket.deliver(id, now)
    bucket.effects.append(Effect("finished", id, old.stamp))
    bucket.remember(old.stamp, id, Answer.CANCELLED)
    answer = Answer.CANCELLED_MAYBE_DELIVERED if maybe else Answer.CANCELLED
    bucket.remember(stamp, id, answer)
    return answer


def extend(bucket: Bucket, call: ClientCall, now: int) -> Answer:
    """A reschedule under a receipt, which stays the last."""
    return _move(bucket, call, now)


def release(bucket: Bucket, call: ClientCall, now: int) -> Answer:
    """A reschedule under a receipt, which is void then."""
    return _move(bucket, call, now)


def _move(bucket: Bucket, call: ClientCall, now: int) -> Answer:
    ((id, delay, stamp),) = call.targets
    if past := bucket.past(stamp, id):
        return past
    old = bucket.messages[id]
    if old is None or _is_void(bucket, call, id):
        return Answer.UNKNOWN
    if bucket.dead[id]:
        return Answer.DEAD
    score, head = 2 * (now + delay) + old.score % 2, bucket.next_score()
    bucket.note_maybe(id)
    bucket.revoke(id)
    bucket.move(id, score)
    bucket.set("receipts", id, call.receipt if call.verb == "extend" else None)
    maybe = bucket.maybe(id)
    answer = Answer.RESCHEDULED_MAYBE_DELIVERED if maybe else Answer.RESCHEDULED
    bucket.remember(stamp, id, answer)
    kind = "extended" if call.verb == "extend" else "released"
    bucket.effects.append(Effect(kind, id, old.stamp, score=score))
    bucket.wake(score, head)
    return answer


VERBS = {"receive": receive, "finish": finish, "extend": extend, "release": release}
