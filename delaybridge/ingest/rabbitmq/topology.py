"""Declares a delay exchange, its intake queue and the bindings on the broker.

A delay exchange diverts: it is of type headers, and its one binding takes each message that has a
header of `BOUND_HEADERS`, whatever the value, into the intake queue. All other messages go to the
target at once, by the broker alone: that is the exchange's alternate exchange. No policy overrides
an argument, so no policy changes where messages go, or drops one: the intake queue refuses what it
has no room for, and what expires there is dead-lettered into a second queue that is read, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from secrets import token_hex
from typing import Any

from delaybridge.amqp.connection import WireConnection, close_channel, close_code, reason_of
from delaybridge.errors import ConfigError
from delaybridge.gathering import FIELDS
from delaybridge.ingest.rabbitmq import remedies
from delaybridge.ingest.rabbitmq.connection import IntakeConnection
from delaybridge.ingest.rabbitmq.deaths import expired
from delaybridge.ingest.routes import Route

_BEFORE_GATHERING = tuple(
    """
    delaybridge-at-most-once delaybridge-backoff delaybridge-cancel delaybridge-delay
    delaybridge-destination delaybridge-due delaybridge-id delaybridge-key delaybridge-max-attempts
    delaybridge-on-conflict delaybridge-priority delaybridge-reschedule delaybridge-ttl x-delay
    x-opt-delivery-delay x-opt-delivery-time
    """.split()
)
BOUND_HEADERS = (*_BEFORE_GATHERING, *(f"delaybridge-{name}" for name in FIELDS))
"""The headers that ingest reads. When one is added, the list before moves to `FORMER_HEADERS`."""
FORMER_HEADERS: tuple[tuple[str, ...], ...] = (_BEFORE_GATHERING,)
"""Lists of earlier versions. Their bindings are removed once the one of today is there."""
MADE_FOR = "x-delaybridge-exchange"
"""Argument of the intake of a front: the exchange that it is read for."""
IMPORTED: dict[str, Any] = {}
"""The arguments of the binding in converted definitions: it takes all messages, for a file can have
no header without a value. It is removed as well; until then nothing is early."""
_REFUSED, _NOT_FOUND, _LOCKED, _PRECONDITION_FAILED = 403, 404, 405, 406
ALTERNATE = "alternate-exchange"
_CURRENT = " but current is "
_DIFFERS = "inequivalent"
_TOO_OLD = re.compile("x-match|invalid arg")
# Cut off if the exchange's name is long; the type of a plugin is in two pairs of quotes.
_CURRENT_TYPE = re.compile(r"'type' for exchange(?:.* but current is '+([^']*)')?")
_TYPES = ("topic", "fanout", "headers", "direct")  # of exchanges that hold no message themselves

Step = tuple[str, dict[str, Any]]
"""A method of a channel, and its arguments."""

DELIVERY_LIMIT = 2**31 - 1  # the highest


class EarlierForm(ConfigError):
    """The exchange or its intake queue is of another form than today's."""


def owner_exchange(route: Route) -> str:
    """The exchange that keeps the owner's name; nothing is ever published to it."""
    return f"{route.queue}.owner"


def holding_exchange(route: Route) -> str:
    """Has the bindings into the delay exchange while that is replaced. A queue of this name is
    there while a conversion runs."""
    return f"{route.queue}.moving"


def queue_arguments(route: Route) -> dict[str, Any]:
    """The arguments of the intake queue and of the queue of expired messages."""
    # RabbitMQ keeps an argument that it does not know, shows it, and compares it with nothing.
    of_a_front = {MADE_FOR: route.source} if route.is_fronted else {}
    return {
        **of_a_front,
        "x-queue-type": "quorum",
        # A message is returned often if ingest is restarted often, not because it is bad.
        # Not -1, which means no limit in RabbitMQ 4 only: RabbitMQ 3 drops messages returned once.
        "x-delivery-limit": DELIVERY_LIMIT,
        "x-overflow": "reject-publish",
        "x-dead-letter-exchange": expired(route),
        "x-dead-letter-strategy": "at-least-once",
    }


def exchange_arguments(route: Route) -> dict[str, Any]:
    """The arguments of a delay exchange: what it does not divert goes to its target."""
    return {ALTERNATE: route.target}


def binding_arguments(headers: Iterable[str] = BOUND_HEADERS) -> dict[str, Any]:
    """The arguments of a binding that takes messages with any of these headers."""
    return {"x-match": "any-with-x", **dict.fromkeys(headers)}


async def declare(connection: IntakeConnection, route: Route) -> None:
    """Declare and bind what is missing. Changes nothing that is there.

    EarlierForm if the exchange or the queue is of another form, ConfigError if the broker is too
    old or the user lacks a right; otherwise raises the error that closed the channel.
    """
    if route.is_fronted:
        for fault in await repair(connection, route):
            raise ConfigError(fault)
        return
    for steps in _steps(route):
        await _insist(connection, route, *steps)


async def declare_queues(connection: IntakeConnection, route: Route) -> None:
    """The same of all but the delay exchange."""
    for step in declarations(route):
        if step[1].get("exchange") != route.source:
            await _insist(connection, route, step)


async def declare_exchange(connection: IntakeConnection, route: Route) -> None:
    """The same of the delay exchange alone, with its binding; the queue may be of another form."""
    await _insist(connection, route, *_of_exchange(route))


async def exists(connection: WireConnection, exchange: str) -> bool:
    """Whether there is such an exchange."""
    about = {"exchange": exchange, "passive": True}
    return await _is_done(connection, _NOT_FOUND, "exchange_declare", **about)


async def _is_done(connection: WireConnection, code: int, method: str, **about: Any) -> bool:
    """Whether the broker does it; False if it refuses with this code."""
    try:
        await connection.call_alone(method, **about)
    except Exception as exc:
        if text_with(exc, code) is None:
            raise
        return False
    return True


async def type_of(connection: WireConnection, exchange: str) -> str:
    """The type of an exchange; '' if there is none, or its name is too long for the answer."""
    # It is made in no case: RabbitMQ compares the type, and then refuses the argument.
    about = {"exchange": exchange, "exchange_type": "headers", "arguments": {ALTERNATE: 0}}
    text = await difference(connection, "exchange_declare", **about)
    if _CURRENT_TYPE.search(text) is None:
        return "headers" if _DIFFERS in text else ""
    current = text.rpartition(_CURRENT)[2]
    return current.strip("'") if len(current) < len(text) and current[-1:] == "'" else ""


async def try_lock(connection: WireConnection, route: Route) -> bool:
    """Whether the exchange is this connection's alone now, until it ends or `unlock`."""
    about = {"queue": holding_exchange(route), "exclusive": True}
    return await _is_done(connection, _LOCKED, "queue_declare", **about)


async def unlock(connection: WireConnection, route: Route) -> None:
    """Let others have the exchange again."""
    await connection.call_alone("queue_delete", queue=holding_exchange(route))


async def check_target(connection: IntakeConnection, route: Route) -> None:
    """ConfigError if the user may not declare an exchange that passes on to the target."""
    about = {"exchange": f"{route.source}.probe-{token_hex(4)}"}  # a name that no exchange has
    declared = {**about, "internal": True, "arguments": exchange_arguments(route)}
    await _insist(connection, route, ("exchange_declare", declared), ("exchange_delete", about))


async def _insist(connection: IntakeConnection, route: Route, *steps: Step) -> None:
    if (refusal := await _refusal(connection, route, *steps)) is not None:
        raise refusal


async def repair(connection: IntakeConnection, route: Route) -> list[str]:
    """Declare and bind again while the queue is read. Returns what could not be done first.

    After one step failed the others are tried: whatever the exchange is, its binding is needed.
    Of a front's nothing is declared while it is being made, or once it is deleted.
    """
    if route.is_fronted:
        refusal = await _refusal(connection, route, *_of_a_front(route))
        if refusal is None or text_with(refusal, _NOT_FOUND) is not None:
            return []
        return [text_of(refusal)]
    found = []
    for steps in _steps(route):
        found.append(await _refusal(connection, route, *steps))
        if found[-1] is not None and len(steps) > 1:
            found.append(await _refusal(connection, route, steps[-1]))
    return [text_of(refusal) for refusal in found if refusal is not None][:1]


async def unbind(
    connection: IntakeConnection, route: Route, bindings: Iterable[tuple[str, dict[str, Any]]]
) -> None:
    """Remove bindings to the intake queue: key and arguments of each.

    In one go with the declarations: an exchange of another form may need these, and then the broker
    refuses the first step and takes no other.
    """
    about = {"queue": route.queue, "exchange": route.source}
    steps = [
        ("queue_unbind", {**about, "routing_key": key, "arguments": arguments})
        for key, arguments in bindings
    ]
    await _refusal(connection, route, *_of_exchange(route), *steps)


def text_of(refusal: Exception) -> str:
    """Why an exchange is not read, in a line."""
    return str(refusal) if isinstance(refusal, ConfigError) else reason_of(refusal)


def _steps(route: Route) -> Iterator[Sequence[Step]]:
    """The declarations; that of the delay exchange together with its binding.

    Between the two a delayed message would reach the target at once.
    """
    together: list[Step] = []
    for method, arguments in declarations(route):
        together.append((method, arguments))
        if method != "exchange_declare" or arguments["exchange"] != route.source:
            yield together
            together = []


def declarations(route: Route, durable: bool = True, internal: bool = False) -> Iterator[Step]:
    """What to declare and to bind, in this order: a message always finds the next queue.

    durable, internal: of the delay exchange.

    Both exchanges are of type headers; without arguments such a binding takes all. Of any other
    type RabbitMQ 4.3 may keep a binding that was made while it deleted the exchange: the next
    exchange of its name has that, no message follows it, and to bind again changes nothing.
    """
    late, queue = expired(route), queue_arguments(route)
    yield "exchange_declare", {
        "exchange": late, "exchange_type": "headers", "durable": True, "internal": True,
    }  # fmt: skip
    yield "queue_declare", {"queue": late, "durable": True, "arguments": queue}
    yield "queue_bind", {"queue": late, "exchange": late, "routing_key": ""}
    yield "queue_declare", {"queue": route.queue, "durable": True, "arguments": queue}
    yield "exchange_declare", {
        "exchange": route.source, "exchange_type": "headers", "durable": durable,
        "internal": internal, "arguments": exchange_arguments(route),
    }  # fmt: skip
    for headers in (BOUND_HEADERS, *FORMER_HEADERS):
        yield "queue_bind" if headers is BOUND_HEADERS else "queue_unbind", {
            "queue": route.queue, "exchange": route.source, "routing_key": "",
            "arguments": binding_arguments(headers),
        }  # fmt: skip
    if route.is_fronted:
        yield "queue_unbind", {
            "queue": route.queue, "exchange": route.source, "routing_key": "",
            "arguments": IMPORTED,
        }  # fmt: skip


def _of_exchange(route: Route) -> list[Step]:
    """The declarations of the delay exchange and of its binding."""
    if route.is_fronted:
        return _of_a_front(route)
    return [step for step in declarations(route) if step[1].get("exchange") == route.source]


def _of_a_front(route: Route) -> list[Step]:
    """What ingest declares for an exchange that a front made, if both exchanges, which are the
    client's to declare, exist."""
    needed = (route.target, route.source)
    own = ("exchange_declare", route.source)
    return [
        *(("exchange_declare", {"exchange": each, "passive": True}) for each in needed),
        *(step for step in declarations(route) if (step[0], step[1].get("exchange")) != own),
    ]


async def _refusal(connection: IntakeConnection, route: Route, *steps: Step) -> Exception | None:
    """Take steps, all sent at once; why the broker refused one, or None."""
    try:
        await take_steps(connection, *steps)
    except Exception as exc:
        if close_code(exc) is None:
            raise
        return _explained(route, steps[-1][1], exc)
    return None


async def take_steps(connection: WireConnection, *steps: Step) -> None:
    """Take steps, all sent at once. If the broker refuses one, raises that, and none after it is
    taken."""
    *before, (method, arguments) = steps
    channel = await connection.open_channel(lambda *_: None)
    try:
        for name, given in before:
            getattr(channel, name)(**given)  # without a callback pika waits for no answer
        await connection.call(channel, method, **arguments)
    finally:
        close_channel(channel)


def _explained(route: Route, arguments: dict[str, Any], exc: Exception) -> Exception:
    """A refusal of the broker, with what to do about it if we know that."""
    if text_with(exc, _REFUSED) is not None:
        return ConfigError(
            f"{reason_of(exc)}; let the user configure, write and read all that begins with "
            f"{route.source!r}, and write to {route.target!r}"
        )
    text = text_with(exc, _PRECONDITION_FAILED)
    if text is None:
        return exc
    if _TOO_OLD.search(text):
        return ConfigError(f"{route}: RabbitMQ 3.10 or later is needed: {text}")
    if _DIFFERS not in text:  # as at a limit of the vhost
        return ConfigError(f"{route}: {text}")
    type = _CURRENT_TYPE.search(text)
    if type is not None and type[1] not in _TYPES:
        what = f"type {type[1]!r}" if type[1] else "another type"
        return ConfigError(
            f"{route}: the exchange exists with {what}; delete it, once it holds no message"
        )
    if expired(route) in arguments.values():
        return ConfigError(f"{route}: {expired(route)!r} is not delaybridge's; delete it ({text})")
    if route.is_fronted:
        return ConfigError(f"{route}: {route.queue!r} is not delaybridge's; delete it ({text})")
    return EarlierForm(f"{route} is of another form; run once: {remedies.convert(route)} ({text})")


async def difference(connection: WireConnection, method: str, **arguments: Any) -> str:
    """Declare something. Returns '', or why the broker says that the existing one differs."""
    try:
        await connection.call_alone(method, **arguments)
    except Exception as exc:
        if (differs := text_with(exc, _PRECONDITION_FAILED)) is None:
            raise
        return differs
    return ""


def text_with(exc: Exception, code: int) -> str | None:
    """The broker's text if it closed the channel with this code, else None."""
    closed = close_code(exc)
    return closed[1] if closed is not None and closed[0] == code else None
