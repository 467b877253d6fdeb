"""pika with delays: `BlockingConnection`, and `delaying` for a channel of any kind.

from delaybridge.intercept.pika import BlockingConnection

channel = BlockingConnection(parameters).channel()
receipt = channel.basic_publish("orders", "close", body, delay="15m")
"""

from __future__ import annotations

from copy import copy
from typing import Any

import pika
from pika.adapters import blocking_connection

from delaybridge.client import Client
from delaybridge.intercept import client_of_settings, timing_of, without_instructions
from delaybridge.intercept.amqp import schedule_arguments
from delaybridge.store.receipts import Receipt
from delaybridge.times import At, Delay

__all__ = ["BlockingChannel", "BlockingConnection", "delaying"]


class _Delaying:
    """What `basic_publish` of a pika channel becomes."""

    _delaybridge: tuple[Client | None, str | None]

    def basic_publish(
        self,
        exchange: str,
        routing_key: str,
        body: bytes | str,
        properties: pika.BasicProperties | None = None,
        mandatory: bool = False,
        *,
        delay: Delay = None,
        deliver_at: At = None,
    ) -> Receipt | None:
        """As pika's; with `delay`, `deliver_at` or a delay in the headers, stored until then.

        A stored message is published on the configured broker as pika would have; `mandatory` is
        not handed on: a worker publishes nothing otherwise, and what it gets back lies in the dead
        set. The receipt bears its id: that of the header `delaybridge-id`, else the message_id,
        else a new one. It blocks until Redis has answered. MessageError, MessageConflict,
        StoreError, ConfigError: nothing was published; StoreUnavailable: it may be stored.
        """
        headers = None if properties is None else properties.headers
        timing = timing_of(headers, delay, deliver_at)
        if timing is None:
            super().basic_publish(exchange, routing_key, body, properties, mandatory)  # type: ignore[misc]
            return None
        sent = copy(properties) if properties is not None else pika.BasicProperties()
        if headers:
            sent.headers = dict(without_instructions(headers))
        client, broker = self._delaybridge
        client = client or client_of_settings()
        arguments = schedule_arguments(
            *(client, broker, timing, exchange, routing_key, sent.message_id),
            b"".join(sent.encode()),
        )
        return client.schedule(body=body, **arguments)


class BlockingChannel(_Delaying, blocking_connection.BlockingChannel):  # type: ignore[misc]
    """pika's, made by `BlockingConnection.channel`."""


class BlockingConnection(pika.BlockingConnection):  # type: ignore[misc]
    """pika's, whose channels take delays.

    client: who stores what is delayed; by default one of the settings, shared by the process and
    made at the first delay. broker: the configured RabbitMQ that these messages go to, where there
    are several.
    """

    def __init__(
        self,
        parameters: Any = None,
        _impl_class: Any = None,
        *,
        client: Client | None = None,
        broker: str | None = None,
    ) -> None:
        self._client, self._broker = client, broker
        super().__init__(parameters, _impl_class)

    def channel(self, channel_number: int | None = None) -> BlockingChannel:
        """A new channel."""
        channel = super().channel(channel_number)
        made: BlockingChannel = delaying(channel, client=self._client, broker=self._broker)
        return made


def delaying(channel: Any, *, client: Client | None = None, broker: str | None = None) -> Any:
    """The very channel, its `basic_publish` now taking delays. client, broker: see the connection.

    For channels that pika made, of a blocking connection or of one with callbacks, whose loop
    waits for Redis while a delayed message is stored.
    """
    if not isinstance(channel, _Delaying):
        # Callbacks are given this object: a wrapper around it would not reach them.
        channel.__class__ = _class_of(type(channel))
    channel._delaybridge = client, broker
    return channel


_CLASSES: dict[type, type] = {blocking_connection.BlockingChannel: BlockingChannel}


def _class_of(kind: type) -> type:
    if kind not in _CLASSES:
        _CLASSES[kind] = type(kind.__name__, (_Delaying, kind), {"__doc__": kind.__doc__})
    return _CLASSES[kind]
