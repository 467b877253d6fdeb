"""The sampler: once a second it adds what this worker counted to the fleet's series."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from delaybridge.errors import StoreDamaged
from delaybridge.events import Event, Published
from delaybridge.operate.metrics.counts import Counts, Key
from delaybridge.operate.views.series import BURIED, LATE
from delaybridge.store.namespace import registry
from delaybridge.store.namespace.marks import Marks
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.verbs import RedisCommand
from delaybridge.worker.eventlog import Listeners
from delaybridge.worker.parts import Part, RunView

_NAMES = {
    "messages_published_total": "published",
    "messages_retried_total": "retried",
    "messages_buried_total": "buried",
    "messages_dead_lettered_total": "dead_lettered",
    "messages_dropped_total": "dropped",
}
_LATENESS = "publish_lateness_seconds"
_MOST_BUCKETS = 500  # in a sample
_SIZED = 64  # buckets whose messages are counted in a beat, at most
_STATES = 4
_TOLD_AGAIN_S = 20.0  # record.lua forgets a bucket's totals after a minute
_TOO_OLD_S = 60.0  # what could not be recorded for this long is left out

Totals = tuple[int, ...]


class _Size(NamedTuple):
    """How many messages of a bucket are in each state; its marks then, and when that was."""

    beat: int
    marks: Marks | None
    counts: Totals


_NO_SIZE = _Size(0, None, (0, 0, 0, 0))


class Sampler(Part):
    """A part of a worker, and an `Emit` that notes the highest lateness.

    A sample counts once, however often it is sent: it keeps its number until the store answers.
    What a series does not get within a minute it never gets: it would seem to have happened now.
    """

    name = "series"

    def __init__(
        self,
        namespace: str,
        worker: str,
        instance: str,
        counts: Counts,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._namespace, self._worker, self._instance = namespace, worker, instance
        self._counts, self._monotonic = counts, monotonic
        self._held: Callable[[], Iterable[Bucket]] = tuple  # the buckets of this worker
        self._marks: Callable[[], Mapping[int, Marks]] = dict  # theirs, as read in this beat
        self._number = 0
        self._late_ms = 0
        self._told = self._flat()
        self._sample: bytes | None = None  # under way, or without an answer
        self._sampled_s = 0.0  # when it was made
        self._asked: list[int] = []  # the buckets held then
        self._beats = 0
        self._sized: list[int] = []  # the buckets whose messages are counted with this beat
        self._sizes: dict[int, _Size] = {}  # of held buckets
        self._totals: dict[int, Totals] = {}
        self._totals_told: dict[int, tuple[Totals, float]] = {}  # and when

    def join(self, listeners: Listeners) -> None:
        """Listen, for the lateness of what is published."""
        listeners.join(self)

    def begin(self, run: RunView) -> None:
        """Sample the buckets of this run from now on."""
        self._held, self._marks = run.held, lambda: run.past.marks

    def __call__(self, event: Event) -> None:
        if isinstance(event, Published):
            self._late_ms = max(self._late_ms, event.late_ms)

    def commands(self) -> Sequence[RedisCommand[Any]]:
        """The sample; for the next one, where what clients did may have changed it, a look at how
        many messages of a bucket are in each state.
        """
        if self._sample is not None and self._monotonic() - self._sampled_s > _TOO_OLD_S:
            self._sample = None
            self._told, self._late_ms = self._flat(), 0
        if self._sample is None:
            self._number += 1
            self._sampled_s = self._monotonic()
            self._sample = self._new_sample()
        held = list(self._held())
        self._asked = [bucket.number for bucket in held]
        # Kicks and discards leave no marks: one bucket is always counted, each in its turn.
        longest = sorted(held, key=lambda b: self._sizes.get(b.number, _NO_SIZE).beat)
        sized = [*longest[:1], *(b for b in longest[1:] if self._may_differ(b.number))][:_SIZED]
        self._beats, self._sized = self._beats + 1, [bucket.number for bucket in sized]
        who = self._namespace, self._worker, self._instance
        return [
            registry.record(*who, self._number, self._sample),
            *(command for bucket in sized for command in bucket.sizes()),
        ]

    def take_replies(self, replies: Sequence[Any]) -> None:
        """Without an answer the same sample is sent again."""
        recorded, *sizes = replies
        if not isinstance(recorded, Exception):
            self._sample = None
        marks = self._marks()
        self._size(iter(sizes), marks)
        self._totals = {
            n: each.totals + self._sizes[n].counts for n, each in marks.items() if n in self._sizes
        }

    def _size(self, found: Iterator[Any], marks: Mapping[int, Marks]) -> None:
        """Note how many messages are in each state. A damaged key counts as empty."""
        self._sizes = {n: self._sizes[n] for n in self._asked if n in self._sizes}
        for number in self._sized:
            counts = [*islice(found, _STATES)]
            if all(isinstance(count, int | StoreDamaged) for count in counts):
                known = tuple(count if isinstance(count, int) else 0 for count in counts)
                self._sizes[number] = _Size(self._beats, marks.get(number), known)

    def _may_differ(self, number: int) -> bool:
        """Whether a bucket's numbers may be others than when they were counted."""
        size = self._sizes.get(number, _NO_SIZE)
        _, in_flight, parked, _ = size.counts
        return (
            bool(in_flight or parked) or size is _NO_SIZE or size.marks != self._marks().get(number)
        )

    def _new_sample(self) -> bytes:
        before, self._told = self._told, self._flat()
        counts: Counter[str] = Counter()
        destinations: defaultdict[str, dict[str, int]] = defaultdict(dict)
        for (name, destination), total in self._told.items():
            more = total - before.get((name, destination), 0)
            if more:
                counts[name] += more
                if not name.startswith((LATE, BURIED)):
                    destinations[destination][name] = more
        late_ms, self._late_ms = self._late_ms, 0
        return msgspec.msgpack.encode([counts, destinations, late_ms, self._new_totals()])

    def _new_totals(self) -> list[int]:
        """The totals of held buckets that changed, or that the store would soon forget."""
        now_s = self._monotonic()
        told = {n: known for n, known in self._totals_told.items() if n in self._totals}
        found: list[int] = []
        for number, totals in self._totals.items():
            before, at_s = told.get(number, ((), 0.0))
            if (totals != before or now_s - at_s > _TOLD_AGAIN_S) and (
                len(found) < _MOST_BUCKETS * (1 + len(totals))
            ):
                told[number] = totals, now_s
                found += (number, *totals)
        self._totals_told = told
        return found

    def _flat(self) -> Mapping[tuple[str, str], int]:
        """All totals that matter here, by (name, destination)."""
        flat: Counter[tuple[str, str]] = Counter()
        for key, total in self._counts.totals.items():
            if (name := _NAMES.get(key[0])) is not None:
                flat[name, key[1]] += total
                if name == "buried":
                    flat[f"{BURIED}{key[2]}", key[1]] += total
        for key, histogram in self._counts.histograms.items():
            if key[0] == _LATENESS:
                flat.update(_late(key, histogram.counts))
        return flat


def _late(key: Key, counts: Sequence[int]) -> dict[tuple[str, str], int]:
    return {(f"{LATE}{index}", key[1]): count for index, count in enumerate(counts) if count}
