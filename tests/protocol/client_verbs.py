"""The clients' scripts: schedule, cancel, reschedule, kick."""

from __future__ import annotations

from delaybridge.message import Answer
from tests.protocol.bucket import Bucket, Effect, Record
from tests.protocol.calls import ClientCall, Target


def schedule(bucket: Bucket, call: ClientCall, now: int) -> list[Answer]:
    head = bucket.next_score()
    added: list[int] = []
    answers = [_schedule(bucket, target, call.policy, added) for target in call.targets]
    if added:
        bucket.wake(min(added), head)
    return answers


def _schedule(bucket: Bucket, target: Target, policy: str, added: list[int]) -> Answer:
    id, score, stamp = target
    if past := bucket.past(stamp, id):
        return past
    old = bucket.messages[id]
    if old is not None and old.stamp == stamp and bucket.rules.stamps:
        return Answer.CREATED
    if old is not None and policy == "replace" and bucket.is_fired(id):
        return _in_flight(bucket, id)
    if old is not None and policy != "replace":
        return Answer.DUPLICATE if policy == "keep" else Answer.CONFLICT
    added.append(score)
    if old is not None:
        return _replace(bucket, target, old)
    bucket.set("messages", id, Record(score, stamp))
    bucket.set("due", id, score)
    bucket.effects.append(Effect("accepted", id, stamp, score=score))
    return Answer.CREATED


def _replace(bucket: Bucket, target: Target, old: Record) -> Answer:
    id, score, stamp = target
    maybe = bucket.maybe(id)
    bucket.revoke(id)
    bucket.set("messages", id, Record(score, stamp))
    bucket.set("due", id, score)
    bucket.set("attempts", id, (True, 0) if maybe else None)
    bucket.set("receipts", id, None)
    bucket.remember(old.stamp, id, Answer.CANCELLED)
    bucket.remember(stamp, id, Answer.REPLACED)
    bucket.effects.append(Effect("undone", id, old.stamp, flag=maybe))
    bucket.effects.append(Effect("accepted", id, stamp, score=score, flag=maybe))
    return Answer.REPLACED


def cancel(bucket: Bucket, call: ClientCall, now: int) -> Answer:
    ((id, _, stamp),) = call.targets
    if past := bucket.past(stamp, id):
        return past
    old = bucket.messages[id]
    if old is None:
        return Answer.UNKNOWN
    if bucket.is_fired(id):
        return _in_flight(bucket, id)
    maybe = bucket.maybe(id)
    bucket.revoke(id)
    bucket.remove(id)
    bucket.effects.append(Effect("undone", id, old.stamp, flag=maybe))
    bucket.remember(old.stamp, id, Answer.CANCELLED)
    answer = Answer.CANCELLED_MAYBE_DELIVERED if maybe else Answer.CANCELLED
    bucket.remember(stamp, id, answer)
    return answer


def reschedule(bucket: Bucket, call: ClientCall, now: int) -> Answer:
    ((id, asked, stamp),) = call.targets
    if past := bucket.past(stamp, id):
        return past
    old = bucket.messages[id]
    if old is None:
        return Answer.UNKNOWN
    if bucket.is_fired(id):
        return _in_flight(bucket, id)
    if bucket.dead[id]:
        return Answer.DEAD
    score, head = asked + old.score % 2, bucket.next_score()
    bucket.note_maybe(id)
    bucket.revoke(id)
    bucket.move(id, score)
    if bucket.rules.voids:
        bucket.set("receipts", id, None)
    maybe = bucket.maybe(id) and bucket.rules.maybe
    answer = Answer.RESCHEDULED_MAYBE_DELIVERED if maybe else Answer.RESCHEDULED
    bucket.remember(stamp, id, answer)
    bucket.effects.append(Effect("moved", id, old.stamp, score=score, flag=maybe))
    bucket.wake(score, head)
    return answer


def kick(bucket: Bucket, call: ClientCall, now: int) -> Answer:
    ((id, _, stamp),) = call.targets
    if past := bucket.past(stamp, id):
        return past
    if not bucket.dead[id]:
        return Answer.UNKNOWN
    old, head = bucket.record(id), bucket.next_score()
    score = 2 * now + old.score % 2
    bucket.set("dead", id, False)
    bucket.set("reasons", id, False)
    bucket.move(id, score)
    bucket.set("attempts", id, (True, 0) if bucket.maybe(id) else None)
    bucket.set("receipts", id, None)
    bucket.remember(stamp, id, Answer.KICKED)
    bucket.effects.append(Effect("kicked", id, old.stamp))
    bucket.wake(score, head)
    return Answer.KICKED


def _in_flight(bucket: Bucket, id: int) -> Answer:
    stamp, claim = bucket.record(id).stamp, bucket.mirror[id] or 0
    bucket.effects.append(Effect("in_flight", id, stamp, claim))
    return Answer.IN_FLIGHT


VERBS = {"schedule": schedule, "cancel": cancel, "reschedule": reschedule, "kick": kick}
