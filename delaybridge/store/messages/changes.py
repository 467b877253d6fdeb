"""Changing messages by id: cancel, reschedule, kick, discard."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from delaybridge.errors import StoreError
from delaybridge.message import Answer
from delaybridge.store.messages.foreseen import foresee
from delaybridge.store.messages.selection import Selected
from delaybridge.store.namespace.namespace import Namespace
from delaybridge.store.protocol import verbs
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.ids import quarantine_ids
from delaybridge.store.protocol.stored import stored
from delaybridge.store.protocol.verbs import RedisCommand, Steps, grouped

Named = str | Selected  # a message by its id, or as a selection found it
# Takes a bucket, the stamp of the call, an id, and the place of that id in the call. Its answer may
# be None if it changes nothing: the id is unknown.
_Verb = Callable[[Bucket, bytes, str, int], RedisCommand[Answer] | RedisCommand[Answer | None]]
_UNDECODABLE = "undecodable"
# If one id is in several buckets (under several keys), the answer that comes first here counts.
ANSWER_PRECEDENCE = (
    Answer.IN_FLIGHT, Answer.CHANGED, Answer.CANCELLED_MAYBE_DELIVERED,
    Answer.RESCHEDULED_MAYBE_DELIVERED,
    Answer.REDIRECTED_MAYBE_DELIVERED, Answer.CANCELLED, Answer.RESCHEDULED, Answer.REPLACED,
    Answer.REDIRECTED, Answer.KICKED, Answer.DISCARDED, Answer.REFUSED,
    Answer.UNREADABLE, Answer.DEAD, Answer.FOREIGN, Answer.UNKNOWN,
)  # fmt: skip


def furthest(answers: Iterable[Answer]) -> Answer:
    """The answer for the message that had gone furthest; `unknown` without any."""
    return min(answers, key=ANSWER_PRECEDENCE.index, default=Answer.UNKNOWN)


class Changes(Namespace):
    """Calls that change messages by id; those for many, if they are dry, only say the answers."""

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

    def cancel_many(
        self, messages: Sequence[Named], key: bytes | None, *, dry: bool = False
    ) -> Steps[list[Answer]]:
        """Cancel each; all in one pipeline. One with a version only as it was then."""
        verb: _Verb = lambda b, s, id, i: b.cancel(s, id, reach=_head(messages[i]))  # noqa: E731
        answers = yield from self._each(messages, key, _foreseen("cancel") if dry else verb)
        return [Answer.CHANGED if one is Answer.FOREIGN else one for one in answers]

    def cancel_each(
        self, named: Sequence[tuple[str, bytes | None]]
    ) -> Steps[list[Answer | StoreError]]:
        """Cancel each id with its key, all in one pipeline; or why a bucket cannot answer."""
        yield from self.open()
        ids = [id for id, _ in named]
        places = [asked_for(self, id, key) for id, key in named]
        return (yield from self._outcomes(ids, places, lambda b, s, id, _: b.cancel(s, id)))

    def reschedule_many(
        self,
        messages: Sequence[Named],
        dues: Sequence[str],
        key: bytes | None,
        *,
        dry: bool = False,
    ) -> Steps[list[Answer]]:
        """Reschedule each to the due time at its place; all in one pipeline."""
        verb: _Verb = lambda b, s, id, i: b.reschedule(s, id, dues[i])  # noqa: E731
        return (yield from self._each(messages, key, _foreseen("reschedule") if dry else verb))

    def kick_many(
        self,
        messages: Sequence[Named],
        delays_ms: Sequence[int],
        key: bytes | None,
        *,
        dry: bool = False,
    ) -> Steps[list[Answer]]:
        """Kick each, due after its delay; for an unknown id, the messages quarantined with it.

        `unreadable` is the answer for a message that this version would only bury again.
        """
        refused = yield from self._unreadable(messages, key)
        places = [i for i in range(len(messages)) if i not in refused]
        readable = [messages[i] for i in places]
        verb: _Verb = lambda b, s, id, i: b.kick(s, id, delays_ms[places[i]])  # noqa: E731
        answers = yield from self._each_or_quarantined(
            readable, key, _foreseen("kick") if dry else verb
        )
        kicked = dict(zip(places, answers, strict=True))
        return [kicked.get(i, Answer.UNREADABLE) for i in range(len(messages))]

    def _unreadable(self, messages: Sequence[Named], key: bytes | None) -> Steps[set[int]]:
        """Places of messages that were buried as unreadable and still are to this version."""
        yield from self.open()
        asked = [(i, b) for i, m in enumerate(messages) for b in asked_for(self, m, key)]
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

    def discard_many(
        self, messages: Sequence[Named], key: bytes | None, *, dry: bool = False
    ) -> Steps[list[Answer]]:
        """Discard each; for an unknown id, the messages quarantined with it."""
        verb: _Verb = _foreseen("discard") if dry else lambda b, s, id, _: b.discard(s, id)
        return (yield from self._each_or_quarantined(messages, key, verb))

    def _each(
        self, messages: Sequence[Named], key: bytes | None, verb: _Verb
    ) -> Steps[list[Answer]]:
        """The verb on each message; raises the error of the first that has one."""
        yield from self.open()
        places = [asked_for(self, message, key) for message in messages]
        outcomes = yield from self._outcomes(messages, places, verb)
        error = next((each for each in outcomes if isinstance(each, StoreError)), None)
        if error is not None:
            try:
                raise error
            finally:
                del error, outcomes  # or the frame and the error would hold each other
        return outcomes  # type: ignore[return-value]

    def _outcomes(
        self, messages: Sequence[Named], places: Sequence[Sequence[Bucket]], verb: _Verb
    ) -> Steps[list[Answer | StoreError]]:
        """The answer or error of each message, which is looked for in the buckets of its place.

        Of several buckets' answers, one by ANSWER_PRECEDENCE.
        """
        stamp = verbs.new_stamp()
        asked = [
            [verb(bucket, stamp, _id(message), i) for bucket in place]
            for i, (message, place) in enumerate(zip(messages, places, strict=True))
        ]
        replies = yield from grouped(asked)
        outcomes, explained = list[Answer | StoreError](), dict[tuple[int, str], StoreError]()
        for place, mine in zip(places, replies, strict=True):
            outcomes.append(furthest(reply for reply in mine if isinstance(reply, Answer)))
            if outcomes[-1] is Answer.UNKNOWN and any(isinstance(r, StoreError) for r in mine):
                # It may be in a bucket that cannot answer.
                outcomes[-1] = yield from self._first_error(place, mine, explained)
        return outcomes

    def _first_error(
        self,
        place: Sequence[Bucket],
        replies: Sequence[Any],
        explained: dict[tuple[int, str], StoreError],
    ) -> Steps[StoreError]:
        """The first error among replies. explained: those so far: a bucket is looked at once."""
        pairs = zip(place, replies, strict=True)
        bucket, error = next(each for each in pairs if isinstance(each[1], StoreError))
        cause = bucket.number, str(error)
        if cause not in explained:
            explained[cause] = yield from self.explained(bucket, error)
        return explained[cause]

    def _each_or_quarantined(
        self, messages: Sequence[Named], key: bytes | None, verb: _Verb
    ) -> Steps[list[Answer]]:
        """As `_each`; if an id is unknown, the verb acts on the messages quarantined with it."""
        answers = yield from self._each(messages, key, verb)
        stamp = verbs.new_stamp()
        named: list[tuple[int, str]] = []
        for i, (message, answer) in enumerate(zip(messages, answers, strict=True)):
            if answer is Answer.UNKNOWN and isinstance(message, str):
                named += [(i, name) for name in quarantine_ids(message)]
        own = {i: asked_for(self, _id(messages[i]), None)[0] for i, _ in named}
        found = (yield [verb(own[i], stamp, name, i) for i, name in named]) if named else []
        for (i, _), answer in zip(named, found, strict=True):
            if answer is not None:
                answers[i] = furthest((answers[i], answer))
        return answers


def asked_for(calls: Namespace, message: Named, key: bytes | None) -> list[Bucket]:
    """The id's own bucket, then all others: a message with a key is in the key's bucket."""
    if isinstance(message, Selected):
        return [calls.bucket(message.bucket)]
    buckets = calls.buckets
    number = verbs.bucket_of(message.encode() if key is None else key, len(buckets))
    if key is not None:
        return [buckets[number]]
    return [buckets[number], *buckets[:number], *buckets[number + 1 :]]


def _foreseen(verb: str) -> _Verb:
    return lambda bucket, _stamp, id, _place: foresee(bucket, verb, id)


def _head(message: Named) -> bytes | str:
    """The reach of a verb for a message that was found with a version."""
    return b"=" + message.version if isinstance(message, Selected) and message.version else ""


def _id(message: Named) -> str:
    return message.id if isinstance(message, Selected) else message
