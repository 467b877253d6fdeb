"""Replaces a delay exchange of an earlier form, and its intake queue, and loses no message.

The exchange is deleted first: a publisher then gets 404, and the old queue gets nothing more.
Its messages are read as always. The bindings into the exchange are meanwhile those of another one,
so that a conversion which is interrupted can be repeated.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

from pika.exceptions import AMQPError

from delaybridge.amqp.connection import reason_of
from delaybridge.errors import ConfigError
from delaybridge.ingest.rabbitmq.claiming import claim
from delaybridge.ingest.rabbitmq.connection import IntakeConnection
from delaybridge.ingest.rabbitmq.deaths import expired
from delaybridge.ingest.rabbitmq.emptiness import AGAIN_S, ROUTED_S, held_by, is_empty
from delaybridge.ingest.rabbitmq.intake import Intake
from delaybridge.ingest.rabbitmq.management import Binding, Management, ManagementError
from delaybridge.ingest.rabbitmq.topology import (
    ALTERNATE,
    EarlierForm,
    Step,
    check_target,
    declare,
    declare_exchange,
    declare_queues,
    exists,
    holding_exchange,
    take_steps,
    try_lock,
)
from delaybridge.ingest.routes import Route
from delaybridge.publish import Publisher

_T = TypeVar("_T")
_TRIES = 60


class Converted(NamedTuple):
    """messages: read from the old queue. bindings: into the exchange. was_earlier: anything was.
    unbound: the queues and exchanges that were bound to the exchange, and no longer are."""

    was_earlier: bool
    messages: int
    bindings: int
    unbound: list[str]


def interim_exchange(route: Route) -> str:
    """Stood behind a direct delay exchange of an earlier form."""
    return f"{route.source}.intake"


async def convert(
    connection: IntakeConnection, intake: Intake, publisher: Publisher, management: Management
) -> Converted:
    """Give a delay exchange and its intake queue today's form. Safe to repeat.

    ConfigError before anything is changed: another namespace has it, the exchange may hold
    messages, other processes read the old queue, other exchanges are bound to it, the bindings
    cannot be listed, another conversion runs, or the user lacks a right.
    """
    route, read, unbound = intake.route, 0, set[str]()
    await claim(connection, route, intake.owner)
    await _lock(connection, route)
    queue_is_earlier = await _is_earlier(declare_queues(connection, route))
    await _listed(management, partial(_shown, management), expired(route))  # it exists by now
    # Whatever the queue is: ConfigError if the exchange is of a type that may hold messages.
    # Not declared if it is missing: what it gets would be deleted with the old queue.
    is_there = await exists(connection, route.source)
    exchange_is_earlier = is_there and await _is_earlier(declare_exchange(connection, route))
    was_earlier = queue_is_earlier or exchange_is_earlier
    if was_earlier:
        await check_target(connection, route)
        if queue_is_earlier:
            await is_empty(connection, route.queue)  # whether it is or not, it has answered
            await _check_unread(connection, route)
            await _check_unbound(management, route)
        bound = await _listed(management, management.bound_to, route.source)
        unbound = {each.destination for each in bound} - {route.source}
        for name in sorted(unbound):  # told now: once the exchange is gone nothing shows them
            intake.warn(f"{name!r} will not be bound to it, bind it to {route.target!r}")
        if is_there:
            await _hold_bindings(connection, route, management)
        read = await _replaced(connection, intake, publisher, is_there, queue_is_earlier)
    await declare(connection, route)
    kept = await _give_back_bindings(connection, route, management)
    return Converted(was_earlier, read, kept, sorted(unbound))


async def _replaced(
    connection: IntakeConnection,
    intake: Intake,
    publisher: Publisher,
    is_there: bool,
    queue_is_earlier: bool,
) -> int:
    """Delete the exchange, and the queue once it is read. Returns how many were read."""
    route, read = intake.route, 0
    if is_there and queue_is_earlier:  # what it holds already is read before publishes get 404
        waiting, _ = await held_by(connection, route.queue)
        read = await _drain(connection, intake, publisher, most=waiting)
    for exchange in (route.source, interim_exchange(route)):
        await connection.call_alone("exchange_delete", exchange=exchange)
    if queue_is_earlier:
        await asyncio.sleep(ROUTED_S)
        read += await _drain(connection, intake, publisher)
        if await _is_earlier(declare_queues(connection, route)):  # as it was
            await connection.call_alone("queue_delete", queue=route.source)
    return read


async def _lock(connection: IntakeConnection, route: Route) -> None:
    """Let no other conversion of the delay exchange run until the connection ends."""
    try:
        is_free = await try_lock(connection, route)
    except AMQPError as exc:
        raise ConfigError(f"{route}: {reason_of(exc)}") from exc
    if not is_free:
        raise ConfigError(f"{route}: another conversion of it is running")


async def _is_earlier(declaring: Any) -> bool:
    try:
        await declaring
    except EarlierForm:
        return True
    return False


async def _check_unread(connection: IntakeConnection, route: Route) -> None:
    """ConfigError if others read the old queue; the broker sees the end of a consumer, or of
    `_get`, a moment later."""
    for _ in range(_TRIES):
        _, consumers = await held_by(connection, route.queue)
        if not consumers:
            return
        await asyncio.sleep(AGAIN_S)
    raise ConfigError(
        f"{route}: its queue has {consumers} consumers: stop the ingest processes of the "
        "earlier version first"
    )


async def _drain(
    connection: IntakeConnection, intake: Intake, publisher: Publisher, most: float = math.inf
) -> int:
    """Read the old queue until it is empty, with nothing unacknowledged, or `most` are read.

    Returns how many were read.
    """
    route, read = intake.route, 0
    while any(held := await held_by(connection, route.queue)) and read < most:
        if held[1]:
            await _check_unread(connection, route)
            continue
        before = read - intake.counts.total
        reading = asyncio.create_task(intake.consume(connection, publisher, route.source))
        try:
            while not reading.done() and (
                (await held_by(connection, route.queue))[0] or intake.held
            ):
                if before + _settled(intake) >= most:
                    break
                await asyncio.sleep(AGAIN_S)
            read = before + _settled(intake)  # what is held will be delivered again
        finally:
            reading.cancel()
            await asyncio.wait([reading])
        if not reading.cancelled():
            reading.result()  # raises what ended it
    return read


def _settled(intake: Intake) -> int:
    """Messages read and acknowledged; raises what is to be mended before the old queue can go."""
    if intake.aside.stuck:
        raise intake.aside.stuck
    in_hand = 0 if intake.channel is None else intake.channel.in_hand
    return intake.counts.total - in_hand


async def _check_unbound(management: Management, route: Route) -> None:
    """What an exchange publishes to the queue itself is dropped once the queue is deleted."""
    found = await _listed(management, management.bindings_to_queue, route.source)
    others = {each.source for each in found} - {route.source, interim_exchange(route)}
    if others:
        raise ConfigError(
            f"{route}: its queue is bound to {', '.join(map(repr, sorted(others)))}, too: bind "
            f"exchange {route.source!r} there instead, and unbind the queue"
        )


async def _listed(
    management: Management, ask: Callable[[str], Awaitable[list[_T]]], name: str
) -> list[_T]:
    if management.is_off:
        return []
    try:
        return await ask(name)
    except ManagementError as exc:
        raise ConfigError(
            f"ingest.management: the bindings of {name!r} cannot be listed: {exc}; "
            "set its address, or off if others have bound nothing to it"
        ) from None


async def _shown(management: Management, exchange: str) -> list[Any]:
    """ManagementError if the exchange, which exists, is not shown."""
    if await management.exchange(exchange):
        return []
    raise management.shows_another()


async def _hold_bindings(
    connection: IntakeConnection, route: Route, management: Management
) -> None:
    """Bind to the holding exchange what is bound to the delay exchange.

    It passes on to the delay exchange, which a message takes once however it gets there; and to the
    queue of expired messages from the moment in which the broker deletes that, with its bindings.
    """
    holding = holding_exchange(route)
    about = {
        "exchange": holding, "exchange_type": "fanout", "durable": True, "internal": True,
        "arguments": {ALTERNATE: expired(route)},
    }  # fmt: skip
    bindings = await _listed(management, management.bindings_into, route.source)
    others = [each for each in bindings if each.source != holding]
    await take_steps(
        connection, ("exchange_declare", about), _bind(route.source, Binding(holding, "", {})),
        *(_bind(holding, each) for each in others),
    )  # fmt: skip


def _bind(exchange: str, binding: Binding) -> Step:
    source, key, arguments = binding
    return "exchange_bind", {
        "destination": exchange, "source": source, "routing_key": key, "arguments": arguments,
    }  # fmt: skip


async def _give_back_bindings(
    connection: IntakeConnection, route: Route, management: Management
) -> int:
    """Give back also those of a conversion that was interrupted."""
    holding = holding_exchange(route)
    steps: list[Step] = []
    if bindings := await _listed(management, management.bindings_into, holding):
        steps = [_bind(route.source, each) for each in (Binding(holding, "", {}), *bindings)]
    await take_steps(connection, *steps, ("exchange_delete", {"exchange": holding}))
    return len(bindings)
