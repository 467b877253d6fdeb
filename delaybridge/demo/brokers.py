"""Where the demo's messages go: a queue or topic of its own, removed at the end.

Touches nothing else on the broker. Without a broker, librdkafka's mock cluster stands in for Kafka,
inside this process.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import confluent_kafka
import pika
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pika.exceptions import AMQPError

from delaybridge.amqp.connection import reason_of
from delaybridge.errors import ConfigError, PublishUnavailable, printable
from delaybridge.publish import PublishOptions
from delaybridge.publish.kafka.configuration import configuration
from delaybridge.settings.urls import check_broker_url, kind_of, redact

_PARTITIONS = 4
_NO_SUCH_PARTITION = 99
_ANSWER_S = 10.0
_QUEUE_EXPIRES_MS = 60_000  # RabbitMQ deletes it after this, if the demo was killed
# The publisher's settings by which to reach the cluster.
# fmt: off
_CONNECTING = (
    "bootstrap.", "security.", "sasl.", "ssl.", "socket.", "client.", "broker.",
    "reconnect.", "connections.",
)
# fmt: on
_QUIET = {"log_level": 0}  # librdkafka would write to our standard error


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A queue or topic of the demo's own.

    url: the broker, for a worker's settings. about: the same for people, without secrets. own: the
    queue or topic, for people. consume: the consumer's input. poison: a destination that, with
    poison_properties, cannot be delivered to.
    """

    kind: str
    url: str
    about: str
    own: str
    destination: str
    consume: Mapping[str, Any]
    poison: str
    poison_properties: Mapping[str, Any] = field(default_factory=dict)
    stand_in: bool = False


@contextmanager
def target(url: str | None) -> Iterator[Target]:
    """The demo's own queue or topic on the broker at `url`, or on a stand-in for Kafka.

    ConfigError if the URL is not of a RabbitMQ or Kafka; PublishUnavailable if the broker is not.
    """
    name = f"delaybridge-demo-{secrets.token_hex(4)}"
    if url is None:
        opened = _stand_in(name)
    else:
        try:
            kind = kind_of(check_broker_url(url))
        except ValueError as exc:
            raise ConfigError(f"--broker: {redact(url)!r} is not accepted; use {exc}") from None
        if kind not in ("rabbitmq", "kafka"):
            raise ConfigError("--broker: the demo accepts only amqp[s]:// and kafka[s]://")
        # Not the URL that the check returns: it masks the password, which a client needs.
        opened = _rabbitmq(url, name) if kind == "rabbitmq" else _kafka(url, name)
    with opened as found:
        yield found


@contextmanager
def _stand_in(topic: str) -> Iterator[Target]:
    """librdkafka's mock cluster; other processes can reach it as long as `owner` lives."""
    owner = Producer({"test.mock.num.brokers": 1, **_QUIET})
    brokers = owner.list_topics(topic, timeout=_ANSWER_S).brokers  # asking creates the topic
    servers = ",".join(f"{broker.host}:{broker.port}" for broker in brokers.values())
    version = confluent_kafka.libversion()[0]
    yield _kafka_target(
        topic,
        url=f"kafka://{servers}",
        about=f"kafka mock {version} (a stand-in, in this process)  {servers}",
        own=f"topic {topic}",
        settings={"bootstrap.servers": servers},
        stand_in=True,
    )
    owner.purge()


@contextmanager
def _kafka(url: str, topic: str) -> Iterator[Target]:
    given = configuration("kafka", url, PublishOptions())
    settings = {name: v for name, v in given.items() if name.startswith(_CONNECTING)}
    admin = AdminClient({**settings, **_QUIET})
    try:
        admin.list_topics(timeout=_ANSWER_S / 2)
        new = admin.create_topics([NewTopic(topic, _PARTITIONS)], operation_timeout=_ANSWER_S)
        new[topic].result(_ANSWER_S)
    except (KafkaException, TimeoutError) as exc:
        reason = _reason_of(exc) or f"no topic was created within {_ANSWER_S:g} s"
        raise PublishUnavailable(f"--broker {redact(url)}: {reason}") from exc
    try:
        about, own = f"kafka  {redact(url)}", f"topic {topic}, deleted at the end"
        yield _kafka_target(topic, url=url, about=about, own=own, settings=settings)
    finally:
        try:
            admin.delete_topics([topic])[topic].result(_ANSWER_S)
        except (KafkaException, TimeoutError) as exc:
            reason = _reason_of(exc) or f"it was not deleted within {_ANSWER_S:g} s"
            left = f"topic {topic} is left behind: {reason}"
            raise PublishUnavailable(f"--broker {redact(url)}: {left}") from exc


def _kafka_target(topic: str, *, settings: Mapping[str, Any], **more: Any) -> Target:
    return Target(
        kind="kafka",
        destination=f"kafka:{topic}",
        consume={"kind": "kafka", "settings": settings, "topic": topic},
        poison=f"kafka:{topic}",
        poison_properties={"partition": _NO_SUCH_PARTITION},
        **more,
    )


def _reason_of(failure: KafkaException | TimeoutError) -> str | None:
    """The client's reason; None if the broker did not answer in time."""
    if isinstance(failure, TimeoutError):
        return None
    return printable(failure.args[0].str())


@contextmanager
def _rabbitmq(url: str, queue: str) -> Iterator[Target]:
    logging.getLogger("pika").setLevel(logging.CRITICAL)  # its errors are raised as well
    with _channel(url) as (channel, server):
        channel.queue_declare(queue, durable=True, arguments={"x-expires": _QUEUE_EXPIRES_MS})
    try:
        yield Target(
            kind="rabbitmq",
            url=url,
            about=f"rabbitmq {server}  {redact(url)}",
            own=f"queue {queue}, deleted at the end",
            destination=f"rabbitmq:/{queue}",
            consume={"kind": "rabbitmq", "url": url, "queue": queue},
            poison=f"rabbitmq:/{queue}.nowhere",
        )
    finally:
        with _channel(url) as (channel, _):
            channel.queue_delete(queue)


@contextmanager
def _channel(url: str) -> Iterator[tuple[Any, str]]:
    """A channel and the server's version; PublishUnavailable for any error."""
    connection = None
    try:
        connection = pika.BlockingConnection(pika.URLParameters(url))
        properties = connection._impl.server_properties or {}
        yield connection.channel(), printable(str(properties.get("version", "")))
    except (AMQPError, OSError) as exc:
        cause = exc.args[0] if exc.args else exc  # pika wraps the cause
        reason = reason_of(cause if isinstance(cause, BaseException) else exc)
        raise PublishUnavailable(f"--broker {redact(url)}: {reason}") from exc
    finally:
        if connection is not None and connection.is_open:
            connection.close()
