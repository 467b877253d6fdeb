"""Shared by the drop-ins for RabbitMQ: turns one publish into arguments of `schedule`.

The libraries encode values differently: pika and py-amqp write the integer 1 with 32 bits, aio_pika
with 8, and py-amqp writes bytes as text. So the library itself encodes headers and properties when
the message is accepted, and exactly those bytes arrive.
"""

from __future__ import annotations

import struct
from typing import Any

from delaybridge.amqp.decoding import split_content_header
from delaybridge.amqp.frames import BASIC_CLASS
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
    """The arguments of `client.schedule` except the body.

    broker: as for `broker_of`. properties: flags and property list as in a content header frame.
    Raises ConfigError, and MessageError `bad_id` for a message id that is not UTF-8.
    """
    return {
        "destination": destination(
            "rabbitmq", broker_of(client, "rabbitmq", broker), exchange, routing_key
        ),
        "delay": timing.delay,
        "at": timing.at,
        "id": timing.id or _text(message_id),
        "retry": timing.retry,
        "properties": split_content_header(_HEADER_START + properties),
    }


def _text(message_id: str | bytes | None) -> str | None:
    if not isinstance(message_id, bytes):
        return message_id or None
    try:
        return message_id.decode() or None
    except UnicodeDecodeError:
        raise MessageError("bad_id", "message_id", "not UTF-8; give it as text") from None
