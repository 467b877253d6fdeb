"""One delay exchange: its intake queue is consumed, and each message is seen to its end."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from time import time_ns

from pika.channel import Channel

from delaybridge.accept import Accepted
from delaybridge.events import Emit, Ingested, IngestFailed, IngestStarted, Quarantined
from delaybridge.ingest import INGRESS, Cancel, Entry, Quarantine, Schedule
from delaybridge.ingest.amqp_intake import Deliveries, IntakeConnection, size_of
from delaybridge.ingest.amqp_messages import Delivered, Direct, Reader
from delaybridge.ingest.amqp_topology import declare
from delaybridge.ingest.counts import Counts
from delaybridge.ingest.routes import Route
from delaybridge.message import MAX_PRIORITY, Answer, Delivery, encode_record, new_id
from delaybridge.publish import Outcome, Publisher, Verdict

_BATCH = 2000
_AGAIN_S = 0.05  # between two looks at an id that is in flight
_PATIENCE_S = 30.0  # then it is quarantined

Insist = Callable[[Sequence[Entry]], Awaitable[list[Answer | None]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class IntakeOptions:
    """Bounds of one process; meaning and default of each stand in Settings."""

    prefetch: int = 4000
    window_bytes: int = 32 * 2**20


class Tags:
    """Which delivery tags of a channel are done, and what to acknowledge. Tags count from 1."""

    def __init__(self) -> None:
        self._first = 1
        self._done: dict[int, bool] = {}

    def done(self, tag: int) -> None:
        """The message with this tag needs no more."""
        self._done[tag] = True

    def take(self, most: int) -> tuple[int, list[int]]:
        """(Acknowledge all up to this tag, 0 for none; and these by themselves).

        Those behind one that takes its time wait for it, but no more than `most`.
        """
        last = self._first
        while self._done.pop(last, False):
            last += 1
        upto, self._first = (last - 1 if last > self._first else 0), last
        if len(self._done) < most:
            return upto, []
        single = sorted(tag for tag, fresh in self._done.items() if fresh)
        self._done.update(dict.fromkeys(single, False))
        return upto, single


class Held:
    """A message in hand, and its place on its channel."""

    __slots__ = ("entry", "life", "message", "since_s", "size")

    def __init__(self, message: Delivered, life: Life, now_s: float) -> None:
        self.message, self.life, self.since_s = message, life, now_s
        self.size = size_of(message)
        self.entry: Entry


class Life:
    """One life of the consumer: its channel, what it delivered, what of it is done."""

    def __init__(self, connection: IntakeConnection, channel: Channel, most: int) -> None:
        self._connection, self._number = connection, int(channel.channel_number)
        self._most = most
        self.arrived = asyncio.Event()
        self.deliveries = Deliveries(self.arrived.set)
        self._tags = Tags()
        self.ended: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        self.held = 0
        self.moved = asyncio.Event()  # less is held than before
        connection.take_deliveries(self._number, self.deliveries)
        channel.add_on_close_callback(lambda _, reason: self.end(reason))
        channel.add_on_cancel_callback(
            lambda _: self.end(ConnectionError("cancelled by the broker: the queue is gone"))
        )

    def end(self, reason: Exception) -> None:
        """Nothing more comes, and nothing can be acknowledged."""
        if self.ended.done():
            return
        self.ended.set_result(reason)
        self._connection.take_deliveries(self._number, None)
        self._connection.release(self.deliveries.size)
        self.held = 0
        self.arrived.set()
        self.moved.set()

    def take(self, most: int) -> list[Delivered]:
        """The next messages, now in hand."""
        taken = self.deliveries.messages[:most]
        del self.deliveries.messages[:most]
        self.held += len(taken)
        return taken

    def done(self, held: Held) -> None:
        """The message is safe."""
        if not self.ended.done():
            self.deliveries.size -= held.size
            self._connection.release(held.size)
            self._tags.done(held.message.tag)
            self.held -= 1
            self.moved.set()

    def ack(self) -> None:
        """Tell the broker what is safe."""
        if self.ended.done() or not self._connection.is_open:
            return
        upto, single = self._tags.take(self._most)
        if upto:
            self._connection.ack(self._number, upto, multiple=True)
        for tag in single:
            self._connection.ack(self._number, tag, multiple=False)


class Intake:
    """The messages of one delay exchange, over one consumer after the other."""

    def __init__(
        self,
        route: Route,
        reader: Reader,
        insist: Insist,
        emit: Emit,
        options: IntakeOptions,
    ) -> None:
        """insist: asks the store until it answers."""
        self.route, self._reader, self._insist, self._emit = route, reader, insist, emit
        self._options = options
        self.counts = Counts(source=str(route), target=f"{route.broker}:{route.target}")
        self._publisher: Publisher
        self._waiting: list[Held] = []  # whose id is in flight
        self._refused: list[Held] = []  # that could not be published at once
        self._given: OrderedDict[int, str] = OrderedDict()  # ids that we gave, by what was read
        self._life: Life | None = None
        self._is_stopping = False

    @property
    def held(self) -> int:
        """Messages delivered and not acknowledged."""
        return self._life.held if self._life is not None else 0

    def failed(self, reason: str) -> None:
        """It cannot be read now."""
        self.counts.state = reason
        self._emit(IngestFailed(source=str(self.route), reason=reason))

    async def stop(self) -> None:
        """Take no more; return when what was taken is safe, or its channel gone."""
        self._is_stopping = True
        while self._life is not None and self._life.held:
            self._life.moved.clear()
            await self._life.moved.wait()

    async def run(self, connection: IntakeConnection, publisher: Publisher) -> None:
        """Declare, consume and see each message to its end; raises what ends the consumer."""
        channel = await declare(connection, self.route)
        self._publisher = publisher
        life = self._life = Life(connection, channel, self._options.prefetch // 2)
        self._waiting, self._refused = [], []
        try:
            await connection.call(channel, "basic_qos", prefetch_count=self._options.prefetch)
            await connection.call(
                channel, "basic_consume", queue=self.route.source, on_message_callback=_never
            )
            self.counts.state = "reading"
            self._emit(IngestStarted(source=str(self.route)))
            while not life.ended.done():
                await self._arrival(life)
                await self._take(life)
            raise life.ended.result()
        finally:
            life.end(ConnectionError("stopped"))

    async def _arrival(self, life: Life) -> None:
        """Wait for a message, or until an id in flight is to be looked at again."""
        if self._refused or (life.deliveries.messages and not self._is_stopping):
            return
        life.arrived.clear()
        try:
            async with asyncio.timeout(_AGAIN_S if self._waiting else None):
                await life.arrived.wait()
        except TimeoutError:
            pass

    async def _take(self, life: Life) -> None:
        """Take what has arrived: publish, store, acknowledge."""
        now_s = asyncio.get_running_loop().time()
        arrived = [] if self._is_stopping else life.take(_BATCH)
        again, self._waiting, refused, self._refused = self._waiting, [], self._refused, []
        to_store = again + refused
        direct: list[Delivery] = []
        now_ms = time_ns() // 1_000_000
        for message in arrived:
            held = Held(message, life, now_s)
            entry = self._reader.read(message, self._known_id(message))
            if isinstance(entry, Direct):
                direct.append(Delivery(*entry, now_ms, 1, (self, held)))
            else:
                self._remember(message, entry)
                held.entry = entry
                to_store.append(held)
        if direct:
            self._publisher.publish(direct)
        if arrived:
            self.counts.total += len(arrived)
            self.counts.near_misses = self._reader.near_misses
            self._emit(Ingested(source=str(self.route), messages=len(arrived)))
        if to_store:
            await self._store(to_store, life, now_s)
        life.ack()

    async def _store(self, held: Sequence[Held], life: Life, now_s: float) -> None:
        """Store them; a conflict is quarantined, an id in flight is looked at again later."""
        quarantined: Counter[str] = Counter()
        while held:
            answers = await self._insist([each.entry for each in held])
            left: list[Held] = []
            for each, answer in zip(held, answers, strict=True):
                if answer is Answer.IN_FLIGHT and isinstance(each.entry, Schedule):
                    if now_s - each.since_s < _PATIENCE_S:
                        self._waiting.append(each)
                        continue
                    each.entry = self._quarantine(each.entry, "in_flight", "is with the broker")
                    left.append(each)
                elif answer is Answer.CONFLICT:
                    each.entry = self._quarantine(each.entry, "conflict", "is pending, and differs")
                    left.append(each)
                else:
                    if isinstance(each.entry, Quarantine):
                        quarantined[each.entry.reason] += 1
                    life.done(each)
            held = left
        for reason, count in quarantined.items():
            self.counts.quarantined += count
            self._emit(Quarantined(source=str(self.route), messages=count, reason=reason))

    def _quarantine(self, entry: Entry, code: str, why: str) -> Quarantine:
        """What stands in its own message's way goes to the dead set, under another id."""
        assert not isinstance(entry, Cancel)
        if isinstance(entry, Quarantine):
            return entry._replace(id=new_id())
        reason = f"{INGRESS}{code} delaybridge-id: {entry.accepted.id!r} {why}"
        return Quarantine(new_id(), entry.stamp, entry.payload, reason)

    def published(self, deliveries: Sequence[Delivery], outcome: Outcome) -> None:
        """How publishes at once ended; what was not confirmed is stored, and due now."""
        lives = set()
        for delivery in deliveries:
            _, held = delivery.owner
            life: Life = held.life
            if life is not self._life:
                continue  # its channel is gone: the message will come again
            lives.add(life)
            if outcome.verdict is Verdict.CONFIRMED:
                life.done(held)
                continue
            payload = encode_record(delivery.record)
            accepted = Accepted(delivery.id, delivery.id.encode(), "+0", MAX_PRIORITY, payload)
            stamp = held.message.tag.to_bytes(8, "big")[-4:]
            held.entry = Schedule(accepted, stamp, None, payload)
            self._refused.append(held)
            life.arrived.set()
        for life in lives:
            life.ack()

    # ids that we gave: the same message again gets the same one

    def _known_id(self, message: Delivered) -> str | None:
        if not message.redelivered or not self._given:
            return None
        return self._given.pop(_content_of(message), None)

    def _remember(self, message: Delivered, entry: Entry) -> None:
        if isinstance(entry, Schedule) and entry.is_new_id:
            self._given[_content_of(message)] = entry.accepted.id
            if len(self._given) > 2 * self._options.prefetch:
                self._given.popitem(last=False)


def _content_of(message: Delivered) -> int:
    return hash((message.routing_key, message.header, message.body))


def _never(*_: object) -> None:
    """Deliveries are taken before pika sees them."""
