"""Declares a delay exchange, its intake queue and the bindings on the broker."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import secrets
import shlex
from collections.abc import Iterable
from typing import Any

from pika import BasicProperties
from pika.channel import Channel

from delaybridge.amqp.connection import close_channel, close_code
from delaybridge.errors import ConfigError
from delaybridge.ingest.owner import Owner, SourceTaken
from delaybridge.ingest.rabbitmq.connection import IntakeConnection
from delaybridge.ingest.rabbitmq.management import Management, ManagementError
from delaybridge.settings.routes import EXCHANGE_TYPES, Route

# No delivery limit: a message is returned often if ingest is restarted often, not because it is
# bad. Not -1, which means no limit in RabbitMQ 4 only: RabbitMQ 3 drops messages returned once.
QUEUE_ARGUMENTS = {"x-queue-type": "quorum", "x-delivery-limit": 2**31 - 1}
_REFUSED, _PRECONDITION_FAILED = 403, 406
_log = logging.getLogger("delaybridge")
_ALTERNATE = "alternate-exchange"
_CURRENT_ALTERNATE = re.compile(
    rf"'{_ALTERNATE}' for exchange .* but current is (?:the value )?'([^']*)"
)
_POLICY_LOOKS, _POLICY_AGAIN_S = 10, 0.2
_CURRENT_TYPE = re.compile(r"'type' for exchange .* but current is '([^']*)'")
_NOT_THERE = "PRECONDITION_FAILED - invalid type"
_EVERYTHING = "#"


def intake_exchange(route: Route) -> str:
    """The fanout exchange behind a direct delay exchange: unroutable messages go there."""
    return f"{route.source}.intake"


def owner_exchange(route: Route) -> str:
    """The exchange that keeps the owner's name; nothing is ever published to it."""
    return f"{route.source}.owner"


async def claim(connection: IntakeConnection, route: Route, owner: Owner) -> str:
    """Claim the delay exchange for this namespace; SourceTaken if it is another's.

    Returns '', or why it is read without a claim (the user may not declare). The owner's name is
    kept as alternate exchange: the broker compares that, and shows the other's value if it differs.
    """
    try:
        other = await _other_owner(connection, route, owner)
        if other in owner.take_over:
            await connection.call_alone("exchange_delete", exchange=owner_exchange(route))
            other = await _other_owner(connection, route, owner)
        if other:
            raise SourceTaken(owner.refusal(route, other))
    except Exception as exc:
        if (refused := _text_of(exc, _REFUSED)) is None:
            raise
        return (
            f"nothing keeps another namespace from reading it, too: {refused}; let the user "
            f"configure, write and read all that begins with {route.source!r}"
        )
    return ""


async def _other_owner(connection: IntakeConnection, route: Route, owner: Owner) -> str:
    """Declare the exchange that keeps the owner. Returns the other owner, '' if it is this one."""
    prefix = f"{route.source}:"
    refused = await _declare_owner(connection, route, prefix + owner.name)
    if refused and not refused.endswith("'"):  # cut off; a short name leaves more room
        refused = await _declare_owner(connection, route, "-") or refused
    if not refused:
        return ""
    found = _CURRENT_ALTERNATE.search(refused)
    if found is None:
        what = f"exchange {owner_exchange(route)!r} was not declared by delaybridge; delete it"
        raise ConfigError(f"{route}: {what}")
    return found[1].removeprefix(prefix)


async def _declare_owner(connection: IntakeConnection, route: Route, name: str) -> str:
    return await _declare(
        connection, "exchange_declare", exchange=owner_exchange(route), exchange_type="fanout",
        durable=True, internal=True, arguments={_ALTERNATE: name},
    )  # fmt: skip


async def declare(connection: IntakeConnection, route: Route, management: Management) -> Channel:
    """Declare exchange and queue where missing, and return a new channel.

    Existing ones stay unchanged. ConfigError if the existing exchange cannot be consumed from;
    otherwise raises the error that closed the channel (403: the user may not declare).
    """
    await _declare(
        connection, "queue_declare", queue=route.source, durable=True, arguments=QUEUE_ARGUMENTS
    )
    type = await _type_of(connection, route)
    if (type or route.type) == "direct":
        await _declare_direct(connection, route, management, is_there=bool(type))
    else:
        if not type:
            await _declare_exchange(connection, route, route.type)
        await _bind(connection, route, route.source)
    return await connection.open_channel(lambda *_: None)


async def _type_of(connection: IntakeConnection, route: Route) -> str:
    """The type of the existing exchange, '' if it does not exist."""
    differs = await _differs(connection, route, route.type)
    if differs.startswith(_NOT_THERE):
        return ""
    found = _CURRENT_TYPE.search(differs)
    type = route.type if found is None else found[1]
    if type not in EXCHANGE_TYPES:
        raise ConfigError(f"{route}: the exchange exists with type {type!r}; delete it")
    return type


async def _differs(connection: IntakeConnection, route: Route, type: str) -> str:
    """How the exchange differs from one of this type, in the broker's words.

    They begin with `_NOT_THERE` if it does not exist. This never creates it, even if somebody has
    just deleted it: RabbitMQ refuses to create an exchange whose alternate exchange is a number.
    """
    return await _declare_exchange(connection, route, type, {_ALTERNATE: 0})


async def _declare_exchange(
    connection: IntakeConnection, route: Route, type: str, arguments: dict[str, Any] | None = None
) -> str:
    return await _declare(
        connection, "exchange_declare",
        exchange=route.source, exchange_type=type, durable=True, arguments=arguments,
    )  # fmt: skip


async def _bind(connection: IntakeConnection, route: Route, exchange: str) -> None:
    await connection.call_alone(
        "queue_bind", queue=route.source, exchange=exchange, routing_key=_EVERYTHING
    )


async def _declare_direct(
    connection: IntakeConnection, route: Route, management: Management, *, is_there: bool
) -> None:
    """Declare a direct delay exchange, with an alternate exchange for unroutable messages.

    A policy sets the alternate exchange: as an argument, it would refuse producers, who declare the
    exchange without arguments. While the policy is missing RabbitMQ would drop messages, so an
    exchange that was just declared is deleted again. ConfigError says what to run.
    """
    intake = intake_exchange(route)
    await _declare(
        connection, "exchange_declare",
        exchange=intake, exchange_type="fanout", durable=True, internal=True,
    )  # fmt: skip
    await _bind(connection, route, intake)
    if is_there:
        found = _CURRENT_ALTERNATE.search(await _differs(connection, route, "direct"))
        if found is not None and found[1] != intake:
            what = f"has the alternate exchange {found[1]!r}, not {intake!r}; delete it"
            raise ConfigError(f"{route}: the exchange is direct and {what}")
        if await _is_caught(connection, route):
            return
    policy = intake, f"^{re.escape(route.source)}$", {_ALTERNATE: intake}
    why = ""
    try:
        await management.set_policy(*policy)
    except ManagementError as exc:
        why = f" (ingest could not set it: {exc})"
    if not is_there:
        await _declare_exchange(connection, route, "direct")
    for _ in range(1 if why else _POLICY_LOOKS):  # it takes effect after a moment
        if await _is_caught(connection, route):
            return
        await asyncio.sleep(_POLICY_AGAIN_S)
    if not is_there:
        await connection.call_alone("exchange_delete", exchange=route.source)
    line = _policy_line(connection.params.virtual_host, *policy)
    _log.warning("run once: %s", line)  # not as a field: its quotes would be escaped
    raise ConfigError(
        f"{route}: RabbitMQ drops messages that a direct exchange has no queue for; set this "
        f"policy, or add it to the one that applies{why}: {line}"
    )


def _policy_line(vhost: str, name: str, pattern: str, definition: dict[str, str]) -> str:
    words = ["rabbitmqctl", "set_policy", *([] if vhost == "/" else ["-p", vhost])]
    words += ["--apply-to", "exchanges", name, pattern, json.dumps(definition)]
    return shlex.join(words)


async def _is_caught(connection: IntakeConnection, route: Route) -> bool:
    """Whether a message with an unbound routing key reaches the intake queue.

    Sends one that has no effect on the process that reads it: it cancels an id that no message has.
    """
    token = secrets.token_hex(16)
    headers = {"delaybridge-id": f"probe-{token}", "delaybridge-cancel": "true"}
    probe = _Probe()
    channel = await connection.open_channel(lambda _, reason: probe.fail(reason))
    number = int(channel.channel_number)
    connection.listen(number, probe)
    try:
        await connection.select_confirms(channel)
        properties = BasicProperties(headers=headers)
        channel.basic_publish(route.source, f"probe.{token}", b"", properties, mandatory=True)
        return await probe.is_caught
    finally:
        probe.is_caught.cancel()  # the close is not reported to it
        connection.listen(number, None)
        close_channel(channel)


class _Probe:
    """The fate of one published message."""

    def __init__(self) -> None:
        self.is_caught: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def on_confirm(self, tag: int, multiple: bool, is_ack: bool) -> None:
        """The broker confirmed or refused it."""
        self.settle(is_ack)

    def on_return(self, id: str, reason: str) -> None:
        """No queue is bound for it."""
        self.settle(False)

    def fail(self, reason: Exception) -> None:
        """The channel was closed."""
        if not self.is_caught.done():
            self.is_caught.set_exception(reason)

    def settle(self, is_caught: bool) -> None:
        """Whether a queue has it; only the first call counts."""
        if not self.is_caught.done():
            self.is_caught.set_result(is_caught)


async def others_bound(management: Management, route: Route) -> set[str]:
    """The bindings of the delay exchange besides its intake queue; raises ManagementError."""
    return await management.bound_to(route.source) - {f"queue {route.source}"}


def bypass(route: Route, others: Iterable[str]) -> str:
    """The consequence of other bindings of the delay exchange, and the remedy."""
    named = ", ".join(sorted(others))
    return (
        f"bound to {route.source!r} and so given its messages at once, without their delay: "
        f"{named}; bind to {route.target!r} instead"
    )


async def _declare(connection: IntakeConnection, method: str, **arguments: Any) -> str:
    """Declare something. Returns '', or why the broker says that the existing one differs."""
    try:
        await connection.call_alone(method, **arguments)
    except Exception as exc:
        if (differs := _text_of(exc, _PRECONDITION_FAILED)) is None:
            raise
        return differs
    return ""


def _text_of(exc: Exception, code: int) -> str | None:
    """The broker's text if it closed the channel with this code, else None."""
    closed = close_code(exc)
    return closed[1] if closed is not None and closed[0] == code else None


async def messages_waiting(connection: IntakeConnection, queue: str) -> int:
    """Number of messages in the queue that no consumer has."""
    answer = await connection.call_alone("queue_declare", queue=queue, passive=True)
    return int(answer.message_count)
