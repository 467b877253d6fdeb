"""Kafka: delay topics, read into the store by a consumer group.

    consume -> read -> store -> store the offset

An offset is committed when everything before it is stored. What is read again, after a crash or a
rebalance, is left out by the store (`sources` in docs/keys.md), also when it was published already.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from enum import Enum, auto
from functools import partial
from typing import Any

from delaybridge.events import (
    ChangeRefused,
    Emit,
    Ingested,
    IngestFailed,
    IngestStarted,
    Quarantined,
    SourceUnguarded,
)
from delaybridge.ingest.counts import Counts
from delaybridge.ingest.entries import Change, Entry, Quarantine, instead
from delaybridge.ingest.kafka.consumer import CLUSTER, ELSEWHERE, Batch, KafkaConsumer
from delaybridge.ingest.kafka.records import RawRecord, RecordReader
from delaybridge.ingest.kafka.topics import Topic, skips
from delaybridge.ingest.owner import Owner
from delaybridge.ingest.reach import reach_of
from delaybridge.ingest.routes import SUFFIX, AllowList, Route, topics_pattern
from delaybridge.ingest.storing import AGAIN_S, PATIENCE_S, are_scheduled, insist
from delaybridge.message import Answer
from delaybridge.publish import PublishOptions
from delaybridge.publish.kafka.configuration import configuration
from delaybridge.settings.settings import Settings
from delaybridge.store.calls import Calls
from delaybridge.store.store import AsyncStore


class Fate(Enum):
    """What becomes of a record after an answer. REFUSED: its entry is a quarantine by then."""

    STORED = auto()
    AGAIN = auto()
    WAIT = auto()
    REFUSED = auto()


class HeldRecord:
    """One record on its way into the store."""

    __slots__ = ("entry", "read", "reader")

    def __init__(self, reader: RecordReader, read: RawRecord) -> None:
        self.reader, self.read = reader, read
        self.entry: Entry = reader.read(read)


class KafkaIngest:
    """The delay topics of one Kafka cluster."""

    def __init__(
        self,
        kafka: Mapping[str, Any],
        routes: Sequence[Route],
        store: AsyncStore,
        calls: Calls,
        emit: Emit,
        settings: Settings,
    ) -> None:
        """kafka: librdkafka's settings."""
        self._kafka, self._routes, self._settings = kafka, routes, settings
        self._emit = emit
        self._calls = calls
        self._owner = Owner.of(calls.namespace, calls.birth, settings.ingest.take_over)
        self._insist = partial(insist, store, calls, emit)
        self._allowed = AllowList(settings.ingest.destinations)
        self._readers: dict[Topic, RecordReader] = {}
        self._counts: dict[str, Counts] = {}
        self._troubles: dict[str, str] = {}  # place -> what is wrong there
        self._reading: set[str] = set()
        self._resting: dict[str, str] = {}  # topics and patterns of which nothing is read here: why
        self._is_stopping = asyncio.Event()
        self._stopped = asyncio.Event()
        self._consumer: KafkaConsumer | None = None
        self._asked = {topics_pattern(r.source) if r.is_pattern else r.source: r for r in routes}
        self._named = {route.source for route in routes}
        for route in routes:
            self._count(route)

    @property
    def counts(self) -> list[Counts]:
        """What each topic has brought; a pattern stands for itself while nothing is read by it."""
        shown = self._resting if self._reading else self._counts
        return [c for name, c in self._counts.items() if "*" not in name or name in shown]

    async def run(self) -> None:
        """Read until cancelled or stopped. Raises what a new consumer may mend."""
        await self._insist([])  # consume only what can be kept
        settings = self._settings.ingest
        consumer = self._consumer = KafkaConsumer(
            self._kafka,
            [*self._asked],
            group=settings.group,
            window_bytes=settings.window_bytes,
            silent_ms=self._settings.lease.ttl_ms,
            skip=skips(settings.skip_offsets),
            said=self._said,
            owner=self._owner,
            taken=self._taken,
            unguarded=self._unguarded,
            rests=self._rests,
        )
        # What was read before goes into the store while the next is read.
        storing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        storing.set_result(None)
        try:
            while not self._is_stopping.is_set():
                batch = await self._next(consumer, storing)
                if batch is not None:
                    items = self._read(batch)
                    await storing
                    storing = asyncio.ensure_future(self._store_batch(batch, items, consumer))
            await storing
        finally:
            storing.cancel()
            self._consumer = None
            await asyncio.shield(consumer.stop())
            self._stopped.set()
        await asyncio.Event().wait()  # stopped: until cancelled

    async def stop(self, timeout_s: float) -> None:
        """Take no more, and store what was taken, if that takes no longer than this."""
        self._is_stopping.set()
        if self._consumer is not None:
            await asyncio.wait([asyncio.create_task(self._stopped.wait())], timeout=timeout_s)

    async def measure(self) -> None:
        """Learn how many records wait."""
        if self._consumer is not None:
            for topic, lag in self._consumer.lag.items():
                if topic in self._counts:
                    self._counts[topic].lag = lag

    async def _next(self, consumer: KafkaConsumer, storing: asyncio.Future[None]) -> Batch | None:
        """The next batch; None once it is to stop. Raises why the one before was not stored."""
        coming = asyncio.ensure_future(consumer.next())
        stopping = asyncio.ensure_future(self._is_stopping.wait())
        ends: set[asyncio.Future[Any]] = {coming, stopping, storing}
        try:
            while not (coming.done() or stopping.done()):
                _, ends = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                if storing.done():
                    storing.result()
            return coming.result() if coming.done() else None
        finally:
            coming.cancel()
            stopping.cancel()

    # a batch into the store

    def _read(self, batch: Batch) -> list[HeldRecord]:
        items: list[HeldRecord] = []
        for topic, reads in batch.items():
            reader = self._reader(topic)
            items += (HeldRecord(reader, read) for read in reads)
            counts = self._counts[topic.name]
            counts.total += len(reads)
            counts.near_misses = reader.near_misses
            self._emit(Ingested(source=counts.source, messages=len(reads)))
        return items

    async def _store_batch(
        self, batch: Batch, items: Sequence[HeldRecord], consumer: KafkaConsumer
    ) -> None:
        for part in _parts(items):
            await self._store(part)
        consumer.stored(batch)

    async def _store(self, items: Sequence[HeldRecord]) -> None:
        """Store them in their order; what cannot be stored is quarantined before what follows it.

        From one partition into one bucket nothing passes what is in its way: a record passed over
        would never be read again.
        """
        now_s = asyncio.get_running_loop().time
        late_s = math.inf
        left = items
        while left:
            entries = [item.entry for item in left]
            answers = await self._insist(entries)
            if are_scheduled(entries, answers):
                break
            is_late = now_s() > late_s
            fates = [
                (item, _fate(item, answer, is_late=is_late))
                for item, answer in zip(left, answers, strict=True)
            ]
            self._count_refused(left, answers)
            self._quarantined([i for i, fate in fates if fate is Fate.STORED])
            await self._quarantine([i for i, fate in fates if fate is Fate.REFUSED])
            again = [i for i, fate in fates if fate in (Fate.AGAIN, Fate.WAIT)]
            must_wait = any(fate is Fate.WAIT for _, fate in fates)
            if not must_wait or len(again) < len(left):
                late_s = now_s() + PATIENCE_S  # something moved
            left = again
            if must_wait:
                await asyncio.sleep(AGAIN_S)

    async def _quarantine(self, items: Sequence[HeldRecord]) -> None:
        """Keep them, whichever ids are taken, before anything is stored that was read later."""
        left = items
        while left:
            answers = await self._insist([item.entry for item in left])
            fates = [
                (item, _fate(item, answer, is_late=False))
                for item, answer in zip(left, answers, strict=True)
            ]
            left = [item for item, fate in fates if fate is not Fate.STORED]
        self._quarantined(items)

    def _count_refused(self, items: Sequence[HeldRecord], answers: Sequence[Answer | None]) -> None:
        """Count the changes of messages that are bound for somewhere else."""
        refused = Counter(
            item.reader.topic
            for item, answer in zip(items, answers, strict=True)
            if answer is Answer.FOREIGN and isinstance(item.entry, Change)
        )
        for topic, count in refused.items():
            counts = self._counts[topic]
            counts.refused += count
            self._emit(ChangeRefused(source=counts.source, messages=count))

    def _quarantined(self, items: Sequence[HeldRecord]) -> None:
        reasons: Counter[tuple[str, str]] = Counter()
        for item in items:
            if isinstance(item.entry, Quarantine):
                reasons[item.reader.topic, item.entry.reason] += 1
        for (topic, reason), count in reasons.items():
            counts = self._counts[topic]
            counts.quarantined += count
            self._emit(Quarantined(source=counts.source, messages=count, reason=reason))

    # topics

    def _reader(self, topic: Topic) -> RecordReader:
        reader = self._readers.get(topic)
        if reader is None:
            route = self._route_of(topic.name)
            self._emit(IngestStarted(source=str(route)))
            reader = self._readers[topic] = RecordReader(
                *(route, topic.id, self._calls.kinds, self._calls.limits),
                self._allowed,
                keep_partition=self._settings.ingest.keep_partition,
                reach=self._reach(route),
            )
        return reader

    def _reach(self, route: Route) -> str:
        ingest = self._settings.ingest
        return reach_of(route, self._calls.kinds, ingest.destinations, ingest.trust)

    def _route_of(self, topic: str) -> Route:
        for route in self._routes:
            if route.source == topic:
                return route
        return next(route for route in self._routes if route.is_pattern).of(topic)

    def _count(self, route: Route) -> Counts:
        counts = self._counts.get(route.source)
        if counts is None:
            target = f"{route.broker}:{route.target or route.source.removesuffix(SUFFIX)}"
            counts = self._counts[route.source] = Counts(source=str(route), target=target)
        return counts

    def _taken(self, topic: str, other: str) -> None:
        """A topic belongs to another namespace."""
        route = self._route_of(topic)
        self._said(topic, self._owner.refusal(route, other))

    def _unguarded(self, reason: str) -> None:
        self._emit(SourceUnguarded(source=str(self._routes[0].broker), reason=reason))

    def _said(self, place: str, reason: str | None) -> None:
        """What the consumer says of a place: what is wrong there; None: it is read, all is well."""
        topic = place.partition("/")[0]
        if topic != CLUSTER:
            self._count(self._route_of(topic))
        if reason is not None:
            if self._troubles.get(place) != reason:  # a broker that is away says so every second
                self._emit(IngestFailed(source=f"{self._routes[0].broker}:{place}", reason=reason))
            self._troubles[place] = reason
        else:
            self._troubles.pop(place, None)
            if place == topic != CLUSTER:
                self._troubles.pop(CLUSTER, None)
                self._reading.add(topic)
        self._show_states()

    def _rests(self, read: set[str], asked: Mapping[str, str]) -> None:
        """These topics are read; of those names and patterns nothing is, and nothing is wrong."""
        self._reading &= read
        self._resting = {self._asked[name].source: why for name, why in asked.items()}
        for topic in self._resting:
            self._troubles.pop(topic, None)
        self._show_states()

    def _show_states(self) -> None:
        for topic, counts in self._counts.items():
            found = [
                f"{place}: {reason}"
                for place, reason in self._troubles.items()
                if place.partition("/")[0] in (topic, CLUSTER)
            ]
            rests = self._resting.get(topic, "starting" if topic in self._named else ELSEWHERE)
            well = "reading" if topic in self._reading else rests
            counts.state = found[-1] if found else well


def _fate(item: HeldRecord, answer: Answer | None, *, is_late: bool) -> Fate:
    """What an answer means for a record. A null value that found nothing to cancel is a message."""
    entry = item.entry
    if isinstance(entry, Change):
        if entry.otherwise and answer in (Answer.UNKNOWN, Answer.FOREIGN):
            item.entry = entry.otherwise
            return Fate.AGAIN
    elif answer is Answer.IN_FLIGHT and not is_late:
        return Fate.WAIT
    elif (kept := instead(entry, answer)) is not None:
        item.entry = kept
        return Fate.REFUSED
    return Fate.AGAIN if answer is None else Fate.STORED


def _parts(items: Sequence[HeldRecord]) -> Iterator[list[HeldRecord]]:
    """Cut where changes and schedules meet: each waits for the answers of those before it.

    A cancel that may turn into a schedule stands alone: what follows it would be before it.
    """

    def kind(place_and_item: tuple[int, HeldRecord]) -> int:
        place, item = place_and_item
        if isinstance(item.entry, Change):
            return -1 if item.entry.otherwise is None else place
        return -2

    for _, part in itertools.groupby(enumerate(items), key=kind):
        yield [item for _, item in part]


@asynccontextmanager
async def connected(
    name: str,
    settings: Settings,
    routes: Sequence[Route],
    store: AsyncStore,
    calls: Calls,
    emit: Emit,
) -> AsyncIterator[KafkaIngest]:
    """The ingest of one broker as the settings say."""
    kafka = configuration(name, settings.brokers[name], PublishOptions.of(settings.publish))
    yield KafkaIngest(kafka, routes, store, calls, emit, settings)
