"""Plain objects at a RabbitMQ, and what the front makes of a vhost there, without the front."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pika

from delaybridge.amqp.connection import (
    WireConnection,
    close_code,
    close_connection,
    open_connection,
)
from delaybridge.front.vhost import Vhost
from delaybridge.ingest.routes import Route
from delaybridge.settings.entrances import FrontSettings


class Client:
    """A client that declares as a front passes it on: a delayed D as one of D.due."""

    def __init__(self, connection: WireConnection) -> None:
        self.connection = connection

    async def declare(self, exchange: str, **about: Any) -> None:
        about = {"exchange_type": "direct", "durable": True} | about
        await self.connection.call_alone("exchange_declare", exchange=exchange, **about)

    async def delete(self, exchange: str, **about: Any) -> None:
        await self.connection.call_alone("exchange_delete", exchange=exchange, **about)

    async def bind(self, exchange: str, key: str = "k") -> str:
        """A queue of its own, bound with this key."""
        made = await self.connection.call_alone("queue_declare", queue="", exclusive=True)
        queue = str(made.queue)
        await self.connection.call_alone(
            "queue_bind", queue=queue, exchange=exchange, routing_key=key
        )
        return queue

    async def publish(self, exchange: str, **headers: Any) -> None:
        """With key k, and without a confirm; but the channel's end shows that it was routed."""
        properties = pika.BasicProperties(headers=headers)
        channel = await self.connection.open_channel(lambda *_: None)
        channel.basic_publish(exchange, "k", b"x", properties)
        await self.connection.call(channel, "basic_qos")
        await self.connection.call(channel, "exchange_declare", exchange=exchange, passive=True)

    async def code_of(self, exchange: str, **about: Any) -> int:
        """0 if the declare is accepted, else the code with which the broker closes the channel."""
        try:
            await self.declare(exchange, **about)
        except pika.exceptions.ChannelClosedByBroker as exc:
            return (close_code(exc) or (0, ""))[0]
        return 0

    async def there(self, *exchanges: str) -> list[bool]:
        """Which of these exchanges exist."""
        return [await self.code_of(name, passive=True) == 0 for name in exchanges]

    async def waiting(self, queue: str) -> int:
        """Messages of a queue that no consumer has; -1 if there is no such queue."""
        try:
            made = await self.connection.call_alone("queue_declare", queue=queue, passive=True)
        except pika.exceptions.ChannelClosedByBroker:
            return -1
        return int(made.message_count)


class VhostSite:
    """One vhost: `vhost` and more like it, each of a front of its own, and a client."""

    def __init__(self, url: str, client: Client) -> None:
        self.url, self.client = url, client
        self.enlisted: list[Route] = []
        self._made: list[Vhost] = []
        self.vhost = self.another()

    def another(self, url: str = "", nodes: Any = (), **named: Any) -> Vhost:
        """What another front has of this vhost, or of that of another URL."""
        parameters = pika.URLParameters(url or self.url)
        made = Vhost("rabbitmq", parameters, FrontSettings(**named), self.enlisted.append, nodes)
        self._made.append(made)
        return made

    async def close(self) -> None:
        for each in self._made:
            await each.close()

    async def declared(self, exchange: str, at: Vhost | None = None, **about: Any) -> None:
        """Declare a delayed exchange as a client does through a front."""
        vhost = at or self.vhost
        type = await vhost.prepare(exchange, about.pop("exchange_type", "direct").encode())
        assert type is not None
        durable, internal = about.pop("durable", True), about.pop("internal", False)
        await self.client.declare(
            f"{exchange}.due", exchange_type=type.decode(), durable=durable, **about
        )
        await vhost.stand(exchange, durable, internal)

    async def deleted(self, exchange: str, at: Vhost | None = None) -> None:
        await self.client.delete(f"{exchange}.due")
        await (at or self.vhost).delete(exchange)


@asynccontextmanager
async def vhost_site(url: str) -> AsyncIterator[VhostSite]:
    """A site whose connections end with it."""
    connection = await open_connection(pika.URLParameters(url), WireConnection)
    site = VhostSite(url, Client(connection))
    try:
        yield site
    finally:
        await site.close()
        await close_connection(connection)
