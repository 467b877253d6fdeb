"""The id of a message, from what a client library hands to a consumer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from delaybridge.errors import MessageError

ID_HEADER = "delaybridge-id"
MOST_BYTES = 255


def message_id(headers: Any) -> str:
    """The `delaybridge-id` of a message, the same in all its deliveries.

    headers: a mapping, or pairs of which the last one counts; or what has them: the properties of
    pika, a message of kombu, aio-pika or confluent-kafka, a record of aiokafka.
    MessageError `bad_id` if there is none: then delaybridge did not deliver it.
    """
    found = getattr(headers, "headers", headers)
    if callable(found):  # confluent_kafka.Message
        found = found()
    pairs = found.items() if isinstance(found, Mapping) else found or ()
    values = [value for name, value in pairs if name == ID_HEADER]
    if not values:
        raise MessageError("bad_id", ID_HEADER, "missing; delaybridge did not deliver this message")
    return checked(values[-1], ID_HEADER)


def checked(value: object, field: str) -> str:
    """An id as text: 1 to 255 bytes of UTF-8 without a zero byte; else MessageError `bad_id`."""
    try:
        text = bytes(value).decode() if isinstance(value, bytes | bytearray) else value
        size = len(text.encode()) if isinstance(text, str) else 0
    except UnicodeError:
        raise MessageError("bad_id", field, "not valid UTF-8") from None
    if not isinstance(text, str):
        raise MessageError("bad_id", field, f"got {type(value).__name__}; give text")
    if not 1 <= size <= MOST_BYTES or "\0" in text:
        raise MessageError("bad_id", field, f"{size} bytes; give 1 to {MOST_BYTES}, none of them 0")
    return text
