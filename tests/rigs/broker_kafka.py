"""Kafka for tests of publishers."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from delaybridge.message import Destination
from delaybridge.publish.kafka.client import KafkaClient
from delaybridge.publish.kafka.topic import TopicState
from tests.rigs import certificates
from tests.rigs.bridge import make_topic
from tests.rigs.broker import NetworkRig, Received
from tests.rigs.kafka_site import messages_of
from tests.rigs.waiting import DEADLINE_S
from tests.servers.kafka import KafkaNode, plain_login
from tests.servers.process import LOOPBACK, free_port


class GuardedNode(KafkaNode):
    """A Kafka that clients reach through a proxy, with a login or over TLS; it obeys ACLs."""

    def __init__(self) -> None:
        self.proxy_port, self.login_port, self.tls_port = (free_port() for _ in range(3))
        login = plain_login("bridge", "right")
        protocols = f"{login.pop('listener.security.protocol.map')},SSL:SSL"
        super().__init__(
            {
                **login,
                "listener.security.protocol.map": protocols,
                "advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{self.proxy_port}",
                "auto.create.topics.enable": "false",
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "allow.everyone.if.no.acl.found": "true",
                "ssl.keystore.type": "PEM",
            }
        )
        made = certificates.make(self.folder)
        self.authority, keystore = made.authority, self.folder / "keystore.pem"
        keystore.write_text(made.key.read_text() + made.certificate.read_text())
        self.add_listener(f"LOGIN://{LOOPBACK}:{self.login_port}")
        tls = f"SSL://{LOOPBACK}:{self.tls_port}"
        self.add_listener(tls, f"ssl.keystore.location={keystore}")


@functools.cache
def breakable_node() -> GuardedNode:
    """The one private Kafka of this process' tests of publishers: who breaks it, repairs it."""
    return GuardedNode()


class KafkaRig(NetworkRig):
    """Apache Kafka 4.3, one node: a topic with one partition per destination."""

    kind = "kafka"
    missing_reason = "topic_missing"
    raising = (
        "delaybridge.publish.kafka.publisher:KafkaPublisher._ask_for",
        "delaybridge.publish.kafka.client:KafkaClient._answer",
        "delaybridge.publish.kafka.topic:TopicState.confirmed",
    )

    def __init__(self, partitions: int = 1) -> None:
        super().__init__()
        self.partitions = partitions
        self.node = breakable_node()
        self.proxy_port = self.node.proxy_port  # which it advertises

    def close(self) -> None:
        """Nothing: other tests go on with the node."""

    def url(self) -> str:
        return f"kafka://{LOOPBACK}:{self.proxy_port}"

    def make(self, name: str | None = None, *, settled: bool = True, **config: str) -> str:
        """settled: wait until it can be written to."""
        name = name or f"t-{uuid.uuid4().hex}"
        admin = AdminClient(self._settings())
        topic = NewTopic(name, self.partitions, 1, config=config)
        if settled:
            make_topic(admin, topic)
        else:
            admin.create_topics([topic])[name].result(DEADLINE_S)
        return name

    def read(self, address: str, at_least: int) -> list[Received]:
        found = []
        for record in self.read_raw(address, at_least):
            headers = dict(record.headers())
            attempt = int(headers["delaybridge-attempt"])
            found.append(Received(headers["delaybridge-id"].decode(), record.value(), attempt))
        return found

    def read_raw(self, topic: str, at_least: int) -> list[Any]:
        """Records, as confluent_kafka gives them, partition by partition."""
        return messages_of(self._settings(), topic, self.partitions, at_least)

    def _settings(self) -> dict[str, Any]:
        return {"bootstrap.servers": f"{LOOPBACK}:{self.proxy_port}", "log_level": 0}


class KafkaInsides:
    """What the user of a publisher does not see: its producers, and what it knows of a topic."""

    def __init__(self, publisher: Any) -> None:
        """erred: as librdkafka calls it, with one of the producers and an error."""
        self.clients, self.erred = publisher._clients, publisher._erred
        self._publisher = publisher

    def topic(self, to: Destination) -> TopicState:
        topics: dict[str, TopicState] = self._publisher._topics
        return topics[to.address]

    @property
    def on_change(self) -> Callable[[], None]:
        """What the publisher calls when `unavailable` changes, before it acts on that."""
        called: Callable[[], None] = self._publisher._on_change
        return called

    @on_change.setter
    def on_change(self, call: Callable[[], None]) -> None:
        self._publisher._on_change = call

    @staticmethod
    def librdkafka(client: KafkaClient) -> Any:
        """The producer of confluent_kafka."""
        return client._producer
