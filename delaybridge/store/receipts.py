"""The answer of `schedule`."""

from __future__ import annotations

from delaybridge.errors import (
    StoreFull,
)
from delaybridge.message import (
    Answer,
)
from delaybridge.times import format_time


class Receipt(str):
    """The answer of one `schedule`.

    It is a `str` equal to an `Answer` (`created`, `duplicate`, ...); printed, it also shows id and
    due time. id: the message's.
    due_ms: when it is due, in epoch milliseconds of Redis' clock; for a duplicate or conflict, the
    due time of the message already pending. bucket: the number of its bucket.
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

    def __str__(self) -> str:
        return f"{self.answer.value} {self.id} due {format_time(self.due_ms)}"

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)

    def __repr__(self) -> str:
        return (
            f"Receipt({self.answer.value!r}, id={self.id!r}, due_ms={self.due_ms}, "
            f"bucket={self.bucket})"
        )


def receipts(found: list[Receipt | Exception]) -> list[Receipt] | Exception:
    """One caller's answer: its receipts, or the error if any message has none."""
    errors = [one for one in found if isinstance(one, Exception)]
    if not errors:
        return found  # type: ignore[return-value]
    # StoreFull says how many were not written; that is known only if no outcome is in doubt.
    doubt = next((error for error in errors if not isinstance(error, StoreFull)), None)
    if doubt is None and len(errors) < len(found):
        why = "Redis is out of memory" if str(errors[0]) == str(StoreFull()) else errors[0]
        return StoreFull(
            f"{why}: {len(errors)} of {len(found)} messages were not written; call again with the "
            "same ids"
        )
    return doubt or errors[0]
