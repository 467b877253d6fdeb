"""What ingest needs on the broker: the delay exchange, its intake queue, and the way between."""

from __future__ import annotations

import re
from typing import Any

from pika.channel import Channel

from delaybridge.errors import ConfigError
from delaybridge.ingest.amqp_intake import IntakeConnection
from delaybridge.ingest.owner import Owner, SourceTaken
from delaybridge.ingest.routes import Route
from delaybridge.publish.amqp_wire import close_channel, close_code

# Never given up: a message that was returned often is no poison, its ingest was restarted often.
QUEUE_ARGUMENTS = {"x-queue-type": "quorum", "x-delivery-limit": -1}
_REFUSED, _PRECONDITION_FAILED = 403, 406
_ALTERNATE = "alternate-exchange"
_CURRENT_ALTERNATE = re.compile(rf"'{_ALTERNATE}' for exchange .* but current is '(.*)'?$")
_CURRENT_TYPE = re.compile(r"'type' for exchange .* but current is '([^']*)'")
_EVERYTHING = "#"


def intake_exchange(route: Route) -> str:
    """The fanout exchange behind a direct delay exchange: what nobody is bound for goes there."""
    return f"{route.source}.intake"


def owner_exchange(route: Route) -> str:
    """The exchange that keeps the owner's name; nothing is ever published to it."""
    return f"{route.source}.owner"


async def claim(connection: IntakeConnection, route: Route, owner: Owner) -> str:
    """Make the delay exchange this namespace's; SourceTaken if it is another's.

    Returns why it may be read without being claimed (the user may not declare), else ''. The name
    stands where the broker compares it, and shows it when it differs: as alternate exchange.
    """
    prefix = f"{route.source}:"
    try:
        if not await _declare_owner(connection, route, prefix + owner.name):
            return ""
        # The answer is short, so a short question leaves room for the other's whole name.
        found = _CURRENT_ALTERNATE.search(await _declare_owner(connection, route, "-"))
        if found is None:
            raise ConfigError(f"{route}: exchange {owner_exchange(route)!r} is not ours; delete it")
        other = found[1].removesuffix("'").removeprefix(prefix)
        if other not in owner.take_over:
            raise SourceTaken(owner.refusal(route, other))
        channel = await connection.open_channel(lambda *_: None)
        await connection.call(channel, "exchange_delete", exchange=owner_exchange(route))
        close_channel(channel)
        if await _declare_owner(connection, route, prefix + owner.name):
            raise SourceTaken(f"{route}: another namespace took it over in the same moment")
    except Exception as exc:
        closed = close_code(exc)
        if closed is None or closed[0] != _REFUSED:
            raise
        return (
            f"nothing keeps another namespace from reading it, too: {closed[1]}; let the user "
            f"configure, write and read all that begins with {route.source!r}"
        )
    return ""


async def _declare_owner(connection: IntakeConnection, route: Route, name: str) -> str:
    return await _declare(
        connection, "exchange_declare", exchange=owner_exchange(route), exchange_type="fanout",
        durable=True, internal=True, arguments={_ALTERNATE: name},
    )  # fmt: skip


async def declare(connection: IntakeConnection, route: Route) -> Channel:
    """A channel on which everything is in place. What exists already is used as it is.

    ConfigError if an exchange is there that cannot be consumed from; whatever closes the channel
    otherwise (403: the user may not declare).
    """
    type = await _declare_exchange(connection, route, route.type)
    await _declare(
        connection, "queue_declare", queue=route.source, durable=True, arguments=QUEUE_ARGUMENTS
    )
    channel = await connection.open_channel(lambda *_: None)
    exchange = intake_exchange(route) if type == "direct" else route.source
    await connection.call(
        channel, "queue_bind", queue=route.source, exchange=exchange, routing_key=_EVERYTHING
    )
    return channel


async def _declare_exchange(connection: IntakeConnection, route: Route, type: str) -> str:
    """Declare the exchange; the type that it has."""
    arguments = {}
    if type == "direct":
        arguments = {"alternate-exchange": intake_exchange(route)}
        await _declare(
            connection, "exchange_declare",
            exchange=intake_exchange(route), exchange_type="fanout", durable=True, internal=True,
        )  # fmt: skip
    refused = await _declare(
        connection, "exchange_declare",
        exchange=route.source, exchange_type=type, durable=True, arguments=arguments,
    )  # fmt: skip
    found = _CURRENT_TYPE.search(refused)
    if found is None:
        if type == "direct" and "alternate-exchange" in refused:
            raise ConfigError(
                f"{route}: the exchange is direct and has no alternate exchange "
                f"{intake_exchange(route)!r}: its messages cannot all be consumed; delete it"
            )
        return type
    if found[1] == "direct":
        return await _declare_exchange(connection, route, "direct")
    if found[1] not in ("topic", "fanout", "headers"):
        raise ConfigError(f"{route}: the exchange is there with type {found[1]!r}; delete it")
    return found[1]


async def _declare(connection: IntakeConnection, method: str, **arguments: Any) -> str:
    """Declare something; why the broker says that it is there already and differs, else ''."""
    channel = await connection.open_channel(lambda *_: None)
    try:
        await connection.call(channel, method, **arguments)
    except Exception as exc:
        closed = close_code(exc)
        if closed is None or closed[0] != _PRECONDITION_FAILED:
            raise
        return closed[1]
    close_channel(channel)
    return ""


async def messages_waiting(connection: IntakeConnection, queue: str) -> int:
    """How many messages of the queue were not handed to any consumer yet."""
    channel = await connection.open_channel(lambda *_: None)
    answer = await connection.call(channel, "queue_declare", queue=queue, passive=True)
    close_channel(channel)
    return int(answer.message_count)
