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
from delaybridge.errors import ConfigError, MessageError
from delaybridge.intercept import (
    Timing,
    broker_of,
    client_of_settings,
    destination,
    timing_of,
    without_instructions,
)
from delaybridge.intercept.amqp import schedule_arguments
from delaybridge.store.receipts import Receipt
from delaybridge.times import At, Delay

__all__ = ["Producer"]

_Plain: Any = messaging.Producer  # untyped
_dumps: Any = dumps


class Producer(_Plain):  # type: ignore[misc]
    """kombu's, whose `publish` takes `delay` and `deliver_at`, too, by keyword.

    client: who stores what is delayed; by default one of the settings, shared by the process and
    made at the first delay. broker: the configured broker that these messages go to, where there
    are several.

    `publish` with one of the two, or with a delay in the headers, stores the message until then,
    and declares now what is to be declared. It is published on the configured broker as kombu would
    have, and always mandatory: one that no queue takes lies in the dead set, and `on_return` is not
    called. `immediate`, `timeout` and a batch around the call mean nothing to it. The answer is a
    Receipt; it bears the message's id: that of the header `delaybridge-id`, else the message_id,
    else a new one. MessageError, MessageConflict, StoreError, ConfigError: nothing was published;
    StoreUnavailable: it may be stored.
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
        # kombu's `publish` hands on whatever keyword it does not know among the properties.
        asked: tuple[Delay, At] = (None, None)
        if "delay" in properties or "deliver_at" in properties:
            properties = dict(properties)  # with `retry` this may be called again with kombu's
            asked = properties.pop("delay", None), properties.pop("deliver_at", None)
        timing = timing_of(headers, *asked)
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
        """Store one message; arguments: those of `client.schedule`."""
        return client.schedule(**arguments)

    def _arguments(
        self, client: Client, message: Any, exchange: str, routing_key: str, timing: Timing
    ) -> dict[str, Any]:
        """What `schedule` takes, for a message as the channel prepared it."""
        if isinstance(self.channel, virtual.Channel):
            name = broker_of(client, "kombu", self._broker)
            queue = _only_queue(self.channel, exchange, routing_key)
            return _queued(message, timing) | {"destination": destination("kombu", name, queue)}
        if not isinstance(self.channel, pyamqp.Channel):
            raise ConfigError(f"kombu: no delays for {type(self.channel).__module__}")
        body, properties = message.body, message.properties
        if isinstance(body, str):  # as py-amqp does, which leaves it for the last moment
            body = body.encode(properties.setdefault("content_encoding", "utf-8"))
        return {
            "body": body,
            **schedule_arguments(
                *(client, self._broker, timing, exchange, routing_key),
                *(properties.get("message_id"), message._serialize_properties()),
            ),
        }


def _queued(message: dict[str, Any], timing: Timing) -> dict[str, Any]:
    """A message of the transports on which kombu itself does the routing."""
    properties = message["properties"] | {
        "content_type": message["content-type"],
        "content_encoding": message["content-encoding"],
    }
    return {
        "body": message["body"],
        "delay": timing.delay,
        "at": timing.at,
        "id": timing.id or properties.get("message_id"),
        "headers": _as_json(message["headers"]),
        "properties": _as_json(properties),
    }


def _only_queue(channel: Any, exchange: str, routing_key: str) -> str:
    """The queue that the channel would put it into; MessageError if it is not exactly one."""
    queues = sorted(channel._lookup(exchange, routing_key))
    if exchange and isinstance(channel.typeof(exchange), FanoutExchange):
        raise MessageError("bad_destination", "exchange", f"{exchange!r}: no delays for a fanout")
    if len(queues) != 1:
        raise MessageError(
            *("bad_destination", "exchange"),
            f"{exchange!r} with {routing_key!r} leads to {len(queues)} queues; it must be one",
        )
    queue: str = queues[0]
    return queue


def _as_json(values: dict[str, Any]) -> Any:
    """As these transports write them; what JSON does not know is by then kombu's spelling of it."""
    return json.loads(_dumps(values))
