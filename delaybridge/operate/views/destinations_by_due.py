"""Which destinations the delayed messages of a span are bound for, and when they are due."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from delaybridge.errors import StoreError
from delaybridge.message import State
from delaybridge.operate.views.horizon import Cell, count_due, highest_below
from delaybridge.operate.views.tally import Tally, estimated
from delaybridge.store.messages.destinations_of_state import BoundSlice, bound
from delaybridge.store.namespace.namespace import Namespace
from delaybridge.store.namespace.rules import label_of, places_of
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.replies import Tallied
from delaybridge.store.protocol.verbs import RedisCommand, Steps, grouped

_PARTS, _READ, _LEAST_READ = 8, 4000, 8  # of a span; records read of all parts, of each


class MixPart(NamedTuple):
    """An eighth of a span. is_whole: all of its messages were read. scores: of those read, in
    order, by destination. shares: of each destination among all of them, 0 to 1."""

    from_ms: int
    to_ms: int
    is_whole: bool
    scores: Mapping[str, Sequence[float]]
    shares: Mapping[str, float]


class Mix(NamedTuple):
    """destinations: each exchange or topic with its number of messages; the most first."""

    destinations: list[tuple[str, Tally]]
    parts: list[MixPart]

    @property
    def is_estimated(self) -> bool:
        """Whether some messages were not read."""
        return not all(part.is_whole for part in self.parts)

    def split(self, cell: Cell, names: Sequence[str]) -> list[int]:
        """How many of a cell's messages are bound for each of these; together no more than it has.

        Counted if everything there was read, else by the shares of the part that has its middle.
        """
        left, found = cell.messages, list[int]()
        for messages in self._split(cell, names):
            found.append(min(messages, left))  # what was counted later may be more
            left -= found[-1]
        return found

    def _split(self, cell: Cell, names: Sequence[str]) -> list[int]:
        over = [p for p in self.parts if p.from_ms < cell.to_ms and cell.from_ms < p.to_ms]
        if all(part.is_whole for part in over):
            return [sum(_within(p.scores.get(name, ()), cell) for p in over) for name in names]
        middle = (cell.from_ms + cell.to_ms) // 2
        part = next((part for part in over if middle < part.to_ms), over[-1])
        shares = [part.shares.get(name, 0.0) for name in names]
        return _shared(cell.messages, [*shares, max(0.0, 1.0 - sum(shares))])[:-1]


def read_destinations_due(calls: Namespace, from_ms: int, to_ms: int) -> Steps[Mix]:
    """Which exchanges and topics the delayed messages of a span are bound for.

    to_ms: not included. Up to 4,000 messages are counted. Of more, the first ones of each eighth of
    the span are read in each bucket, and the rest is estimated.
    """
    buckets = yield from calls.every_bucket()
    most = max(_LEAST_READ, _READ // (_PARTS * len(buckets)))
    ends = [from_ms + (to_ms - from_ms) * n // _PARTS for n in range(_PARTS + 1)]
    spans = [span for span in pairwise(ends) if span[0] < span[1]]
    replies = yield from _read(buckets, spans, most)
    if most < max(count for count, _ in replies) <= sum(count for count, _ in replies) <= _READ:
        replies = yield from _read(buckets, spans, _READ)  # few, but many of them in one bucket
    size, strata, parts = len(buckets), list[Tallied](), list[MixPart]()
    for number, span in enumerate(spans):
        own = replies[number * size : (number + 1) * size]
        labelled = [(count, _labelled(calls, found)) for count, found in own]
        tallied = [_tallied(*each) for each in labelled]
        strata += tallied
        parts.append(_part(span, tallied, [one for _, some in labelled for one in some]))
    by_number = sorted(estimated(strata), key=lambda each: (-each[1].messages, each[0]))
    return Mix(by_number, parts)


def _read(
    buckets: Sequence[Bucket], spans: Sequence[tuple[int, int]], most: int
) -> Steps[list[list[Any]]]:
    """How many are due in each span and bucket, and the first of them. Raises the first error."""
    replies = yield from grouped([_asked(b, *span, most) for span in spans for b in buckets])
    for reply in replies:
        if (error := next((e for e in reply if isinstance(e, StoreError)), None)) is not None:
            raise error
    return replies


def _labelled(calls: Namespace, found: BoundSlice) -> list[tuple[float, str]]:
    """The score and the destination of each message, as it is counted."""
    return [(score, label_of(places_of(to or "?", calls.kinds))) for score, _, to in found.messages]


def _asked(bucket: Bucket, low: int, high: int, most: int) -> list[RedisCommand[Any]]:
    below = highest_below(high)
    return [
        count_due(bucket, low, high),
        bound(bucket, State.DELAYED, limit=most, low=low, high=below),
    ]


def _tallied(listed: int, labelled: Sequence[tuple[float, str]]) -> Tallied:
    counts = Counter(label for _, label in labelled)
    return Tallied(max(listed, len(labelled)), len(labelled), counts)


def _part(
    span: tuple[int, int], strata: Sequence[Tallied], labelled: Sequence[tuple[float, str]]
) -> MixPart:
    scores, messages = defaultdict[str, list[float]](list), defaultdict[str, float](float)
    for score, label in sorted(labelled):
        scores[label].append(score)
    for each in strata:
        for label, count in each.counts.items():
            messages[label] += each.listed * count / each.read
    listed = sum(each.listed for each in strata)
    shares = {label: number / listed for label, number in messages.items()}
    return MixPart(*span, all(each.listed == each.read for each in strata), scores, shares)


def _shared(messages: int, shares: Sequence[float]) -> list[int]:
    """All messages by these shares, by the largest remainder (Hamilton's method)."""
    quotas = [messages * share for share in shares]
    found = [int(quota) for quota in quotas]
    by_rest = sorted(range(len(quotas)), key=lambda i: found[i] - quotas[i])
    for i in by_rest[: messages - sum(found)]:
        found[i] += 1
    return found


def _within(scores: Sequence[float], cell: Cell) -> int:
    return bisect_left(scores, cell.to_ms) - bisect_left(scores, cell.from_ms)
