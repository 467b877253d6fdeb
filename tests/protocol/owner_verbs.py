"""The owner's scripts: the lease, claim, fire, and the ends of a claim. None: the lease is lost."""

from __future__ import annotations

from typing import Any, NamedTuple

from delaybridge.message import Answer
from tests.protocol.bucket import NEVER, Bucket, Effect, Token
from tests.protocol.calls import Copy, OwnerCall

MISSED = -(10**12)  # the score 0 of Redis, which is long past


class Claimed(NamedTuple):
    """The answer to a claim."""

    number: int
    copies: tuple[Copy, ...]
    next_score: int | None
    more: bool


class Fired(NamedTuple):
    """The answer to a fire. revoked: of (id, turn, score)."""

    claimed: int
    revoked: tuple[tuple[int, int, int], ...]


class Counted(NamedTuple):
    """The answer to a count."""

    messages: int
    due: int
    mirror: int
    parked: int
    dead: int
    reasons: int

    @property
    def is_sound(self) -> bool:
        """Whether the keys agree: each message is in one set, each dead one has a reason."""
        return self.messages == sum(self[1:5]) and self.dead == self.reasons


class Reach(NamedTuple):
    """How far ahead an owner claims, in ticks, and how many messages at once."""

    ahead: int
    limit: int


def acquire(bucket: Bucket, call: OwnerCall) -> Token | None:
    """None: the lease is held by another."""
    if bucket.lease is not None:
        return bucket.lease if bucket.lease[0] == call.token[0] else None
    if bucket.rules.revokes == "turn":
        # Nothing claimed before this turn is on the new owner's wheel.
        bucket.revoked = (None,) * len(bucket.revoked)
    bucket.lease = call.token[0], bucket.next_turn()
    if bucket.rules.have:
        bucket.claimed = bucket.turn
    if bucket.rules.marks_window:
        bucket.window = call.window
    return bucket.lease


def renew(bucket: Bucket, call: OwnerCall) -> tuple[int | None] | None:
    """The score of the next message in `due`, None if there is none; at once: MISSED."""
    if not bucket.holds(call.token) or _is_forgotten(bucket, call):
        return None
    if call.have < bucket.claimed and bucket.rules.renewal_counts:
        return (MISSED,)
    return (bucket.next_score(),)


def release(bucket: Bucket, call: OwnerCall) -> bool:
    if bucket.holds(call.token):
        bucket.lease = None
        return True
    return False


def reclaim(bucket: Bucket, call: OwnerCall) -> tuple[int, int, int] | None:
    """At most one message; (left, moved, fired ones among these)."""
    if not bucket.holds(call.token):
        return None
    claims = ((claim, id) for id, claim in enumerate(bucket.mirror) if claim is not None)
    old = sorted(each for each in claims if _is_old(bucket, each[0]))
    if not old:
        return 0, 0, 0
    claim, id = old[0]
    fired, record = bucket.is_fired(id), bucket.record(id)
    if fired:
        bucket.count_attempt(id, maybe=True)
    bucket.set("mirror", id, None)
    bucket.set("due", id, record.score)
    bucket.effects.append(Effect("reclaimed", id, record.stamp, claim, flag=fired))
    return len(old) - 1, 1, int(fired)


def _is_old(bucket: Bucket, claim: int) -> bool:
    """Whether a claim was made before the lease was taken."""
    return not bucket.rules.reclaims_old or bucket.lease is None or claim < bucket.lease[1]


def _is_forgotten(bucket: Bucket, call: OwnerCall) -> bool:
    """Whether the store lost writes that the owner knows of."""
    return call.have > bucket.claimed and bucket.rules.forgotten and bucket.rules.have


def claim(bucket: Bucket, call: OwnerCall, now: int, reach: Reach) -> Claimed | None:
    rules = bucket.rules
    if not bucket.holds(call.token):
        return None
    if _is_forgotten(bucket, call):
        return None
    if call.have < bucket.claimed and rules.have:  # an answer was lost: the same batch again
        again = [(k, id) for id, k in enumerate(bucket.mirror) if k is not None and k > call.have]
        if any(claim < bucket.claimed for claim, _ in again):
            return None  # two claims are unknown to it: marks were lost, or this call is an old one
        ids = [id for _, id in sorted(again)]
    else:
        ids = _move_ripe(bucket, now, reach)
    next_score = bucket.next_score()
    more = next_score is not None and next_score // 2 <= now + reach.ahead
    if rules.promises:
        look = NEVER if next_score is None else (next_score + 1) // 2 - reach.ahead
        bucket.look = now if more else max(look, now)
    copies = tuple(Copy(id, bucket.claimed, *bucket.record(id)[:2]) for id in ids)
    return Claimed(bucket.claimed, copies, next_score, more)


def _move_ripe(bucket: Bucket, now: int, reach: Reach) -> list[int]:
    scores = enumerate(bucket.due)
    ripe = sorted((s, id) for id, s in scores if s is not None and s // 2 <= now + reach.ahead)
    ids = [id for _, id in ripe[: reach.limit]]
    if ids:
        bucket.claimed = bucket.next_turn()
        for id in ids:
            bucket.set("due", id, None)
            bucket.set("mirror", id, bucket.claimed)
    return ids


def fire(bucket: Bucket, call: OwnerCall) -> Fired | None:
    rules = bucket.rules
    if not bucket.holds(call.token) or bucket.lease is None:
        return None
    if _is_forgotten(bucket, call):
        return None
    score, claim = call.score, call.have
    in_session = bucket.fired_claim >= bucket.lease[1]
    if not rules.fired_pair or (rules.fired_holds and (in_session or not rules.fired_replaced)):
        score, claim = max(score, bucket.fired_score), max(claim, bucket.fired_claim)
    bucket.fired_score, bucket.fired_claim = score, claim
    _acknowledge(bucket, call.seen)
    entries = enumerate(bucket.revoked)
    revoked = tuple((id, *entry) for id, entry in entries if entry is not None)
    if rules.acknowledges == "reported":
        bucket.revoked = (None,) * len(bucket.revoked)
    return Fired(bucket.claimed, revoked)


def _acknowledge(bucket: Bucket, seen: Any) -> None:
    how = bucket.rules.acknowledges
    for id, entry in enumerate(bucket.revoked):
        if entry is None or how == "reported":
            continue
        if how == "turn":
            gone = entry.turn <= seen
        elif how == "score":
            gone = (id, entry.score) in seen
        else:
            gone = id in [seen_id for seen_id, _ in seen]
        if gone:
            bucket.set("revoked", id, None)


def ends(bucket: Bucket, copy: Copy) -> bool:
    """Take a claim out of the mirror; False if the mirror does not hold it."""
    claim, how = bucket.mirror[copy.id], bucket.rules.ends
    if claim is None:
        return False
    if how == "claim" and claim != copy.claim:
        return False
    record = bucket.record(copy.id)
    if how == "score" and record.score != copy.score:
        return False
    bucket.set("mirror", copy.id, None)
    bucket.effects.append(Effect("ended", copy.id, record.stamp, claim))
    return True


def settle(bucket: Bucket, call: OwnerCall, now: int) -> bool | None:
    if not bucket.holds(call.token):
        return None
    for copy in call.copies:
        if ends(bucket, copy):
            _settle(bucket, copy.id, now)
        elif not bucket.rules.of_claims:
            bucket.deliver(copy.id, now)
    return True


def _settle(bucket: Bucket, id: int, now: int) -> None:
    bucket.leave(id, published=True)
    bucket.deliver(id, now)
    bucket.remove(id)


def settle_once(bucket: Bucket, call: OwnerCall, now: int) -> frozenset[int] | None:
    """The ids that these claims settled, now or when this call was first executed."""
    if not bucket.holds(call.token):
        return None
    settled = set()
    for copy in call.copies:
        note = copy.claim, copy.id
        if ends(bucket, copy):
            bucket.remember(bucket.record(copy.id).stamp, copy.id, Answer.CREATED)
            bucket.notes = tuple(sorted({*bucket.notes, note}))
            _settle(bucket, copy.id, now)
        if note in bucket.notes:
            settled.add(copy.id)
    return frozenset(settled)


def retry(bucket: Bucket, call: OwnerCall, now: int) -> bool | None:
    """With a delay: after a failed publish. Without: put back, and nothing is counted."""
    if not bucket.holds(call.token):
        return None
    for copy in call.copies:
        if not ends(bucket, copy):
            continue
        if call.delay is None:
            bucket.set("due", copy.id, copy.score)
        else:
            bucket.count_attempt(copy.id, call.maybe)
            bucket.move(copy.id, 2 * (now + call.delay) + copy.score % 2)
    return True


def bury(bucket: Bucket, call: OwnerCall) -> bool | None:
    if not bucket.holds(call.token):
        return None
    for copy in call.copies:
        if ends(bucket, copy):
            bucket.count_attempt(copy.id, call.maybe)
            bucket.set("dead", copy.id, True)
            bucket.set("reasons", copy.id, True)
    return True


def park(bucket: Bucket, call: OwnerCall) -> bool | None:
    if not bucket.holds(call.token):
        return None
    for copy in call.copies:
        if ends(bucket, copy):
            bucket.set("parked", copy.id, copy.score)
    return True


def offer(bucket: Bucket, call: OwnerCall) -> bool | None:
    """Set aside for consumers."""
    if not bucket.holds(call.token):
        return None
    for copy in call.copies:
        if ends(bucket, copy):
            bucket.set("parked", copy.id, copy.score)
            bucket.ready = tuple(sorted({*bucket.ready, (copy.score, copy.id)}))
    return True


def unpark(bucket: Bucket, call: OwnerCall) -> tuple[int] | None:
    """The earliest; how many are left."""
    if not bucket.holds(call.token):
        return None
    parked = sorted((score, id) for id, score in enumerate(bucket.parked) if score is not None)
    for score, id in parked[:1]:
        bucket.set("due", id, score)
        bucket.set("parked", id, None)
    return (max(0, len(parked) - 1),)


def count(bucket: Bucket, call: OwnerCall) -> Counted | None:
    if not bucket.holds(call.token):
        return None
    sets = (bucket.messages, bucket.due, bucket.mirror, bucket.parked)
    sizes = [sum(each is not None for each in found) for found in sets]
    return Counted(*sizes, sum(bucket.dead), sum(bucket.reasons))


def mend(bucket: Bucket, call: OwnerCall) -> tuple[int, int] | None:
    """Messages in no set go to the dead set if they have a reason, else back to `due`: how many."""
    if not bucket.holds(call.token) or bucket.lease is None:
        return None
    if bucket.rules.mends_first and bucket.claimed != bucket.lease[1]:
        return None
    due = dead = 0
    for id, record in enumerate(bucket.messages):
        if record is None or not bucket.is_orphan(id):
            continue
        bucket.note_maybe(id)
        if bucket.reasons[id]:
            bucket.set("dead", id, True)
            dead += 1
        else:
            bucket.set("due", id, record.score)
            due += 1
        bucket.effects.append(Effect("mended", id, record.stamp, flag=bucket.maybe(id)))
    return due, dead


VERBS = {
    "acquire": acquire, "renew": renew, "release": release, "reclaim": reclaim, "fire": fire,
    "bury": bury, "park": park, "offer": offer, "unpark": unpark, "count": count, "mend": mend,
}  # fmt: skip
TIMED = {"settle": settle, "settle_once": settle_once, "retry": retry}
