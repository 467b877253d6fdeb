"""Shared by the drop-ins for Kafka: turns one record into a message."""

from __future__ import annotations

from typing import Any

from delaybridge.client import AsyncClient, Client
from delaybridge.errors import MessageError
from delaybridge.intercept import Timing, broker_of, destination
from delaybridge.message import Message


def check_record(topic: object, *, is_in_transaction: bool) -> None:
    """MessageError `in_transaction`; TypeError for a topic that is not text."""
    if is_in_transaction:
        raise MessageError("in_transaction", "delay", "produce it before or after the transaction")
    if not isinstance(topic, str):
        raise TypeError(f"topic: must be str, not {type(topic).__name__}")


def message_of(
    client: Client | AsyncClient,
    broker: str | None,
    timing: Timing,
    topic: str,
    value: Any,
    key: Any,
    partition: int | None,
    headers: list[tuple[str, Any]],
) -> Message:
    """The record as a message for `client`.

    broker: as for `broker_of`, which may raise ConfigError. partition: None lets the workers choose
    it by the key. headers: without instructions.
    """
    return Message(
        destination("kafka", broker_of(client, "kafka", broker), topic),
        value,
        delay=timing.delay,
        at=timing.at,
        id=timing.id,
        retry=timing.retry,
        key=key,
        headers=headers,
        properties={} if partition is None else {"partition": partition},
    )
