"""One delay exchange: its intake queue is consumed, and each message is seen to its end."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from time import time_ns

from delaybridge.accept.accept import Accepted
from delaybridge.amqp.connection import close_channel
from delaybridge.errors import DecodeError
from delaybridge.events import (
    ChangeRefused,
    Emit,
    IdMissing,
    Ingested,
    IngestFailed,
    IngestStarted,
    Quarantined,
    SourceUnguarded,
)
from delaybridge.ingest.counts import Counts
from delaybridge.ingest.entries import Change, Entry, Quarantine, Schedule, instead
from delaybridge.ingest.owner import Owner, SourceTaken
from delaybridge.ingest.rabbitmq.channel import HeldMessage, ImmediateDelivery, IntakeChannel
from delaybridge.ingest.rabbitmq.connection import IntakeConnection
from delaybridge.ingest.rabbitmq.management import Management, ManagementError
from delaybridge.ingest.rabbitmq.messages import Immediate, MessageReader, RawMessage, content_of
from delaybridge.ingest.rabbitmq.topology import bypass, claim, declare, others_bound
from delaybridge.ingest.routes import Route
from delaybridge.ingest.storing import AGAIN_S, PATIENCE_S, are_scheduled
from delaybridge.message import MAX_PRIORITY, WAIT, Answer, encode_record
from delaybridge.publish import Outcome, Publisher, Verdict
from delaybridge.store.verbs import new_stamp

_BATCH = 2000
_LOOK_S = 60.0  # so often there is a look at what else is bound to the exchange

Insist = Callable[[Sequence[Entry]], Awaitable[list[Answer | None]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class IntakeOptions:
    """Bounds of one process; meaning and default of each stand in Settings."""

    prefetch: int = 4000
    window_bytes: int = 32 * 2**20


class Intake:
    """The messages of one delay exchange, over one consumer after the other."""

    def __init__(
        self,
        route: Route,
        reader: MessageReader,
        insist: Insist,
        emit: Emit,
        options: IntakeOptions,
        owner: Owner,
        management: Management,
    ) -> None:
        """insist: asks the store until it answers. owner: the namespace that reads."""
        self.route, self._reader, self._insist, self._emit = route, reader, insist, emit
        self._owner, self._management = owner, management
        self._next_look_s = 0.0
        self._others: set[str] = set()  # what else is bound to the exchange
        self._looking: asyncio.Task[None] | None = None
        self._options = options
        self.counts = Counts(source=str(route), target=f"{route.broker}:{route.target}")
        self._publisher: Publisher
        self._waiting: list[HeldMessage] = []  # whose id is in flight
        self._refused: list[HeldMessage] = []  # that could not be published at once
        # Of what was in hand when a consumer ended, by its content: it comes again.
        self._lost: defaultdict[int, list[tuple[bytes, str]]] = defaultdict(list)
        self._life: IntakeChannel | None = None
        self._storing: asyncio.Task[None] | None = None
        self._is_stopping = False

    @property
    def held(self) -> int:
        """Messages delivered and not acknowledged."""
        life = self._life
        return 0 if life is None else life.in_hand + len(life.deliveries.messages)

    def failed(self, reason: str) -> None:
        """It cannot be read now."""
        self.counts.state = reason
        self._emit(IngestFailed(source=str(self.route), reason=reason))

    async def look(self, connection: IntakeConnection) -> None:
        """Read no more if another namespace took the exchange over.

        Now and then look, too, whether other queues are bound to it, and warn of them.
        """
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._next_look_s:
            self._next_look_s = now_s + _LOOK_S
            self._looking = asyncio.create_task(self._look_for_others())
        try:
            await claim(connection, self.route, self._owner)
        except SourceTaken as exc:
            if self._life is not None:
                self._life.end(exc)

    async def _look_for_others(self) -> None:
        try:
            found = await others_bound(self._management, self.route)
        except ManagementError:
            return  # `doctor` says so
        if found - self._others:
            self._emit(SourceUnguarded(source=str(self.route), reason=bypass(self.route, found)))
        self._others = found

    async def stop(self) -> None:
        """Take no more; return when what was taken is safe, or its channel gone."""
        self._is_stopping = True
        while self._life is not None and self._life.in_hand:
            self._life.moved.clear()
            await self._life.moved.wait()

    async def run(self, connection: IntakeConnection, publisher: Publisher) -> None:
        """Declare, consume and see each message to its end; raises what ends the consumer.

        SourceTaken if the exchange is another namespace's.
        """
        unguarded = await claim(connection, self.route, self._owner)
        if unguarded:
            self._emit(SourceUnguarded(source=str(self.route), reason=unguarded))
        channel = await declare(connection, self.route, self._management)
        self._publisher = publisher
        life = self._life = IntakeChannel(connection, channel, self._options.prefetch // 2)
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
            if self._storing is not None:
                self._storing.cancel()
                await asyncio.gather(self._storing, return_exceptions=True)
                self._storing = None
            self._remember(life)
            if connection.is_open:
                close_channel(channel)

    async def _arrival(self, life: IntakeChannel) -> None:
        """Wait for a message, or until an id in flight is to be looked at again."""
        while not (life.ended.done() or self._refused or self._may_take(life)):
            life.arrived.clear()
            try:
                async with asyncio.timeout(AGAIN_S if self._waiting else None):
                    await life.arrived.wait()
            except TimeoutError:
                return
            if self._storing is not None and self._storing.done():
                self._storing.result()

    def _may_take(self, life: IntakeChannel) -> bool:
        return bool(life.deliveries.messages) and not self._is_stopping

    async def _take(self, life: IntakeChannel) -> None:
        """Take what has arrived: publish, store, acknowledge.

        What was taken before goes into the store while this is read.
        """
        now_s = asyncio.get_running_loop().time()
        arrived = [] if self._is_stopping else life.take(_BATCH, now_s)
        to_store: list[HeldMessage] = []
        direct: list[ImmediateDelivery] = []
        now_ms = time_ns() // 1_000_000
        for held in arrived:
            stamp, known_id = self._recall(held.message)
            entry = self._reader.read(held.message, stamp, known_id)
            held.stamp = stamp
            held.id = entry.accepted.id if isinstance(entry, Schedule) else entry.id
            if isinstance(entry, Immediate):
                direct.append(ImmediateDelivery(*entry, now_ms, self, held))
            else:
                held.entry = entry
                to_store.append(held)
        if direct:
            self._publisher.publish(direct)
        if arrived:
            self._count(arrived)
            self._emit(Ingested(source=str(self.route), messages=len(arrived)))
        if self._storing is not None:
            await self._storing
        again, self._waiting, refused, self._refused = self._waiting, [], self._refused, []
        if to_store := again + refused + to_store:
            self._storing = asyncio.create_task(self._store(to_store, life, now_s))
            self._storing.add_done_callback(lambda _: life.arrived.set())

    def _count(self, arrived: Sequence[HeldMessage]) -> None:
        counts, reader = self.counts, self._reader
        counts.total += len(arrived)
        counts.near_misses = reader.near_misses
        if reader.without_id and not counts.without_id:
            self._emit(IdMissing(source=str(self.route)))
        counts.without_id = reader.without_id

    async def _store(self, held: Sequence[HeldMessage], life: IntakeChannel, now_s: float) -> None:
        """Store them; a conflict is quarantined, an id in flight is looked at again later."""
        ended: list[tuple[Entry, Answer | None]] = []
        while held:
            entries = [each.entry for each in held]
            answers = await self._insist(entries)
            if are_scheduled(entries, answers):
                life.done(held)
                break
            left: list[HeldMessage] = []
            for each, answer in zip(held, answers, strict=True):
                if self._must_wait(each, answer, now_s):
                    self._waiting.append(each)
                elif (kept := instead(each.entry, answer)) is not None:
                    each.entry = kept
                    left.append(each)
                else:
                    ended.append((each.entry, answer))
                    life.done([each])
            held = left
        life.ack()
        self._tell(ended)

    def _tell(self, ended: Sequence[tuple[Entry, Answer | None]]) -> None:
        """Count and say what was not done as it was asked for."""
        reasons = Counter(entry.reason for entry, _ in ended if isinstance(entry, Quarantine))
        for reason, count in reasons.items():
            self.counts.quarantined += count
            self._emit(Quarantined(source=str(self.route), messages=count, reason=reason))
        if refused := sum(answer is Answer.FOREIGN for _, answer in ended):
            self.counts.refused += refused
            self._emit(ChangeRefused(source=str(self.route), messages=refused))

    def _must_wait(self, held: HeldMessage, answer: Answer | None, now_s: float) -> bool:
        """An id in flight is looked at again, and a change goes after what it may mean."""
        if isinstance(held.entry, Change):
            return any(other.id == held.id for other in self._waiting)
        is_patient = isinstance(held.entry, Schedule) and now_s - held.since_s < PATIENCE_S
        return answer is Answer.IN_FLIGHT and is_patient

    def published(self, deliveries: Sequence[ImmediateDelivery], outcome: Outcome) -> None:
        """How publishes at once ended; what was not confirmed is stored, and due now."""
        lives = set()
        for delivery in deliveries:
            held, life = delivery.held, delivery.held.life
            if life is not self._life:
                continue  # its channel is gone: the message will come again
            lives.add(life)
            if outcome.verdict is Verdict.CONFIRMED:
                life.done([held])
                continue
            payload = encode_record(delivery.record)
            accepted = Accepted(delivery.id, delivery.id.encode(), "+0", MAX_PRIORITY, payload)
            # Whoever had it before may have published it, too.
            maybe = outcome.verdict is Verdict.UNKNOWN or held.message.redelivered
            reach = self._reader.reach
            held.entry = Schedule(accepted, held.stamp, WAIT, payload, reach=reach, maybe=maybe)
            self._refused.append(held)
            life.arrived.set()
        for life in lives:
            life.ack()

    # what comes again is what it was, though its bytes do not say so

    def _remember(self, life: IntakeChannel) -> None:
        for held in life.held.values():
            self._lost[_fingerprint(held.message)].append((held.stamp, held.id))

    def _recall(self, message: RawMessage) -> tuple[bytes, str | None]:
        """Stamp and id that the message had. Each is given to one message, as each came from one:

        many may have the same bytes, and one taken for another would be lost.
        """
        if not self._lost:
            return new_stamp(), None
        if not message.redelivered:
            self._lost.clear()  # what was returned comes before what is new
            return new_stamp(), None
        had = self._lost.get(_fingerprint(message))
        return had.pop(0) if had else (new_stamp(), None)


def _fingerprint(message: RawMessage) -> int:
    try:
        return hash((message.routing_key, content_of(message), message.body))
    except DecodeError:
        return hash((message.header, message.body))


def _never(*_: object) -> None:
    """Deliveries are taken before pika sees them."""
