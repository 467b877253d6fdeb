"""The counters in a bucket's `marks`, which only ever grow while Redis forgets nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.verbs import RedisCommand, plain

_FIELDS = ("turn", "scheduled", "cancelled", "rescheduled")
_DIGITS = 18
UNKNOWN = -1  # a counter that is no number


class Marks(NamedTuple):
    """How far a bucket's turns have come, and what clients did. Without counts: 0, or UNKNOWN."""

    turn: int
    scheduled: int = UNKNOWN
    cancelled: int = UNKNOWN
    rescheduled: int = UNKNOWN

    @property
    def totals(self) -> tuple[int, ...]:
        """What clients did; what is unknown counts as nothing."""
        return tuple(max(0, count) for count in self[1:])

    def fell_to(self, now: Marks) -> bool:
        """Whether one of them is lower now."""
        return any(UNKNOWN < after < before for before, after in zip(self, now, strict=True))


def read(bucket: Bucket) -> RedisCommand[Marks]:
    """The marks of a bucket. One without counts, of an older version, has done nothing."""
    return plain("HMGET", bucket.key("marks"), *_FIELDS, parse=parse)


def parse(reply: Sequence[bytes | None]) -> Marks:
    """The marks in the reply to `read`."""
    return Marks(*(_number(value) for value in reply))


def turn_of(token: str) -> int:
    """The turn that began with this lease; 0 if it is not a token."""
    text = token.rpartition(":")[2]
    return int(text) if text.isdecimal() and len(text) <= _DIGITS else 0


def _number(value: bytes | None) -> int:
    if value is None:
        return 0
    return int(value) if value.isdigit() and len(value) <= _DIGITS else UNKNOWN
