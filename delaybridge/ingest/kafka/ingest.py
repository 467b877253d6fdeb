"""Kafka: delay topics, read into the store by a consumer group.

    consume -> read -> store -> commit the offset

An offset is committed when everything before it is stored. Records that are read again, after a
crash or a rebalance, are skipped by the store (`sources` in docs/keys.md), even if they were
published since.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import ExitStack, asynccontextmanager
from itertools import groupby, repeat
from operator import attrgetter
from typing import Any

from delaybridge.events import Emit, Ingested
from delaybridge.ingest.aside import Aside, Late
from delaybridge.ingest.counts import SourceCounts
from delaybridge.ingest.entries import Entry
from delaybridge.ingest.kafka.consumer import KafkaConsumer
from delaybridge.ingest.kafka.group import member_settings
from delaybridge.ingest.kafka.handover import Batch
from delaybridge.ingest.kafka.held import Fate, HeldRecord, fate_of, parts
from delaybridge.ingest.kafka.offsets import PassedOffsets, Reached, skips
from delaybridge.ingest.kafka.records import Headers, RawRecord, RecordReader
from delaybridge.ingest.kafka.sources import Sources
from delaybridge.ingest.kafka.topics import Place, Topic
from delaybridge.ingest.kafka.window import HOLD_SHARE
from delaybridge.ingest.options import IngestOptions
from delaybridge.ingest.spans import spans
from delaybridge.ingest.storing import TURN_MESSAGES, EntryStore, are_scheduled
from delaybridge.message import Answer
from delaybridge.publish.kafka.configuration import Configuration, configuration


class KafkaIngest:
    """The delay topics of one Kafka cluster."""

    def __init__(
        self, kafka: Configuration, options: IngestOptions, store: EntryStore, emit: Emit
    ) -> None:
        """kafka: the settings that librdkafka is given."""
        self._kafka, self._options, self._store, self._emit = kafka, options, store, emit
        self._owner = store.owner(options.settings.take_over)
        self._sources = Sources(options.routes, self._owner, emit, options.on_change)
        self._readers: dict[Topic, RecordReader] = {}
        self._is_stopping = asyncio.Event()
        self._stopped = asyncio.Event()
        self._consumer: KafkaConsumer | None = None
        self._aside, self._progress = self._new_aside(), PassedOffsets()
        self._emptying: asyncio.Task[None] | None = None
        self._moved = asyncio.Event()  # fewer records are set aside

    @property
    def counts(self) -> list[SourceCounts]:
        """The counts of each topic, and of each pattern of which nothing is read."""
        return self._sources.counts

    async def run(self) -> None:
        """Read until cancelled or stopped. Raises errors that a new consumer may mend."""
        await self._store.store([])  # do not consume before the store answers
        consumer = self._consumer = self._new_consumer()
        self._aside, self._progress = self._new_aside(), PassedOffsets()
        # One batch is read while the one before goes into the store.
        storing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        storing.set_result(None)
        try:
            while not self._is_stopping.is_set():
                batch = await self._next(consumer, storing)
                if batch is not None:
                    records = await self._read(batch)
                    await storing
                    storing = asyncio.ensure_future(self._store_batch(batch, records, consumer))
            await storing
        finally:
            storing.cancel()
            if self._emptying is not None:
                self._emptying.cancel()
                await asyncio.wait([self._emptying])
                self._emptying = None
            self._consumer = None
            await asyncio.shield(consumer.stop())
            self._stopped.set()
        await asyncio.Event().wait()  # stopped: until cancelled

    async def stop(self, timeout_s: float) -> None:
        """Read no more. Returns when everything read is stored, or after the timeout."""
        self._is_stopping.set()
        self._moved.set()  # a full window waits for it
        if self._consumer is not None:
            await asyncio.wait([asyncio.create_task(self._stopped.wait())], timeout=timeout_s)

    async def measure(self) -> None:
        """Learn how many records wait."""
        if self._consumer is not None:
            held = Counter(topic.name for topic, _, _ in self._held())
            self._sources.set_lags({t: lag + held[t] for t, lag in self._consumer.lag.items()})

    def _new_consumer(self) -> KafkaConsumer:
        settings = self._options.settings
        return KafkaConsumer(
            self._kafka,
            self._sources.asked,
            member=member_settings(
                group=settings.group,
                window_bytes=settings.window_bytes,
                silent_ms=self._options.silent_ms,
            ),
            window_bytes=settings.window_bytes,
            skip=skips(settings.skip_offsets),
            owner=self._owner,
            sources=self._sources,
            on_lost=self._lost,
        )

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
                if (emptying := self._running()) is not None:
                    ends.add(emptying)
            return coming.result() if coming.done() else None
        finally:
            coming.cancel()
            stopping.cancel()

    # a batch into the store

    async def _read(self, batch: Batch) -> list[HeldRecord]:
        held: list[HeldRecord] = []
        for topic, records in batch.items():
            reader = self._readers.get(topic) or self._new_reader(topic)
            for first in range(0, len(records), TURN_MESSAGES):
                part = records[first : first + TURN_MESSAGES]
                with spans("receive", reader.route, part, _headers_of):
                    entries = reader.read_all(part)
                held += map(HeldRecord, repeat(reader), entries, repeat(topic), part)
                await asyncio.sleep(0)  # the batch before is sent meanwhile
            counts = self._sources.counts_of(topic.name)
            counts.total += len(records)
            counts.near_misses = reader.near_misses
            self._emit(Ingested(source=counts.source, messages=len(records)))
        return held

    def _new_reader(self, topic: Topic) -> RecordReader:
        route = self._sources.route_of(topic.name)
        calls, options = self._store.calls, self._options
        reader = self._readers[topic] = RecordReader(
            route,
            topic.id,
            calls.kinds,
            calls.limits,
            options.allowed,
            keep_partition=options.settings.keep_partition,
            reach=options.reach(route, calls.kinds),
            names=options.names(route),
        )
        return reader

    async def _store_batch(
        self, batch: Batch, records: Sequence[HeldRecord], consumer: KafkaConsumer
    ) -> None:
        if held := {*self._held()}:  # they are read again if their partition was away
            records = [record for record in records if record.place not in held]
        for part in parts(records):
            await self._store_part(self._aside.split(part), self._aside)
        with ExitStack() as settling:
            for topic, read in batch.items():
                route = self._readers[topic].route
                settling.enter_context(spans("settle", route, read, _headers_of))
            consumer.stored(self._progress.take_passed(batch, self._held()))
        self._hold(consumer)
        if self._aside.messages and self._running() is None:
            self._emptying = asyncio.create_task(self._empty(consumer))
        while self._filled(consumer) >= 1 and not self._is_stopping.is_set():
            self._moved.clear()
            await self._moved.wait()
            self._running()
        consumer.settled()

    def _running(self) -> asyncio.Task[None] | None:
        """The task that stores what is set aside, if there is one; raises what ended it."""
        if self._emptying is not None and self._emptying.done():
            self._emptying.result()
            self._emptying = None
        return self._emptying

    def _held(self) -> list[Reached]:
        return [record.place for record in self._aside.messages if not record.is_lost]

    def _filled(self, consumer: KafkaConsumer) -> float:
        """The share of the window that is set aside."""
        held = self._aside.messages
        return consumer.share(len(held), sum(record.size for record in held))

    def _hold(self, consumer: KafkaConsumer) -> None:
        """Pause the topics of what is set aside before it leaves no room for the others."""
        filled = self._filled(consumer)
        names = {topic.name for topic, _, _ in self._held()} if filled >= HOLD_SHARE else ()
        consumer.hold(names, max(1 - filled, 0.0))

    def _lost(self, places: Collection[Place]) -> None:
        """Other members store what waits of these partitions, and may be further already."""
        self._progress.forget(places)
        for record in self._aside.messages:
            topic, partition, _ = record.place
            record.is_lost |= (topic.name, partition) in places

    def _new_aside(self) -> Aside[HeldRecord]:
        return Aside(self._store, self._tell)

    def _tell(self) -> None:
        """Show for what records wait, at the topics that they are from."""
        waiting: defaultdict[str, list[HeldRecord]] = defaultdict(list)
        for record in self._aside.messages:
            waiting[record.reader.topic].append(record)
        fresh: list[str] = []
        for topic in {reader.route.source for reader in self._readers.values()}:
            fresh += self._sources.counts_of(topic).note(
                "store", self._aside.faults(waiting[topic])
            )
        for fault in dict.fromkeys(fresh):
            self._sources.unguarded(fault)

    async def _empty(self, consumer: KafkaConsumer) -> None:
        """Store what was set aside; each part of it after the one before, as `parts` cuts."""

        async def store(records: list[HeldRecord]) -> Aside[HeldRecord]:
            left = self._new_aside()
            free = [record for record in records if not record.is_lost]
            for part in parts(free, again=True):
                await self._store_part(left.split(part), left)
            return left

        def tell() -> None:
            consumer.stored(self._progress.take_passed({}, self._held()))
            self._hold(consumer)
            self._moved.set()

        try:
            await self._aside.empty(store, tell)
        finally:
            self._moved.set()

    async def _store_part(self, records: list[HeldRecord], aside: Aside[HeldRecord]) -> None:
        """Store them in order; a record that cannot be stored is quarantined before the next ones.

        Within one partition and bucket no record overtakes one that has to wait: once its offset
        was passed, it would never be read again. aside: takes those that wait.
        """
        left = records
        while left:
            unstored = await self._try(left, aside)
            await self._quarantine([each for each, fate in unstored if fate is Fate.REFUSED], aside)
            left = aside.split([each for each, fate in unstored if fate is not Fate.REFUSED])

    async def _quarantine(self, records: list[HeldRecord], aside: Aside[HeldRecord]) -> None:
        """Keep them, under other ids if theirs are taken, before anything read later is stored."""
        left = records
        while left:
            left = [each for each, _ in await self._try(left, aside)]

    async def _try(
        self, records: list[HeldRecord], aside: Aside[HeldRecord]
    ) -> list[tuple[HeldRecord, Fate]]:
        """Store them, in one call; returns those that are not stored now, in their order.

        Quarantined records and refused changes are counted and logged when they are stored.
        """
        entries = [record.entry for record in records]
        answers = await self._store.store(entries)
        if are_scheduled(entries, answers):
            self._count_scheduled(records)
            return []
        late: list[Late[HeldRecord]] = []
        fates: dict[int, Fate] = {}  # by the record's `id()`
        stored: defaultdict[str, list[tuple[Entry, Answer | None]]] = defaultdict(list)
        now_s = asyncio.get_running_loop().time()
        for record, answer in zip(records, answers, strict=True):
            if isinstance(answer, Exception):
                late.append((record, answer))
                continue
            fate = fates[id(record)] = fate_of(record, answer, now_s)
            if fate is Fate.STORED:
                stored[record.reader.topic].append((record.entry, answer))
                continue
            if fate is Fate.WAIT:
                aside.mark(record)
            late.append((record, answer))
        for topic, of_topic in stored.items():
            self._sources.counts_of(topic).report(of_topic, self._emit)
        return [(record, fates[id(record)]) for record in aside.take_refused(late)]

    def _count_scheduled(self, records: list[HeldRecord]) -> None:
        for topic, of_one in groupby(records, attrgetter("topic")):
            counts = self._sources.counts_of(topic.name)
            counts.scheduled([record.entry for record in of_one], self._emit)


def _headers_of(record: RawRecord) -> Headers:
    return record.headers or ()


@asynccontextmanager
async def connected(
    options: IngestOptions, store: EntryStore, emit: Emit
) -> AsyncIterator[KafkaIngest]:
    """The ingest of one broker."""
    kafka = configuration(options.broker, options.url, options.publish)
    yield KafkaIngest(kafka, options, store, emit)
