"""kombu over Redis and over AMQP, for tests of publishers."""

from __future__ import annotations

from typing import Any

import kombu

from delaybridge.message import Delivery, Destination
from tests.rigs.broker import Received
from tests.rigs.broker_rabbitmq import RabbitMQRig
from tests.rigs.broker_redis import RedisRig
from tests.rigs.waiting import DEADLINE_S, until

RAISING = (
    "delaybridge.publishers.kombu.thread:ConnectionThread.send",
    "delaybridge.publishers.kombu.thread:ConnectionThread.take_outcomes",
    "delaybridge.publishers.kombu.thread:ConnectionThread._publish",
)


class KombuRedisRig(RedisRig):
    """kombu over Redis: a list per queue."""

    kind = "kombu"
    raising = RAISING
    is_pipelined = False

    def url(self) -> str:
        return f"kombu+{super().url()}"

    def read(self, address: str, at_least: int) -> list[Received]:
        return read_kombu(self.node.url, address, at_least)

    def delivery(self, to: Destination, body: bytes = b"body", **record: Any) -> Delivery:
        return super().delivery(to, body, **{"headers": b""} | record)


class KombuAmqpRig(RabbitMQRig):
    """kombu over AMQP: a queue, reached by the default exchange."""

    kind = "kombu"
    missing_reason = "unroutable"
    oversize_reason = "precondition_failed"
    raising = RAISING
    is_pipelined = False

    def url(self) -> str:
        return f"kombu+{super().url()}"

    def destination(self, address: str) -> Destination:
        return Destination(self.kind, self.kind, address)

    def delivery(self, to: Destination, body: bytes = b"body", **record: Any) -> Delivery:
        return super().delivery(to, body, **{"headers": b""} | record)


def read_kombu(url: str, queue: str, at_least: int) -> list[Received]:
    """The messages of a queue, as kombu itself receives them."""
    found: list[Received] = []
    patient = kombu.Connection(url, connect_timeout=DEADLINE_S)
    with patient as connection, connection.channel() as channel:

        def are_found() -> bool:
            while (message := channel.basic_get(queue, no_ack=True)) is not None:
                headers, body = message.headers, message.body or b""
                body = body.encode() if isinstance(body, str) else body
                found.append(
                    Received(headers["delaybridge-id"], body, headers["delaybridge-attempt"])
                )
            return len(found) >= at_least

        until(are_found, lambda: f"{at_least} in {queue}, now {len(found)}")
    return found
