"""Ids for messages that have none, drawn so that few script calls store them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from functools import cache
from itertools import chain, count

from delaybridge.message import PAIRS, new_id
from delaybridge.store.protocol import verbs

_PREFIX_CHARS = 24  # of an id; a pair of characters follows, one of 1024
MOST_CLASSES = 64  # so that each class has some of the 1024 pairs
RUN_IDS = 64
_FRESH_S = 0.01
_QUARANTINE_IDS = 9


def quarantine_ids(own_id: str) -> list[str]:
    """The ids under which messages quarantined with this id are stored, in order of preference.

    Not its own: that may belong to another message, or be sent again once the producer is fixed.
    """
    return [f"{own_id}~{number}" for number in range(1, _QUARANTINE_IDS + 1)]


class Ids:
    """Draws unique ids in runs. All ids of a run belong to one bucket; runs go round all buckets.

    Messages scheduled at the same moment then need a script call or two instead of one per bucket,
    and one fire if they are due together. A run is dropped after 10 ms, so ids sort by time to
    within 10 ms. Thread-safe; a forked process draws its own runs.
    """

    def __init__(
        self, buckets: Callable[[], int], is_away: Callable[[int], bool] = lambda bucket: False
    ) -> None:
        """buckets: returns the number of buckets, 1 while it is unknown; called for each run.

        is_away: whether a bucket's server does not answer; then its turn goes to the next bucket.
        """
        self._buckets, self._is_away = buckets, is_away
        self._turns = count(int.from_bytes(os.urandom(2), "big"))
        # The run, the monotonic time until which it is used, and the process that drew it.
        self._drawn: tuple[list[str], float, int] = [], 0.0, 0

    def draw(self) -> str:
        """A new id, of a bucket whose turn it is."""
        while True:
            run, until_s, pid = self._drawn
            if time.monotonic() < until_s and pid == os.getpid():
                try:
                    return run.pop()  # in one step: threads draw at once
                except IndexError:
                    pass
            classes = min(self._buckets(), MOST_CLASSES)
            run = []
            for some in _of_class(self._turn(classes), classes):
                run += some
                if len(run) >= RUN_IDS:
                    break
            run.reverse()  # the earliest at the end
            self._drawn = run, time.monotonic() + _FRESH_S, os.getpid()

    def for_bucket(self, buckets: int) -> tuple[int, Iterator[str]]:
        """The bucket whose turn it is, of up to 64, and any number of new ids for it."""
        number = self._turn(buckets)
        return number, chain.from_iterable(_of_class(number, buckets))

    def _turn(self, classes: int) -> int:
        """The bucket, or class of buckets, whose turn it is."""
        turns = [next(self._turns) % classes]
        while classes <= MOST_CLASSES and self._is_away(turns[-1]) and len(turns) < classes:
            turns.append(next(self._turns) % classes)
        return turns[-1]


def _of_class(number: int, classes: int) -> Iterator[list[str]]:
    """New ids of one of the classes, in order, some at a time."""
    tails = _classes(classes)
    while True:
        prefix = new_id()[:_PREFIX_CHARS]
        # In a CRC the effect of the last characters does not depend on the ones before them, so the
        # classes hold for every prefix.
        flips = verbs.bucket_of(f"{prefix}00".encode(), classes) ^ number
        yield [prefix + tail for tail in tails[flips]]


@cache
def _classes(buckets: int) -> list[list[str]]:
    """The pairs in order, grouped by the bits that they flip in the number of an id's bucket."""
    zeros = "0" * _PREFIX_CHARS
    plain = verbs.bucket_of(f"{zeros}00".encode(), buckets)
    classes: list[list[str]] = [[] for _ in range(buckets)]
    for pair in PAIRS:
        classes[verbs.bucket_of((zeros + pair).encode(), buckets) ^ plain].append(pair)
    return classes
