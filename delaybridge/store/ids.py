"""Ids for messages that come without one, drawn so that few script calls store them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import cache
from itertools import count

from delaybridge.message import PAIRS, new_id
from delaybridge.store import keys

_HEAD = 24  # characters of an id; a pair follows
_MOST_CLASSES = 64  # of 1024 pairs, so that each has some
_RUN = 64
_FRESH_S = 0.01
_MOST_BESIDE = 9


def beside(own_id: str, number: int) -> str:
    """The id under which a quarantined message lies: its own may be another's, or needed again."""
    return f"{own_id}~{number}"


def quarantine_ids(own_id: str) -> list[str]:
    """Every id that a quarantined message of that own id may lie under."""
    return [beside(own_id, number + 1) for number in range(_MOST_BESIDE)]


class Ids:
    """Draws ids, runs of them for one bucket: unique, and sorted by time to 10 ms.

    What is scheduled together, message by message, so needs a script call or two, and not one for
    each bucket; and what is due together is fired so. The runs go round all buckets. Thread-safe;
    a process that is forked draws its own.
    """

    def __init__(self, buckets: Callable[[], int]) -> None:
        """buckets: how many there are, asked before each run; 1 while nobody knows."""
        self._buckets = buckets
        self._turns = count(int.from_bytes(os.urandom(2), "big"))
        self._drawn: tuple[list[str], float, int] = [], 0.0, 0  # a run, until when, and whose

    def draw(self) -> str:
        """The next one."""
        while True:
            run, until_s, pid = self._drawn
            if time.monotonic() < until_s and pid == os.getpid():
                try:
                    return run.pop()  # in one step: threads draw at once
                except IndexError:
                    pass
            run = _run(next(self._turns), self._buckets())
            self._drawn = run, time.monotonic() + _FRESH_S, os.getpid()


def _run(turn: int, buckets: int) -> list[str]:
    """Ids for the bucket whose turn it is, the first one last."""
    classes = _classes(min(buckets, _MOST_CLASSES))
    number = turn % len(classes)
    run: list[str] = []
    while len(run) < _RUN:
        head = new_id()[:_HEAD]
        # In a CRC the effect of the last characters does not depend on the first ones.
        tails = classes[keys.bucket_of(f"{head}00".encode(), len(classes)) ^ number]
        run += [head + tail for tail in tails]
    run.reverse()
    return run


@cache
def _classes(buckets: int) -> list[list[str]]:
    """The pairs in order, by what they change in the number of an id's bucket."""
    zeros = "0" * _HEAD
    plain = keys.bucket_of(f"{zeros}00".encode(), buckets)
    classes: list[list[str]] = [[] for _ in range(buckets)]
    for pair in PAIRS:
        classes[keys.bucket_of((zeros + pair).encode(), buckets) ^ plain].append(pair)
    return classes
