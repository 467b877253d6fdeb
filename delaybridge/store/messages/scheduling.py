"""Scheduling messages: one script call per bucket and thousand messages."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from delaybridge.accept.accept import Accepted, Draft
from delaybridge.errors import StoreError, StoreFull, StoreUnavailable
from delaybridge.message import Answer, OnConflict
from delaybridge.store.messages.outgoing import Outgoing, ScriptCall, Stamped, stamped
from delaybridge.store.namespace.namespace import Namespace
from delaybridge.store.protocol.command import Each, RedisCommand, Steps
from delaybridge.store.protocol.keys import bucket_of
from delaybridge.store.protocol.replies import ANSWERS

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
        outgoing = Outgoing(messages, self.ids)
        found = yield from self.schedule_each(outgoing, policy)
        patience = Patience(self.placement.timeout_s) if waits and outgoing.late else None
        while patience and outgoing.late and (pause_s := patience.pause_s()):
            yield from self._try_again(outgoing, policy, outgoing.late, found, after_s=pause_s)
        return receipts(found)

    def schedule_one(
        self, message: Draft | Accepted | Stamped, policy: OnConflict
    ) -> Steps[Receipt]:
        """As `schedule` for one message, in half the time."""
        yield from self.open()
        sent = stamped(message, self.ids)
        if not self.quota.is_set:
            bucket = self._buckets[bucket_of(sent[1].shard_key, len(self._buckets))]
            (reply,) = yield Each([bucket.schedule([sent], policy)])
            if isinstance(reply, StoreError):
                raise (yield from self.explained(bucket, reply))
            if reply is not None and reply[0][0] is not Answer.IN_FLIGHT:
                ((answer, due_ms),) = reply
                return Receipt(answer, sent[1].id, due_ms, bucket.number)
        (receipt,) = yield from self.schedule([sent], policy)
        return receipt

    def schedule_each(
        self,
        messages: Sequence[Draft | Accepted | Stamped] | Outgoing,
        policy: OnConflict,
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
        policy: OnConflict,
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
        policy: OnConflict,
        todo: Sequence[int],
        found: list[Any],
        *,
        first: bool = False,
        after_s: float = 0.0,
    ) -> Steps[list[int]]:
        """Schedule those at the places `todo`; returns places whose bucket answered None."""
        buckets = self._buckets
        calls = list(outgoing.calls(todo, len(buckets)))

        def command(call: ScriptCall) -> RedisCommand[Any]:
            messages = outgoing.stamped(call)
            asked: RedisCommand[Any] = buckets[call.bucket].schedule(messages, policy, first=first)
            parse = partial(_receive, asked.parse, messages, call, found)
            return RedisCommand(asked.name, asked.keys, asked.args, parse)

        replies = yield Each((partial(command, call) for call in calls), after_s=after_s)
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
        if not (yield from self.quota.look(self._buckets)):
            return places
        for i, (_, message) in enumerate(outgoing.stamped(ScriptCall(0, places))):
            found[i] = self.quota.refusal(message.payload)
            if found[i] is None:
                self.quota.count(message.payload)
        return [i for i in places if found[i] is None]


def _receive(
    parse: Callable[[Any], list[tuple[Answer, int]] | None],
    messages: Sequence[Stamped],
    call: ScriptCall,
    found: list[Any],
    reply: Any,
) -> bool | None:
    """Put the receipts of a script call's messages in their places; whether any is in flight.

    None as `Bucket.schedule`.
    """
    answers = parse(reply)
    if answers is None:
        return None
    number, places, _ = call
    for i, (_, message), (answer, due_ms) in zip(places, messages, answers, strict=True):
        one = str.__new__(Receipt, answer)  # as its constructor, in half the time
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
