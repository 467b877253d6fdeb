"""What the drop-ins for RabbitMQ share: one publish as its library encoded it, for `schedule`.

The libraries disagree on AMQP's types: the integer 1 is 32 bits to pika and py-amqp and 8 to
aio_pika, bytes are text to py-amqp. So the library itself encodes headers and properties, when the
message is accepted, and those bytes are what arrives.
"""

from __future__ import annotations

import struct
from typing import Any

from delaybridge.amqp.header import BASIC_CLASS, split_content_header
from delaybridge.client import AsyncClient, Client
from delaybridge.errors import MessageError
from delaybridge.intercept import Timing, broker_of, destination

_HEADER_START = struct.pack(">HHQ", BASIC_CLASS, 0, 0)


def schedule_arguments(
    client: Client | AsyncClient,
    broker: str | None,
    timing: Timing,
    exchange: str,
    routing_key: str,
    message_id: str | bytes | None,
    properties: bytes,
) -> dict[str, Any]:
    """What `client.schedule` takes beside the body.

    broker: as for `broker_of`. properties: flags and property list as in a content header frame.
    ConfigError; MessageError `bad_id` for a message id that is no text.
    """
    return {
        "destination": destination(
            "rabbitmq", broker_of(client, "rabbitmq", broker), exchange, routing_key
        ),
        "delay": timing.delay,
        "at": timing.at,
        "id": timing.id or _text(message_id),
        "properties": split_content_header(_HEADER_START + properties),
    }


def _text(message_id: str | bytes | None) -> str | None:
    if not isinstance(message_id, bytes):
        return message_id or None
    try:
        return message_id.decode() or None
    except UnicodeDecodeError:
        raise MessageError("bad_id", "message_id", "no UTF-8; write it as text") from None
