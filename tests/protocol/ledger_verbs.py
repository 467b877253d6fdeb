"""The scripts of the ledger: seal and drop of an owner, restore and tally of anybody."""

from __future__ import annotations

from typing import NamedTuple

from tests.protocol.bucket import Bucket, Effect, Record
from tests.protocol.calls import ClientCall, Lacking, OwnerCall

ABSENT, HERE, OTHER, LEFT = range(4)
PLACES = {"delayed": "due", "in_flight": "mirror", "parked": "parked"}  # of tally


class Sealed(NamedTuple):
    """The answer to a seal. entries: of `gone`."""

    generation: int
    entries: int
    healed: int


class Tallied(NamedTuple):
    """The answer to a tally. count: of the one destination that messages have, lowest: a score."""

    size: int
    read: int
    count: int = 0
    lowest: int = -1


def seal(bucket: Bucket, call: OwnerCall) -> Sealed | None:
    sealed, known = bucket.generation, call.known
    if not bucket.holds(call.token) or (known is not None and known >= sealed):
        return None
    if known is not None:
        bucket.gone = tuple(each for each in bucket.gone if each.generation >= known)
    bucket.healed = call.healed or bucket.healed
    bucket.generation += 1
    return Sealed(sealed, len(bucket.gone), bucket.healed)


def drop(bucket: Bucket, call: OwnerCall) -> tuple[int] | None:
    """How many; of a session that has claimed nothing yet."""
    if not bucket.holds(call.token):
        return None
    count = 0
    for id, stamp in call.ended:
        record = bucket.messages[id]
        if record is None or record.stamp != stamp:
            continue
        for name in ("due", "parked"):
            bucket.set(name, id, None)
        for name in ("dead", "reasons"):
            bucket.set(name, id, False)
        bucket.remove(id)
        bucket.effects.append(Effect("dropped", id, stamp))
        count += 1
    return (count,)


def restore(bucket: Bucket, call: ClientCall, now: int) -> tuple[int, ...] | None:
    """Where each message was; None: the ledger has to be read again."""
    assert call.reading is not None
    generation, healed, rows = call.reading
    if bucket.healed != healed or not 0 <= bucket.generation - generation <= 1:
        return None
    added: list[int] = []
    answers = tuple(_restore(bucket, row, added) for row in rows)
    if added:
        bucket.wake(min(added), None)
    return answers


def _restore(bucket: Bucket, row: Lacking, added: list[int]) -> int:
    id, stamp, score, is_brought, is_dead = row
    record = bucket.messages[id]
    if record is not None:
        return HERE if record.stamp == stamp else OTHER
    if bucket.has_ended(stamp, id):
        return LEFT
    if is_brought:
        maybe, _ = bucket.attempts[id] or (False, 0)  # of an earlier message of this id
        bucket.set("attempts", id, (True, 0) if maybe else None)
        bucket.set("receipts", id, None)
        bucket.set("messages", id, Record(score, stamp))
        if is_dead:
            bucket.set("dead", id, True)
            bucket.set("reasons", id, True)
        else:
            bucket.set("due", id, score)
            added.append(score)
        bucket.effects.append(Effect("restored", id, stamp, score=score))
    return ABSENT


def tally(bucket: Bucket, call: ClientCall, now: int) -> Tallied:
    scores = [each for each in getattr(bucket, PLACES[call.policy]) if each is not None]
    count = len(scores)
    return Tallied(count, count, count, min(scores)) if scores else Tallied(0, 0)


OF_OWNER = {"seal": seal, "drop": drop}
OF_ANYBODY = {"restore": restore, "tally": tally}
