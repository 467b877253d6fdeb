"""A stored record as the message that `kombu.Producer.publish` would have prepared."""

from __future__ import annotations

import contextlib
from typing import Any

from delaybridge.amqp.decoding import decode_table
from delaybridge.message import OWN_HEADERS, Delivery

_PERSISTENT = 2


def message(channel: Any, delivery: Delivery) -> Any:
    """The delivery in the form of the channel's transport, with delaybridge's headers added."""
    record = delivery.record
    stored = record.properties if isinstance(record.properties, bytes) else b""
    properties: dict[str, Any] = {"delivery_mode": _PERSISTENT} | dict(decode_table(stored))
    headers = dict(decode_table(record.headers))  # type: ignore[arg-type]  # a table for this kind
    ours = (delivery.given_id, delivery.due_ms, delivery.attempt)
    content_type = properties.pop("content_type", "application/data")
    encoding = properties.pop("content_encoding", "binary")
    properties.pop("delivery_info", None)  # the channel sets it
    return channel.prepare_message(
        _body(record.body or b"", encoding),
        priority=properties.pop("priority", 0),
        content_type=content_type,
        content_encoding=encoding,
        headers=headers | dict(zip(OWN_HEADERS, ours, strict=True)),
        properties=properties,
    )


def _body(body: bytes, encoding: Any) -> bytes | str:
    """Text where kombu's serializers leave text: a transport that encodes nothing needs it."""
    if str(encoding).lower() in ("utf-8", "utf8"):
        with contextlib.suppress(UnicodeDecodeError):
            return body.decode()
    return body
