"""RabbitMQ: delay exchanges, each with its intake queue, read into the store.

    consume -> read -> store (or publish at once, without a delay) -> ack

A message is acknowledged when the store has it, or its target exchange has confirmed it. If
anything fails before that, the message stays in the queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, cast

from pika.connection import Parameters
from pika.exceptions import AMQPError

from delaybridge.amqp.connection import close_connection, open_connection, reason_of
from delaybridge.backoff import Backoff
from delaybridge.errors import ConfigError, PublishUnavailable
from delaybridge.events import Emit, IngestFailed
from delaybridge.ingest.counts import SourceCounts
from delaybridge.ingest.options import IngestOptions
from delaybridge.ingest.rabbitmq.channel import ImmediateDelivery
from delaybridge.ingest.rabbitmq.connection import IntakeConnection
from delaybridge.ingest.rabbitmq.conversion import Converted, convert
from delaybridge.ingest.rabbitmq.deaths import expired
from delaybridge.ingest.rabbitmq.emptiness import messages_waiting
from delaybridge.ingest.rabbitmq.following import Following
from delaybridge.ingest.rabbitmq.fronted_intake import FrontedIntake
from delaybridge.ingest.rabbitmq.intake import Intake, in_turn
from delaybridge.ingest.rabbitmq.management import Management
from delaybridge.ingest.rabbitmq.messages import MessageReader
from delaybridge.ingest.rabbitmq.topology import text_of
from delaybridge.ingest.rabbitmq.watch import watch
from delaybridge.ingest.routes import Route
from delaybridge.ingest.storing import EntryStore
from delaybridge.message import Delivery
from delaybridge.publish import Outcome, Publisher, connect
from delaybridge.publish.link import STABLE_S
from delaybridge.publish.rabbitmq.publisher import parameters_of

_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.2, 10.0  # before a connection or a channel is opened again
_GOODBYE_S = 1.0
_CHANNEL_ERRORS = (AMQPError, OSError)


class RabbitMQIngest:
    """All delay exchanges of one RabbitMQ, on one `connection`; None while none is open."""

    def __init__(
        self, parameters: Parameters, options: IngestOptions, store: EntryStore, emit: Emit
    ) -> None:
        """Set `publisher`, for messages without a delay, before `run`."""
        self.publisher: Publisher
        self._parameters, self._options = parameters, options
        self._store, self._emit = store, emit
        self.connection: IntakeConnection | None = None
        self._turn = 0
        settings, routes = options.settings, options.routes
        self._management = Management.for_broker(options.broker, parameters, settings.management)
        self._named = [Intake(*self._given(route)) for route in routes]
        self._following = Following(options.broker, store, self._management, self._fronted)

    def _given(self, route: Route) -> tuple[Any, ...]:
        settings = self._options.settings
        owner, on_change = self._store.owner(settings.take_over), self._options.on_change
        return self._reader(route), self._store, self._emit, settings.prefetch, owner, on_change

    def _fronted(self, route: Route) -> FrontedIntake:
        return FrontedIntake(*self._given(route), unlist=self._following.unlist)

    def _reader(self, route: Route) -> MessageReader:
        calls, options = self._store.calls, self._options
        return MessageReader(
            route,
            calls.kinds,
            calls.limits,
            options.allowed,
            [each.source for each in options.routes],
            options.reach(route, calls.kinds),
            options.names(route),
            options.settings.negate_delay,
            options.settings.broker_stamp,
        )

    @property
    def intakes(self) -> list[Intake]:
        """Those of the exchanges that the settings name, and that fronts have made."""
        return [*self._named, *self._following.intakes.values()]

    @property
    def counts(self) -> list[SourceCounts]:
        """The counts of each delay exchange."""
        return [intake.counts for intake in self.intakes]

    def report(self, deliveries: Sequence[Delivery], outcome: Outcome) -> None:
        """The outcome of publishes; called by the publisher."""
        passing = cast(Sequence[ImmediateDelivery], deliveries)
        for intake in {delivery.intake for delivery in passing}:
            intake.published([d for d in passing if d.intake is intake], outcome)

    async def run(self) -> None:
        """Read until cancelled. While the broker or the store is unavailable, wait for it."""
        backoff = Backoff(_FIRST_WAIT_S, _LONGEST_WAIT_S, jitter=0.5, steady_s=STABLE_S)
        now_s = asyncio.get_running_loop().time
        while True:
            await self._store.store([])  # do not consume before the store answers
            opened_s = math.inf
            try:
                self.connection = await open_connection(self._parameters, self._make)
            except PublishUnavailable as exc:
                self._failed(str(exc))
            else:
                opened_s = now_s()
                self.connection.read_much()
                await self._read(self.connection)
            await asyncio.sleep(backoff.next_s(now_s() - opened_s))

    async def convert(self, route: Route) -> Converted:
        """`conversion.convert` for one delay exchange; PublishUnavailable if the broker refuses."""
        (intake,) = (intake for intake in self.intakes if intake.route == route)
        connection = await open_connection(self._parameters, self._make)
        try:
            connection.read_much()
            return await convert(connection, intake, self.publisher, self._management)
        except _CHANNEL_ERRORS as exc:
            raise PublishUnavailable(f"{route}: {reason_of(exc)}") from exc
        finally:
            await close_connection(connection)

    async def stop(self, timeout_s: float) -> None:
        """Read no more. Returns when everything read is acknowledged, or after the timeout."""
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*(intake.stop() for intake in self.intakes))
        except TimeoutError:
            pass  # RabbitMQ delivers the unacknowledged messages again

    async def measure(self) -> None:
        """Count the messages in the queues, and check that this namespace owns its exchange."""
        connection = self.connection
        self._turn += 1
        for intake in in_turn(self.intakes, self._turn):
            if connection is not None and connection.is_open and intake.is_read:
                try:
                    async with asyncio.timeout(_GOODBYE_S):
                        await intake.check_owner(connection)
                        queues = (intake.route.queue, expired(intake.route))
                        waiting = await messages_waiting(connection, *queues)
                except Exception:
                    intake.counts.lag = None
                else:
                    intake.counts.lag = waiting + intake.held

    def _make(self, parameters: Parameters, loop: asyncio.AbstractEventLoop) -> IntakeConnection:
        return IntakeConnection(parameters, loop, self._options.settings.window_bytes)

    async def _read(self, connection: IntakeConnection) -> None:
        """Read from every exchange until the connection is lost or this is cancelled."""
        read = partial(self._keep_reading, connection)
        work: list[asyncio.Task[Any]] = [asyncio.create_task(read(each)) for each in self._named]
        if self._options.settings.front:
            work.append(asyncio.create_task(self._following.run(read)))
        looks = watch(connection, self._management, lambda: self.intakes)
        work.append(asyncio.create_task(looks))
        try:
            ends: list[asyncio.Future[Any]] = [connection.lost, *work]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if connection.lost.done():
                self._failed(f"connection_lost: {reason_of(connection.lost.result())}")
        finally:
            self.connection = None
            for task in work:
                task.cancel()
            await asyncio.wait(work)
            await close_connection(connection)
        for task in work:
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def _keep_reading(self, connection: IntakeConnection, intake: Intake) -> bool:
        """Read from one exchange; open a new channel whenever one is closed.

        False if the connection is lost; True if there is nothing to read any more.
        """
        backoff = Backoff(_FIRST_WAIT_S, _LONGEST_WAIT_S)
        now_s = asyncio.get_running_loop().time
        while connection.is_open:
            began_s = now_s()
            try:
                await intake.run(connection, self.publisher)
                return True
            except (ConfigError, *_CHANNEL_ERRORS) as exc:
                if connection.is_open:
                    intake.failed(text_of(exc))
            await asyncio.sleep(backoff.next_s(now_s() - began_s))
        return False

    def _failed(self, reason: str) -> None:
        for intake in self.intakes:
            intake.counts.state = reason
        self._emit(IngestFailed(source=self._options.broker, reason=reason))


@asynccontextmanager
async def connected(
    options: IngestOptions, store: EntryStore, emit: Emit
) -> AsyncIterator[RabbitMQIngest]:
    """The ingest of one broker, with a publisher for messages without a delay."""
    name, url, publish = options.broker, options.url, options.publish
    ingest = RabbitMQIngest(parameters_of(name, url, publish), options, store, emit)
    ingest.publisher = connect(
        name, url, report=ingest.report, on_change=lambda: None, options=publish
    )
    try:
        with contextlib.suppress(PublishUnavailable):
            await ingest.publisher.connect()
        yield ingest
    finally:
        await ingest.publisher.close(0.0)
