"""aio_pika with delays: `connect` and `connect_robust` of this module.

from delaybridge.intercept.aio_pika import connect_robust

connection = await connect_robust(url)
exchange = await (await connection.channel()).get_exchange("orders")
receipt = await exchange.publish(aio_pika.Message(body), "close", delay="15m")
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, cast

import aio_pika
from aio_pika.abc import AbstractMessage

from delaybridge.client import AsyncClient
from delaybridge.client.requests import stored_receipt
from delaybridge.gathering import Later
from delaybridge.intercept import LazyClient, Timing, timing_of, without_instructions
from delaybridge.intercept.amqp import schedule_arguments
from delaybridge.message import new_id
from delaybridge.store.messages.scheduling import Receipt
from delaybridge.times import At

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


async def _schedule(
    lazy: LazyClient, exchange: str, routing_key: str, message: AbstractMessage, timing: Timing
) -> Receipt:
    client = lazy.open()
    properties = message.properties
    if properties.headers:
        properties.headers = dict(without_instructions(properties.headers))
    # Every message of aio_pika has an id: the library makes one if the caller gave none.
    properties.message_id = properties.message_id or timing.id or new_id()
    arguments = schedule_arguments(
        client, lazy.broker, timing, exchange, routing_key,
        message_id=properties.message_id, properties=properties.marshal(),
    )  # fmt: skip
    return stored_receipt(await client.schedule(body=message.body, **arguments))


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
        delay: Later = None,
        deliver_at: At = None,
    ) -> Any:
        """Publish now, as aio_pika does; or store a message with a delay until it is due.

        delay, deliver_at: when to deliver it; a header may give a delay instead. timeout: seconds
        to wait for the broker, or for Redis. A worker publishes a delayed message on the configured
        broker as aio_pika would have, and always mandatory: if no queue takes it, it moves to the
        dead set.

        Returns aio_pika's confirmation, or the Receipt of a delayed message. Its id is that of the
        header `delaybridge-id`, else the message_id, else a new one. Raises MessageError
        (MessageConflict, MessageInFlight), StoreError, ConfigError and ValueError, and nothing is
        published; after StoreUnavailable and TimeoutError the message may be stored.
        """
        timing = timing_of(message.headers, delay, deliver_at)
        if timing is None:
            return await super().publish(  # type: ignore[misc]
                message, routing_key, mandatory=mandatory, immediate=immediate, timeout=timeout
            )
        if self.internal:
            raise ValueError(f"Can not publish to internal exchange: '{self.name}'!")
        async with asyncio.timeout(timeout):
            return await _schedule(
                self.channel.lazy_client, self.name, routing_key, message, timing
            )


class _DelayingChannel:
    def __init__(self, connection: Any, *args: Any, **kwargs: Any) -> None:
        self.lazy_client: LazyClient = connection.lazy_client
        super().__init__(connection, *args, **kwargs)  # type: ignore[call-arg]


class _DelayingConnection:
    def __init__(
        self,
        *args: Any,
        client: AsyncClient | None = None,
        broker: str | None = None,
        **kwargs: Any,
    ) -> None:
        self.lazy_client = LazyClient(client, broker)
        super().__init__(*args, **kwargs)

    async def close(self, *args: Any, **kwargs: Any) -> None:
        """Close the connection, and the client unless it was given."""
        try:
            await super().close(*args, **kwargs)  # type: ignore[misc]
        finally:
            await self.lazy_client.close()


class Exchange(_DelayingExchange, aio_pika.Exchange):
    """aio_pika's exchange with delays."""


class RobustExchange(_DelayingExchange, aio_pika.RobustExchange):
    """aio_pika's robust exchange with delays."""


class Channel(_DelayingChannel, aio_pika.Channel):
    """aio_pika's channel; its exchanges accept delays."""

    EXCHANGE_CLASS = Exchange


class RobustChannel(_DelayingChannel, aio_pika.RobustChannel):
    """aio_pika's robust channel; its exchanges accept delays."""

    EXCHANGE_CLASS = RobustExchange


class Connection(_DelayingConnection, aio_pika.Connection):
    """aio_pika's connection; its exchanges accept delays."""

    CHANNEL_CLASS = Channel


class RobustConnection(_DelayingConnection, aio_pika.RobustConnection):
    """aio_pika's robust connection; its exchanges accept delays."""

    CHANNEL_CLASS = RobustChannel


async def connect(
    *args: Any,
    client: AsyncClient | None = None,
    broker: str | None = None,
    connection_class: type[Connection] = Connection,
    **kwargs: Any,
) -> Connection:
    """Connect, as `aio_pika.connect` does.

    client: stores the delayed messages; by default one made from the settings at the first delay
    and closed with the connection. broker: the configured RabbitMQ that these messages go to, if
    there are several.
    """
    factory: Any = partial(connection_class, client=client, broker=broker)
    connected = await aio_pika.connect(*args, connection_class=factory, **kwargs)
    return cast(Connection, connected)


async def connect_robust(
    *args: Any,
    client: AsyncClient | None = None,
    broker: str | None = None,
    connection_class: type[RobustConnection] = RobustConnection,
    **kwargs: Any,
) -> RobustConnection:
    """Connect, as `aio_pika.connect_robust` does. client, broker: as for `connect`."""
    factory: Any = partial(connection_class, client=client, broker=broker)
    connected = await aio_pika.connect_robust(*args, connection_class=factory, **kwargs)
    return cast(RobustConnection, connected)
