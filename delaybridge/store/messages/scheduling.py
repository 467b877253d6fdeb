"""Scheduling messages: one script call per bucket and thousand messages.

`Outgoing` is the messages on their way: their ids, their stamps, and the script calls they go in.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import msgspec

from delaybridge.accept.accept import PLAIN_BYTES, Accepted, Draft, encoded
from delaybridge.errors import StoreError, StoreFull, StoreUnavailable
from delaybridge.gathering import FIRST_CHAR
from delaybridge.message import Answer, ConflictPolicy, OnConflict
from delaybridge.settings.durability import Keeping
from delaybridge.store.namespace.namespace import Namespace
from delaybridge.store.protocol.ids import MOST_CLASSES, Ids
from delaybridge.store.protocol.replies import ANSWERS
from delaybridge.store.protocol.verbs import (
    Each,
    EachMade,
    RedisCommand,
    Steps,
    bucket_of,
    new_stamp,
    new_stamps,
)

Stamped = tuple[bytes, Accepted]

# Of one script call: Redis serves no other client while it runs.
_CALL_MESSAGES = 1000
_CALL_BYTES = 4 * 2**20
# New messages, whose ids are drawn for one bucket: Redis works on a call while the next is made.
_NEW_MESSAGES = _CALL_BYTES // PLAIN_BYTES
_FIRST_NEW = 40  # in the first call, for which Redis waits
_FEW_NEW = 20  # fewer are not worth a bucket of their own
_NONE_DRAWN: Iterable[str] = ()
_UNUSUAL = 50  # calls of `schedule`, each after one in vain


class ScriptCall(NamedTuple):
    """A call of `schedule`: its bucket, the places of its messages, ids for those that have none.

    The ids are drawn when the messages are stamped.
    """

    bucket: int
    places: Sequence[int]
    ids: Iterable[str] = _NONE_DRAWN


class Outgoing:
    """The messages of a client's call, in order. Each is encoded and stamped once, to be sent.

    late: the places of those whose id was in flight when they were sent last.
    """

    def __init__(self, messages: Sequence[Draft | Accepted | Stamped], ids: Ids) -> None:
        self._messages, self._ids = list(messages), ids
        self.late: list[int] = []

    def __len__(self) -> int:
        return len(self._messages)

    def __getitem__(self, place: int) -> Draft | Accepted | Stamped:
        return self._messages[place]

    def stamped(self, call: ScriptCall) -> list[Stamped]:
        """The messages of a script call, ready to be sent; the same each time."""
        messages, ids, some = self._messages, self._ids, [self._messages[i] for i in call.places]
        if call.ids is _NONE_DRAWN:
            ready = [stamped(one, ids) for one in some]
        else:  # all are new drafts
            made = encoded(cast(list[Draft], some), call.ids)
            ready = list(zip(new_stamps(len(some)), made, strict=True))
        for i, one in zip(call.places, ready, strict=True):
            messages[i] = one
        return ready

    def calls(self, places: Sequence[int], buckets: int) -> Iterator[ScriptCall]:
        """The script calls for the messages at these places, of bounded size.

        Most drafts without an id go in calls of their own, with ids drawn for one bucket. All other
        messages of a bucket go in order.
        """
        messages = self._messages
        new = [i for i in places if isinstance(one := messages[i], Draft) and one.id is None]
        if buckets > MOST_CLASSES or len(new) < _FEW_NEW:
            for i in new:
                messages[i] = msgspec.structs.replace(cast(Draft, messages[i]), id=self._ids.draw())
            new = []
        begin, size = 0, _FIRST_NEW if len(new) > _NEW_MESSAGES else _NEW_MESSAGES
        while begin < len(new):
            number, ids = self._ids.for_bucket(buckets)
            yield ScriptCall(number, new[begin : begin + size], ids)
            begin, size = begin + size, _NEW_MESSAGES
        if len(new) == len(places):
            return
        by_bucket: dict[Any, list[int]] = {}
        for i in sorted({*places}.difference(new)) if new else places:
            by_bucket.setdefault(bucket_for(messages[i], buckets), []).append(i)
        for number, some in by_bucket.items():
            yield from self._bounded(number, some)

    def _bounded(self, number: int, places: Sequence[int]) -> Iterator[ScriptCall]:
        start = total = 0
        for end, i in enumerate(places):
            size = _size(self._messages[i])
            total += size
            if end > start and (end - start == _CALL_MESSAGES or total > _CALL_BYTES):
                yield ScriptCall(number, places[start:end])
                start, total = end, size
        yield ScriptCall(number, places[start:])


def stamped(message: Draft | Accepted | Stamped, ids: Ids) -> Stamped:
    """The message ready to be sent. ids: draws one for a draft that has none."""
    if isinstance(message, Draft):
        return new_stamp(), message.accepted(message.id or ids.draw())
    return message if isinstance(message, tuple) else (new_stamp(), message)


def bucket_for(message: Draft | Accepted | Stamped, buckets: int) -> int | None:
    """The bucket of a message; None if it has no id yet."""
    if isinstance(message, Draft):
        return None if message.id is None else bucket_of(message.id.encode(), buckets)
    return bucket_of(_accepted(message).shard_key, buckets)


def _size(message: Draft | Accepted | Stamped) -> int:
    return len(message.body if isinstance(message, Draft) else _accepted(message).payload)


def _accepted(message: Accepted | Stamped) -> Accepted:
    return message[1] if isinstance(message, tuple) else message


_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.002, 0.05
_IN_FLIGHT = next(number for number, answer in ANSWERS.items() if answer is Answer.IN_FLIGHT)


class Patience:
    """For how long a call waits while its id is in flight, and when it is made again."""

    def __init__(self, timeout_s: float) -> None:
        self._until_s, self._next_s = time.monotonic() + timeout_s, _FIRST_PAUSE_S

    def pause_s(self) -> float:
        """The pause before the next try; 0 if there is none."""
        pause_s, self._next_s = self._next_s, min(2 * self._next_s, _LONGEST_PAUSE_S)
        return pause_s if time.monotonic() < self._until_s else 0.0


class Receipt(str):
    """The answer to `schedule`: a `str`, the text of an `Answer`, such as `created`.

    Only its repr shows more. id: the message's. due_ms: when it is due, in
    epoch milliseconds of Redis' clock; for a duplicate or conflict, when the pending message is
    due. bucket: the number of its bucket. answer: the same as an `Answer`.
    """

    __slots__ = ("answer", "bucket", "due_ms", "id")
    answer: Answer
    id: str
    due_ms: int
    bucket: int

    def __new__(cls, answer: Answer, id: str, due_ms: int, bucket: int) -> Receipt:
        made = str.__new__(cls, answer)
        made.answer, made.id, made.due_ms, made.bucket = answer, id, due_ms, bucket
        return made

    def __reduce__(self) -> tuple[type[Receipt], tuple[Answer, str, int, int]]:
        return Receipt, (self.answer, self.id, self.due_ms, self.bucket)

    def __repr__(self) -> str:
        return (
            f"Receipt({self.answer.value!r}, id={self.id!r}, due_ms={self.due_ms}, "
            f"bucket={self.bucket})"
        )


class Scheduling(Namespace):
    """Calls that store new messages."""

    _unusual = 0  # calls for one message to come that ask `schedule` at once

    def schedule(
        self,
        messages: Sequence[Draft | Accepted | Stamped],
        policy: OnConflict,
        *,
        waits: bool = True,
    ) -> Steps[list[Receipt]]:
        """The receipt of each message; raises if the store refused one.

        A message may come with the caller's stamp: sent again, the same stamp is the same call.
        waits: for ids that are in flight, as long as a call may last. Only the messages concerned
        are sent again; the others are stored before.
        """
        return receipts((yield from self.schedule_all(messages, policy, waits=waits)))

    def schedule_all(
        self,
        messages: Sequence[Draft | Accepted | Stamped],
        policy: OnConflict,
        *,
        waits: bool = True,
    ) -> Steps[list[Receipt | Exception]]:
        """As `schedule`; each message has its receipt, or its error."""
        outgoing = Outgoing(messages, self.ids)
        found = yield from self.schedule_each(outgoing, policy)
        patience = Patience(self.placement.timeout_s) if waits and outgoing.late else None
        while patience and outgoing.late and (pause_s := patience.pause_s()):
            yield from self._try_again(outgoing, policy, outgoing.late, found, after_s=pause_s)
        return found

    def schedule_one(
        self, message: Draft | Accepted | Stamped, policy: OnConflict
    ) -> Steps[Receipt]:
        """As `schedule` for one message, in half the time."""
        if not self.following.here:
            yield from self.open()
        sent = stamped(message, self.ids)
        if self.quota.is_set:
            return (yield from self.schedule([sent], policy))[0]
        is_tried = self._may_be_usual(sent[1], policy)
        bucket = self.following.here[bucket_of(sent[1].shard_key, len(self.following.here))]
        if is_tried:
            is_drawn = isinstance(message, Draft) and message.id is None
            (found,) = yield Each([bucket.schedule_one(sent, is_drawn=is_drawn)])
            if isinstance(found, StoreUnavailable):
                raise (yield from self.explained(bucket, found))
            if found and not isinstance(found, StoreError):
                return Receipt(Answer.CREATED, sent[1].id, found, bucket.number)
        (reply,) = yield Each([bucket.schedule([sent], policy)])
        if isinstance(reply, StoreError):
            raise (yield from self.explained(bucket, reply))
        if reply is None:  # the bucket is new, or its namespace is
            return (yield from self.schedule([sent], policy))[0]
        self._unusual = _UNUSUAL if is_tried else self._unusual
        ((answer, due_ms),) = reply
        if answer is Answer.IN_FLIGHT:
            return (yield from self.schedule([sent], policy))[0]
        return Receipt(answer, sent[1].id, due_ms, bucket.number)

    def _may_be_usual(self, message: Accepted, policy: OnConflict) -> bool:
        """Whether the short call may do. What was unusual is taken to be so for some calls."""
        if self._unusual:
            self._unusual -= 1
            return False
        return (
            policy is not OnConflict.REPLACE
            and not self.following.is_resizing
            and self.durability.mode is not Keeping.LEDGER
            and message.when < FIRST_CHAR
        )

    def schedule_each(
        self,
        messages: Sequence[Draft | Accepted | Stamped] | Outgoing,
        policy: ConflictPolicy,
        *,
        again: bool = False,
    ) -> Steps[list[Receipt | Exception]]:
        """The receipt of each message, or why the store refused its script call; waits for none.

        One script call per bucket and thousand messages, all in one pipeline. Each call is made
        while Redis works on those before. `Outgoing.late`: the places of those in flight.
        They do not count against the quota: those that they wait for do. Nor do those that were
        refused. again: they were sent before, and the quota let them pass.
        """
        outgoing = messages if isinstance(messages, Outgoing) else Outgoing(messages, self.ids)
        found: list[Any] = [None] * len(outgoing)
        yield from self.open()
        places = range(len(outgoing))
        with self.quota.under_way():
            todo = places if again else (yield from self._within_quota(outgoing, found))
            yield from self._try_again(outgoing, policy, todo, found)
            if self.quota.is_set and not again:
                unwritten = [*outgoing.late, *(i for i in todo if _is_refused(found[i]))]
                for _, message in outgoing.stamped(ScriptCall(0, unwritten)):
                    self.quota.count(message.payload, -1)
        return found

    def _try_again(
        self,
        outgoing: Outgoing,
        policy: ConflictPolicy,
        todo: Sequence[int],
        found: list[Any],
        *,
        after_s: float = 0.0,
    ) -> Steps[None]:
        """Schedule those at the places `todo`, after a pause; once more in a new namespace."""
        outgoing.late = []
        todo = yield from self._try(outgoing, policy, todo, found, after_s=after_s)
        if todo:  # the namespace's record is new or has changed
            yield from self.open(again=True)
            todo = yield from self._try(outgoing, policy, todo, found, first=True)
        for i in todo:
            found[i] = self.wiped()

    def _try(
        self,
        outgoing: Outgoing,
        policy: ConflictPolicy,
        todo: Sequence[int],
        found: list[Any],
        *,
        first: bool = False,
        after_s: float = 0.0,
    ) -> Steps[list[int]]:
        """Schedule those at the places `todo`; returns places whose bucket answered None."""
        buckets = self.following.here
        calls = list(outgoing.calls(todo, len(buckets)))

        def command(call: ScriptCall) -> RedisCommand[Any]:
            messages = outgoing.stamped(call)
            asked: RedisCommand[Any] = buckets[call.bucket].schedule(messages, policy, first=first)
            at = buckets[call.bucket].number
            parse = partial(_receive, asked.parse, messages, call.places, at, found)
            return RedisCommand(asked.name, asked.keys, asked.args, parse)

        replies = yield EachMade((partial(command, call) for call in calls), after_s=after_s)
        left: list[int] = []
        for (number, places, _), reply in zip(calls, replies, strict=True):
            if reply is None:
                left += places
            elif isinstance(reply, StoreError):
                error = yield from self.explained(buckets[number], reply)
                for i in places:
                    found[i] = error
            elif reply:
                outgoing.late += [i for i in places if found[i] == Answer.IN_FLIGHT]
        return left

    def _within_quota(self, outgoing: Outgoing, found: list[Any]) -> Steps[Sequence[int]]:
        """The places within the quota; the others get their error in `found`."""
        places = range(len(outgoing))
        if not (yield from self.quota.read_counts(self.following.held())):
            return places
        for i, (_, message) in enumerate(outgoing.stamped(ScriptCall(0, places))):
            found[i] = self.quota.refusal(message.payload)
            if found[i] is None:
                self.quota.count(message.payload)
        return [i for i in places if found[i] is None]


def _receive(
    parse: Callable[[Any], list[tuple[Answer, int]] | None],
    messages: Sequence[Stamped],
    places: Sequence[int],
    number: int,
    found: list[Any],
    reply: Any,
) -> bool | None:
    """Put the receipts of a script call's messages in their places; whether any is in flight.

    None as `Bucket.schedule`.
    """
    answers = parse(reply)
    if answers is None:
        return None
    for i, (_, message), (answer, due_ms) in zip(places, messages, answers, strict=True):
        one = str.__new__(Receipt, answer._value_)  # as its constructor, in half the time
        one.answer, one.id, one.due_ms, one.bucket = answer, message.id, due_ms, number
        found[i] = one
    return _IN_FLIGHT in reply[::3]


def _is_refused(outcome: Receipt | Exception) -> bool:
    """Whether nothing was written."""
    return isinstance(outcome, StoreError) and not isinstance(outcome, StoreUnavailable)


def receipts(found: list[Receipt | Exception]) -> list[Receipt]:
    """One caller's answer: its receipts; raises an error if any message has none."""
    errors = [one for one in found if isinstance(one, Exception)]
    if not errors:
        return found  # type: ignore[return-value]
    # StoreFull tells how many were not written, which is known only if no outcome is unknown.
    doubt = next((error for error in errors if not isinstance(error, StoreFull)), None)
    if doubt is None and len(errors) < len(found):
        why = "Redis is out of memory" if str(errors[0]) == str(StoreFull()) else errors[0]
        raise StoreFull(
            f"{why}: {len(errors)} of {len(found)} messages were not written; call again with the "
            "same ids"
        )
    # Callers of the same tick may share it: their frames would be in its traceback.
    raise (doubt or errors[0]).with_traceback(None)
