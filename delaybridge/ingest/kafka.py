"""Kafka: delay topics, read into the store by a consumer group.

    consume -> read -> store -> store the offset

An offset is committed when everything before it is stored. What is read again, after a crash or a
rebalance, is left out by the store (`sources` in docs/keys.md), also when it was published already.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from delaybridge.calls import Calls
from delaybridge.events import Emit, Ingested, IngestFailed, IngestStarted, Quarantined
from delaybridge.ingest import INGRESS, Cancel, Entry, Quarantine, Schedule
from delaybridge.ingest.counts import Counts
from delaybridge.ingest.kafka_consumer import Batch, KafkaConsumer, Place, Topic
from delaybridge.ingest.kafka_records import Read, Reader
from delaybridge.ingest.routes import AllowList, Route, topics_pattern
from delaybridge.ingest.storing import insist
from delaybridge.message import Answer
from delaybridge.publish import PublishOptions
from delaybridge.publish.kafka_client import configuration
from delaybridge.settings import Settings
from delaybridge.store import AsyncStore

_AGAIN_S = 0.05  # between two looks at an id that is in flight
_PATIENCE_S = 30.0  # then it is quarantined


class Item:
    """One record on its way into the store."""

    __slots__ = ("entry", "read", "reader")

    def __init__(self, reader: Reader, read: Read) -> None:
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
        self._insist = partial(insist, store, calls, emit)
        self._allowed = AllowList(settings.ingest.destinations)
        self._readers: dict[Topic, Reader] = {}
        self._counts: dict[str, Counts] = {}
        self._is_stopping = asyncio.Event()
        self._stopped = asyncio.Event()
        self._consumer: KafkaConsumer | None = None
        for route in routes:
            if not route.is_pattern:
                self._count(route)

    @property
    def counts(self) -> list[Counts]:
        """What each topic has brought."""
        return [*self._counts.values()]

    async def run(self) -> None:
        """Read until cancelled or stopped. Raises what a new consumer may mend."""
        await self._insist([])  # consume only what can be kept
        settings = self._settings.ingest
        names = [topics_pattern(r.source) if r.is_pattern else r.source for r in self._routes]
        consumer = self._consumer = KafkaConsumer(
            self._kafka,
            names,
            group=settings.group,
            window_bytes=settings.window_bytes,
            skip=_skipped(settings.skip_offsets),
            failed=self._failed,
        )
        try:
            while not self._is_stopping.is_set():
                batch = await self._next(consumer)
                if batch is not None:
                    await self._take(batch)
                    consumer.stored(batch)
        finally:
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

    async def _next(self, consumer: KafkaConsumer) -> Batch | None:
        """The next batch; None once it is to stop."""
        coming = asyncio.ensure_future(consumer.next())
        stopping = asyncio.ensure_future(self._is_stopping.wait())
        try:
            await asyncio.wait([coming, stopping], return_when=asyncio.FIRST_COMPLETED)
            return coming.result() if coming.done() else None
        finally:
            coming.cancel()
            stopping.cancel()

    # a batch into the store

    async def _take(self, batch: Batch) -> None:
        items: list[Item] = []
        for topic, reads in batch.items():
            reader = self._reader(topic)
            items += (Item(reader, read) for read in reads)
            counts = self._counts[topic.name]
            counts.total += len(reads)
            self._emit(Ingested(source=counts.source, messages=len(reads)))
        for part in _parts(items):
            await self._store(part)

    async def _store(self, items: Sequence[Item]) -> None:
        """Store them in their order; what cannot be stored is quarantined before what follows it.

        From one partition into one bucket nothing passes what is in its way: a record passed over
        would never be read again.
        """
        patience_s = asyncio.get_running_loop().time() + _PATIENCE_S
        left = items
        while left:
            answers = await self._insist([item.entry for item in left])
            is_late = asyncio.get_running_loop().time() > patience_s
            again: list[Item] = []
            quarantined: list[Item] = []
            in_flight = False
            for item, answer in zip(left, answers, strict=True):
                if answer is None or self._is_to_follow(item, answer):
                    again.append(item)
                elif (
                    answer is Answer.IN_FLIGHT and isinstance(item.entry, Schedule) and not is_late
                ):
                    in_flight = True
                    again.append(item)
                elif answer is Answer.CONFLICT or (
                    answer is Answer.IN_FLIGHT and isinstance(item.entry, Schedule)
                ):
                    quarantined.append(item)
                elif isinstance(item.entry, Quarantine):
                    self._quarantined([item])
            await self._quarantine(quarantined)
            left = again
            if in_flight:
                await asyncio.sleep(_AGAIN_S)

    def _is_to_follow(self, item: Item, answer: Answer) -> bool:
        """Whether a null value found nothing to cancel: then it is an ordinary message."""
        entry = item.entry
        if isinstance(entry, Cancel) and entry.otherwise and answer is Answer.UNKNOWN:
            item.entry = entry.otherwise
            return True
        return False

    async def _quarantine(self, items: Sequence[Item]) -> None:
        """Keep what another message of the same id stands in the way of."""
        for item in items:
            entry = item.entry
            if isinstance(entry, Schedule):
                reason = f"{INGRESS}conflict delaybridge-id: {entry.accepted.id!r} is pending"
                item.entry = item.reader.quarantine(item.read, reason)
        if items:
            await self._insist([item.entry for item in items])
            self._quarantined(items)

    def _quarantined(self, items: Sequence[Item]) -> None:
        reasons: Counter[tuple[str, str]] = Counter()
        for item in items:
            if isinstance(item.entry, Quarantine):
                reasons[item.reader.topic, item.entry.reason] += 1
        for (topic, reason), count in reasons.items():
            counts = self._counts[topic]
            counts.quarantined += count
            self._emit(Quarantined(source=counts.source, messages=count, reason=reason))

    # topics

    def _reader(self, topic: Topic) -> Reader:
        reader = self._readers.get(topic)
        if reader is None:
            route = self._route_of(topic.name)
            self._emit(IngestStarted(source=str(route)))
            self._count(route).state = "reading"
            reader = self._readers[topic] = Reader(
                *(route, topic.id, self._calls.kinds, self._calls.limits, self._allowed),
                keep_partition=self._settings.ingest.keep_partition,
            )
        return reader

    def _route_of(self, topic: str) -> Route:
        for route in self._routes:
            if route.source == topic:
                return route
        return next(route for route in self._routes if route.is_pattern).of(topic)

    def _count(self, route: Route) -> Counts:
        counts = self._counts.get(route.source)
        if counts is None:
            target = f"{route.broker}:{route.target}"
            counts = self._counts[route.source] = Counts(source=str(route), target=target)
        return counts

    def _failed(self, place: str, reason: str) -> None:
        for topic, counts in self._counts.items():
            if place.partition("/")[0] in (topic, "kafka"):
                counts.state = f"{place}: {reason}"
        self._emit(IngestFailed(source=f"{self._routes[0].broker}:{place}", reason=reason))


def _parts(items: Sequence[Item]) -> Iterator[list[Item]]:
    """Cut where cancels and schedules meet: each waits for the answers of those before it."""
    for _, part in itertools.groupby(items, key=lambda item: isinstance(item.entry, Cancel)):
        yield list(part)


def _skipped(texts: Sequence[str]) -> dict[Place, int]:
    """TOPIC/PARTITION=OFFSET -> the first offset to read."""
    skipped = {}
    for text in texts:
        place, _, offset = text.rpartition("=")
        topic, _, partition = place.rpartition("/")
        skipped[topic, int(partition)] = int(offset) + 1
    return skipped


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
