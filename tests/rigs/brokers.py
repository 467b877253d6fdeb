"""The brokers of the publisher contract: what each one needs to play its part in every test.

A new publisher is one class here and one line in `test_publish_contract.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import confluent_kafka
import kombu
import pika
import pytest
import redis
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from delaybridge import Client
from delaybridge.message import Delivery, Destination, Record
from delaybridge.publish import Outcome, Publisher, PublishOptions, Verdict, connect
from delaybridge.publish.memory import MemoryPublisher
from tests.rigs import certificates
from tests.rigs.fault_proxy import FaultProxy
from tests.rigs.fleet import Process
from tests.rigs.waiting import wait_until, wait_until_async
from tests.servers.kafka import KafkaNode
from tests.servers.process import LOOPBACK, accepts, free_port
from tests.servers.rabbitmq import RabbitMQNode
from tests.servers.redis import RedisServer, redis_url_of, tls_binary

DUE_MS = 1_800_000_000_000
CONFIRM_TIMEOUT_S = 2.0
OPTIONS = PublishOptions(
    confirm_timeout_s=CONFIRM_TIMEOUT_S, heartbeat_s=5, blocked_connection_timeout_s=20.0
)


class Received(NamedTuple):
    """What a plain consumer got."""

    id: str
    body: bytes | None
    attempt: int


class Sink:
    """Takes a publisher's reports: each delivery once."""

    def __init__(self) -> None:
        self.outcomes: dict[Delivery, Outcome] = {}
        self.changes: list[str | None] = []
        self.publisher: Publisher | None = None

    def report(self, deliveries: Sequence[Delivery], outcome: Outcome) -> None:
        """The publisher's `report`."""
        for delivery in deliveries:
            assert delivery not in self.outcomes, f"{delivery.id} reported twice"
            self.outcomes[delivery] = outcome

    def changed(self) -> None:
        """The publisher's `on_change`."""
        if self.publisher is not None:
            self.changes.append(self.publisher.unavailable)

    async def all_of(self, deliveries: Iterable[Delivery], deadline_s: float = 10.0) -> None:
        """Wait until each of them has its outcome."""
        wanted = set(deliveries)
        await wait_until_async(lambda: wanted <= self.outcomes.keys(), deadline_s, "all reported")

    def verdicts(self, deliveries: Iterable[Delivery]) -> set[Verdict]:
        """The verdicts of these."""
        return {self.outcomes[delivery].verdict for delivery in deliveries}

    def reasons(self, deliveries: Iterable[Delivery]) -> set[str]:
        """The first words of their reasons."""
        return {self.outcomes[delivery].reason.split(":")[0] for delivery in deliveries}


class Rig(ABC):
    """One kind of broker: a server of its own, behind a proxy, with faults at hand."""

    kind: str
    missing_reason = ""
    oversize: int | None = 20 * 1024 * 1024  # None: everything that is accepted is taken
    oversize_reason = "message_too_large"
    is_pipelined = True  # else one is on the way at a time, and the others were never written

    @abstractmethod
    def url(self) -> str:
        """Where the publisher connects: through the proxy."""

    @abstractmethod
    def make(self, name: str | None = None) -> str:
        """A new address that exists."""

    @abstractmethod
    def read(self, address: str, at_least: int) -> list[Received]:
        """What a plain consumer gets from it, in order: everything there, `at_least` so many."""

    def login(self, file: Path) -> tuple[str, str] | None:
        """A URL with a user whose password is in the file, and the password; None: no users."""
        return None

    async def new_destination(self) -> Destination:
        """Somewhere to publish to."""
        return self.destination(await asyncio.to_thread(self.make))

    def missing_destination(self) -> Destination:
        """Somewhere that does not exist."""
        return self.destination(f"missing-{uuid.uuid4().hex}")

    def destination(self, address: str) -> Destination:
        """The destination of an address."""
        return Destination(self.kind, self.kind, address)

    def delivery(self, to: Destination, body: bytes = b"body", **record: Any) -> Delivery:
        """A delivery with an id of its own."""
        made = Record(str(to), body, **record)
        return Delivery(uuid.uuid4().hex, made, to, DUE_MS, 1)

    def deliveries(self, to: Destination, count: int) -> list[Delivery]:
        """Many, with their number as body."""
        return [self.delivery(to, str(number).encode()) for number in range(count)]

    # a session of one test

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return

    @abstractmethod
    def close(self) -> None:
        """End what lives longer than a test."""

    @contextlib.asynccontextmanager
    async def connected(self, options: PublishOptions = OPTIONS, url: str | None = None) -> Any:
        """A connected publisher and its sink."""
        sink = Sink()
        made = connect(
            self.kind,
            url or self.url(),
            report=sink.report,
            on_change=sink.changed,
            options=options,
        )
        sink.publisher = made
        try:
            await made.connect()
            yield made, sink
        finally:
            await made.close(0.0)

    @abstractmethod
    async def stop(self) -> None:
        """The broker ends."""

    @abstractmethod
    async def start(self) -> None:
        """The broker comes back with what it had."""

    @abstractmethod
    async def swallow_confirms(self, publisher: Publisher) -> None:
        """What the broker answers is lost from now on."""

    @abstractmethod
    async def reset(self, publisher: Publisher) -> None:
        """All connections are reset."""

    @abstractmethod
    async def heal(self, publisher: Publisher) -> None:
        """The network is well again."""


class NetworkRig(Rig):
    """A rig whose broker is a process, reached through a proxy on a port that stays the same."""

    def __init__(self) -> None:
        self.proxy_port = free_port()
        self.node: Any = None

    async def __aenter__(self) -> Self:
        await self.start()
        self.proxy = FaultProxy(self.proxy_port, self.node.port)
        await self.proxy.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.proxy.__aexit__()

    def close(self) -> None:
        self.node.close()

    async def stop(self) -> None:
        # Not killed: RabbitMQ 4.3 forgets what it confirmed for a quorum queue that was declared
        # within the last second or two before a SIGKILL.
        await asyncio.to_thread(self.node.stop)

    async def start(self) -> None:
        await asyncio.to_thread(self.node.start)

    async def swallow_confirms(self, publisher: Publisher) -> None:
        self.proxy.mode = "blackhole_down"

    async def reset(self, publisher: Publisher) -> None:
        self.proxy.reset()

    async def heal(self, publisher: Publisher) -> None:
        self.proxy.mode = "pass"


class Tls(NamedTuple):
    """A port for TLS of a RabbitMQ, and the authority that vouches for it."""

    url: str
    authority: Path

    @property
    def trusting(self) -> str:
        """The URL, as pika reads it, of who trusts that authority."""
        return f"{self.url}?ssl_options={{'ca_certs':'{self.authority}'}}"


@contextlib.contextmanager
def redis_with_tls(folder: Path) -> Iterator[tuple[int, Path]]:
    """A Redis of the test's own: the port that speaks TLS, and the authority to trust."""
    binary = tls_binary()
    if binary is None:
        pytest.skip("no Redis here was built with TLS")
    made, port = certificates.make(folder), free_port()
    tls = ["--tls-port", str(port), "--tls-auth-clients", "no"]
    files = ["--tls-cert-file", str(made.certificate), "--tls-key-file", str(made.key)]
    authority = ["--tls-ca-cert-file", str(made.authority)]
    with RedisServer([*tls, *files, *authority], binary=binary):
        yield port, made.authority


@contextlib.contextmanager
def running_with_tls(node: RabbitMQNode) -> Iterator[Tls]:
    """A node that was not started yet, up, and its port for TLS."""
    made, port, inside = certificates.make(node.folder), free_port(), node.environment()["HOME"]
    with (node.folder / "rabbitmq.conf").open("a") as config:
        config.write(
            f"listeners.ssl.1 = {LOOPBACK}:{port}\n"
            f"ssl_options.cacertfile = {inside}/{made.authority.name}\n"
            f"ssl_options.certfile = {inside}/{made.certificate.name}\n"
            f"ssl_options.keyfile = {inside}/{made.key.name}\n"
        )
    with node:
        wait_until(lambda: accepts(port), 10.0, "TLS is up, a little later")
        yield Tls(f"amqps://guest:guest@{LOOPBACK}:{port}/%2F", made.authority)


class RabbitMQRig(NetworkRig):
    """RabbitMQ 4.3: an exchange with one quorum queue per destination."""

    kind = "rabbitmq"
    missing_reason = "exchange_missing"

    def __init__(self, config: str = "max_message_size = 16777216\n") -> None:
        """config: RabbitMQ 4's own limit of a message by default; RabbitMQ 3 takes larger ones."""
        super().__init__()
        self.node = RabbitMQNode(config)

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

    def read_raw(self, queue: str, at_least: int, deadline_s: float = 10.0) -> list[Any]:
        """Properties and bodies, as pika gives them."""
        found: list[Any] = []
        deadline = time.monotonic() + deadline_s
        with self.channel() as channel:
            while time.monotonic() < deadline:
                method, properties, body = channel.basic_get(queue, auto_ack=True)
                if method is not None:
                    found.append((properties, body))
                elif len(found) >= at_least:
                    return found
                else:
                    time.sleep(0.01)
        return found


class KafkaRig(NetworkRig):
    """Apache Kafka 4.3, one node: a topic with one partition per destination."""

    kind = "kafka"
    missing_reason = "topic_missing"
    partitions = 1

    def __init__(self, properties: dict[str, str] | None = None) -> None:
        super().__init__()
        advertised = {"advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{self.proxy_port}"}
        no_creation = {"auto.create.topics.enable": "false"}
        self.node = KafkaNode({**advertised, **no_creation, **(properties or {})})

    def url(self) -> str:
        return f"kafka://{LOOPBACK}:{self.proxy_port}"

    def make(self, name: str | None = None, *, settled: bool = True, **config: str) -> str:
        """settled: its partitions take records. One that refused its first may lose it later."""
        name = name or f"t-{uuid.uuid4().hex}"
        admin = AdminClient(self._settings())
        topic = NewTopic(name, self.partitions, 1, config=config)
        admin.create_topics([topic])[name].result(10)
        for number in range(self.partitions if settled else 0):
            asked = TopicPartition(name, number)
            wait_until(lambda asked=asked: self._has_leader(admin, asked), 10)
        return name

    @staticmethod
    def _has_leader(admin: AdminClient, partition: TopicPartition) -> bool:
        try:
            admin.list_offsets({partition: OffsetSpec.latest()})[partition].result(10)
        except KafkaException:
            return False
        return True

    def read(self, address: str, at_least: int) -> list[Received]:
        found = []
        for record in self.read_raw(address, at_least):
            headers = dict(record.headers())
            attempt = int(headers["delaybridge-attempt"])
            found.append(Received(headers["delaybridge-id"].decode(), record.value(), attempt))
        return found

    def read_raw(self, topic: str, at_least: int, deadline_s: float = 10.0) -> list[Any]:
        """Records, as confluent_kafka gives them, partition by partition."""
        consumer = confluent_kafka.Consumer(
            {**self._settings(), "group.id": uuid.uuid4().hex, "enable.partition.eof": True}
        )
        assigned = [confluent_kafka.TopicPartition(topic, n, 0) for n in range(self.partitions)]
        consumer.assign(assigned)
        found: list[Any] = []
        ended: set[int] = set()
        deadline = time.monotonic() + deadline_s
        try:
            while time.monotonic() < deadline:
                record = consumer.poll(0.1)
                if record is None:
                    continue
                if record.error() is None:
                    found.append(record)
                elif record.error().code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    ended.add(record.partition())
                if len(ended) == self.partitions and len(found) >= at_least:
                    break
        finally:
            consumer.close()
        return found

    def _settings(self) -> dict[str, Any]:
        return {"bootstrap.servers": f"{LOOPBACK}:{self.proxy_port}", "log_level": 0}


class RedisRig(NetworkRig):
    """Redis with an append-only file. What stands in a stream's way is a key of another type."""

    kind = "redis"
    missing_reason = "wrong_type"
    oversize = None  # its limit, 512 MB, is that of limits.body_bytes

    def __init__(self, args: Sequence[str] = ()) -> None:
        super().__init__()
        self.node = RedisServer(["--appendonly", "yes", *args])

    def url(self) -> str:
        return redis_url_of(self.proxy_port)

    def login(self, file: Path) -> tuple[str, str] | None:
        with self.client() as client:
            client.acl_setuser(
                *("bridge", True), passwords=["+s3cret@:/"], keys=["*"], commands=["+@all"]
            )
        return f"{self.url().replace('://', '://bridge@')}?password_file={file}", "s3cret@:/"

    def client(self) -> redis.Redis:
        """A plain client, past the proxy."""
        return redis.Redis.from_url(self.node.url)

    def make(self, name: str | None = None) -> str:
        name = name or f"s-{uuid.uuid4().hex}"
        with self.client() as client:
            client.delete(name)  # whatever is in the way
        return name

    def missing_destination(self) -> Destination:
        missing = super().missing_destination()
        with self.client() as client:
            client.set(missing.address, "no stream")
        return missing

    def read(self, address: str, at_least: int) -> list[Received]:
        with self.client() as client:
            return [
                Received(
                    fields[b"delaybridge-id"].decode(),
                    fields[b"body"],
                    int(fields[b"delaybridge-attempt"]),
                )
                for _, fields in client.xrange(address)
            ]


class KombuRedisRig(RedisRig):
    """kombu over Redis: a list per queue."""

    kind = "kombu"
    is_pipelined = False

    def url(self) -> str:
        return f"kombu+{super().url()}"

    def read(self, address: str, at_least: int) -> list[Received]:
        return read_kombu(self.node.url, address, at_least)

    def delivery(self, to: Destination, body: bytes = b"body", **record: Any) -> Delivery:
        return super().delivery(to, body, **{"headers": b""} | record)


class KombuAmqpRig(RabbitMQRig):
    """kombu over AMQP: a queue that the default exchange leads to."""

    kind = "kombu"
    missing_reason = "unroutable"
    oversize_reason = "precondition_failed"
    is_pipelined = False

    def url(self) -> str:
        return f"kombu+{super().url()}"

    def destination(self, address: str) -> Destination:
        return Destination(self.kind, self.kind, address)

    def delivery(self, to: Destination, body: bytes = b"body", **record: Any) -> Delivery:
        return super().delivery(to, body, **{"headers": b""} | record)


def read_kombu(url: str, queue: str, at_least: int, deadline_s: float = 30.0) -> list[Received]:
    """What kombu itself takes from a queue."""
    found: list[Received] = []
    deadline = time.monotonic() + deadline_s
    with kombu.Connection(url) as connection, connection.channel() as channel:
        while time.monotonic() < deadline:
            message = channel.basic_get(queue, no_ack=True)
            if message is not None:
                headers = message.headers
                body = message.body or b""
                body = body.encode() if isinstance(body, str) else body
                found.append(
                    Received(headers["delaybridge-id"], body, headers["delaybridge-attempt"])
                )
            elif len(found) >= at_least:
                break
            else:
                time.sleep(0.01)
    return found


class MemoryRig(Rig):
    """The memory publisher plays along with what its own switches offer."""

    kind = "memory"
    oversize = None

    def __init__(self) -> None:
        self.publisher: MemoryPublisher | None = None

    def close(self) -> None:
        self.publisher = None

    def url(self) -> str:
        return "memory://"

    def make(self, name: str | None = None) -> str:
        return name or uuid.uuid4().hex

    def read(self, address: str, at_least: int) -> list[Received]:
        return [
            Received(one.id, one.record.body, one.attempt)
            for one in self.made.published
            if one.destination.address == address
        ]

    @contextlib.asynccontextmanager
    async def connected(self, options: PublishOptions = OPTIONS, url: str | None = None) -> Any:
        async with super().connected(options, url) as (made, sink):
            self.publisher = made
            yield made, sink

    @property
    def made(self) -> MemoryPublisher:
        """The publisher of this test."""
        assert self.publisher is not None
        return self.publisher

    async def stop(self) -> None:
        self.made.unavailable = "unreachable: told to"
        self.made.lose()

    async def start(self) -> None:
        if self.publisher is not None:
            self.publisher.unavailable = None

    async def swallow_confirms(self, publisher: Publisher) -> None:
        self.made.hold = True
        asyncio.get_running_loop().call_later(
            CONFIRM_TIMEOUT_S, self.made.lose, "confirm_timeout: told to"
        )

    async def reset(self, publisher: Publisher) -> None:
        self.made.lose()

    async def heal(self, publisher: Publisher) -> None:
        self.made.hold = False


@contextlib.contextmanager
def running_worker(
    redis_url: str, namespace: str, broker_url: str, folder: Path, name: str = "w1"
) -> Iterator[Process]:
    """A real `delaybridge scan` with one broker, named after its kind, for as long as it takes."""
    command = [sys.executable, "-m", "delaybridge", "--redis", redis_url]
    command += ["--namespace", namespace, "--broker", broker_url, "scan", "--name", name]
    process = Process(name, command, {**os.environ}, folder / f"{name}.log")
    try:
        yield process
    finally:
        process.close()


def is_settled(client: Client) -> bool:
    """Whether nothing is left to be delivered, and nothing was given up."""
    stats = client.stats()
    assert stats.dead == 0
    return stats.delayed + stats.in_flight + stats.parked == 0
