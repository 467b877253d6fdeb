"""The limits that a Kafka cluster announces."""

from __future__ import annotations

from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    ResourceType,
)

from delaybridge.publish.kafka.configuration import Configuration

_TIMEOUT_S = 5.0
_FOR_ANY_CLIENT = ("bootstrap.servers", "security.", "sasl.", "ssl.")


def largest_record(settings: Configuration) -> int | None:
    """The most bytes of one record (`message.max.bytes`); None if the cluster does not tell.

    A topic may have a limit of its own. Blocks for up to 10 s.
    """
    mine = {k: v for k, v in settings.current().items() if k.startswith(_FOR_ANY_CLIENT)}
    admin = AdminClient({**mine, "log_level": 0})
    try:
        number = next(iter(admin.list_topics(timeout=_TIMEOUT_S).brokers))
        broker = ConfigResource(ResourceType.BROKER, str(number))
        asked = admin.describe_configs([broker], request_timeout=_TIMEOUT_S)
        return int(asked[broker].result(_TIMEOUT_S)["message.max.bytes"].value)
    except (KafkaException, StopIteration, KeyError, TimeoutError):
        return None
