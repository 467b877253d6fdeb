"""One delay exchange: its intake queue is consumed, and each message stored or published."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from time import time_ns
from typing import TypeVar

from pika.exceptions import AMQPError

from delaybridge.accept.accept import Accepted
from delaybridge.amqp.connection import close_channel
from delaybridge.events import (
    Emit,
    IdMissing,
    Ingested,
    IngestFailed,
    IngestStarted,
    SourceUnguarded,
)
from delaybridge.ingest.aside import Aside, Late
from delaybridge.ingest.counts import SourceCounts
from delaybridge.ingest.entries import Schedule
from delaybridge.ingest.owner import Owner, SourceTaken
from delaybridge.ingest.rabbitmq.answered import ready, sorted_out
from delaybridge.ingest.rabbitmq.channel import HeldMessage, ImmediateDelivery, IntakeChannel
from delaybridge.ingest.rabbitmq.claiming import claim
from delaybridge.ingest.rabbitmq.connection import IntakeConnection, size_of
from delaybridge.ingest.rabbitmq.deaths import expired
from delaybridge.ingest.rabbitmq.identities import Identities
from delaybridge.ingest.rabbitmq.messages import Immediate, MessageReader, RawMessage
from delaybridge.ingest.rabbitmq.remedies import RUN
from delaybridge.ingest.rabbitmq.topology import declare, repair
from delaybridge.ingest.spans import spans
from delaybridge.ingest.storing import AGAIN_S, TURN_MESSAGES, EntryStore, Found, are_scheduled
from delaybridge.message import MAX_PRIORITY, OnConflict, encode_record
from delaybridge.publish import Outcome, Publisher, Verdict
from delaybridge.store.protocol.verbs import new_stamp

_log = logging.getLogger("delaybridge")
_BATCH = 2000
_MORE_S = 1.0  # before a prefetch that was lowered is doubled, if nothing is set aside
_DECLARE_S = 5.0  # between two declarations: what was deleted or replaced meanwhile is there again
AT_ONCE = 50  # exchanges that are looked after at once: a front may make thousands


class _Full(Exception):
    """More is set aside than the window has room for."""


_T = TypeVar("_T")


def in_turn(intakes: Sequence[_T], turn: int) -> Sequence[_T]:
    """Those that are looked after now: all, or if they are many a part, another one each turn."""
    parts = len(intakes) // AT_ONCE + 1
    return intakes[turn % parts :: parts]


class Intake:
    """The messages of one delay exchange, over one channel after another. beside: how many more
    there are."""

    beside = 0

    def __init__(
        self,
        reader: MessageReader,
        store: EntryStore,
        emit: Emit,
        prefetch: int,
        owner: Owner,
        on_change: Callable[[], None],
    ) -> None:
        """prefetch: messages that may be delivered and not acknowledged. owner: who reads."""
        self.route = route = reader.route
        self._reader, self._store, self._emit, self._prefetch = reader, store, emit, prefetch
        self.owner = owner
        target = f"{route.broker}:{route.target}"
        self.counts = SourceCounts(source=str(route), target=target, on_change=on_change)
        self._publisher: Publisher
        self.waiting: list[HeldMessage] = []  # for an id in flight
        self._refused: list[HeldMessage] = []  # that could not be published at once
        self._identities = Identities(reader.queues)
        self.channel: IntakeChannel | None = None
        self._storing: asyncio.Task[None] | None = None
        self.aside = self._new_aside()
        self._emptying: asyncio.Task[None] | None = None
        self._is_stopping = False

    def _new_aside(self) -> Aside[HeldMessage]:
        return Aside(
            self._store, lambda: self.noticed("store", self.aside.faults(self.aside.messages))
        )

    @property
    def is_read(self) -> bool:
        """Whether the intake queue is consumed."""
        return self.channel is not None and not self.channel.ended.done()

    @property
    def held(self) -> int:
        """Messages delivered and not acknowledged."""
        channel = self.channel
        return 0 if channel is None else channel.in_hand + len(channel.deliveries.messages)

    def failed(self, reason: str) -> None:
        """Record and log why the exchange is not read."""
        self.counts.state = reason
        self._emit(IngestFailed(source=str(self.route), reason=reason))

    def noticed(self, kind: str, faults: Sequence[str]) -> None:
        """Show the faults of this kind, and no others, of an exchange that is read nevertheless."""
        for fault in self.counts.note(kind, faults):
            what, run, command = fault.partition(RUN)
            self.warn(what)
            if run:  # not as a field: its quotes would be escaped
                _log.warning("run: %s", command)

    def warn(self, reason: str) -> None:
        """Log what is missing of an exchange that is read nevertheless."""
        self._emit(SourceUnguarded(source=str(self.route), reason=reason))

    async def check_owner(self, connection: IntakeConnection) -> None:
        """End the channel if another namespace took the exchange over."""
        try:
            await claim(connection, self.route, self.owner)
        except SourceTaken as exc:
            if self.channel is not None:
                self.channel.end(exc)

    async def stop(self) -> None:
        """Read no more; returns when everything read is acknowledged, or the channel has ended.

        What waits for a damaged bucket goes back to the queue.
        """
        self._is_stopping = True
        while self.channel is not None and self.channel.in_hand:
            if self.aside.stuck and self.channel.in_hand == len(self.aside.messages):
                return
            self.channel.moved.clear()
            await self.channel.moved.wait()

    async def run(self, connection: IntakeConnection, publisher: Publisher) -> None:
        """Declare, consume, and store or publish each message; raises the reason of its end.

        SourceTaken if the exchange belongs to another namespace.
        """
        unguarded = await claim(connection, self.route, self.owner)
        if unguarded:
            self.warn(unguarded)
        await declare(connection, self.route)
        self.noticed("declared", ())
        keeping = asyncio.create_task(self._keep_declared(connection))
        try:
            await self.consume(connection, publisher, self.route.queue, expired(self.route))
        finally:
            keeping.cancel()

    async def _keep_declared(self, connection: IntakeConnection) -> None:
        """Declare and bind again, for ever; what cannot be repaired is shown until it is."""
        while True:
            await asyncio.sleep(_DECLARE_S * (1 + self.beside / AT_ONCE))
            with contextlib.suppress(AMQPError, OSError):  # the connection is lost
                self.noticed("declared", await repair(connection, self.route))

    async def consume(
        self, connection: IntakeConnection, publisher: Publisher, *queues: str
    ) -> None:
        """Consume these queues, and store or publish each message; raises the reason of its end."""
        opened = await connection.open_channel(lambda *_: None)
        self._publisher = publisher
        channel = self.channel = IntakeChannel(connection, opened, queues, self._prefetch)
        self.waiting, self._refused, self.aside = [], [], self._new_aside()
        self.noticed("store", ())
        # Not awaited: messages of one queue may fill the window before the answer about the next.
        asking = asyncio.create_task(self._ask_for(channel))
        try:
            while not channel.ended.done():
                await self._arrival(channel)
                await self._take(channel)
            raise channel.ended.result()
        finally:
            asking.cancel()
            channel.end(ConnectionError("stopped"))
            working = [each for each in (self._storing, self._emptying) if each is not None]
            for task in working:
                task.cancel()
            await asyncio.gather(*working, return_exceptions=True)
            self._storing = self._emptying = None
            self._identities.remember(channel.held.values())
            if connection.is_open:
                close_channel(opened)

    async def _ask_for(self, channel: IntakeChannel) -> None:
        await channel.consume(self._prefetch)
        if not channel.ended.done():
            self.counts.state = "reading"
            self._emit(IngestStarted(source=str(self.route)))

    async def _arrival(self, channel: IntakeChannel) -> None:
        """Wait for a message, or until it is time to try again those for an id in flight."""
        while not (channel.ended.done() or self._refused or self._may_take(channel)):
            channel.arrived.clear()
            try:
                async with asyncio.timeout(AGAIN_S if self.waiting else None):
                    await channel.arrived.wait()
            except TimeoutError:
                return
            for task in (self._storing, self._emptying):
                if task is not None and task.done():
                    task.result()

    def _may_take(self, channel: IntakeChannel) -> bool:
        return bool(channel.deliveries.messages) and not (self._is_stopping or channel.is_full)

    async def _take(self, channel: IntakeChannel) -> None:
        """Read the messages that have arrived; publish them or start storing them.

        One batch is read while the one before goes into the store.
        """
        read, to_store = 0, list[HeldMessage]()
        while read < _BATCH and self._may_take(channel):
            await asyncio.sleep(0)  # the batch before is sent meanwhile
            arrived = [] if self._is_stopping else channel.take_messages(TURN_MESSAGES)
            to_store += self._read(arrived, channel)
            read += len(arrived)
        if read:
            self._count(read)
            self._emit(Ingested(source=str(self.route), messages=read))
        if self._storing is not None:
            await self._storing
        again, self.waiting, refused, self._refused = self.waiting, [], self._refused, []
        if to_store := self.aside.split(again + refused + to_store):
            self._storing = asyncio.create_task(self._store_all(to_store, channel))
            self._storing.add_done_callback(lambda _: channel.arrived.set())
        self._weigh(channel)

    def _read(self, arrived: Sequence[RawMessage], channel: IntakeChannel) -> list[HeldMessage]:
        """The messages to be stored; those without a delay are published at once."""
        immediate: list[ImmediateDelivery] = []
        to_store: list[HeldMessage] = []
        now_ms = time_ns() // 1_000_000
        identities, known = self._identities, self._identities.known
        read, held_here = self._reader.read, channel.held
        with spans("receive", self.route, arrived, lambda message: message.header):
            for message in arrived:
                stamp, id = identities.recall(message) if known else (new_stamp(), None)
                entry = read(message, stamp, id)
                if isinstance(entry, Schedule):
                    held = HeldMessage(message, stamp, entry.accepted.id, entry)
                    to_store.append(held)
                elif isinstance(entry, Immediate):
                    held = HeldMessage(message, stamp, entry.id, None)
                    immediate.append(ImmediateDelivery(entry, now_ms, self, channel, held))
                else:
                    held = HeldMessage(message, stamp, entry.id, entry)
                    to_store.append(held)
                held_here[message.tag] = held
            if immediate:
                self._publisher.publish(immediate)
        return to_store

    def _count(self, read: int) -> None:
        counts, reader = self.counts, self._reader
        counts.total += read
        counts.near_misses = reader.near_misses
        if reader.without_id and not counts.without_id:
            self._emit(IdMissing(source=str(self.route)))
        counts.without_id = reader.without_id

    async def _store_all(self, held: Sequence[HeldMessage], channel: IntakeChannel) -> None:
        """Store messages; later those for an id in flight, and those that their buckets refuse."""
        self.waiting += self.aside.take_refused(await self._store_now(held, channel))
        self._weigh(channel)
        if self.aside.messages and (self._emptying is None or self._emptying.done()):
            self._emptying = asyncio.create_task(self._empty(channel))
            self._emptying.add_done_callback(lambda _: channel.arrived.set())

    def _weigh(self, channel: IntakeChannel) -> None:
        channel.set_aside(sum(size_of(each.message) for each in self.aside.messages))

    async def _empty(self, channel: IntakeChannel) -> None:
        """Store what is set aside. If it is too much, hold less, until none is set aside."""

        async def store(held: list[HeldMessage]) -> Aside[HeldMessage]:
            if channel.is_full and channel.may_return and not self._is_stopping:
                raise _Full
            return self._new_aside().hold(await self._store_now(held, channel))

        while True:
            try:
                await self.aside.empty(store, lambda: self._weigh(channel))
            except _Full:
                await self._return_all(channel)
            if channel.prefetch >= self._prefetch:
                return
            await asyncio.sleep(_MORE_S)
            if not self.aside.messages:
                await channel.consume(min(2 * channel.prefetch, self._prefetch))

    async def _return_all(self, channel: IntakeChannel) -> None:
        """Give back all that is held, so that it keeps its order, and ask for fewer messages.

        What is on its way into the store or to its target comes first: it would be there twice.
        """
        while channel.in_hand > len(self.aside.messages) + len(self.waiting):
            channel.moved.clear()
            await channel.moved.wait()
        self._identities.remember(channel.held.values())
        self.counts.total -= channel.in_hand
        self.waiting, self.aside = [], self._new_aside()
        channel.drop_all()
        await channel.consume(channel.prefetch // 2)

    async def _store_now(
        self, held: Sequence[HeldMessage], channel: IntakeChannel
    ) -> list[Late[HeldMessage]]:
        """Store messages; returns those that must wait, and why. Quarantine a conflict."""
        now_s = asyncio.get_running_loop().time()
        late: dict[int, Found] = {}  # by tag
        left = held
        while left:
            sent, left = ready(left)
            entries = [each.entry for each in sent]
            answers = await self._store.store(entries)
            if are_scheduled(entries, answers, are_loose=self.route.is_fronted):
                self.counts.scheduled(entries, self._emit)
                self._settle(channel, sent)
                continue
            done, waiting, refused = sorted_out(sent, answers, now_s)
            self._settle(channel, [each for each, _ in done])
            self.counts.report([(each.entry, answer) for each, answer in done], self._emit)
            ids = {each.id for each in sent if each.message.tag in waiting}
            late |= waiting | {each.message.tag: None for each in left if each.id in ids}
            left = refused + [each for each in left if each.id not in ids]
        return [(each, late[each.message.tag]) for each in held if each.message.tag in late]

    def _settle(self, channel: IntakeChannel, held: Sequence[HeldMessage]) -> None:
        """Acknowledge messages that are stored or published."""
        with spans("settle", self.route, held, lambda each: each.message.header):
            channel.done(held)
            channel.ack(at_once=bool(self.aside.messages))

    def published(self, deliveries: Sequence[ImmediateDelivery], outcome: Outcome) -> None:
        """The outcome of immediate publishes; messages without a confirm are stored, due now."""
        settled: defaultdict[IntakeChannel, list[HeldMessage]] = defaultdict(list)
        for delivery in deliveries:
            held, channel = delivery.held, delivery.channel
            if channel is not self.channel:
                continue  # its channel has ended: the message will be delivered again
            if outcome.verdict is Verdict.CONFIRMED:
                settled[channel].append(held)
                continue
            payload = encode_record(delivery.record)
            accepted = Accepted(delivery.id, delivery.id.encode(), "+0", MAX_PRIORITY, payload)
            # An ingest process that had it before may have published it, too.
            maybe = outcome.verdict is Verdict.UNKNOWN or held.message.redelivered
            reach = self._reader.reach
            held.entry = Schedule(
                accepted, held.stamp, OnConflict.FAIL, payload, reach=reach, maybe=maybe,
                is_loose=self.route.is_fronted,
            )  # fmt: skip
            self._refused.append(held)
            channel.arrived.set()
        for channel, held_there in settled.items():
            self._settle(channel, held_there)
