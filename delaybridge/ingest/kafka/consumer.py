"""librdkafka's consumer on a thread of its own, which hands batches to the loop.

The thread offers one batch and waits until the loop takes it, so memory stays bounded. Meanwhile
it keeps polling, with its partitions paused, or the group would take it for dead. Offsets are
stored when the loop says so; librdkafka commits them, also before a partition is given up.
Only the thread calls the client: a call that holds Python's lock while `consume` needs it for a
callback would deadlock.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.cimpl import Consumer  # never OpenTelemetry's, with a span per read

from delaybridge.ingest.kafka.damage import STOPS, diagnosis, is_readable
from delaybridge.ingest.kafka.group import DEFAULTS
from delaybridge.ingest.kafka.handover import Batch, HandOver
from delaybridge.ingest.kafka.offsets import Reached, StoredOffsets, beginnings, commit, waiting
from delaybridge.ingest.kafka.owners import TopicOwners, TopicsChanged
from delaybridge.ingest.kafka.records import Headers, RawRecord
from delaybridge.ingest.kafka.sources import CLUSTER, Sources, Troubles
from delaybridge.ingest.kafka.subscription import Subscription
from delaybridge.ingest.kafka.topics import ANSWER_TIMEOUT_S, Place, TopicIds
from delaybridge.ingest.kafka.window import BatchWindow
from delaybridge.ingest.owner import Owner
from delaybridge.publish.kafka.configuration import Configuration, LineLogger, catchable
from delaybridge.publish.kafka.outcomes import LOGIN_REFUSED, error_of, error_text

POLL_S = 0.2
GATHER_S = 0.005  # how long the first record waits for others: `consume` waits for all it may take
HAND_OVER_S = 5.0  # a batch that waits longer has the partitions paused
GIVE_UP_S = 5.0  # how long giving up a partition waits for its records to be stored
MEASURE_S = 2.0
CHECK_OWNERS_S = 5.0

# These concern one broker among several and end when it is back; if all are down,
# _ALL_BROKERS_DOWN comes, too.
_ONE_BROKERS = frozenset({KafkaError._TRANSPORT, KafkaError._RESOLVE, KafkaError._TIMED_OUT})


class KafkaConsumer:
    """Reads topics as a member of a group. `next`, `stored` and `stop` are for the loop."""

    def __init__(
        self,
        settings: Configuration,
        topics: Sequence[str],
        *,
        member: Mapping[str, Any],
        window_bytes: int,
        skip: Mapping[Place, int],
        owner: Owner,
        sources: Sources,
        on_lost: Callable[[Collection[Place]], None],
    ) -> None:
        """topics: names, or patterns that begin with ^. member: as `member_settings` gives it.

        sources: gets reports of topics and their faults, on the loop. on_lost: called there with
        partitions given up. skip: first offset to read, if beyond the committed offset. lag:
        records not read yet, by topic, as far as is known.
        """
        self.lag: dict[str, int] = {}
        self._settings, self._sources, self._skip = settings, sources, dict(skip)
        self._member = {**member, "error_cb": catchable(self._cluster_failed)}
        self._rebalance_s = member["session.timeout.ms"] / 1000  # by then the dead are left out
        self._on_lost, self._hand_over = on_lost, HandOver()
        self._tell = self._hand_over.tell
        self._ids = TopicIds(settings)
        self._owners = TopicOwners(settings, owner, lambda why: self._tell(sources.unguarded, why))
        self._subscription = Subscription(topics, self._ids, self._owners)
        self._consumer: Consumer
        self._window = BatchWindow(window_bytes)
        self._progress = StoredOffsets(self._ids)
        self._early: list[Message] = []  # arrived, and not read yet
        self._begun: dict[Place, int] = {}  # the partitions assigned, and where each began
        self._stopped: set[Place] = set()  # those of them that cannot be read on
        self._to_hold: Collection[str] = ()  # topics to be paused
        self._held: set[Place] = set()  # paused partitions of these topics
        self._troubles = Troubles(self._tell, sources)
        self._is_paused = False
        self._is_unavailable = False
        self._measured_s, self._checked_s = 0.0, time.monotonic()
        self._ending, self._ended = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="delaybridge ingest", daemon=True)
        self._thread.start()

    # for the loop

    async def next(self) -> Batch:
        """The next batch. The loop may have two: one is read, one is stored.

        Raises the error that ended the thread: a new consumer begins where this one had committed.
        """
        return await self._hand_over.next()

    def stored(self, reached: Iterable[Reached]) -> None:
        """Everything before these offsets is stored: they may be committed."""
        self._progress.stored += reached

    def settled(self) -> None:
        """One of the batches is stored, but for what `PassedOffsets` knows of."""
        self._hand_over.stored()

    def share(self, messages: int, size: int) -> float:
        """How much of the window these fill."""
        return self._window.share(messages, size)

    def hold(self, topics: Collection[str], room: float) -> None:
        """Read these topics no further, and no others, until the next call.

        room: the share of the window that is left.
        """
        self._to_hold, self._window.room = topics, room

    async def stop(self) -> None:
        """Leave the group; the offsets of stored records are committed."""
        self._ending.set()
        self._hand_over.release()
        await self._ended.wait()

    # in the thread

    def _run(self) -> None:
        try:
            self._claim()
            self._consume()
        except BaseException as exc:
            self._hand_over.fail(exc)
        finally:
            self._owners.close()
            # Not joined: a cluster that hangs would hold the process beyond scan.drain_timeout_s.
            self._tell(self._ended.set)

    def _claim(self) -> None:
        """Claim the topics, for as long as it takes the cluster to answer."""
        while not self._ending.is_set():
            try:
                foreign = self._subscription.claim()
            except KafkaException as exc:
                error = error_of(exc)
                self._is_unavailable = True
                reason = str(exc) if error is None else error_text(error)
                self._tell(self._sources.place_changed, CLUSTER, reason)
                self._ending.wait(POLL_S)
                continue
            for name, owner in foreign.items():
                self._tell(self._sources.topic_foreign, name, owner)
            return

    def _consume(self) -> None:
        self._consumer = Consumer(
            {**DEFAULTS, **self._settings.current(), **self._member}, logger=LineLogger()
        )
        self._subscription.since_s = time.monotonic()
        try:
            if self._subscription.topics:
                self._consumer.subscribe(
                    self._subscription.topics,
                    on_assign=catchable(self._assigned),
                    on_revoke=catchable(self._revoked),
                    on_lost=catchable(self._lost),
                )
            messages: Sequence[Message] = ()
            while not self._ending.is_set():
                self._keep_up()
                batch = self._read(messages or self._arrived())
                messages = self._give(batch) if batch else ()
            self._commit()
        except TopicsChanged:
            self._commit()  # another namespace does not know what this one has stored
            raise
        finally:
            self._consumer.close()

    def _arrived(self) -> Sequence[Message]:
        self._early = self._consumer.consume(1, POLL_S)
        if self._early and (more := self._window.next_messages - 1):
            self._early += self._consumer.consume(more, GATHER_S)
        return self._early

    def _read(self, messages: Sequence[Message]) -> Batch:
        lists: dict[str, list[RawRecord]] = defaultdict(list)  # by topic
        records: list[RawRecord] = []  # those of the place of the message before
        place: Place | None = None
        headers: Headers | None = None
        for message in messages:
            if (error := message.error()) is not None:
                self._failed(error, message)
                place = None  # it may be stopped
                continue
            before, place = place, (message.topic() or "", message.partition() or 0)
            if place != before:
                records = []
                if place in self._begun and place not in self._stopped:
                    records = lists[place[0]]
                    self._troubles.records_came(place[0])  # now: an error may come behind
            records.append(record := RawRecord.from_message(message, headers))
            headers = record.headers
        self._ids.check({*lists})
        batch = {self._ids.topic_named(name): records for name, records in lists.items()}
        if batch:
            self._window.took(_sizes(batch))
        return batch

    def _give(self, batch: Batch) -> Sequence[Message]:
        """Wait until the loop takes the batch. Returns the records that arrived meanwhile."""
        self._hand_over.offer(batch)
        patience_s = time.monotonic() + HAND_OVER_S
        self._early = []
        while not self._hand_over.wait_taken(POLL_S) and not self._ending.is_set():
            self._keep_up()
            if not self._is_paused and time.monotonic() > patience_s:
                self._is_paused = True
                self._consumer.pause(self._consumer.assignment())
            if self._is_paused:  # shows the group that this member lives; brings mostly errors
                self._early += self._consumer.consume(1, 0)
        if self._is_paused and not self._ending.is_set():
            self._is_paused = False
            readable = self._begun.keys() - self._stopped - self._held
            with contextlib.suppress(KafkaException):  # another member may have some by now
                self._consumer.resume([TopicPartition(*place) for place in readable])
        return self._early

    # regular work

    def _keep_up(self) -> None:
        """Store offsets, pause and resume; every few seconds check the topics' owners, measure."""
        self._progress.store(self._consumer)
        self._hold_back()
        now_s = time.monotonic()
        if now_s - self._checked_s > CHECK_OWNERS_S:
            self._checked_s = now_s
            self._subscription.check({topic for topic, _ in self._begun})
        if now_s - self._measured_s > MEASURE_S:
            self._measured_s = now_s
            self._measure()

    def _hold_back(self) -> None:
        readable = self._begun.keys() - self._stopped
        before = self._held
        self._held = {place for place in readable if place[0] in self._to_hold}
        if self._is_paused or before == self._held:
            return
        with contextlib.suppress(KafkaException):
            self._consumer.pause([TopicPartition(*place) for place in self._held - before])
            freed = readable & (before - self._held)
            self._consumer.resume([TopicPartition(*place) for place in freed])

    def _commit(self) -> None:
        """Commit what is stored, before the partitions are given up."""
        self._hand_over.withdraw(self._begun.keys())
        self._hand_over.wait_stored(GIVE_UP_S)
        self._progress.store(self._consumer)
        self._is_paused = True
        self._consumer.pause(self._consumer.assignment())
        timeout_s = 0.0 if self._is_unavailable else self._rebalance_s
        commit(self._consumer, self._progress.reached, self._poll, timeout_s)

    def _poll(self) -> None:
        """Serve the group; the next reader of the partition reads again what was not committed."""
        with contextlib.suppress(TopicsChanged, KafkaException):
            self._consumer.consume(1, POLL_S)

    def _measure(self) -> None:
        """Count waiting records; report topics that are read, and those that have recovered."""
        ends = self._ids.ends(self._held)
        self.lag = waiting(self._consumer, self._begun, self._stopped, ends)
        read = {topic for topic, _ in self._begun}
        if self._is_unavailable:
            self._subscription.since_s = time.monotonic()
        self._tell(self._sources.topics_read, read, self._subscription.idle(read))
        self._troubles.leave(self._begun, self._subscription.asked)
        # No callback reports that an empty topic may be read again.
        refused = [place for place in self._troubles.topics.items() if place in self._begun]
        if refused and is_readable(self._settings, *refused[0]):
            self._troubles.end(refused[0][0])
        if self._is_unavailable:
            with contextlib.suppress(KafkaException):
                self._consumer.list_topics(timeout=POLL_S)
                self._is_unavailable = False
                self._tell(self._sources.place_changed, CLUSTER, None)

    # failures

    def _cluster_failed(self, error: KafkaError) -> None:
        if error.code() in LOGIN_REFUSED:
            self._settings.renew(self._consumer)
        if error.code() not in _ONE_BROKERS:
            self._is_unavailable = True
            self._tell(self._sources.place_changed, CLUSTER, error_text(error))

    def _failed(self, error: KafkaError, message: Message) -> None:
        """Report an error that came in place of a record."""
        code, name, partition = error.code(), message.topic(), message.partition()
        if error.fatal():
            raise KafkaException(error)
        if code == KafkaError._PARTITION_EOF:
            return
        if name is None:
            self._cluster_failed(error)
        elif name.startswith("^"):
            return  # a pattern that matches no topic: there need not be any
        elif partition is not None and code in STOPS:
            self._stop_at(TopicPartition(name, partition, message.offset() or 0), code)
        else:
            self._troubles.begin(name, partition or 0, error_text(error))

    def _stop_at(self, place: TopicPartition, code: int) -> None:
        """Read a partition no further, unless another member has it."""
        where = place.topic, place.partition
        if where in self._stopped or where not in self._begun:
            return
        self._ids.check({place.topic}, at_once=True)
        self._stopped.add(where)
        with contextlib.suppress(KafkaException):
            self._consumer.pause([TopicPartition(*where)])
        reason = diagnosis(self._settings, place, code)
        self._tell(self._sources.place_changed, f"{place.topic}/{place.partition}", reason)

    # partitions come and go

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        names = {place.topic for place in partitions}
        self._owners.check(names, ANSWER_TIMEOUT_S)
        self._ids.learn(names, pause=self._ending.wait)
        places = beginnings(consumer, partitions, self._ids, self._skip)
        consumer.incremental_assign(places)
        if self._is_paused:
            consumer.pause(places)
        self._begun |= {(place.topic, place.partition): place.offset for place in places}
        for name in {place.topic for place in places}:
            self._troubles.end(name)

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        # Wait for the loop to store its batch, so that the next member need not read it again.
        # Without this it would be read twice: scheduled once, unless that is another namespace's.
        self._withdraw(partitions)
        self._hand_over.wait_stored(GIVE_UP_S)
        self._progress.store(consumer)
        self._lost(consumer, partitions)

    def _withdraw(self, partitions: Sequence[TopicPartition]) -> None:
        left = {(place.topic, place.partition) for place in partitions}
        self._hand_over.withdraw(left)
        # They are read again, in order, if the partition comes back.
        self._early[:] = [m for m in self._early if (m.topic(), m.partition()) not in left]

    def _lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._withdraw(partitions)
        consumer.incremental_unassign(partitions)
        for place in partitions:
            where = place.topic, place.partition
            self._begun.pop(where, None)
            self._progress.reached.pop(where, None)
            self._held.discard(where)
            if where in self._stopped:
                self._stopped.discard(where)
                self._tell(self._sources.place_changed, f"{place.topic}/{place.partition}", None)
        self._tell(self._on_lost, {(place.topic, place.partition) for place in partitions})


def _sizes(batch: Batch) -> list[int]:
    return [len(r.key or b"") + len(r.value or b"") for records in batch.values() for r in records]
