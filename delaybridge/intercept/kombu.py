"""kombu with delays: `Producer`.

from delaybridge.intercept.kombu import Producer

receipt = Producer(connection).publish({"order": 1}, "orders", delay="15m")
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kombu import messaging
from kombu.entity import Queue
from kombu.transport import pyamqp

from delaybridge.calls import At, Delay, Receipt
from delaybridge.client import Client
from delaybridge.errors import ConfigError
from delaybridge.intercept import Timing, client_of_settings, timing_of, without_instructions
from delaybridge.intercept.amqp import schedule_arguments

__all__ = ["Producer"]

_Plain: Any = messaging.Producer  # untyped

# How `publish` tells `_publish`: kombu hands properties on, whatever their names.
_ASKED = "delaybridge"


class Producer(_Plain):  # type: ignore[misc]
    """kombu's, whose `publish` takes `delay` and `deliver_at`.

    client: who stores what is delayed; by default one of the settings, shared by the process and
    made at the first delay. broker: the configured broker that these messages go to, where there
    are several.
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

    def publish(
        self, body: Any, *args: Any, delay: Delay = None, deliver_at: At = None, **kwargs: Any
    ) -> Any:
        """As kombu's; with `delay`, `deliver_at` or a delay in the headers, stored until then.

        What has to be declared is declared now. A stored message is published on the configured
        broker as kombu would have, and always mandatory: one that no queue takes lies in the dead
        set, and `on_return` is not called. `immediate`, `timeout` and a batch around the call mean
        nothing to it. The answer is a Receipt; it bears the message's id: that of the header
        `delaybridge-id`, else the message_id, else a new one. MessageError, MessageConflict,
        StoreError, ConfigError: nothing was published; StoreUnavailable: it may be stored.
        """
        if delay is not None or deliver_at is not None:
            kwargs[_ASKED] = delay, deliver_at
        return super().publish(body, *args, **kwargs)

    def _publish(
        self,
        body: Any,
        priority: Any,
        content_type: Any,
        content_encoding: Any,
        headers: dict[str, Any],
        properties: dict[str, Any],
        routing_key: str,
        mandatory: bool,
        immediate: bool,
        exchange: str,
        declare: Sequence[Any],
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        # With `retry`, kombu may call this twice with the same properties.
        properties = dict(properties)
        timing = timing_of(headers, *properties.pop(_ASKED, (None, None)))
        if timing is None:
            return super()._publish(
                *(body, priority, content_type, content_encoding, headers, properties),
                *(routing_key, mandatory, immediate, exchange, declare, *args),
                **kwargs,
            )
        if isinstance(properties.get("reply_to"), Queue):
            properties["reply_to"] = properties["reply_to"].name
        message = self.channel.prepare_message(
            *(body, priority, content_type, content_encoding),
            *(dict(without_instructions(headers)), properties),
        )
        for entity in declare:
            self.maybe_declare(entity)
        return self._schedule(message, exchange, routing_key, timing)

    def _schedule(self, message: Any, exchange: str, routing_key: str, timing: Timing) -> Receipt:
        if not isinstance(self.channel, pyamqp.Channel):
            raise ConfigError(f"kombu transport {type(self.channel).__module__}: no delays for it")
        client = self._client or client_of_settings()
        body = message.body
        if isinstance(body, str):  # as py-amqp does when it writes the frames
            body = body.encode(message.properties.setdefault("content_encoding", "utf-8"))
        arguments = schedule_arguments(
            *(client, self._broker, timing, exchange, routing_key),
            *(message.properties.get("message_id"), message._serialize_properties()),
        )
        return client.schedule(body=body, **arguments)
