"""What a verb would answer for one message as it is now, read without a change.

The rules are those of the verb's script. While the keys of a bucket contradict one another, until
its owner has mended them, the verb may answer otherwise.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from delaybridge.message import Answer, State
from delaybridge.store.protocol import replies
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.replies import Row
from delaybridge.store.protocol.verbs import RedisCommand

_HEAD_BYTES = 13  # of a record: enough to know whether the message can come back
_SAFE = {"cancel": Answer.CANCELLED, "reschedule": Answer.RESCHEDULED}
_MAYBE = {
    "cancel": Answer.CANCELLED_MAYBE_DELIVERED,
    "reschedule": Answer.RESCHEDULED_MAYBE_DELIVERED,
}


def foresee(bucket: Bucket, verb: str, id: str) -> RedisCommand[Answer | None]:
    """What cancel, reschedule, kick or discard would answer; None: the id is not there."""
    return bucket.call("get", (id, _HEAD_BYTES), partial(_read, verb, id))


def is_foreseen(command: RedisCommand[Any]) -> bool:
    """Whether a command only reads what a verb would answer."""
    return getattr(command.parse, "func", None) is _read


def _read(verb: str, id: str, reply: list[Any] | None) -> Answer | None:
    row = replies.read_message(id, reply)
    if row is None:
        return None
    return _of_dead(verb, row) if verb in ("kick", "discard") else _of_pending(verb, row)


def _of_dead(verb: str, row: Row) -> Answer:
    if row.state is not State.DEAD:
        return Answer.UNKNOWN
    if verb == "discard":
        return Answer.DISCARDED
    is_whole = len(row.record) >= _HEAD_BYTES and row.record[0] in (1, 2)
    return Answer.KICKED if is_whole else Answer.UNREADABLE


def _of_pending(verb: str, row: Row) -> Answer:
    if not row.record:
        return Answer.UNKNOWN
    if row.fired:
        return Answer.IN_FLIGHT
    if verb == "reschedule" and row.state is State.DEAD:
        return Answer.DEAD
    return (_MAYBE if row.tried.maybe_delivered else _SAFE)[verb]
