"""Scheduling messages: one script call per bucket and thousand messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from delaybridge.accept.accept import Accepted
from delaybridge.errors import StoreError, StoreFull, StoreWiped
from delaybridge.message import Answer, OnConflict
from delaybridge.store import keys, verbs
from delaybridge.store.command import Each, Steps
from delaybridge.store.namespace import Namespace
from delaybridge.times import format_time

# Of one script call: Redis serves no other client while it runs.
_CALL_MESSAGES = 1000
_CALL_BYTES = 4 * 2**20


class Receipt(str):
    """The answer to `schedule`: a `str` equal to an `Answer`, such as `created`.

    Printed, it also shows the id and the due time. id: the message's. due_ms: when it is due, in
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

    def __str__(self) -> str:
        return f"{self.answer.value} {self.id} due {format_time(self.due_ms)}"

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)

    def __repr__(self) -> str:
        return (
            f"Receipt({self.answer.value!r}, id={self.id!r}, due_ms={self.due_ms}, "
            f"bucket={self.bucket})"
        )


class Scheduling(Namespace):
    """Calls that store new messages."""

    def schedule(self, messages: Sequence[Accepted], policy: OnConflict) -> Steps[list[Receipt]]:
        """The receipt of each message; raises if the store refused one."""
        return self.schedule_accepted([(verbs.new_stamp(), m) for m in messages], policy)

    def schedule_accepted(
        self, messages: Sequence[tuple[bytes, Accepted]], policy: OnConflict
    ) -> Steps[list[Receipt]]:
        """As `schedule`, with the caller's stamps: sent again, the same stamp is the same call."""
        answer = receipts((yield from self.schedule_each(messages, policy)))
        if isinstance(answer, Exception):
            raise answer
        return answer

    def schedule_each(
        self, messages: Sequence[tuple[bytes, Accepted]], policy: OnConflict
    ) -> Steps[list[Receipt | Exception]]:
        """The receipt of each message, or why the store refused its script call.

        One script call per bucket and thousand messages, all in one pipeline.
        """
        found: list[Any] = [None] * len(messages)
        yield from self.open()
        todo = yield from self._within_quota(messages, list(range(len(messages))), found)
        todo = yield from self._try(messages, policy, todo, found)
        if todo:  # the namespace's record is new or has changed
            yield from self.open(again=True)
            todo = yield from self._try(messages, policy, todo, found, first=True)
        for i in todo:
            found[i] = StoreWiped()
        return found

    def _try(
        self,
        messages: Sequence[tuple[bytes, Accepted]],
        policy: OnConflict,
        todo: list[int],
        found: list[Any],
        *,
        first: bool = False,
    ) -> Steps[list[int]]:
        """Schedule those at the positions `todo`; returns positions whose bucket answered None."""
        buckets = self._buckets
        calls = list(_calls(messages, todo, len(buckets)))
        replies = yield Each(
            [
                buckets[number].schedule([messages[i] for i in call], policy, first=first)
                for number, call in calls
            ]
        )
        left = []
        for (number, call), reply in zip(calls, replies, strict=True):
            if reply is None:
                left += call
                continue
            if isinstance(reply, StoreError):
                reply = yield from self.explained(buckets[number], reply)
            for i, receipt in zip(call, _receipts(messages, call, reply, number), strict=True):
                found[i] = receipt
        return left

    def _within_quota(
        self,
        messages: Sequence[tuple[bytes, Accepted]],
        todo: list[int],
        found: list[Any],
    ) -> Steps[list[int]]:
        """The positions within the quota; the others get their error in `found`."""
        if not (yield from self.quota.look(self._buckets)):
            return todo
        for i in todo:
            payload = messages[i][1].payload
            found[i] = self.quota.refusal(payload)
            if found[i] is None:
                self.quota.count(payload)
        return [i for i in todo if found[i] is None]


def _receipts(
    messages: Sequence[tuple[bytes, Accepted]], call: Sequence[int], reply: Any, number: int
) -> list[Any]:
    """The receipt of each message of one script call; if it failed, its error for each."""
    if isinstance(reply, Exception):
        return [reply] * len(call)
    return [
        Receipt(answer, messages[i][1].id, due_ms, number)
        for i, (answer, due_ms) in zip(call, reply, strict=True)
    ]


def _calls(
    messages: Sequence[tuple[bytes, Accepted]], todo: Iterable[int], buckets: int
) -> Iterable[tuple[int, list[int]]]:
    """(Bucket, positions) of each script call: in order, and of bounded size."""
    by_bucket: dict[int, list[int]] = {}
    for i in todo:
        by_bucket.setdefault(keys.bucket_of(messages[i][1].shard_key, buckets), []).append(i)
    for number, places in by_bucket.items():
        call: list[int] = []
        size = 0
        for i in places:
            size += len(messages[i][1].payload)
            if call and (len(call) == _CALL_MESSAGES or size > _CALL_BYTES):
                yield number, call
                call, size = [], len(messages[i][1].payload)
            call.append(i)
        yield number, call


def receipts(found: list[Receipt | Exception]) -> list[Receipt] | Exception:
    """One caller's answer: its receipts, or an error if any message has none."""
    errors = [one for one in found if isinstance(one, Exception)]
    if not errors:
        return found  # type: ignore[return-value]
    # StoreFull tells how many were not written, which is known only if no outcome is unknown.
    doubt = next((error for error in errors if not isinstance(error, StoreFull)), None)
    if doubt is None and len(errors) < len(found):
        why = "Redis is out of memory" if str(errors[0]) == str(StoreFull()) else errors[0]
        return StoreFull(
            f"{why}: {len(errors)} of {len(found)} messages were not written; call again with the "
            "same ids"
        )
    return doubt or errors[0]
