"""aio_pika with delays: the connections that `connect` and `connect_robust` of this module make.

from delaybridge.intercept.aio_pika import connect_robust

connection = await connect_robust(url)
exchange = await (await connection.channel()).get_exchange("orders")
receipt = await exchange.publish(aio_pika.Message(body), "close", delay="15m")
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import aio_pika
from aio_pika.abc import AbstractMessage

from delaybridge.client import AsyncClient
from delaybridge.intercept import Timing, timing_of, without_instructions
from delaybridge.intercept.amqp import schedule_arguments
from delaybridge.message import new_id
from delaybridge.store.receipts import Receipt
from delaybridge.times import At, Delay

__all__ = [
    "Channel",
    "Connection",
    "Exchange",
    "RobustChannel",
    "RobustConnection",
    "RobustExchange",
    "connect",
    "connect_robust",
]


class Outlet:
    """Where one connection's delayed messages go: a client, and which configured broker."""

    def __init__(self, client: AsyncClient | None, broker: str | None) -> None:
        self._client, self._broker = client, broker
        self._owns_client = client is None

    async def schedule(
        self, exchange: str, routing_key: str, message: AbstractMessage, timing: Timing
    ) -> Receipt:
        """Store one message; the client is made now if there is none yet."""
        if self._client is None:
            self._client = AsyncClient.from_settings()
        properties = message.properties
        if properties.headers:
            properties.headers = dict(without_instructions(properties.headers))
        # Every message of aio_pika has an id: it makes one where the caller gave none.
        properties.message_id = properties.message_id or timing.id or new_id()
        arguments = schedule_arguments(
            *(self._client, self._broker, timing, exchange, routing_key, properties.message_id),
            properties.marshal(),
        )
        return await self._client.schedule(body=message.body, **arguments)

    async def close(self) -> None:
        """Close the client, if it was made here."""
        if self._owns_client and self._client is not None:
            client, self._client = self._client, None
            await client.close()


class _DelayingExchange:
    channel: Any
    name: str
    internal: bool

    async def publish(
        self,
        message: AbstractMessage,
        routing_key: str,
        *,
        mandatory: bool = True,
        immediate: bool = False,
        timeout: float | None = None,
        delay: Delay = None,
        deliver_at: At = None,
    ) -> Any:
        """As aio_pika's; with `delay`, `deliver_at` or a delay in the headers, stored until then.

        A stored message is published on the configured broker as aio_pika would have, and always
        mandatory: one that no queue takes lies in the dead set. The answer is a Receipt; it bears
        the message's id: that of the header `delaybridge-id`, else the message_id, else a new one.
        MessageError, MessageConflict, StoreError, ConfigError, ValueError: nothing was published;
        StoreUnavailable, TimeoutError: it may be stored.
        """
        timing = timing_of(message.headers, delay, deliver_at)
        if timing is None:
            return await super().publish(  # type: ignore[misc]
                message, routing_key, mandatory=mandatory, immediate=immediate, timeout=timeout
            )
        if self.internal:
            raise ValueError(f"Can not publish to internal exchange: '{self.name}'!")
        async with asyncio.timeout(timeout):
            return await self.channel.outlet.schedule(self.name, routing_key, message, timing)


class _DelayingChannel:
    def __init__(self, connection: Any, *args: Any, **kwargs: Any) -> None:
        self.outlet: Outlet = connection.outlet
        super().__init__(connection, *args, **kwargs)  # type: ignore[call-arg]


class _DelayingConnection:
    def __init__(
        self,
        *args: Any,
        client: AsyncClient | None = None,
        broker: str | None = None,
        **kwargs: Any,
    ) -> None:
        self.outlet = Outlet(client, broker)
        super().__init__(*args, **kwargs)

    async def close(self, *args: Any, **kwargs: Any) -> None:
        """As aio_pika's; the client given stays open."""
        try:
            await super().close(*args, **kwargs)  # type: ignore[misc]
        finally:
            await self.outlet.close()


class Exchange(_DelayingExchange, aio_pika.Exchange):
    """aio_pika's, of a connection made here."""


class RobustExchange(_DelayingExchange, aio_pika.RobustExchange):
    """aio_pika's, of a connection made here."""


class Channel(_DelayingChannel, aio_pika.Channel):
    """aio_pika's, with exchanges that take delays."""

    EXCHANGE_CLASS = Exchange


class RobustChannel(_DelayingChannel, aio_pika.RobustChannel):
    """aio_pika's, with exchanges that take delays."""

    EXCHANGE_CLASS = RobustExchange


class Connection(_DelayingConnection, aio_pika.Connection):
    """aio_pika's, with channels whose exchanges take delays."""

    CHANNEL_CLASS = Channel


class RobustConnection(_DelayingConnection, aio_pika.RobustConnection):
    """aio_pika's, with channels whose exchanges take delays."""

    CHANNEL_CLASS = RobustChannel


async def connect(
    *args: Any,
    client: AsyncClient | None = None,
    broker: str | None = None,
    connection_class: type[Connection] = Connection,
    **kwargs: Any,
) -> Connection:
    """As `aio_pika.connect`.

    client: who stores what is delayed; by default one of the settings, made at the first delay and
    closed with the connection. broker: the configured RabbitMQ that these messages go to, where
    there are several.
    """
    factory: Any = partial(connection_class, client=client, broker=broker)
    connection: Connection = await aio_pika.connect(*args, connection_class=factory, **kwargs)
    return connection


async def connect_robust(
    *args: Any,
    client: AsyncClient | None = None,
    broker: str | None = None,
    connection_class: type[RobustConnection] = RobustConnection,
    **kwargs: Any,
) -> RobustConnection:
    """As `aio_pika.connect_robust`; client and broker: see `connect`."""
    factory: Any = partial(connection_class, client=client, broker=broker)
    made: RobustConnection = await aio_pika.connect_robust(
        *args, connection_class=factory, **kwargs
    )
    return made
