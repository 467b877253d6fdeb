"""kombu with delays: `Producer`.

from delaybridge.intercept.kombu import Producer

receipt = Producer(connection).publish({"order": 1}, "orders", delay="15m")
"""

from __future__ import annotations

import json
from typing import Any

from kombu import messaging
from kombu.entity import Queue
from kombu.transport import pyamqp, virtual
from kombu.transport.virtual.exchange import FanoutExchange
from kombu.utils.json import dumps

from delaybridge.client import Client
from delaybridge.client.requests import stored_receipt
from delaybridge.errors import ConfigError, MessageError
from delaybridge.gathering import Later
from delaybridge.intercept import (
    Timing,
    broker_of,
    client_of_settings,
    destination,
    timing_of,
    without_instructions,
)
from delaybridge.intercept.amqp import schedule_arguments
from delaybridge.store.messages.scheduling import Receipt
from delaybridge.times import At

__all__ = ["Producer"]

_Plain: Any = messaging.Producer  # untyped
_dumps: Any = dumps


class Producer(_Plain):  # type: ignore[misc]
    """kombu's producer; `publish` accepts the keywords `delay` and `deliver_at`.

    client: stores the delayed messages; by default one made from the settings at the first delay
    and shared by the whole process. broker: the configured broker that these messages go to, if
    there are several.

    `publish` with one of the two, or with a delay in the headers, makes its declarations now and
    stores the message until it is due. A worker then publishes it on the configured broker as kombu
    would have, and always mandatory: if no queue takes it, it moves to the dead set, and
    `on_return` is not called. `immediate`, `timeout` and a batch around the call have no effect.

    It returns a Receipt. Its id is that of the header `delaybridge-id`, else the message_id, else a
    new one. It raises MessageError (MessageConflict, MessageInFlight), StoreError and ConfigError,
    and nothing is published; after StoreUnavailable the message may be stored.
    """

    def __init__(
        self,
        channel: Any,
        *args: Any,
        client: Client | None = None,
        broker: str | None = None,
        **kwargs: Any,
    ) -> None:
        self._client, self._broker = client, broker
        super().__init__(channel, *args, **kwargs)

    def _publish(
        self,
        body: Any,
        priority: Any,
        content_type: Any,
        encoding: Any,
        headers: dict[str, Any],
        properties: dict[str, Any],
        *rest: Any,
        **options: Any,
    ) -> Any:
        # kombu's `publish` passes keywords that it does not know on as properties.
        delay: Later = None
        deliver_at: At = None
        if "delay" in properties or "deliver_at" in properties:
            properties = dict(properties)  # a copy: `retry` may pass the original here again
            delay, deliver_at = properties.pop("delay", None), properties.pop("deliver_at", None)
        timing = timing_of(headers, delay, deliver_at)
        if timing is None:
            return super()._publish(
                body, priority, content_type, encoding, headers, properties, *rest, **options
            )
        routing_key, _mandatory, _immediate, exchange, declare, *_ = rest
        if isinstance(properties.get("reply_to"), Queue):
            properties["reply_to"] = properties["reply_to"].name
        headers = dict(without_instructions(headers))
        message = self.channel.prepare_message(
            body, priority, content_type, encoding, headers, properties
        )
        for entity in declare:
            self.maybe_declare(entity)
        client = self._client or client_of_settings()
        return self.store(client, self._arguments(client, message, exchange, routing_key, timing))

    def store(self, client: Client, arguments: dict[str, Any]) -> Receipt:
        """Store one message with these arguments of `client.schedule`; Celery's overrides it."""
        return stored_receipt(client.schedule(**arguments))

    def _arguments(
        self, client: Client, message: Any, exchange: str, routing_key: str, timing: Timing
    ) -> dict[str, Any]:
        """The arguments of `schedule` for a message that the channel prepared."""
        if isinstance(self.channel, virtual.Channel):
            name = broker_of(client, "kombu", self._broker)
            queue = _queue_of(self.channel, exchange, routing_key)
            return _virtual_arguments(message, timing) | {
                "destination": destination("kombu", name, queue)
            }
        if not isinstance(self.channel, pyamqp.Channel):
            raise ConfigError(f"kombu: no delays for {type(self.channel).__module__}")
        body, properties = message.body, message.properties
        if isinstance(body, str):  # py-amqp would encode it when it sends
            body = body.encode(properties.setdefault("content_encoding", "utf-8"))
        return {
            "body": body,
            **schedule_arguments(
                client,
                self._broker,
                timing,
                exchange,
                routing_key,
                message_id=properties.get("message_id"),
                properties=message._serialize_properties(),
            ),  # fmt: skip
        }


def _virtual_arguments(message: dict[str, Any], timing: Timing) -> dict[str, Any]:
    """The arguments of `schedule` for a transport on which kombu itself routes messages."""
    properties = message["properties"] | {
        "content_type": message["content-type"],
        "content_encoding": message["content-encoding"],
    }
    return {
        "body": message["body"],
        "delay": timing.delay,
        "at": timing.at,
        "id": timing.id or properties.get("message_id"),
        "retry": timing.retry,
        "headers": _as_json(message["headers"]),
        "properties": _as_json(properties),
    }


def _queue_of(channel: Any, exchange: str, routing_key: str) -> str:
    """The queue that the channel routes to; MessageError if that is not exactly one."""
    queues = sorted(channel._lookup(exchange, routing_key))
    if exchange and isinstance(channel.typeof(exchange), FanoutExchange):
        raise MessageError("bad_destination", "exchange", f"{exchange!r}: no delays for a fanout")
    if len(queues) != 1:
        reason = f"{exchange!r} with {routing_key!r} leads to {len(queues)} queues; it must be one"
        raise MessageError("bad_destination", "exchange", reason)
    queue: str = queues[0]
    return queue


def _as_json(values: dict[str, Any]) -> Any:
    """The values as these transports write them: kombu spells out types that JSON lacks."""
    return json.loads(_dumps(values))
