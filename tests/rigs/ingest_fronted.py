"""Delayed exchanges as a front makes them, made by hand: ingest needs no front to read them."""

from __future__ import annotations

from typing import Any

from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

from delaybridge.ingest import fronted
from delaybridge.ingest.rabbitmq.deaths import expired
from delaybridge.ingest.rabbitmq.topology import declarations, owner_exchange
from delaybridge.ingest.routes import Route
from delaybridge.ingest.routes import fronted as fronted_route
from tests.rigs.ingest import Entrance
from tests.rigs.ingest_rabbitmq import Exchanges


def route_of(exchange: str) -> Route:
    return fronted_route("rabbitmq", exchange, ".due")


async def made(rabbit: Exchanges, exchange: str, queue: str = "", **due: Any) -> Route:
    """Make D with its intake and D.due (topic); a quorum queue of this name gets all of D.due."""
    route = route_of(exchange)

    def make(channel: BlockingChannel) -> None:
        channel.exchange_declare(route.target, due.pop("type", "topic"), durable=True, **due)
        for method, about in declarations(route):
            getattr(channel, method)(**about)
        if queue:
            arguments = {"x-queue-type": "quorum"}
            channel.queue_declare(queue, durable=True, arguments=arguments)
            channel.queue_bind(queue, route.target, "#")

    await rabbit.do(make)
    return route


async def enlisted(entrance: Entrance, route: Route) -> None:
    """Put D on the namespace's list, as a front does."""
    await entrance.client.run(lambda _: _steps(entrance, route))


def _steps(entrance: Entrance, route: Route) -> Any:
    yield fronted.enlist(entrance.settings.namespace, route)


async def listed(entrance: Entrance) -> list[Route]:
    def steps(_: Any) -> Any:
        (found,) = yield [fronted.listed(entrance.settings.namespace)]
        return found

    found: list[Route] = await entrance.client.run(steps)
    return found


async def deleted(rabbit: Exchanges, route: Route) -> None:
    """Delete D.due, then D, as a front does for its client."""

    def delete(channel: BlockingChannel) -> None:
        channel.exchange_delete(route.target)
        channel.exchange_delete(route.source)

    await rabbit.do(delete)


async def left(rabbit: Exchanges, route: Route) -> list[str]:
    """What is left at the broker of all that belongs to D."""

    def look(channel: BlockingChannel) -> list[str]:
        connection, found = channel.connection, []
        names = [route.source, route.target, owner_exchange(route), expired(route)]
        asked = [("exchange_declare", name) for name in names]
        asked += [("queue_declare", name) for name in (route.queue, expired(route))]
        for method, name in asked:
            on = connection.channel()
            try:
                getattr(on, method)(name, passive=True)
                found.append(name)
            except ChannelClosedByBroker:
                pass
        return found

    found: list[str] = await rabbit.do(look)
    return found
