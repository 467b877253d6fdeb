"""Changing messages by id: cancel, reschedule, kick, discard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, islice

from delaybridge.message import Answer
from delaybridge.store import keys, verbs
from delaybridge.store.command import Each, RedisCommand, Steps
from delaybridge.store.ids import quarantine_ids
from delaybridge.store.namespace import Namespace
from delaybridge.store.selection import Selected
from delaybridge.store.stored import stored
from delaybridge.store.verbs import Bucket

Named = str | Selected  # a message by its id, or as a selection found it
# Takes a bucket, the stamp of the call, an id, and the place of that id in the call.
_Verb = Callable[[Bucket, bytes, str, int], RedisCommand[Answer]]
_UNDECODABLE = "undecodable"
# If one id is in several buckets (under several keys), the answer that comes first here counts.
ANSWER_PRECEDENCE = (
    Answer.IN_FLIGHT,
    Answer.CANCELLED_MAYBE_DELIVERED,
    Answer.RESCHEDULED_MAYBE_DELIVERED,
    Answer.CANCELLED,
    Answer.RESCHEDULED,
    Answer.KICKED,
    Answer.DISCARDED,
    Answer.UNREADABLE,
    Answer.DEAD,
    Answer.FOREIGN,
    Answer.UNKNOWN,
)


class Changes(Namespace):
    """Calls that change messages by id."""

    def cancel(self, id: str, key: bytes | None) -> Steps[Answer]:
        """Cancel by id; without a key, in every bucket."""
        (answer,) = yield from self.cancel_many([id], key)
        return answer

    def reschedule(self, id: str, key: bytes | None, due: str) -> Steps[Answer]:
        """As `cancel`, with a new due time."""
        (answer,) = yield from self.reschedule_many([id], [due], key)
        return answer

    def kick(self, id: str, key: bytes | None) -> Steps[Answer]:
        """As `cancel`, for a dead message."""
        (answer,) = yield from self.kick_many([id], [0], key)
        return answer

    def discard(self, id: str, key: bytes | None) -> Steps[Answer]:
        """As `cancel`, for a dead message."""
        (answer,) = yield from self.discard_many([id], key)
        return answer

    def cancel_many(self, messages: Sequence[Named], key: bytes | None) -> Steps[list[Answer]]:
        """Cancel each; all in one pipeline."""
        return (yield from self._each(messages, key, lambda b, s, id, _: b.cancel(s, id)))

    def reschedule_many(
        self, messages: Sequence[Named], dues: Sequence[str], key: bytes | None
    ) -> Steps[list[Answer]]:
        """Reschedule each to the due time at its place; all in one pipeline."""
        return (
            yield from self._each(messages, key, lambda b, s, id, i: b.reschedule(s, id, dues[i]))
        )

    def kick_many(
        self, messages: Sequence[Named], delays_ms: Sequence[int], key: bytes | None
    ) -> Steps[list[Answer]]:
        """Kick each, due after its delay; for an unknown id, the messages quarantined with it.

        `unreadable` is the answer for a message that this version would only bury again.
        """
        refused = yield from self._unreadable(messages, key)
        places = [i for i in range(len(messages)) if i not in refused]
        readable = [messages[i] for i in places]
        answers = yield from self._each_or_quarantined(
            readable, key, lambda b, s, id, i: b.kick(s, id, delays_ms[places[i]])
        )
        kicked = dict(zip(places, answers, strict=True))
        return [kicked.get(i, Answer.UNREADABLE) for i in range(len(messages))]

    def _unreadable(self, messages: Sequence[Named], key: bytes | None) -> Steps[set[int]]:
        """Places of messages that were buried as unreadable and still are to this version."""
        buckets = yield from self.open()
        asked = [(i, b) for i, m in enumerate(messages) for b in asked_for(m, key, buckets)]
        reasons = yield [bucket.dead_reason(_id(messages[i])) for i, bucket in asked]
        doubtful = [
            at for at, why in zip(asked, reasons, strict=True) if why.startswith(_UNDECODABLE)
        ]
        rows = (yield [b.get(_id(messages[i])) for i, b in doubtful]) if doubtful else []
        return {
            i
            for (i, _), row in zip(doubtful, rows, strict=True)
            if row is not None and not stored(row, 0).is_readable
        }

    def discard_many(self, messages: Sequence[Named], key: bytes | None) -> Steps[list[Answer]]:
        """Discard each; for an unknown id, the messages quarantined with it."""
        return (
            yield from self._each_or_quarantined(
                messages, key, lambda b, s, id, _: b.discard(s, id)
            )
        )

    def _each(
        self, messages: Sequence[Named], key: bytes | None, verb: _Verb
    ) -> Steps[list[Answer]]:
        """The verb on each message. Of several buckets' answers, one by ANSWER_PRECEDENCE."""
        buckets = yield from self.open()
        stamp = verbs.new_stamp()
        places = [asked_for(message, key, buckets) for message in messages]
        asked = [
            [verb(bucket, stamp, _id(message), i) for bucket in place]
            for i, (message, place) in enumerate(zip(messages, places, strict=True))
        ]
        replies = iter((yield Each(chain.from_iterable(asked))))
        answers = []
        for place in places:
            mine = list(islice(replies, len(place)))
            known = [reply for reply in mine if isinstance(reply, Answer)]
            answer = min(known, key=ANSWER_PRECEDENCE.index, default=Answer.UNKNOWN)
            if answer is Answer.UNKNOWN:  # unless the bucket that has it cannot answer
                yield from self.check(place, mine)
            answers.append(answer)
        return answers

    def _each_or_quarantined(
        self, messages: Sequence[Named], key: bytes | None, verb: _Verb
    ) -> Steps[list[Answer]]:
        """As `_each`; if an id is unknown, the verb acts on the messages quarantined with it."""
        answers = yield from self._each(messages, key, verb)
        stamp, buckets = verbs.new_stamp(), self._buckets
        for i, (message, answer) in enumerate(zip(messages, answers, strict=True)):
            if answer is Answer.UNKNOWN and isinstance(message, str):
                bucket = asked_for(message, None, buckets)[0]
                found = yield [verb(bucket, stamp, name, i) for name in quarantine_ids(message)]
                answers[i] = min(found, key=ANSWER_PRECEDENCE.index)
        return answers


def asked_for(message: Named, key: bytes | None, buckets: list[Bucket]) -> list[Bucket]:
    """The id's own bucket, then all others: a message with a key is in the key's bucket."""
    if isinstance(message, Selected):
        return [buckets[message.bucket]]
    number = keys.bucket_of(message.encode() if key is None else key, len(buckets))
    if key is not None:
        return [buckets[number]]
    return [buckets[number], *buckets[:number], *buckets[number + 1 :]]


def _id(message: Named) -> str:
    return message.id if isinstance(message, Selected) else message
