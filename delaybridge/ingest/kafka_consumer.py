"""librdkafka's consumer on a thread of its own: batches to the loop, one at a time.

The thread hands one batch over and waits until it was taken, so memory stays bounded; it goes on
polling meanwhile, with its partitions paused, or the group would take it for dead. Offsets are
stored when the loop says so and committed by librdkafka, also before a partition is given up.
Only the thread calls the client: a call that keeps Python's lock while `consume` needs it for a
callback would stand still for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from delaybridge.ingest.kafka_records import Read
from delaybridge.publish.kafka_outcomes import shown

POLL_S = 0.2
BATCH_MESSAGES = 1000
ANSWER_TIMEOUT_S = 10.0
HAND_OVER_S = 5.0  # a batch that waits longer has the partitions paused
GIVE_UP_S = 5.0  # before a partition is given up, what was read of it may still be stored
MEASURE_S = 2.0
_REFRESH_MS = 5000

_SETTINGS = {
    "partition.assignment.strategy": "cooperative-sticky",
    "enable.auto.offset.store": False,
    "enable.auto.commit": True,
    "auto.commit.interval.ms": 1000,
    # What retention has taken away is an alarm, and never skipped without a word.
    "auto.offset.reset": "error",
    "check.crcs": True,
    "isolation.level": "read_committed",
    "fetch.wait.max.ms": 100,
    "topic.metadata.refresh.interval.ms": _REFRESH_MS,
    "allow.auto.create.topics": False,
}
# What the partition cannot be read beyond, until somebody decides.
_STOPPED = {
    KafkaError._AUTO_OFFSET_RESET: "lost_input: retention took records before they were read",
    KafkaError._BAD_MSG: "corrupt: a record batch fails its checksum",
    KafkaError._BAD_COMPRESSION: "corrupt: a record batch cannot be decompressed",
    KafkaError._NOT_IMPLEMENTED: "unsupported: a record batch of an unknown format",
}


class Topic(NamedTuple):
    """One topic, told by its id from another that bore its name. id: empty if unknown."""

    name: str
    id: str


Batch = dict[Topic, list[Read]]
Place = tuple[str, int]


class KafkaConsumer:
    """Reads topics as a member of a group. `next` and `stored` are for the loop."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        topics: Sequence[str],
        *,
        group: str,
        window_bytes: int,
        skip: Mapping[Place, int],
        failed: Callable[[str, str], None],
    ) -> None:
        """topics: names, or patterns that begin with ^. skip: first offset to read, if it is more
        than was committed. failed: told on the loop of (topic and partition, reason).
        """
        self._loop = asyncio.get_running_loop()
        self._failed, self._skip = failed, dict(skip)
        logger = logging.Logger("librdkafka")
        logger.addHandler(logging.NullHandler())
        own = {
            **settings,
            **_SETTINGS,
            "group.id": group,
            "queued.max.messages.kbytes": max(window_bytes // 2**10, 1024),
        }
        self._admin = AdminClient(dict(settings), logger=logger)
        self._consumer = Consumer(own, logger=logger)
        self._topics = list(topics)
        self._ids: dict[str, str] = {}
        self._batch: Batch | None = None
        self._arrived = asyncio.Event()
        self._taken = threading.Event()
        self._idle = threading.Event()  # nothing that was handed over is still unstored
        self._idle.set()
        self._safe: deque[TopicPartition] = deque()  # first offsets that are not safe
        self.lag: dict[str, int] = {}  # records not read yet, by topic, as far as is known
        self._measured_s = 0.0
        self._is_stopped = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="delaybridge ingest", daemon=True)
        self._thread.start()

    # for the loop

    async def next(self) -> Batch:
        """The next batch; the one before is to be `stored` first. Raises what ended the thread."""
        while True:
            if self._error is not None:
                raise self._error
            if self._batch is not None:
                batch, self._batch = self._batch, None
                self._arrived.clear()
                self._idle.clear()
                self._taken.set()
                return batch
            await self._arrived.wait()
            self._arrived.clear()

    def stored(self, batch: Batch) -> None:
        """Everything of the batch is safe: its offsets may be committed."""
        for topic, reads in batch.items():
            last = {read.partition: read.offset + 1 for read in reads}
            self._safe += (TopicPartition(topic.name, p, offset) for p, offset in last.items())
        self._idle.set()

    async def stop(self) -> None:
        """Leave the group; what was stored is committed."""
        self._is_stopped = True
        self._taken.set()
        self._idle.set()
        await asyncio.to_thread(self._thread.join)

    # in the thread

    def _run(self) -> None:
        try:
            self._consumer.subscribe(
                self._topics, on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
            )
            while not self._is_stopped:
                self._look_after()
                messages = self._consumer.consume(BATCH_MESSAGES, POLL_S)
                if batch := self._read(messages):
                    self._hand_over(batch)
            self._store_offsets()
        except BaseException as exc:
            self._error = exc
            self._tell(self._arrived.set)
        finally:
            self._consumer.close()

    def _read(self, messages: Sequence[Message]) -> Batch:
        batch: Batch = {}
        for message in messages:
            error = message.error()
            if error is not None:
                self._refused(error, message)
                continue
            name = message.topic() or ""
            topic = Topic(name, self._ids.get(name, ""))
            reads = batch.get(topic)
            if reads is None:
                reads = batch[topic] = []
            reads.append(
                Read(
                    message.partition() or 0,
                    message.offset() or 0,
                    message.key(),
                    message.value(),
                    _headers(message),
                    message.timestamp()[1],
                )
            )
        return batch

    def _hand_over(self, batch: Batch) -> None:
        """Give the batch to the loop and wait until it was taken, and the one before was stored."""
        self._taken.clear()
        self._batch = batch
        self._tell(self._arrived.set)
        patience_s = time.monotonic() + HAND_OVER_S
        paused: list[TopicPartition] = []
        while not self._taken.wait(POLL_S) and not self._is_stopped:
            self._look_after()
            if not paused and time.monotonic() > patience_s:
                paused = self._consumer.assignment()
                self._consumer.pause(paused)
            if paused:
                self._consumer.poll(0)  # tells the group that we live; paused ones bring nothing
        if paused and not self._is_stopped:
            with contextlib.suppress(KafkaException):  # some may be another's by now
                self._consumer.resume(self._consumer.assignment())

    def _look_after(self) -> None:
        """Store what may be committed; now and then, count what is waiting."""
        self._store_offsets()
        if time.monotonic() - self._measured_s > MEASURE_S:
            self._measured_s = time.monotonic()
            lag: dict[str, int] = {}
            for place in self._consumer.position(self._consumer.assignment()):
                _, high = self._consumer.get_watermark_offsets(place, cached=True)
                behind = max(high - place.offset, 0) if place.offset >= 0 else 0
                lag[place.topic] = lag.get(place.topic, 0) + behind
            self.lag = lag

    def _store_offsets(self) -> None:
        while self._safe:
            # Another member may have the partition by now, and reads on from what we committed.
            with contextlib.suppress(KafkaException):
                self._consumer.store_offsets(offsets=[self._safe.popleft()])

    def _refused(self, error: KafkaError, message: Message) -> None:
        code = error.code()
        if code == KafkaError._PARTITION_EOF:
            return
        name, partition = message.topic(), message.partition()
        place = name or "kafka"
        reason = shown(error)
        if name is not None and partition is not None and code in _STOPPED:
            place = f"{name}/{partition}"
            offset = message.offset()
            reason = (
                f"{_STOPPED[code]}; stopped at offset {offset}; to go on behind it: delaybridge "
                f"ingest kafka --skip-offset {place}={offset}"
            )
            with contextlib.suppress(KafkaException):
                self._consumer.pause([TopicPartition(name, partition)])
        self._tell(self._failed, place, reason)

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Begin where the group left off; at the beginning where it never was."""
        names = {place.topic for place in partitions} - self._ids.keys()
        self._ids.update(self._ask_for_ids(names))
        known = consumer.committed(partitions, timeout=ANSWER_TIMEOUT_S) if partitions else []
        for place in known:
            if place.error is not None:
                raise KafkaException(place.error)
            if place.offset < 0:
                place.offset = OFFSET_BEGINNING
            after = self._skip.get((place.topic, place.partition))
            if after is not None and place.offset < after:
                place.offset = after
        consumer.incremental_assign(known)

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        # What the loop has in hand is stored first, so that the next owner need not read it again.
        # It would be read twice and scheduled once, were it otherwise.
        self._idle.wait(GIVE_UP_S)
        self._store_offsets()
        consumer.incremental_unassign(partitions)

    def _lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.incremental_unassign(partitions)

    def _ask_for_ids(self, names: set[str]) -> dict[str, str]:
        ids = dict.fromkeys(names, "")
        if names:
            asked = self._admin.describe_topics(
                TopicCollection(sorted(names)), request_timeout=ANSWER_TIMEOUT_S
            )
            for name, future in asked.items():
                with contextlib.suppress(KafkaException):  # a broker that gives none
                    ids[name] = _uuid_text(future.result(ANSWER_TIMEOUT_S).topic_id)
        return ids

    def _tell(self, callback: Callable[..., None], *arguments: object) -> None:
        # The loop may have ended without stopping us.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *arguments)


def _headers(message: Message) -> list[tuple[str, bytes | None]] | None:
    try:
        found: Any = message.headers()
        return found or []
    except UnicodeDecodeError:
        return None


def _uuid_text(id: Any) -> str:
    """A topic id in the 22 characters that Kafka's own tools print; empty if there is none."""
    high, low = id.get_most_significant_bits(), id.get_least_significant_bits()
    return "" if not (high or low) else str(id)
