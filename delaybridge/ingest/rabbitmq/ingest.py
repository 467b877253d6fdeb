"""RabbitMQ: delay exchanges, each with its intake queue, read into the store.

    consume -> read -> store (or publish at once what asks for no delay) -> ack

A message is acknowledged when the store has it, or its target exchange has confirmed it. Whatever
breaks before that leaves it in the queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, cast

from pika.connection import Parameters
from pika.exceptions import AMQPError

from delaybridge.amqp.connection import open_connection, reason_of
from delaybridge.errors import ConfigError, PublishUnavailable
from delaybridge.events import Emit, IngestFailed
from delaybridge.ingest.counts import Counts
from delaybridge.ingest.owner import Owner
from delaybridge.ingest.rabbitmq.channel import ImmediateDelivery
from delaybridge.ingest.rabbitmq.connection import IntakeConnection
from delaybridge.ingest.rabbitmq.intake import Intake, IntakeOptions
from delaybridge.ingest.rabbitmq.management import Management, ManagementError
from delaybridge.ingest.rabbitmq.messages import MessageReader
from delaybridge.ingest.rabbitmq.topology import bypass, messages_waiting, others_bound
from delaybridge.ingest.reach import reach_of
from delaybridge.ingest.routes import AllowList, Route
from delaybridge.ingest.storing import insist
from delaybridge.message import Delivery
from delaybridge.publish import Outcome, Publisher, PublishOptions, connect
from delaybridge.publish.rabbitmq.parameters import parameters_of
from delaybridge.settings.settings import Settings
from delaybridge.store.calls import Calls
from delaybridge.store.store import AsyncStore

_BACK_OFF_S = (0.2, 10.0)
_GOODBYE_S = 1.0
_CHANNEL_ERRORS = (AMQPError, OSError)


class RabbitMQIngest:
    """All delay exchanges of one RabbitMQ, on one connection that is kept up."""

    def __init__(
        self,
        parameters: Parameters,
        routes: Sequence[Route],
        store: AsyncStore,
        calls: Calls,
        emit: Emit,
        options: IntakeOptions,
        allowed: AllowList,
        owner: Owner,
        reach: Callable[[Route], str],
        management: Management,
    ) -> None:
        """`publisher`, for what asks for no delay, is to be set before `run`."""
        self.publisher: Publisher
        self._parameters, self._options = parameters, options
        self._store, self._calls, self._emit = store, calls, emit
        sources = [route.source for route in routes]
        self._intakes = [
            Intake(
                route,
                MessageReader(route, calls.kinds, calls.limits, allowed, sources, reach(route)),
                partial(insist, store, calls, emit),
                emit,
                options,
                owner,
                management,
            )
            for route in routes
        ]
        self._connection: IntakeConnection | None = None

    @property
    def counts(self) -> list[Counts]:
        """What each source has brought."""
        return [intake.counts for intake in self._intakes]

    def report(self, deliveries: Sequence[Delivery], outcome: Outcome) -> None:
        """How publishes ended; called by the publisher."""
        passing = cast(Sequence[ImmediateDelivery], deliveries)
        for intake in {delivery.intake for delivery in passing}:
            intake.published([d for d in passing if d.intake is intake], outcome)

    async def run(self) -> None:
        """Read until cancelled. A broker or a store that is away is waited for."""
        back_off_s = _BACK_OFF_S[0]
        while True:
            await insist(self._store, self._calls, self._emit, [])  # consume only what can be kept
            try:
                self._connection = await open_connection(self._parameters, self._make)
            except PublishUnavailable as exc:
                self._failed(str(exc))
            else:
                back_off_s = _BACK_OFF_S[0]
                self._connection.read_much()
                await self._read(self._connection)
            await asyncio.sleep(back_off_s * random.uniform(0.5, 1.0))
            back_off_s = min(2 * back_off_s, _BACK_OFF_S[1])

    async def stop(self, timeout_s: float) -> None:
        """Take no more, and see what was taken to its end, if that takes no longer than this."""
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*(intake.stop() for intake in self._intakes))
        except TimeoutError:
            pass  # what is not acknowledged comes again

    async def measure(self) -> None:
        """Ask how much waits in each queue, and whether it is still this namespace's."""
        connection = self._connection
        for intake in self._intakes:
            if connection is not None and connection.is_open and intake.counts.state == "reading":
                try:
                    async with asyncio.timeout(_GOODBYE_S):
                        await intake.look(connection)
                        waiting = await messages_waiting(connection, intake.route.source)
                except Exception:
                    intake.counts.lag = None
                else:
                    intake.counts.lag = waiting + intake.held

    def _make(self, parameters: Parameters, loop: asyncio.AbstractEventLoop) -> IntakeConnection:
        return IntakeConnection(parameters, loop, self._options.window_bytes)

    async def _read(self, connection: IntakeConnection) -> None:
        """Read from every exchange until the connection is lost or this is cancelled."""
        work = [
            asyncio.create_task(self._keep_reading(intake, connection)) for intake in self._intakes
        ]
        try:
            ends: list[asyncio.Future[Any]] = [connection.lost, *work]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if connection.lost.done():
                self._failed(f"connection_lost: {reason_of(connection.lost.result())}")
        finally:
            self._connection = None
            for task in work:
                task.cancel()
            await asyncio.wait(work)
            if connection.is_open:
                connection.close()
                await asyncio.wait([connection.lost], timeout=_GOODBYE_S)
        for task in work:
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def _keep_reading(self, intake: Intake, connection: IntakeConnection) -> None:
        """Read from one exchange; begin anew when its channel was closed."""
        back_off_s = _BACK_OFF_S[0]
        now_s = asyncio.get_running_loop().time
        while connection.is_open:
            began_s = now_s()
            try:
                await intake.run(connection, self.publisher)
            except (ConfigError, *_CHANNEL_ERRORS) as exc:
                if connection.is_open:
                    reason = str(exc) if isinstance(exc, ConfigError) else reason_of(exc)
                    intake.failed(reason)
            if now_s() - began_s > _BACK_OFF_S[1]:
                back_off_s = _BACK_OFF_S[0]
            await asyncio.sleep(back_off_s)
            back_off_s = min(2 * back_off_s, _BACK_OFF_S[1])

    def _failed(self, reason: str) -> None:
        for intake in self._intakes:
            intake.counts.state = reason
        self._emit(IngestFailed(source=str(self._intakes[0].route.broker), reason=reason))


@asynccontextmanager
async def connected(
    name: str,
    settings: Settings,
    routes: Sequence[Route],
    store: AsyncStore,
    calls: Calls,
    emit: Emit,
) -> AsyncIterator[RabbitMQIngest]:
    """The ingest of one broker as the settings say, with a publisher for what is not delayed."""
    options = PublishOptions.of(settings.publish)
    url = settings.brokers[name]
    bounds = IntakeOptions(
        prefetch=settings.ingest.prefetch, window_bytes=settings.ingest.window_bytes
    )
    parameters = parameters_of(name, url, options)
    ingest = RabbitMQIngest(
        *(parameters, routes, store, calls, emit, bounds),
        AllowList(settings.ingest.destinations),
        Owner.of(calls.namespace, calls.birth, settings.ingest.take_over),
        lambda route: reach_of(
            route, calls.kinds, settings.ingest.destinations, settings.ingest.trust
        ),
        Management.of(name, parameters, settings.ingest.management),
    )
    ingest.publisher = connect(
        *(name, url), report=ingest.report, on_change=lambda: None, options=options
    )
    try:
        with contextlib.suppress(PublishUnavailable):
            await ingest.publisher.connect()
        yield ingest
    finally:
        await ingest.publisher.close(0.0)


async def look_for_others(
    settings: Settings, routes: Sequence[Route]
) -> list[tuple[Route, str, str]]:
    """For each delay exchange what else is bound to it, and why that cannot be told; '' if not."""
    found = []
    for route in routes:
        options = PublishOptions.of(settings.publish)
        parameters = parameters_of(route.broker, settings.brokers[route.broker], options)
        management = Management.of(route.broker, parameters, settings.ingest.management)
        try:
            others = await others_bound(management, route)
        except ManagementError as exc:
            found.append((route, "", str(exc)))
        else:
            found.append((route, bypass(route, others) if others else "", ""))
    return found
