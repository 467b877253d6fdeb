"""Where the reading of a partition begins, and how many of its records wait."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

from delaybridge.ingest.kafka.handover import Batch
from delaybridge.ingest.kafka.topics import ANSWER_TIMEOUT_S, Place, Topic, TopicIds

_MEASURE_TIMEOUT_S = 0.2
_ANSWER_TIMEOUT_S = 0.2

Reached = tuple[Topic, int, int]
"""Topic and partition, and the offset after the last that counts."""


class PassedOffsets:
    """How far partitions are stored while some of their records are set aside."""

    def __init__(self) -> None:
        self._passed: dict[tuple[Topic, int], int] = {}  # the offset after the last record
        self._told: dict[tuple[Topic, int], int] = {}

    def take_passed(self, batch: Batch, held: Iterable[Reached]) -> list[Reached]:
        """What may be committed once this batch is stored, without the records that are held.

        An empty batch: once fewer are held.
        """
        last = {
            (topic, partition): offset + 1
            for topic, records in batch.items()
            for partition, offset in {r.partition: r.offset for r in records}.items()
        }
        self._passed |= last
        reached = dict(self._passed)
        for topic, partition, offset in held:
            place = topic, partition
            reached[place] = min(offset, reached.get(place, offset))
        fresh = {at: n for at, n in reached.items() if at in last or self._told.get(at) != n}
        self._told |= fresh
        return [(*place, offset) for place, offset in fresh.items()]

    def forget(self, places: Collection[Place]) -> None:
        """These partitions were given up: others go on with them."""
        for known in (self._passed, self._told):
            for topic, partition in [at for at in known if (at[0].name, at[1]) in places]:
                del known[topic, partition]


class StoredOffsets:
    """The offsets that a consumer stores, to be committed by librdkafka.

    stored: those still to be stored, in order; the loop adds to them. reached: of each partition
    what was stored last. The rest is for the consumer's thread.
    """

    def __init__(self, topics: TopicIds) -> None:
        self.stored: deque[Reached] = deque()
        self.reached: dict[Place, TopicPartition] = {}
        self._topics = topics

    def store(self, consumer: Consumer) -> None:
        """Store the offsets that the loop has reached."""
        while self.stored:
            topic, partition, offset = self.stored.popleft()
            if self._topics.topic_named(topic.name) != topic:
                continue  # the topic that was read is gone
            # The id goes along: an offset means nothing in another topic of the same name.
            place = TopicPartition(topic.name, partition, offset, topic.id)
            # If another member has the partition by now, it continues from the committed offset.
            with suppress(KafkaException):
                consumer.store_offsets(offsets=[place])
                self.reached[topic.name, partition] = place


def skips(texts: Iterable[str]) -> dict[Place, int]:
    """TOPIC/PARTITION=OFFSET -> the first offset to read."""
    skipped = {}
    for text in texts:
        place, _, offset = text.rpartition("=")
        topic, _, partition = place.rpartition("/")
        skipped[topic, int(partition)] = int(offset) + 1
    return skipped


def beginnings(
    consumer: Consumer,
    partitions: Sequence[TopicPartition],
    topics: TopicIds,
    skip: Mapping[Place, int],
) -> list[TopicPartition]:
    """Where to begin: the group's offset, or the beginning if it has none in this very topic.

    skip: first offset to read, if it is beyond that. KafkaException if the broker does not answer.
    """
    known = consumer.committed(list(partitions), timeout=ANSWER_TIMEOUT_S) if partitions else []
    for place in known:
        if place.error is not None:
            raise KafkaException(place.error)
        read_from = place.metadata or ""  # the id of the topic whose offset this is
        if place.offset < 0 or read_from not in ("", topics.topic_named(place.topic).id):
            place.offset = OFFSET_BEGINNING
        after = skip.get((place.topic, place.partition))
        if after is not None and place.offset < after:
            place.offset = after
    return known


def commit(
    consumer: Consumer,
    reached: Mapping[Place, TopicPartition],
    poll: Callable[[], object],
    timeout_s: float,
) -> None:
    """Commit these offsets, again while a rebalance refuses them: not after the timeout.

    The broker looks at a commit once all members have joined, and by then it is of an older
    generation. poll: serves the rebalance; it takes partitions that are given up out of `reached`.
    """
    until_s = time.monotonic() + timeout_s
    while (places := [*reached.values()]) and time.monotonic() < until_s:
        with suppress(KafkaException):
            consumer.commit(offsets=places, asynchronous=True)
            known = consumer.committed(places, timeout=_ANSWER_TIMEOUT_S)  # answered after it
            if all(k.offset >= place.offset for k, place in zip(known, places, strict=True)):
                return
        poll()


def waiting(
    consumer: Consumer,
    begun: Mapping[Place, int],
    stopped: Collection[Place],
    ends: Mapping[Place, int],
) -> dict[str, int]:
    """How many records wait, by topic, as far as is known without asking the broker.

    begun: where partitions began. stopped: partitions not fetched; the broker is asked about them.
    ends: where others end that are not fetched.
    """
    found: dict[str, int] = {}
    for place in consumer.position(consumer.assignment()):
        where = place.topic, place.partition
        position = place.offset if place.offset >= 0 else begun.get(where, 0)
        with suppress(KafkaException):
            low, high = consumer.get_watermark_offsets(
                place, timeout=_MEASURE_TIMEOUT_S, cached=where not in stopped
            )
            behind = max(ends.get(where, high) - max(position, low), 0)
            found[place.topic] = found.get(place.topic, 0) + behind
    return found
