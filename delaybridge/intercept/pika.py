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
from delaybridge.client.requests import stored_receipt
from delaybridge.gathering import Later
from delaybridge.intercept import client_of_settings, timing_of, without_instructions
from delaybridge.intercept.amqp import schedule_arguments
from delaybridge.store.messages.scheduling import Receipt
from delaybridge.times import At

__all__ = ["BlockingChannel", "BlockingConnection", "delaying"]


class _Delaying:
    """Adds delays to `basic_publish` of a pika channel."""

    _delaybridge: tuple[Client | None, str | None]  # client, broker
    _instrumented_publish: Any = None  # of an OpenTelemetry instrumentation: for plain publishes

    def basic_publish(
        self,
        exchange: str,
        routing_key: str,
        body: bytes | str,
        properties: pika.BasicProperties | None = None,
        mandatory: bool = False,
        *,
        delay: Later = None,
        deliver_at: At = None,
    ) -> Receipt | None:
        """Publish now, as pika does; or store a message with a delay until it is due.

        delay, deliver_at: when to deliver it; a header may give a delay instead. A worker publishes
        a delayed message on the configured broker as pika would have, and always mandatory: if no
        queue takes it, it moves to the dead set. Blocks until Redis has answered.

        Returns None, or the receipt of a delayed message. Its id is that of the header
        `delaybridge-id`, else the message_id, else a new one. Raises MessageError (MessageConflict,
        MessageInFlight), StoreError and ConfigError, and nothing is published; after
        StoreUnavailable the message may be stored.
        """
        headers = None if properties is None else properties.headers
        timing = timing_of(headers, delay, deliver_at)
        if timing is None:
            plain = self._instrumented_publish or super().basic_publish  # type: ignore[misc]
            plain(exchange, routing_key, body, properties, mandatory)
            return None
        sent = copy(properties) if properties is not None else pika.BasicProperties()
        if headers:
            sent.headers = dict(without_instructions(headers))
        client, broker = self._delaybridge
        client = client or client_of_settings()
        arguments = schedule_arguments(
            client, broker, timing, exchange, routing_key,
            message_id=sent.message_id, properties=b"".join(sent.encode()),
        )  # fmt: skip
        return stored_receipt(client.schedule(body=body, **arguments))


class BlockingChannel(_Delaying, blocking_connection.BlockingChannel):  # type: ignore[misc]
    """pika's channel with delays, made by `BlockingConnection.channel`."""


class BlockingConnection(pika.BlockingConnection):  # type: ignore[misc]
    """pika's connection; its channels accept delays.

    client: stores the delayed messages; by default one made from the settings at the first delay
    and shared by the whole process. broker: the configured RabbitMQ that these messages go to, if
    there are several.
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
        """Open a channel whose `basic_publish` takes delays."""
        channel = super().channel(channel_number)
        made: BlockingChannel = delaying(channel, client=self._client, broker=self._broker)
        return made


def delaying(channel: Any, *, client: Client | None = None, broker: str | None = None) -> Any:
    """Add delays to `basic_publish` of a channel that pika made; returns the same object.

    client, broker: as for `BlockingConnection`. The channel may be of a blocking connection or of
    one with callbacks, whose loop waits for Redis while a delayed message is stored.
    """
    if not isinstance(channel, _Delaying):
        # pika passes this object to callbacks: they would not get a wrapper around it.
        channel.__class__ = _class_of(type(channel))
        # Instrumented, the object has a `basic_publish` of its own, which knows no delays.
        channel._instrumented_publish = vars(channel).pop("basic_publish", None)
    channel._delaybridge = client, broker
    return channel


_CLASSES: dict[type, type] = {blocking_connection.BlockingChannel: BlockingChannel}


def _class_of(kind: type) -> type:
    if kind not in _CLASSES:
        _CLASSES[kind] = type(kind.__name__, (_Delaying, kind), {"__doc__": kind.__doc__})
    return _CLASSES[kind]
