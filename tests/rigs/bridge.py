"""A whole bridge for acceptance tests: Redis, worker processes, plain consumers, a checker."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import pika
from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from delaybridge import Client, Message
from tests.rigs.history import Delivery, Promise, Verdict, check, read
from tests.rigs.waiting import DEADLINE_S, PATIENCE_S, until

PROGRAMS = Path(__file__).parent / "programs"
SERVE = "serve_patiently.py"
ROOT = Path(__file__).parents[2]
UNAVAILABLE = 5  # the exit code
CALM_LEASE_MS = 10_000  # where nobody dies: a machine that stands still for 2 s is no death
MARKER = "marker-"  # the id of a message that only shows that consumers have all before it


class Bridge:
    """Workers are real `delaybridge scan` processes; consumers import only their client library.

    brokers: name -> URL. ledger: the URL of the ledger's database. Everything ends with `close`,
    whatever happened.
    """

    def __init__(
        self,
        folder: Path,
        redis_url: str,
        namespace: str,
        brokers: Mapping[str, str],
        *,
        lease_ttl_ms: int = 2000,
        settings: Mapping[str, str] | None = None,
        ledger: str | None = None,
        buckets: int = 16,
    ) -> None:
        self.folder, self.redis_url, self.namespace, self.brokers = (
            *(folder, redis_url, namespace, dict(brokers)),
        )
        self.client = Client(
            redis_url, namespace=namespace, brokers=brokers, timeout_s=PATIENCE_S, buckets=buckets,
            ledger=ledger, durability="memory" if ledger is None else "ledger",
        )  # fmt: skip
        if ledger is not None:
            kept = {"DELAYBRIDGE_DURABILITY": "ledger", "DELAYBRIDGE_LEDGER__URL": ledger}
            settings = {**kept, **(settings or {})}
        self.environment = {
            **os.environ,
            "DELAYBRIDGE_BUCKETS": str(buckets),
            "DELAYBRIDGE_LEASE__TTL_MS": str(lease_ttl_ms),
            # As long as a lease allows, since a busy machine keeps Redis from answering.
            "DELAYBRIDGE_LEASE__RENEW_MS": str(lease_ttl_ms // 5),
            "DELAYBRIDGE_REDIS__TIMEOUT_S": str(0.7 * lease_ttl_ms / 1000),
            **(settings or {}),
        }
        self.workers_brokers: dict[str, str] = {}  # where workers go through a proxy
        self.promises: dict[str, Promise] = {}
        self.keys: dict[str, str] = {}  # of messages that have one, by id
        self.random = random.Random(7)
        self._workers: dict[str, subprocess.Popen[bytes]] = {}
        self._consumers: list[subprocess.Popen[bytes]] = []
        self._files: list[Path] = []
        self._queues: list[tuple[str, str]] = []  # URL, name; those with a consumer
        self._topics: list[tuple[str, str, int]] = []  # servers, name, partitions
        self._count = 0

    # workers

    def start_worker(
        self,
        redis_url: str | None = None,
        environment: Mapping[str, str] | None = None,
        log: Path | None = None,
    ) -> str:
        """Start one more worker, with these variables added to its environment; its name."""
        self._count += 1
        name = f"w{self._count}"
        urls = {**self.brokers, **self.workers_brokers}
        self._workers[name] = self._spawn(
            ["scan", "--name", name],
            *(log or self.folder / f"{name}.log", urls, environment or {}),
            redis_url or self.redis_url,
        )
        return name

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        """Start any command, such as `ingest kafka --topic T.delay`; it ends with the bridge."""
        self._count += 1
        log = self.folder / f"{arguments[0]}-{self._count}.log"
        process = self._spawn(arguments, log, self.brokers, environment, self.redis_url)
        self._consumers.append(process)
        return process

    def _spawn(
        self,
        arguments: Sequence[str],
        log: Path,
        brokers: Mapping[str, str],
        environment: Mapping[str, str],
        redis_url: str,
    ) -> subprocess.Popen[bytes]:
        program = [str(PROGRAMS / SERVE)] if arguments[0] == "serve" else ["-m", "delaybridge"]
        command = [sys.executable, *program, "--redis", redis_url, "--namespace", self.namespace]
        command += [f"--broker={name}={url}" for name, url in brokers.items()]
        own = {**self.environment, **environment}
        with log.open("wb") as file:
            return subprocess.Popen(
                [*command, *arguments], stdout=file, stderr=file, env=own, cwd=self.folder
            )

    def start_workers(self, count: int, redis_url: str | None = None) -> list[str]:
        """Start workers; returns once every bucket has an owner and all have a share.

        One that ends because Redis is silent at its start is started again, as by a supervisor.
        """
        before = set(self._workers)
        for _ in range(count):
            self.start_worker(redis_url)

        def is_full() -> bool:
            for name in self.workers:
                if self._workers[name].poll() == UNAVAILABLE:
                    self.exit_code(name)
                    self.start_worker(redis_url)
            return {b.owner for b in self.client.stats().buckets} == set(self._workers)

        until(is_full, "a full fleet", interval_s=0.05)
        return [name for name in self.workers if name not in before]

    def signal_worker(self, name: str, number: signal.Signals) -> None:
        self._workers[name].send_signal(number)

    def kill_worker(self, name: str) -> None:
        process = self._workers.pop(name)
        process.kill()
        process.wait()

    def pid(self, name: str) -> int:
        return self._workers[name].pid

    def has_ended(self, name: str) -> bool:
        return self._workers[name].poll() is not None

    def exit_code(self, name: str) -> int | None:
        """The exit code of a worker that has ended; then the worker is forgotten."""
        return self._workers.pop(name).returncode

    @property
    def workers(self) -> list[str]:
        return list(self._workers)

    # destinations and their consumers

    def rabbitmq_queue(self, name: str, broker: str = "rabbitmq", *, consume: bool = True) -> str:
        """An exchange `name` bound to a quorum queue `name`, with a plain consumer."""
        with rabbitmq_channel(self.brokers[broker]) as channel:
            channel.exchange_declare(name, "topic", durable=True)
            channel.queue_declare(name, durable=True, arguments={"x-queue-type": "quorum"})
            channel.queue_bind(name, name, "#")
        if consume:
            self._consume("consume_rabbitmq.py", self.brokers[broker], name)
            self._queues.append((self.brokers[broker], name))
        return f"{broker}:{name}/key"

    def delayed_exchange(self, urls: Sequence[str], name: str, broker: str = "rabbitmq") -> None:
        """A delayed exchange and a queue of that name, with a consumer that declares both itself.

        urls: where it connects, in turn: fronts of the broker.
        """
        self._consume("consume_delayed.py", ",".join(urls), name)
        self._queues.append((self.brokers[broker], name))

    def kafka_topic(
        self, name: str, broker: str = "kafka", partitions: int = 4, *, consume: bool = True
    ) -> str:
        """A topic with a plain consumer."""
        servers = urlsplit(self.brokers[broker]).netloc
        make_topic(AdminClient({"bootstrap.servers": servers}), NewTopic(name, partitions, 1))
        if consume:
            self._consume("consume_kafka.py", servers, name)
            self._topics.append((servers, name, partitions))
        return f"{broker}:{name}"

    def pull_topic(
        self, url: str, topic: str, *, ttr: str, hold: int = 0
    ) -> subprocess.Popen[bytes]:
        """A consumer over HTTP. hold: it receives that many, and finishes none."""
        return self._consume("consume_http.py", url, topic, ttr, str(hold))

    def _consume(self, script: str, *arguments: str) -> subprocess.Popen[bytes]:
        path = self.folder / f"received-{len(self._files)}.jsonl"
        self._files.append(path)
        process = subprocess.Popen(
            [sys.executable, str(PROGRAMS / script), *arguments, str(path)], stdout=subprocess.PIPE
        )
        self._consumers.append(process)
        if process.stdout is None or process.stdout.readline() != b"ready\n":
            raise RuntimeError(f"{script} did not start")
        return process

    # messages

    def schedule(
        self, destination: str, count: int, *, seconds: float, first_s: float = 0.0, keys: int = 0
    ) -> list[str]:
        """Schedule messages due at random within `seconds`; every answer becomes a promise.

        keys: how many keys they have in turn; 0: none.
        """
        bodies = [self.random.randbytes(self.random.randrange(200)) for _ in range(count)]
        names = [f"k{i % keys}" if keys else None for i in range(count)]
        messages = [
            Message(destination, body, delay=first_s + self.random.random() * seconds, key=key)
            for body, key in zip(bodies, names, strict=True)
        ]
        ids = []
        for i in range(0, count, 500):
            receipts = self.client.schedule_many(messages[i : i + 500])
            for receipt, body in zip(receipts, bodies[i : i + 500], strict=True):
                sha = hashlib.sha1(body).hexdigest()
                self.promises[receipt.id] = Promise(receipt.id, destination, receipt.due_ms, sha)
                ids.append(receipt.id)
        self.keys |= {id: key for id, key in zip(ids, names, strict=True) if key is not None}
        return ids

    # the verdict

    def wait_reading(self, source: str) -> None:
        """Wait until an ingest process reads this source."""

        def is_read() -> bool:
            found = [each for one in self.client.stats().ingests for each in one.sources]
            return any(each.source == source and each.state == "reading" for each in found)

        until(is_read, f"{source} is read", interval_s=0.1)

    def deliveries(self) -> list[Delivery]:
        return [each for each in self._received() if not each.id.startswith(MARKER)]

    def _received(self) -> list[Delivery]:
        return [delivery for path in self._files for delivery in read(path)]

    def wait_consumed(self) -> None:
        """Wait until the consumers have written down all that the brokers have for them now.

        A marker is put behind it in each queue and partition.
        """
        mark, sent = f"{MARKER}{uuid.uuid4().hex}", set()
        headers = {"delaybridge-due-ms": 0, "delaybridge-attempt": 1}
        for url, queue in self._queues:
            id = f"{mark}-{queue}"
            sent.add(id)
            with rabbitmq_channel(url) as channel:
                channel.confirm_delivery()
                properties = pika.BasicProperties(headers={**headers, "delaybridge-id": id})
                channel.basic_publish("", queue, b"", properties)
        for servers, topic, partitions in self._topics:
            producer = Producer({"bootstrap.servers": servers, "log_level": 0})
            for partition in range(partitions):
                id = f"{mark}-{topic}-{partition}"
                sent.add(id)
                own = {**headers, "delaybridge-id": id}
                producer.produce(
                    topic, partition=partition, headers={n: str(v) for n, v in own.items()}
                )
            producer.flush(DEADLINE_S)
        until(lambda: sent <= {each.id for each in self._received()}, "the markers arrive")

    def wait_delivered(self) -> None:
        """Wait until nothing is delayed, in flight or parked, and all promised messages arrived."""

        def arrived() -> bool:
            stats = self.client.stats()
            if stats.delayed + stats.in_flight + stats.parked:
                return False
            received = {d.id for d in self.deliveries()}
            return self.promises.keys() <= received | self.dead()

        until(arrived, "everything delivered", interval_s=0.3)

    def dead(self) -> set[str]:
        ids: set[str] = set()
        cursor = None
        while True:
            page = self.client.dead(limit=1000, cursor=cursor)
            ids |= {message.id for message in page.items}
            if page.cursor is None:
                return ids
            cursor = page.cursor

    def verdict(self) -> Verdict:
        """The checker's verdict; printed, so that `-s` and a failure show it."""
        verdict = check(self.promises, self.deliveries(), self.dead())
        print(f"\n{self.namespace}: {verdict}")
        return verdict

    def close(self) -> None:
        for process in [*self._workers.values(), *self._consumers]:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        self.client.close()


MakeBridge = Callable[..., Bridge]


@contextlib.contextmanager
def rabbitmq_channel(url: str) -> Iterator[pika.adapters.blocking_connection.BlockingChannel]:
    """A channel for declarations."""
    connection = pika.BlockingConnection(pika.URLParameters(url))
    try:
        yield connection.channel()
    finally:
        connection.close()


def make_topic(admin: AdminClient, topic: NewTopic) -> None:
    """Make it, and wait until its partitions have a leader; before, Kafka may lose a record."""
    admin.create_topics([topic])[topic.topic].result(DEADLINE_S)
    places = [TopicPartition(topic.topic, number) for number in range(topic.num_partitions)]

    def have_leaders() -> bool:
        try:
            for ends in admin.list_offsets(dict.fromkeys(places, OffsetSpec.latest())).values():
                ends.result(DEADLINE_S)
        except KafkaException:
            # Else librdkafka may say so for ever: it asks no more for a topic of which it has once
            # seen a partition without a leader.
            admin.list_topics(topic.topic, timeout=DEADLINE_S)
            return False
        return True

    until(have_leaders, f"{topic.topic} can be written to")
