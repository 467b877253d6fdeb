"""The intake of an exchange that a front made: read as any other, and removed after its exchange.

Pending messages outlive an exchange that a client deletes. So its intake is removed only once it is
certainly empty, and alone with it: no front makes the exchange again meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from pika.exceptions import AMQPError

from delaybridge.errors import ConfigError
from delaybridge.ingest.owner import SourceTaken
from delaybridge.ingest.rabbitmq.connection import IntakeConnection
from delaybridge.ingest.rabbitmq.deaths import expired
from delaybridge.ingest.rabbitmq.emptiness import ROUTED_S, held_by, messages_waiting
from delaybridge.ingest.rabbitmq.intake import AT_ONCE, Intake
from delaybridge.ingest.rabbitmq.topology import exists, owner_exchange, try_lock, type_of, unlock
from delaybridge.ingest.routes import Route
from delaybridge.publish import Publisher

LOOK_S = 5.0  # between two attempts to remove an intake
DELETED = "idle: its exchange was deleted, and nothing is left to read"
Unlist = Callable[[Route], Awaitable[None]]


class _Over(Exception):
    """The exchange was deleted, and nothing is left to read."""


class FrontedIntake(Intake):
    """`run` returns once the intake was removed, or is another namespace's.

    made: its exchange was made, perhaps again. is_listed: the namespace's list has it. is_foreign:
    another namespace reads it, and this one's list does not have it.
    """

    def __init__(self, *given: Any, unlist: Unlist) -> None:
        """given: as to an `Intake`. unlist: takes its exchange off the namespace's list."""
        super().__init__(*given)
        self.made, self.is_listed, self.is_foreign = asyncio.Event(), False, False
        self._unlist = unlist

    async def run(self, connection: IntakeConnection, publisher: Publisher) -> None:
        """As `Intake.run`, until the exchange is deleted and its intake removed."""
        while True:
            self.made.clear()
            if not await self._is_over(connection):
                ending = asyncio.create_task(self._end_when_over(connection))
                try:
                    await super().run(connection, publisher)
                except SourceTaken:
                    if self.is_listed:
                        raise
                    self.is_foreign = True
                    return
                except _Over:
                    pass
                finally:
                    ending.cancel()
            if await removed(connection, self.route, self._unlist):
                return
            self.counts.state, self.counts.lag = DELETED, 0
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self.made.wait()

    async def _end_when_over(self, connection: IntakeConnection) -> None:
        """Stop reading once there will be nothing more to read."""
        while True:
            await asyncio.sleep(LOOK_S * (1 + self.beside / AT_ONCE))
            with contextlib.suppress(AMQPError, OSError):  # the connection is lost
                if self.channel is not None and not self.held and await self._is_over(connection):
                    self.channel.end(_Over())

    async def _is_over(self, connection: IntakeConnection) -> bool:
        queues = (self.route.queue, expired(self.route))
        is_deleted = await _is_deleted(connection, self.route)
        return is_deleted and not await messages_waiting(connection, *queues)


async def _is_deleted(connection: IntakeConnection, route: Route) -> bool:
    """Whether the exchange with the bindings is gone, and the other, or that is not a front's."""
    is_there = await exists(connection, route.target)
    return not is_there and await type_of(connection, route.source) != "headers"


async def removed(connection: IntakeConnection, route: Route, unlist: Unlist) -> bool:
    """Remove the intake of a deleted exchange, if it is certainly empty; whether it is gone.

    Safe to repeat: it is taken off the list last, and before a front can make the exchange again.
    """
    if not await try_lock(connection, route):
        return False  # a front makes the exchange, or another process removes the intake
    try:
        if not await _is_finished(connection, route):
            return False
        for queue in (route.queue, expired(route)):
            await connection.call_alone("queue_delete", queue=queue)
        # The second one last: it marks the exchange as one that a front has made.
        for exchange in (owner_exchange(route), expired(route)):
            await connection.call_alone("exchange_delete", exchange=exchange)
        await unlist(route)
        return True
    finally:
        with contextlib.suppress(AMQPError):
            await unlock(connection, route)


async def _is_finished(connection: IntakeConnection, route: Route) -> bool:
    """Whether nothing is in its queues, nor with a consumer, nor on its way there."""
    for pause_s in (ROUTED_S, 0.0):
        if not await _is_deleted(connection, route):
            return False
        try:
            for queue in (route.queue, expired(route)):
                if any(await held_by(connection, queue)):
                    return False
        except ConfigError:  # its leader does not say
            return False
        await asyncio.sleep(pause_s)
    return True
