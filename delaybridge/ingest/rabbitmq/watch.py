"""What happens to a delay exchange at the broker that ingest cannot prevent or repair.

Seen by the management API: bindings of others, and policies by which the broker deletes a queue or
hides its messages. Seen without it: whether the target exists.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from typing import NamedTuple

from pika.exceptions import AMQPError

from delaybridge.ingest.options import IngestOptions
from delaybridge.ingest.rabbitmq import remedies
from delaybridge.ingest.rabbitmq.connection import IntakeConnection
from delaybridge.ingest.rabbitmq.deaths import expired
from delaybridge.ingest.rabbitmq.intake import Intake, in_turn
from delaybridge.ingest.rabbitmq.management import Bound, Management, ManagementError, Policies
from delaybridge.ingest.rabbitmq.remedies import RUN
from delaybridge.ingest.rabbitmq.topology import (
    DELIVERY_LIMIT,
    binding_arguments,
    exchange_arguments,
    exists,
    holding_exchange,
    type_of,
    unbind,
)
from delaybridge.ingest.routes import Route
from delaybridge.publish.rabbitmq.publisher import parameters_of

EVERY_S = 10.0
_ANSWER_S = 5.0
_KEEPING, _CONFIRMED = "reject-publish", "at-least-once"  # as the queues' arguments say
_NAMED = 5  # bindings that are shown one by one


async def watch(
    connection: IntakeConnection, management: Management, intakes: Callable[[], Sequence[Intake]]
) -> None:
    """Look at every source again and again, the first time at once, until cancelled.

    What was found stays until a look shows that it is over: no answer says nothing.
    """
    bound: dict[Intake, set[str]] = {}
    for turn in count():
        # At the same time: an API that answers late delays no look by more than its time-out.
        looked = in_turn(intakes(), turn)
        await asyncio.gather(*(_look(connection, management, each, bound) for each in looked))
        await asyncio.sleep(EVERY_S)


async def _look(
    connection: IntakeConnection,
    management: Management,
    intake: Intake,
    bound: dict[Intake, set[str]],
) -> None:
    """bound: the exchanges that the look before saw bound to the delay exchange."""
    with contextlib.suppress(AMQPError, OSError):  # the connection is lost, and that is told
        async with asyncio.timeout(_ANSWER_S):
            intake.noticed("target", await _missing(connection, intake.route))
    with contextlib.suppress(ManagementError):  # `doctor` says so
        if intake.is_read:
            await _unbind_more(connection, management, intake.route)
        intake.noticed("management", await seen_by(management, intake.route))
        if intake.route.is_fronted:
            return  # clients bind it to other exchanges, and unbind it, as they like
        source = intake.route.source
        # A conversion holds them for a moment; this first, as they leave it last.
        holding = holding_exchange(intake.route)
        held = await management.bindings_into(holding)
        found = [*held, *await management.bindings_into(source)]
        into = {each.source for each in found} - {holding}
        for lost in sorted(bound.get(intake, set()) - into):
            # Only told: the user of ingest may not bind it, and it may have been meant.
            intake.warn(
                f"exchange {lost!r} is not bound to {source!r} any more, so RabbitMQ may drop what "
                f"is published to it; bind it again, unless it was removed on purpose"
            )
        bound[intake] = into


async def _unbind_more(connection: IntakeConnection, management: Management, route: Route) -> None:
    """Remove what takes messages without a delay into the intake queue."""
    if more := _more(route, await management.bound_to(route.source)):
        with contextlib.suppress(AMQPError, OSError):
            async with asyncio.timeout(_ANSWER_S):
                await unbind(connection, route, [each[2:] for each in more])


async def _missing(connection: IntakeConnection, route: Route) -> list[str]:
    if await exists(connection, route.target):
        return []
    if route.is_fronted and await type_of(connection, route.source) != "headers":
        return []  # it was deleted
    return [
        f"exchange {route.target!r} does not exist: RabbitMQ drops messages without a "
        f"delay, and delayed ones cannot be delivered; declare it, with its bindings"
    ]


class Survey(NamedTuple):
    """One look at a source. unseen: why the management API shows nothing; then, rights: the command
    that gives ingest's user what it needs, so that no other user needs it. left: of an exchange
    that was deleted."""

    route: Route
    faults: list[str]
    unseen: str = ""
    rights: str = ""
    left: str = ""


async def surveyed(options: Iterable[IngestOptions]) -> list[Survey]:
    """What the management API shows of every source, once."""
    looks = []
    for each in options:
        parameters = parameters_of(each.broker, each.url, each.publish)
        management = Management.for_broker(each.broker, parameters, each.settings.management)
        rights = remedies.rights(management.vhost, management.user, each.routes)
        looks += [_survey(management, route, rights) for route in each.routes]
    return await asyncio.gather(*looks)  # at the same time: a silent API costs one time-out


async def _survey(management: Management, route: Route, rights: str) -> Survey:
    try:
        if route.is_fronted and not await management.exchange(route.source):
            return Survey(route, [], left=await _left(management, route))
        faults = await seen_by(management, route)
        return Survey(route, faults + await _unbound(management, route))
    except ManagementError as exc:
        return Survey(route, [], str(exc), rights)


async def _left(management: Management, route: Route) -> str:
    waiting = await management.messages(route.queue)
    return (
        f"the exchange was deleted; in {route.queue!r}, which ingest removes once "
        f"it is empty, are {waiting} messages; what is pending for {route.target!r} fails when it "
        f"is due, unless it is declared again"
    )


async def _unbound(management: Management, route: Route) -> list[str]:
    """Not among the faults that ingest shows: it binds the queue again."""
    needed, bound = binding_arguments().keys(), await management.bound_to(route.source)
    if any(needed <= each.arguments.keys() for each in _own(route, bound)):
        return []
    if not await _diverts(management, route):
        return []
    return [
        f"queue {route.queue!r} is not bound to {route.source!r}: delayed messages reach "
        f"{route.target!r} at once; start ingest, which binds it again"
    ]


async def seen_by(management: Management, route: Route) -> list[str]:
    """The faults of a source that the management API shows; ManagementError if it does not."""
    bound = await management.bound_to(route.source)
    found = [*_foreign(management.vhost, route, bound)]
    if _more(route, bound) and await _diverts(management, route):
        found.append(
            f"queue {route.queue!r} is bound to {route.source!r} by more than its own binding: "
            f"messages without a delay wait in it while no ingest process runs. Ingest removes "
            f"such a binding while it reads; or do so on the management page of {route.source!r}"
        )
    held = [] if route.is_fronted else await management.bindings_into(holding_exchange(route))
    if held:
        found.append(
            f"a conversion runs, or was interrupted: exchange {held[0].source!r} is still bound to "
            f"{holding_exchange(route)!r}"
            f"{RUN}{remedies.convert(route)}"
        )
    for queue in (route.queue, expired(route)):
        if fault := _policy(management.vhost, route, queue, await management.policies(queue)):
            return [*found, fault]  # the remedy is the same for both queues
    return found


async def _diverts(management: Management, route: Route) -> bool:
    """Whether the delay exchange is of today's form; of another one, ingest says so."""
    found = await management.exchange(route.source)
    return found.get("type") == "headers" and found.get("arguments") == exchange_arguments(route)


def _own(route: Route, bound: Iterable[Bound]) -> list[Bound]:
    """The bindings of the delay exchange to the intake queue."""
    return [each for each in bound if each[:2] == ("queue", route.queue)]


def _more(route: Route, bound: Iterable[Bound]) -> list[Bound]:
    """Those to the intake queue that no version of ingest declares for a diverting exchange."""
    match = binding_arguments()["x-match"]
    return [each for each in _own(route, bound) if each.arguments.get("x-match") != match]


def _foreign(vhost: str, route: Route, bound: Iterable[Bound]) -> Iterator[str]:
    """Other bindings of the delay exchange: the alternate exchange gets only what matches none."""
    others = sorted({each[:2] for each in bound} - {("queue", route.queue)})
    for kind, name in others[:_NAMED]:
        yield (
            f"{kind} {name!r} is bound to {route.source!r}: it takes messages without a delay away "
            f"from {route.target!r}, and gets the delayed ones at once; bind it to "
            f"{route.target!r}{RUN}{remedies.unbind(vhost, route.source, kind, name)}"
        )
    if len(others) > _NAMED:
        yield f"{len(others) - _NAMED} more queues or exchanges are bound to {route.source!r}"


def _policy(vhost: str, route: Route, queue: str, found: Policies) -> str:
    """What a policy does to a queue, unless the queue's arguments make it harmless."""
    asked, harms = found.definition, []
    if "expires" in asked:
        harms.append("deletes it, with its messages, while no ingest process runs: expires")
    if str(asked.get("overflow", _KEEPING)) != _KEEPING:
        harms.append("drops messages from it when it is full: overflow")
    if str(asked.get("dead-letter-strategy", _CONFIRMED)) != _CONFIRMED:
        harms.append("may lose what expires in it: dead-letter-strategy")
    if queue == expired(route) and "message-ttl" in asked:
        harms.append("hides messages that expire in it again: message-ttl")
    limit = asked.get("delivery-limit")
    if queue == expired(route) and isinstance(limit, int) and 0 <= limit < DELIVERY_LIMIT:
        harms.append("hides messages that are returned often: delivery-limit")
    if not harms:
        return ""
    names = " and ".join(repr(name) for name in found.names.values())
    line = remedies.shield(vhost, route, [*found.names])
    return f"queue {queue!r}: RabbitMQ {', '.join(harms)} (policy {names}){RUN}{line}"
