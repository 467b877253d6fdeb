"""RabbitMQ for tests of publishers."""

from __future__ import annotations

import contextlib
import functools
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pika

from delaybridge.message import Destination
from tests.rigs import certificates
from tests.rigs.broker import NetworkRig, Received
from tests.rigs.waiting import DEADLINE_S, until
from tests.servers.process import LOOPBACK, accepts, free_port
from tests.servers.rabbitmq import RabbitMQNode

MAX_MESSAGE_BYTES = 1_000_000  # lower than RabbitMQ's default, which a publisher checks


class Tls(NamedTuple):
    """RabbitMQ's URL for TLS, and the authority that signed its certificate."""

    url: str
    authority: Path

    @property
    def trusting(self) -> str:
        """The URL for pika with that authority as the trusted one."""
        return f"{self.url}?ssl_options={{'ca_certs':'{self.authority}'}}"


class TlsNode(RabbitMQNode):
    """A RabbitMQ that takes TLS, too, and no message larger than `MAX_MESSAGE_BYTES`."""

    def __init__(self) -> None:
        super().__init__(f"max_message_size = {MAX_MESSAGE_BYTES}\n")
        made, self._tls_port = certificates.make(self.folder), free_port()
        inside = self.environment()["HOME"]
        with (self.folder / "rabbitmq.conf").open("a") as config:
            config.write(
                f"listeners.ssl.1 = {LOOPBACK}:{self._tls_port}\n"
                f"ssl_options.cacertfile = {inside}/{made.authority.name}\n"
                f"ssl_options.certfile = {inside}/{made.certificate.name}\n"
                f"ssl_options.keyfile = {inside}/{made.key.name}\n"
            )
        self.tls = Tls(f"amqps://guest:guest@{LOOPBACK}:{self._tls_port}/%2F", made.authority)

    def is_ready(self) -> bool:
        return super().is_ready() and accepts(self._tls_port)


@functools.cache
def breakable_node() -> TlsNode:
    """The one private RabbitMQ of all tests of this process: who breaks it, repairs it."""
    return TlsNode()


class ManagedNode(RabbitMQNode):
    """A RabbitMQ with the management plugin."""

    def __init__(self) -> None:
        port = free_port()
        self.management = f"http://{LOOPBACK}:{port}"
        super().__init__(f"management.tcp.ip = {LOOPBACK}\nmanagement.tcp.port = {port}\n")
        (self.folder / "enabled_plugins").write_text("[rabbitmq_management].\n")

    def put(self, path: str, about: Mapping[str, Any]) -> None:
        """Make something by its API, such as `policies/%2F/NAME`; sooner than `ctl` does."""
        with httpx.Client(auth=("guest", "guest"), timeout=DEADLINE_S) as client:
            client.put(f"{self.management}/api/{path}", json=about).raise_for_status()

    def delete(self, path: str) -> None:
        """Remove it again."""
        with httpx.Client(auth=("guest", "guest"), timeout=DEADLINE_S) as client:
            client.delete(f"{self.management}/api/{path}").raise_for_status()

    @contextlib.contextmanager
    def policy(self, pattern: str, **definition: Any) -> Iterator[None]:
        """A policy of an operator, for every kind of queue and exchange."""
        path = f"policies/%2F/{uuid.uuid4().hex}"
        about = {"pattern": pattern, "definition": definition, "priority": 10}
        self.put(path, {**about, "apply-to": "all"})
        try:
            yield
        finally:
            self.delete(path)


@functools.cache
def managed_node() -> ManagedNode:
    """The one RabbitMQ with the management plugin of all tests of this process."""
    return ManagedNode()


class RabbitMQRig(NetworkRig):
    """RabbitMQ 4.3: an exchange with one quorum queue per destination."""

    kind = "rabbitmq"
    missing_reason = "exchange_missing"

    def __init__(self) -> None:
        super().__init__()
        self.node = breakable_node()

    def close(self) -> None:
        """Nothing: other tests go on with the node."""

    def url(self) -> str:
        return f"amqp://guest:guest@{LOOPBACK}:{self.proxy_port}/%2F"

    def login(self, file: Path) -> tuple[str, str] | None:
        return f"{self.url().replace(':guest@', '@')}?password_file={file}", "guest"

    @contextlib.contextmanager
    def channel(self) -> Iterator[Any]:
        """A channel of plain pika, past the proxy."""
        connection = pika.BlockingConnection(pika.URLParameters(self.node.url))
        try:
            yield connection.channel()
        finally:
            with contextlib.suppress(pika.exceptions.AMQPError):
                connection.close()

    def make(self, name: str | None = None) -> str:
        name = name or f"x-{uuid.uuid4().hex}"
        with self.channel() as channel:
            channel.exchange_declare(name, "direct", durable=True)
            channel.queue_declare(name, durable=True, arguments={"x-queue-type": "quorum"})
            channel.queue_bind(name, name, "key")
        return name

    def destination(self, address: str) -> Destination:
        return Destination(self.kind, self.kind, address, "key")

    def read(self, address: str, at_least: int) -> list[Received]:
        return [
            Received(
                properties.headers["delaybridge-id"],
                body,
                properties.headers["delaybridge-attempt"],
            )
            for properties, body in self.read_raw(address, at_least)
        ]

    def read_raw(self, queue: str, at_least: int) -> list[Any]:
        """Properties and bodies, as pika gives them."""
        found: list[Any] = []
        with self.channel() as channel:

            def are_found() -> bool:
                while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
                    found.append(got[1:])
                return len(found) >= at_least

            until(are_found, lambda: f"{at_least} in {queue}, now {len(found)}")
        return found
