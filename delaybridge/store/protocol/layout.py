"""The layout of a namespace: how many buckets it has, and had before each resize.

Each resize makes buckets with new numbers, so a number means one bucket for ever. Messages go from
an epoch to the next one only; while they do, both have buckets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple
from zlib import crc32

from delaybridge.settings.namespace import is_bucket_count

UNUSED = 10**9  # no bucket has this number or a larger one: a record takes nine digits
_EPOCH = r"[1-9][0-9]{0,4}@[0-9]{1,9}"
_RECORD = re.compile(
    rf"([1-9][0-9]{{0,4}}|{_EPOCH}(?:[->]{_EPOCH})*)(!?):([0-9a-f]{{16}}(?::[1-9][0-9]{{0,2}}s?)?)"
)

FORMAT = 1  # of all keys; a later one is written in front of the record: `v2:`
_LATER = re.compile(r"v([1-9][0-9]{0,3}):.*", re.DOTALL)


class Epoch(NamedTuple):
    """The buckets `first` to `first + size - 1`."""

    first: int
    size: int

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and self.first <= number < self.first + self.size

    @property
    def numbers(self) -> range:
        """The numbers of its buckets."""
        return range(self.first, self.first + self.size)

    def number_of(self, shard_key: bytes) -> int:
        """The bucket of messages with this key, or id without one."""
        return self.first + crc32(shard_key) % self.size  # as `bucket_of`


class Layout(NamedTuple):
    """epochs: all that there were and will be. at: the first that has buckets.

    paused: no other bucket begins to give its messages away.
    """

    epochs: tuple[Epoch, ...]
    at: int = 0
    paused: bool = False

    @property
    def here(self) -> Epoch:
        """The buckets that callers ask; a message that is not there may be in the next ones."""
        return self.epochs[self.at]

    @property
    def next(self) -> Epoch | None:
        """The buckets that are to have all messages; None: there is no resize."""
        return self.epochs[self.at + 1] if self.at + 1 < len(self.epochs) else None

    @property
    def numbers(self) -> Iterator[int]:
        """All buckets that there are."""
        return chain(self.here.numbers, self.next.numbers if self.next else ())

    @property
    def families(self) -> Iterator[list[int]]:
        """The same in groups: a bucket gives its messages to later ones of its group only."""
        epochs = [each for each in (self.here, self.next) if each]
        step = min(each.size for each in epochs)
        return ([n for each in epochs for n in each.numbers[at::step]] for at in range(step))

    @property
    def counts(self) -> set[int]:
        """How many buckets there were, at any time."""
        return {each.size for each in self.epochs}

    def targets(self, number: int) -> list[int]:
        """The buckets that a bucket gives its messages to; none if it keeps them."""
        at = next((i for i, each in enumerate(self.epochs[:-1]) if number in each), None)
        if at is None or at > self.at:
            return []
        own, other = self.epochs[at : at + 2]
        step = min(own.size, other.size)
        return [*range(other.first + (number - own.first) % step, other.first + other.size, step)]

    def sources(self, number: int) -> list[int]:
        """The buckets that give their messages to this one now."""
        if self.next is None or number not in self.next:
            return []
        step = min(self.here.size, self.next.size)
        at = self.here.first + (number - self.next.first) % step
        return [*range(at, self.here.first + self.here.size, step)]

    def ended(self, number: int) -> list[int]:
        """All buckets there were before these that may have had messages of this one's keys."""
        before = [n for each in self.epochs[: self.at] for n in each.numbers]
        return [n for n in before if self.are_kin(n, number)]

    def are_kin(self, one: int, other: int) -> bool:
        """Whether messages of one key may have had both of these numbers, now or before."""
        own, its = self._epoch(one), self._epoch(other)
        if own is None or its is None:
            return one == other
        return (one - own.first - other + its.first) % min(own.size, its.size) == 0

    def has(self, number: int, shard_key: bytes) -> bool:
        """Whether messages of this key are, or were, of the bucket with this number."""
        own = self._epoch(number)
        return own is not None and own.number_of(shard_key) == number

    def _epoch(self, number: int) -> Epoch | None:
        return next((each for each in self.epochs if number in each), None)

    def resized(self, count: int) -> Layout:
        """The same, and then this number of buckets."""
        last = self.epochs[-1]
        return self._replace(epochs=(*self.epochs, Epoch(last.first + last.size, count)))

    def collapsed(self) -> Layout:
        """The same once all resizes are over, as of a namespace that has no messages."""
        return self._replace(at=len(self.epochs) - 1, paused=False)

    def moved(self) -> Layout:
        """The same once all messages have gone to the next epoch."""
        return self._replace(at=self.at + 1)


def record_text(layout: Layout, birth: str) -> str:
    """The record of a namespace, as Redis has it."""
    if layout == Layout((Epoch(0, layout.here.size),)):
        return f"{layout.here.size}:{birth}"
    epochs = [f"{each.size}@{each.first}" for each in layout.epochs]
    text = "-".join(epochs[: layout.at + 1]) + "".join(f">{one}" for one in epochs[layout.at + 1 :])
    return f"{text}{'!' if layout.paused else ''}:{birth}"


def later_format(text: str) -> str:
    """The format of a record that a later version has written, as `2`; empty for any other."""
    found = _LATER.fullmatch(text)
    return found[1] if found else ""


def parse_record(text: str) -> tuple[Layout, str] | None:
    """Layout and birth id; None if this is not the record of a namespace."""
    if (found := _RECORD.fullmatch(text)) is None:
        return None
    words = re.split("[->]", found[1])
    pairs = [tuple(map(int, word.split("@"))) for word in words]
    epochs = tuple(Epoch(pair[1] if pair[1:] else 0, pair[0]) for pair in pairs)
    if not all(is_bucket_count(each.size) for each in epochs):
        return None
    return Layout(epochs, found[1].count("-"), bool(found[2])), found[3]
