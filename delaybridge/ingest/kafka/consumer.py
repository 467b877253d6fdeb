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
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from delaybridge.ingest.kafka.damage import STOPS, complaint, is_readable
from delaybridge.ingest.kafka.group import member_settings
from delaybridge.ingest.kafka.owners import TopicOwners, TopicsChanged
from delaybridge.ingest.kafka.records import RawRecord
from delaybridge.ingest.kafka.topics import (
    ANSWER_TIMEOUT_S,
    Place,
    Topic,
    TopicIds,
    beginnings,
    waiting,
)
from delaybridge.ingest.owner import Owner
from delaybridge.publish.kafka.outcomes import LOGIN_REFUSED, error_of, shown

POLL_S = 0.2
BATCH_MESSAGES = 1000
FIRST_BATCH_MESSAGES = 16  # before anything is known of their size
HAND_OVER_S = 5.0  # a batch that waits longer has the partitions paused
GIVE_UP_S = 5.0  # before a partition is given up, what was read of it may still be stored
MEASURE_S = 2.0
SETTLED_S = 5.0  # a member that was given no partition by then gets none for now
OWNED_S = 5.0  # so often there is a look whether the topics are still ours
OWNED_TIMEOUT_S = 3.0
ELSEWHERE = "idle: other processes read it"
FOREIGN = "idle: what is there belongs to another namespace"
CLUSTER = "kafka"  # the place of what concerns no topic

# Of one broker among others, and over when it is back; else _ALL_BROKERS_DOWN comes, too.
_ONE_BROKERS = frozenset({KafkaError._TRANSPORT, KafkaError._RESOLVE, KafkaError._TIMED_OUT})

Batch = dict[Topic, list[RawRecord]]


class KafkaConsumer:
    """Reads topics as a member of a group. `next` and `stored` are for the loop."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        topics: Sequence[str],
        *,
        group: str,
        window_bytes: int,
        silent_ms: int,
        skip: Mapping[Place, int],
        said: Callable[[str, str | None], None],
        owner: Owner,
        taken: Callable[[str, str], None],
        unguarded: Callable[[str], None],
        rests: Callable[[set[str], Mapping[str, str]], None],
    ) -> None:
        """topics: names, or patterns that begin with ^. silent_ms: after so long the partitions of
        a process that died are given to others. skip: first offset to read, if it is more than was
        committed. said: told on the loop of a place (a topic, TOPIC/PARTITION or
        `CLUSTER`) and what is wrong there, None once it is well. owner: the namespace that reads;
        taken: told on the loop of a topic that is left out, and whose it is. unguarded: why topics
        cannot be marked as the owner's. rests: told on the loop, every other second, which topics
        are read, and which of those asked for have nothing to be read here and why.
        """
        self._loop = asyncio.get_running_loop()
        self._said, self._skip, self._settings = said, dict(skip), dict(settings)
        logger = logging.Logger("librdkafka")
        logger.addHandler(logging.NullHandler())
        self._own = member_settings(
            group=group, window_bytes=window_bytes, silent_ms=silent_ms, error_cb=self._is_wrong
        )
        self._renew = getattr(settings, "renew", lambda client: None)  # its password, from a file
        self._ids = TopicIds(settings, logger)
        self._owners = TopicOwners(
            settings, owner, lambda reason: self._tell(unguarded, reason), logger
        )
        self._looked_s = time.monotonic()
        self._joined_s = self._looked_s  # when it asked for its partitions
        self._rests = rests
        self._taken_by = taken
        self._logger = logger
        self._consumer: Consumer
        self._asked = self._topics = list(topics)
        self._window_bytes = window_bytes
        self._batch_messages = FIRST_BATCH_MESSAGES
        self._batch: Batch | None = None
        self._arrived = asyncio.Event()
        self._taken = threading.Event()
        self._unstored = 0  # batches taken by the loop, and not stored yet
        self._idle = threading.Event()  # there is none
        self._idle.set()
        self._safe: deque[tuple[Topic, int, int]] = deque()  # partition, first offset not safe
        self._begun: dict[Place, int] = {}  # what is ours, and where it began
        self._stopped: set[Place] = set()  # of these, what cannot be read on
        self._troubled: dict[str, int] = {}  # topics of which something wrong was said: partition
        self._is_paused = False
        self._is_away = False
        self.lag: dict[str, int] = {}  # records not read yet, by topic, as far as is known
        self._measured_s = 0.0
        self._ending = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="delaybridge ingest", daemon=True)
        self._thread.start()

    # for the loop

    async def next(self) -> Batch:
        """The next batch. Two may be in the loop's hands: one is read, one is stored.

        Raises what ended the thread: a new consumer begins where this one had committed.
        """
        while True:
            if self._error is not None:
                raise self._error
            if self._batch is not None:
                batch, self._batch = self._batch, None
                self._arrived.clear()
                self._unstored += 1
                self._idle.clear()
                self._taken.set()
                return batch
            await self._arrived.wait()
            self._arrived.clear()

    def stored(self, batch: Batch) -> None:
        """Everything of the batch is safe: its offsets may be committed."""
        for topic, reads in batch.items():
            last = {read.partition: read.offset + 1 for read in reads}
            self._safe += ((topic, partition, offset) for partition, offset in last.items())
        self._unstored -= 1
        if not self._unstored:
            self._idle.set()

    async def stop(self) -> None:
        """Leave the group; what was stored is committed."""
        self._ending.set()
        self._taken.set()
        self._idle.set()
        await asyncio.to_thread(self._thread.join)

    # in the thread

    def _run(self) -> None:
        try:
            self._claim()
            self._read_on()
        except BaseException as exc:
            self._error = exc
            self._tell(self._arrived.set)
        finally:
            self._owners.close()

    def _claim(self) -> None:
        """Find out which topics are another's; a cluster that is away is waited for.

        If some are, the others are subscribed to by name: no pattern could leave them out.
        """
        while not self._ending.is_set():
            try:
                names = self._meant(OWNED_TIMEOUT_S)
                foreign = self._owners.claim(names, OWNED_TIMEOUT_S)
            except KafkaException as exc:
                error = error_of(exc)
                self._is_away = True
                self._tell(self._said, CLUSTER, str(exc) if error is None else shown(error))
                self._ending.wait(POLL_S)
                continue  # for as long as it takes
            if foreign:
                self._topics = sorted(names - foreign.keys())
                for name, whose in foreign.items():
                    self._tell(self._taken_by, name, whose)
            return

    def _meant(self, timeout_s: float) -> set[str]:
        """The topics that are named, and those that are there and match a pattern."""
        names = {name for name in self._asked if not name.startswith("^")}
        if len(names) < len(self._asked):
            there = self._ids.names(timeout_s)
            names.update(*(_matching(asked, there) for asked in self._asked))
        return names

    def _look(self) -> None:
        """TopicsChanged if a topic changed hands, or is new and has to be subscribed to by name."""
        with contextlib.suppress(KafkaException):
            names = {topic for topic, _ in self._begun}
            if self._owners.foreign:
                names = self._meant(OWNED_TIMEOUT_S)
                if names - self._owners.foreign.keys() - {*self._topics}:
                    raise TopicsChanged("there are new topics")
            self._owners.look(names, OWNED_TIMEOUT_S)

    def _read_on(self) -> None:
        self._consumer = Consumer({**self._settings, **self._own}, logger=self._logger)
        self._joined_s = time.monotonic()
        try:
            if self._topics:
                self._consumer.subscribe(
                    self._topics,
                    on_assign=self._assigned,
                    on_revoke=self._revoked,
                    on_lost=self._gone,
                )
            messages: Sequence[Message] = ()
            while not self._ending.is_set():
                self._look_after()
                messages = messages or self._consumer.consume(self._batch_messages, POLL_S)
                batch = self._read(messages)
                messages = self._hand_over(batch) if batch else ()
            self._store_offsets()
        finally:
            self._consumer.close()

    def _read(self, messages: Sequence[Message]) -> Batch:
        if messages:
            self._ids.check({m.topic() or "" for m in messages if m.error() is None})
        batch: Batch = {}
        largest = 1
        for message in messages:
            name, partition = message.topic() or "", message.partition() or 0
            error = message.error()
            if error is not None:
                self._refused(error, message)
            elif (name, partition) not in self._stopped:
                if name in self._troubled:
                    self._is_well(name)
                read = RawRecord.of(message)
                largest = max(largest, len(read.key or b"") + len(read.value or b""))
                batch.setdefault(self._ids.of(name), []).append(read)
        if batch:
            fitting = min(
                self._window_bytes // (2 * largest), 2 * self._batch_messages, BATCH_MESSAGES
            )
            self._batch_messages = max(fitting, 1)
        return batch

    def _hand_over(self, batch: Batch) -> Sequence[Message]:
        """Give the batch to the loop and wait until it was taken.

        Returns what came meanwhile.
        """
        self._taken.clear()
        self._batch = batch
        self._tell(self._arrived.set)
        patience_s = time.monotonic() + HAND_OVER_S
        came: list[Message] = []
        while not self._taken.wait(POLL_S) and not self._ending.is_set():
            self._look_after()
            if not self._is_paused and time.monotonic() > patience_s:
                self._is_paused = True
                self._consumer.pause(self._consumer.assignment())
            if self._is_paused:  # tells the group that we live; brings hardly more than errors
                came += self._consumer.consume(1, 0)
        if self._is_paused and not self._ending.is_set():
            self._is_paused = False
            readable = self._begun.keys() - self._stopped
            with contextlib.suppress(KafkaException):  # some may be another's by now
                self._consumer.resume([TopicPartition(*place) for place in readable])
        return came

    def _look_after(self) -> None:
        """Store what may be committed; now and then, count what is waiting."""
        self._store_offsets()
        if time.monotonic() - self._looked_s > OWNED_S:
            self._looked_s = time.monotonic()
            self._look()
        if time.monotonic() - self._measured_s > MEASURE_S:
            self._measured_s = time.monotonic()
            self.lag = waiting(self._consumer, self._begun, self._stopped)
            read = {topic for topic, _ in self._begun}
            self._tell(self._rests, read, self._resting(read))
            # Nobody tells of a fetch that brings nothing and is allowed again.
            refused = [where for where in self._troubled.items() if where in self._begun]
            if refused and is_readable(self._settings, *refused[0]):
                self._is_well(refused[0][0])
            if self._is_away:
                with contextlib.suppress(KafkaException):
                    self._consumer.list_topics(timeout=POLL_S)
                    self._is_away = False
                    self._tell(self._said, CLUSTER, None)

    def _resting(self, read: Collection[str]) -> dict[str, str]:
        """What was asked for and has nothing to be read here, though nothing is wrong, and why."""
        now_s = time.monotonic()
        if self._is_away:
            self._joined_s = now_s
        left = [asked for asked in self._asked if not _matching(asked, read)]
        found: dict[str, str] = {}
        if left and now_s - self._joined_s > SETTLED_S:
            with contextlib.suppress(KafkaException):
                there = {*self._ids.names(OWNED_TIMEOUT_S)} - self._owners.foreign.keys()
                for asked in left:
                    if _matching(asked, there):
                        found[asked] = ELSEWHERE
                    elif _matching(asked, self._owners.foreign):
                        found |= {asked: FOREIGN} if asked.startswith("^") else {}
                    elif asked.startswith("^"):
                        found[asked] = "idle: no such topic is there yet"
        return found

    def _store_offsets(self) -> None:
        while self._safe:
            topic, partition, offset = self._safe.popleft()
            if self._ids.of(topic.name) != topic:
                continue  # the topic it was read from is gone
            # The id goes along: an offset means nothing in another topic of the same name.
            place = TopicPartition(topic.name, partition, offset, topic.id)
            # Another member may have the partition by now, and reads on from what we committed.
            with contextlib.suppress(KafkaException):
                self._consumer.store_offsets(offsets=[place])

    def _is_wrong(self, error: KafkaError) -> None:
        if error.code() in LOGIN_REFUSED:
            self._renew(self._consumer)
        if error.code() not in _ONE_BROKERS:
            self._is_away = True
            self._tell(self._said, CLUSTER, shown(error))

    def _refused(self, error: KafkaError, message: Message) -> None:
        code = error.code()
        if error.fatal():
            raise KafkaException(error)
        if code == KafkaError._PARTITION_EOF:
            return
        name, partition = message.topic(), message.partition()
        if name is not None and name.startswith("^"):
            return  # no topic is there that a pattern means: none has to be
        if name is not None and partition is not None and code in STOPS:
            self._stop_at(TopicPartition(name, partition, message.offset() or 0), code)
            return
        if name is None:
            self._is_wrong(error)
        else:
            self._troubled[name] = partition or 0
            self._tell(self._said, name, shown(error))

    def _is_well(self, name: str) -> None:
        self._troubled.pop(name, None)
        self._tell(self._said, name, None)

    def _stop_at(self, place: TopicPartition, code: int) -> None:
        """Read a partition no further, unless it is another's."""
        where = place.topic, place.partition
        if where in self._stopped or where not in self._begun:
            return
        self._ids.check({place.topic}, at_once=True)
        self._stopped.add(where)
        with contextlib.suppress(KafkaException):
            self._consumer.pause([TopicPartition(*where)])
        reason = complaint(self._settings, place, code)
        self._tell(self._said, f"{place.topic}/{place.partition}", reason)

    # partitions come and go

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        names = {place.topic for place in partitions}
        self._owners.look(names, ANSWER_TIMEOUT_S)
        self._ids.learn(names, pause=self._ending.wait)
        places = beginnings(consumer, partitions, self._ids, self._skip)
        consumer.incremental_assign(places)
        if self._is_paused:
            consumer.pause(places)
        self._begun |= {(place.topic, place.partition): place.offset for place in places}
        for name in {place.topic for place in places}:
            self._is_well(name)

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        # What the loop has in hand is stored first, so that the next owner need not read it again.
        # It would be read twice and scheduled once, were it otherwise.
        self._idle.wait(GIVE_UP_S)
        self._store_offsets()
        self._gone(consumer, partitions)

    def _gone(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.incremental_unassign(partitions)
        for place in partitions:
            where = place.topic, place.partition
            self._begun.pop(where, None)
            if where in self._stopped:
                self._stopped.discard(where)
                self._tell(self._said, f"{place.topic}/{place.partition}", None)

    def _tell(self, callback: Callable[..., None], *arguments: object) -> None:
        # The loop may have ended without stopping us.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *arguments)


def _matching(asked: str, names: Collection[str]) -> set[str]:
    """Those of the topics that a name, or a pattern that begins with ^, means."""
    if asked.startswith("^"):
        return {name for name in names if re.match(asked, name)}
    return {asked} & {*names}
