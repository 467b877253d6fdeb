"""The clients' scripts: schedule, cancel, reschedule, kick."""

from __future__ import annotations

from delaybridge.message import Answer
from tests.protocol.bucket import BEGUN, EVERY, GATHERS, LONGEST, QUIET, Bucket, Effect, Record
from tests.protocol.calls import ClientCall, Target


def schedule(bucket: Bucket, call: ClientCall, now: int) -> list[Answer]:
    head = bucket.next_score()
    added: list[int] = []
    accept = _gather if call.policy in GATHERS else _schedule
    answers = [accept(bucket, call, target, added, now) for target in call.targets]
    if added:
        bucket.wake(min(added), head)
    return answers


def _gather(bucket: Bucket, call: ClientCall, target: Target, added: list[int], now: int) -> Answer:
    """A message that is due by what waits under its id, and by what was delivered."""
    (id, score, stamp), old, rules = target, bucket.messages[target.id], bucket.rules
    known = [each[2] for each in bucket.calls if each[:2] == (stamp, id)]
    is_again = rules.stamps and (known not in ([], [Answer.IN_FLIGHT]) or _is_of(old, stamp))
    waits = (
        old is not None and old.until >= 0 and not (bucket.dead[id] or _is_held(bucket, id, now))
    )
    due = now if old is None else old.score // 2
    if waits and not is_again and due <= now and bucket.parked[id] is None:
        if due == now or bucket.mirror[id] is not None:
            return _refused(bucket, call, target, Answer.IN_FLIGHT)
    until, first = 0, max(now - 1, due) if waits and due <= now else now
    if call.policy == "debounce":
        until = old.until if old is not None and waits and rules.bounded else 0
        until = until or now + LONGEST
        due = max(first, min(now + QUIET, until))
    elif waits:
        due = max(first, due)
    else:
        ends = bucket.spans[id] or 0
        left = max(2 * now, bucket.fired_score)
        due = now if ends <= now else ends - EVERY if 2 * (ends - EVERY) > left else ends
    answer = _schedule(bucket, call, Target(id, 2 * due + score % 2, stamp), added, now, until)
    if is_again or answer not in (Answer.CREATED, Answer.REPLACED):
        return Answer.CREATED if answer == BEGUN else answer
    if call.policy == "throttle" and rules.spaced:
        bucket.forget_expired(now)
        bucket.set("spans", id, due + EVERY)
    if answer is Answer.CREATED:
        answer = Answer.KEPT if call.policy == "throttle" and due > now else Answer.CREATED
        if rules.begun:
            bucket.remember(stamp, id, answer if answer is Answer.KEPT else BEGUN)
    return answer


def _is_of(old: Record | None, stamp: int) -> bool:
    return old is not None and old.stamp == stamp


def _is_held(bucket: Bucket, id: int, now: int) -> bool:
    return bucket.receipts[id] is not None and bucket.record(id).score // 2 > now


def _schedule(
    bucket: Bucket,
    call: ClientCall,
    target: Target,
    added: list[int],
    now: int,
    until: int = -1,
) -> Answer:
    """until: of a gathered message."""
    id, score, stamp = target
    if past := bucket.past(stamp, id):
        return past
    old, rules = bucket.messages[id], bucket.rules
    is_bound = until < 0 and bucket.was_delivered(id, now)
    if is_bound and (call.policy != "replace" or not rules.replaces):
        if old is None or not rules.pending_first:
            bucket.effects.append(Effect("known", id, stamp, flag=old is not None))
            return _refused(bucket, call, target, Answer.DUPLICATE)
    if old is not None:
        return _again(bucket, call, target, old, added, now, until)
    if call.only is not None and rules.only_read:
        return _refused(bucket, call, target, Answer.FOREIGN)
    added.append(score)
    for name in ("attempts", "receipts"):  # of a message that was deleted by hand
        bucket.set(name, id, None)
    bucket.set("messages", id, Record(score, stamp, until))
    bucket.set("due", id, score)
    bucket.effects.append(Effect("accepted", id, stamp, score=score))
    return Answer.CREATED


def _refused(bucket: Bucket, call: ClientCall, target: Target, answer: Answer) -> Answer:
    """Who reads the row of this call before it is withdrawn is to know that it was refused."""
    if call.has_row:
        bucket.remember(target.stamp, target.id, answer)
    return answer


def _again(
    bucket: Bucket,
    call: ClientCall,
    target: Target,
    old: Record,
    added: list[int],
    now: int,
    until: int = -1,
) -> Answer:
    """The answer of a call whose id has a message already."""
    id, policy, rules = target.id, call.policy, bucket.rules
    is_held = _is_held(bucket, id, now)
    if old.stamp == target.stamp and rules.stamps:
        return Answer.CREATED
    if bucket.is_fired(id) and not is_held and (rules.waits or policy == "replace"):
        return _refused(bucket, call, target, _in_flight(bucket, id))
    if call.only is not None and rules.only_read:
        is_moved = rules.same_due and old.score != target.score
        if old.stamp != call.only or is_moved or is_held or bucket.dead[id]:
            return _refused(bucket, call, target, Answer.FOREIGN)
    if until >= 0 and old.until < 0:
        return _refused(bucket, call, target, Answer.CONFLICT)
    if policy == "replace" or until >= 0 or (is_held and rules.takes_over):
        added.append(target.score)
        is_next = policy != "replace" and is_held
        return _replace(bucket, target, old, Answer.CREATED if is_next else Answer.REPLACED, until)
    answer = Answer.DUPLICATE if policy == "keep" else Answer.CONFLICT
    if bucket.mirror[id] is not None or bucket.receipts[id] is not None:
        flag, claim = answer is Answer.DUPLICATE, bucket.mirror[id] or 0
        bucket.effects.append(Effect("pending", id, old.stamp, claim, flag=flag))
    if answer is Answer.DUPLICATE and bucket.receipts[id] is not None and rules.owes:
        bucket.set("receipts", id, None)
        bucket.remember(target.stamp, id, answer)
        return answer
    return _refused(bucket, call, target, answer)


def _replace(
    bucket: Bucket, target: Target, old: Record, answer: Answer, until: int = -1
) -> Answer:
    """The new message is there instead of the old one.

    `created`: a consumer has the old one. It was delivered, so nothing of it is left.
    """
    id, score, stamp = target
    is_taken = answer is Answer.CREATED
    maybe = bucket.maybe(id) and not is_taken
    bucket.leave(id, published=is_taken)
    bucket.revoke(id)
    bucket.set("messages", id, Record(score, stamp, until))
    bucket.set("due", id, score)
    bucket.set("attempts", id, (True, 0) if maybe else None)
    bucket.set("receipts", id, None)
    bucket.remember(old.stamp, id, Answer.CANCELLED)
    if not is_taken:  # else it is like any that was created
        bucket.remember(stamp, id, answer)
    kind = "taken" if is_taken else "undone"
    bucket.effects.append(Effect(kind, id, old.stamp, score=old.score, flag=maybe))
    bucket.effects.append(Effect("accepted", id, stamp, score=score, flag=maybe))
    return answer


def cancel(bucket: Bucket, call: ClientCall, now: int) -> Answer | tuple[Answer, int]:
    """With a ledger also the stamp of what was removed, or has left; -1 if that is nothing."""
    answer, removed = _cancel(bucket, call)
    return answer if call.row is None else (answer, removed)


def _cancel(bucket: Bucket, call: ClientCall) -> tuple[Answer, int]:
    ((id, _, stamp),) = call.targets
    if past := bucket.past(stamp, id):
        return past, -1
    old = bucket.messages[id]
    if old is None:
        return _withdraw(bucket, id, stamp, -1 if call.row is None else call.row)
    if bucket.is_fired(id):
        return _in_flight(bucket, id), -1
    maybe = bucket.maybe(id)
    bucket.leave(id, published=False)
    bucket.revoke(id)
    bucket.remove(id)
    bucket.effects.append(Effect("undone", id, old.stamp, flag=maybe))
    bucket.remember(old.stamp, id, Answer.CANCELLED)
    answer = Answer.CANCELLED_MAYBE_DELIVERED if maybe else Answer.CANCELLED
    bucket.remember(stamp, id, answer)
    return answer, old.stamp


def _withdraw(bucket: Bucket, id: int, stamp: int, row: int) -> tuple[Answer, int]:
    """Cancel what only the ledger has: nobody restores it any more."""
    if row < 0 or bucket.has_ended(row, id):
        return Answer.UNKNOWN, row
    bucket.leave(id, published=False, stamp=row)
    bucket.effects.append(Effect("withdrawn", id, row))
    bucket.remember(row, id, Answer.CANCELLED)
    bucket.remember(stamp, id, Answer.CANCELLED)
    return Answer.CANCELLED, row


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
