"""Where the demo's messages go: queues or topics of its own, removed at the end.

Touches nothing else on the broker. Without a broker, librdkafka's mock cluster stands in for Kafka,
inside this process.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pika
from confluent_kafka import KafkaError, KafkaException, Producer, libversion
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pika.exceptions import AMQPError

from delaybridge.amqp.connection import reason_of
from delaybridge.errors import ConfigError, PublishUnavailable, printable
from delaybridge.message import Message
from delaybridge.publish import PublishOptions
from delaybridge.publish.kafka.configuration import configuration
from delaybridge.settings.settings import Settings
from delaybridge.settings.urls import kind_of, redact

_PARTITIONS = 4
_NO_SUCH_PARTITION = {"partition": 99}
ANSWER_S = 10.0
_QUEUE_EXPIRES_MS = 60_000  # RabbitMQ deletes it after this, if the demo was killed
_QUIET = {"log_level": 0}  # librdkafka would write to our standard error


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Queues or topics of the demo's own.

    url: the broker, for a worker's settings. about: the same for people, without secrets. consume:
    the consumer's input.
    """

    kind: str
    url: str
    names: Sequence[str]
    about: str
    consume: Mapping[str, Any]
    is_stand_in: bool = False

    @property
    def destinations(self) -> list[str]:
        """The queues or topics, for messages."""
        before = "rabbitmq:/" if self.kind == "rabbitmq" else "kafka:"
        return [f"{before}{name}" for name in self.names]

    @property
    def destination(self) -> str:
        """The first of its queues or topics."""
        return self.destinations[0]

    def poison(self, *, id: str, delay_s: float) -> Message:
        """A message that the broker refuses."""
        if self.kind == "rabbitmq":
            return Message(f"{self.destination}.nowhere", b"", id=id, delay=delay_s)
        return Message(self.destination, b"", id=id, delay=delay_s, properties=_NO_SUCH_PARTITION)


@contextmanager
def target(url: str | None, parts: Sequence[str] = ()) -> Iterator[Target]:
    """The demo's own queue or topic on the broker at `url`, or on a stand-in for Kafka.

    parts: names of several instead, below the demo's own name if others may have such names.
    ConfigError if the URL is not of a RabbitMQ or Kafka; PublishUnavailable if the broker is not.
    """
    name = f"delaybridge-demo-{secrets.token_hex(4)}"
    names = [f"{name}.{part}" for part in parts] or [name]
    if url is None:
        opened = _stand_in(parts or names)
    else:
        Settings.load(os.devnull, {"brokers": {"demo": url}}, environ={})  # checks the URL
        if (kind := kind_of(url)) not in ("rabbitmq", "kafka"):
            raise ConfigError("--broker: the demo accepts only amqp[s]:// and kafka[s]://")
        opened = _rabbitmq(url, names) if kind == "rabbitmq" else _kafka(url, names)
    with opened as found:
        yield found


@contextmanager
def _stand_in(topics: Sequence[str]) -> Iterator[Target]:
    """librdkafka's mock cluster; other processes can reach it as long as `owner` lives."""
    owner = Producer({"test.mock.num.brokers": 1, **_QUIET})
    for topic in topics:
        brokers = owner.list_topics(topic, timeout=ANSWER_S).brokers  # asking creates the topic
    servers = ",".join(f"{broker.host}:{broker.port}" for broker in brokers.values())
    about = f"kafka mock {libversion()[0]} (a stand-in, in this process)  {servers}"
    yield _kafka_target(f"kafka://{servers}", topics, about, is_stand_in=True)
    owner.purge()


@contextmanager
def _kafka(url: str, topics: Sequence[str]) -> Iterator[Target]:
    found = _kafka_target(url, topics, f"kafka  {redact(url)}")
    admin = AdminClient(found.consume["settings"])
    with _errors_of(url):
        admin.list_topics(timeout=ANSWER_S / 2)
    made: list[str] = []
    try:
        with _errors_of(url):
            for topic in topics:
                new = admin.create_topics(
                    [NewTopic(topic, _PARTITIONS)], operation_timeout=ANSWER_S
                )
                new[topic].result(ANSWER_S)
                made.append(topic)
        yield found
    finally:
        if made:
            with _errors_of(url, f"topic {', '.join(made)} is left behind: "):
                for gone in admin.delete_topics(made).values():
                    gone.result(ANSWER_S)


def _kafka_target(url: str, topics: Sequence[str], about: str, **more: bool) -> Target:
    settings = {**configuration("kafka", url, PublishOptions()), **_QUIET}
    consume = {"kind": "kafka", "settings": settings, "topics": topics}
    return Target(kind="kafka", url=url, names=topics, about=about, consume=consume, **more)


@contextmanager
def _rabbitmq(url: str, queues: Sequence[str]) -> Iterator[Target]:
    logging.getLogger("pika").setLevel(logging.CRITICAL)  # its errors are raised as well
    with _errors_of(url), pika.BlockingConnection(pika.URLParameters(url)) as connection:
        arguments = {"x-expires": _QUEUE_EXPIRES_MS}
        for queue in queues:
            connection.channel().queue_declare(queue, durable=True, arguments=arguments)
    try:
        consume = {"kind": "rabbitmq", "url": url, "queues": queues}
        about = f"rabbitmq  {redact(url)}"
        yield Target(kind="rabbitmq", url=url, names=queues, about=about, consume=consume)
    finally:
        with _errors_of(url), pika.BlockingConnection(pika.URLParameters(url)) as connection:
            for queue in queues:
                connection.channel().queue_delete(queue)


@contextmanager
def _errors_of(url: str, what: str = "") -> Iterator[None]:
    """Every error of a broker's client as PublishUnavailable. what: the consequence."""
    try:
        yield
    except (KafkaException, AMQPError, OSError) as exc:
        cause = exc.args[0] if exc.args else exc  # both clients wrap it
        if isinstance(exc, TimeoutError):
            reason = f"no answer within {ANSWER_S:g} s"
        elif isinstance(cause, KafkaError):
            reason = printable(cause.str())
        else:
            reason = reason_of(cause if isinstance(cause, BaseException) else exc)
        raise PublishUnavailable(f"--broker {redact(url)}: {what}{reason}") from exc
