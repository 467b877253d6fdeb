"""The numbers of buckets that rows have: a namespace that is resized gives its buckets new ones.

A row keeps the number with which it was made until its bucket has ended, and is found under any
number that the bucket of its message had, or has by now.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from delaybridge.ledger.sql.rows import LedgerRow
from delaybridge.store.protocol.layout import Layout
from delaybridge.store.protocol.moves import shard_key

if TYPE_CHECKING:
    from delaybridge.store.namespace.following import BucketsFollowed

T = TypeVar("T")


class Numbering:
    """What is known of the buckets of one namespace. following: None where nothing is."""

    following: BucketsFollowed | None = None

    @property
    def layout(self) -> Layout | None:
        """The layout of the namespace, as far as it is known."""
        return None if self.following is None else self.following.layout

    @property
    def is_resizing(self) -> bool:
        """Whether messages move to other buckets, as far as is known."""
        return self.following is not None and self.following.is_resizing

    @property
    def of_resized(self) -> Layout | None:
        """The layout of a namespace that was resized: its rows may have numbers of any epoch."""
        layout = self.layout
        return layout if layout is not None and len(layout.epochs) > 1 else None

    @property
    def moved_s(self) -> float:
        """When other buckets were found to have all messages: perhaps since Redis was wiped.

        Then other workers hold them than held those that had the messages.
        """
        return -math.inf if self.following is None else self.following.moved_s

    def has_ended(self, bucket: int) -> bool:
        """Whether a bucket is known to have given all its messages to others."""
        return self.following is not None and self.following.is_retired(bucket)

    def path(self, row: LedgerRow) -> list[int]:
        """The buckets that may have the message of a row, as it moves; as far as is known."""
        layout = self.layout
        assert layout is not None, "a row's number counts otherwise"
        key = shard_key(row.id.encode(), row.payload)
        numbers = [e.number_of(key) for e in (layout.here, layout.next) if e is not None]
        return [each for each in numbers if not self.has_ended(each)] or numbers[-1:]

    def asked_as(self, names: Sequence[T]) -> Callable[[Any], Iterable[T]]:
        """Which of these names a row has, whatever number of its bucket they are asked with.

        It is known exactly of a row with a payload; of others by their numbers.
        """
        found = defaultdict[Any, list[Any]](list)
        for name in dict.fromkeys(names):
            found[name[1:]].append(name)  # type: ignore[index]
        size = len(names[0]) if names else 0  # type: ignore[arg-type]
        has = self._has(self.of_resized)

        def names_of(row: Any) -> Iterable[T]:
            same = found[(row.id, row.stamp)[: size - 1]]
            return [name for name in same if has(name[0], row)]

        return names_of

    def _has(self, layout: Layout | None) -> Callable[[int, Any], bool]:
        """Whether the message of a row is, or was, of a bucket."""

        def may_have(number: int, row: Any) -> bool:
            payload: bytes = getattr(row, "payload", b"")
            if layout is None or not payload:
                return (
                    number == row.bucket if layout is None else layout.are_kin(number, row.bucket)
                )
            return layout.has(number, shard_key(row.id.encode(), payload))

        return may_have
