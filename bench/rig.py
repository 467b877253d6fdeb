"""What all benchmarks share: servers, worker processes, their CPU time, queues and topics, tables.

The servers are those of the tests (tests/servers): real, private, on 127.0.0.1. A server named in
DELAYBRIDGE_TEST_REDIS_URL, ..._RABBITMQ_URL or ..._KAFKA_URL is used instead of a private one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    NewTopic,
    OffsetSpec,
)

from delaybridge import Client, Message
from delaybridge.message import Limits
from delaybridge.store.calls import Calls
from delaybridge.store.protocol.verbs import plain
from delaybridge.store.redis.store import Store
from tests.rigs.bridge import rabbitmq_channel
from tests.servers.kafka import KafkaNode
from tests.servers.rabbitmq import RabbitMQNode
from tests.servers.redis import RedisServer
from tests.servers.sources import Running, from_environment

BODY = b"x" * 100
POLL_S = 0.01
_LOOKS = 400_000  # messages left, for which a look waits a second
CALL = 5000  # messages in a call that fills the store
PARTITIONS = 4


def open_redis() -> AbstractContextManager[Running]:
    """Redis, empty unless it is named in the environment."""
    return _given_or("redis", RedisServer)


def open_rabbitmq() -> AbstractContextManager[Running]:
    """RabbitMQ, one node."""
    return _given_or("rabbitmq", RabbitMQNode)


def open_kafka() -> AbstractContextManager[Running]:
    """Kafka, one node, with Java's optimizing compiler."""
    return _given_or("kafka", lambda: KafkaNode(options=()))


def _given_or(
    name: str, start: Callable[[], AbstractContextManager[Running]]
) -> AbstractContextManager[Running]:
    given = next(from_environment(name), None)
    return given.open() if given else start()


class Bench:
    """A namespace of its own, with a client and the processes that work on it.

    ledger: the URL of the ledger's database, if there is one.
    """

    def __init__(
        self, redis_url: str, brokers: Mapping[str, str], folder: Path, ledger: str | None = None
    ) -> None:
        self.namespace = f"bench-{uuid.uuid4().hex[:8]}"
        self.redis_url, self.brokers, self._folder = redis_url, brokers, folder
        self._kept = {} if ledger is None else {"DURABILITY": "ledger", "LEDGER__URL": ledger}
        self.client = Client(
            redis_url, namespace=self.namespace, brokers=brokers, timeout_s=20, ledger=ledger,
            durability="memory" if ledger is None else "ledger",
        )  # fmt: skip
        self._store = Store(redis_url, timeout_s=20)
        self.look_again()
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._started = 0

    def look_again(self) -> None:
        """Ask for the buckets again: their number may have changed."""
        self._calls = Calls(self.namespace, self.brokers, None, Limits())

    @property
    def redis(self) -> Any:
        """A client of redis-py, for a single server."""
        return self._store.redis

    def start_worker(self, **settings: str) -> int:
        """Start one more `delaybridge scan` and return its pid.

        settings: environment variables without DELAYBRIDGE_, as SCAN__BATCH_MESSAGES="500".
        """
        return self.start("scan", **settings)

    def start(self, *arguments: str, **settings: str) -> int:
        """Start a delaybridge command and return its pid. settings: as in `start_worker`."""
        given = {**self._kept, **settings}
        environment = {f"DELAYBRIDGE_{name}": value for name, value in given.items()}
        brokers = [f"--broker={name}={url}" for name, url in self.brokers.items()]
        log = self._folder / f"{self._started}.log"
        self._started += 1
        with log.open("wb") as sink:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "delaybridge", "--redis", self.redis_url),
                    *("--namespace", self.namespace, *brokers, *arguments),
                ],
                stdout=sink,
                stderr=sink,
                env={**os.environ, **environment},
                cwd=self._folder,
            )
        self._processes[process.pid] = process
        return process.pid

    def end(self, pid: int) -> None:
        """End this process, and wait until it has."""
        self._processes[pid].terminate()
        self.outcome(pid)

    def outcome(self, pid: int) -> int:
        """Wait until this process has ended; its exit code."""
        return self._processes.pop(pid).wait()

    def fill(self, destination: str, count: int, *, body: bytes = BODY, delay: str = "0s") -> None:
        """Schedule `count` messages with this delay."""
        self.fill_with(Message(destination, body, delay=delay), count)

    def fill_with(self, message: Message, count: int) -> None:
        """Schedule this message `count` times; each gets an id of its own."""
        for first in range(0, count, CALL):
            self.client.schedule_many([message] * min(CALL, count - first))

    def wait_until_owned(self, workers: int = 1) -> None:
        """Wait until this many workers hold the leases of all buckets, each its fair share."""
        while True:
            held = Counter(bucket.owner for bucket in self.client.stats().buckets)
            if None not in held and len(held) == workers:
                if max(held.values()) - min(held.values()) <= 1:
                    return
            time.sleep(POLL_S)

    def count_in(self, *names: str) -> int:
        """Count the messages in these zsets (`due`, ...) of all buckets, in one round trip."""
        buckets = self._store.complete(self._calls.open())
        keys = (bucket.key(name) for bucket in buckets for name in names)
        return sum(self._store.run([plain("ZCARD", key, parse=int) for key in keys]))

    def measure_drain(self, count: int, pids: Sequence[int]) -> tuple[float, float]:
        """Wait until a backlog of `count` messages is settled.

        Returns messages per second and microseconds of CPU per message, summed over the processes
        `pids`; `drain_costs` says how they are measured.
        """
        rate, costs_us = self.drain_costs(count, {"": pids})
        return rate, costs_us[""]

    def drain_costs(
        self, count: int, components: Mapping[str, Sequence[int]]
    ) -> tuple[float, dict[str, float]]:
        """The same, with the microseconds of each component by its name, given its processes.

        All are measured from the last look at which no message was settled to the last message.
        """

        def look() -> tuple[float, dict[str, float]]:
            used_s = {name: sum(map(cpu_seconds, pids)) for name, pids in components.items()}
            return time.monotonic(), used_s

        began_s, before_s = now_s, now_used_s = look()
        while (left := self.count_in("due", "mirror", "parked")) > 0:
            if left == count:
                began_s, before_s = now_s, now_used_s
            # A look costs as much as some hundred messages: the fewer, the more are left.
            time.sleep(POLL_S if left == count else max(POLL_S, left / _LOOKS))
            now_s, now_used_s = look()
        ended_s, after_s = look()
        costs_us = {name: (after_s[name] - before_s[name]) / count * 1e6 for name in components}
        return count / (ended_s - began_s), costs_us

    def close(self) -> None:
        """End the processes and delete the namespace."""
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            process.wait()
        if not self._store.nodes()[0]:  # a Cluster ends with its bench
            keys = self.redis.scan_iter(f"{{{self.namespace}*", count=1000)
            for key in list(keys):
                self.redis.unlink(key)
        self.client.close()
        self._store.close()


@contextmanager
def open_bench(redis_url: str, *, ledger: str | None = None, **brokers: str) -> Iterator[Bench]:
    """Create a namespace with these brokers (name=URL); it is closed when the block ends.

    ledger: as of `Bench`.
    """
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(redis_url, brokers, Path(folder), ledger)
        try:
            bench.client.stats()  # creates the namespace
            yield bench
        finally:
            bench.close()


def pid_at(url: str) -> int:
    """The process that listens at this URL's port, on this machine."""
    port = urlsplit(url).port
    for connection in psutil.net_connections("tcp"):
        is_listening = connection.status == psutil.CONN_LISTEN
        if is_listening and connection.laddr.port == port and connection.pid is not None:
            return int(connection.pid)
    raise RuntimeError(f"no process that this user can see listens at port {port}")


def cpu_seconds(pid: int) -> float:
    """Seconds of user and system time that a process has used, in all of its threads."""
    # clock_getcpuclockid(3), which Python lacks. /proc/PID/stat has the same in ticks of 10 ms.
    return time.clock_gettime(~pid << 3 | 2)


def redis_cpu_s(bench: Bench) -> float:
    """Seconds of user and system time that Redis has used, all its threads."""
    used = bench.redis.info("cpu")
    return float(used["used_cpu_user"] + used["used_cpu_sys"])


def resident_bytes(pid: int) -> int:
    """Bytes of memory that a process has resident."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def quorum_queue(url: str) -> Iterator[str]:
    """Declare a direct exchange, and a quorum queue of the same name bound to it with key `key`.

    Both are deleted when the block ends. The exchange is a direct one because routing by topic
    would cost the broker half as much again, and hide the cost that is measured.
    """
    name = f"bench-{uuid.uuid4().hex[:8]}"
    with rabbitmq_channel(url) as channel:
        channel.exchange_declare(name, "direct", durable=True)
        channel.queue_declare(name, durable=True, arguments={"x-queue-type": "quorum"})
        channel.queue_bind(name, name, "key")
    try:
        yield name
    finally:
        with rabbitmq_channel(url) as channel:
            channel.queue_delete(name)
            channel.exchange_delete(name)


@contextmanager
def kafka_topic(servers: str) -> Iterator[str]:
    """Create a topic of PARTITIONS partitions, ready for records; deleted when the block ends."""
    name = f"bench-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(20)
    for number in range(PARTITIONS):
        _await_leader(admin, TopicPartition(name, number))
    try:
        yield name
    finally:
        admin.delete_topics([name])[name].result(20)


def _await_leader(admin: AdminClient, partition: TopicPartition) -> None:
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    while True:
        try:
            admin.list_offsets({partition: latest})[partition].result(10)
        except KafkaException:
            time.sleep(POLL_S)
        else:
            return


class Table:
    """A benchmark's table; each line is printed as soon as its figures are known."""

    def __init__(self, title: str) -> None:
        sys.stdout.write(f"\n{title}\n")

    def line(self, name: str, *figures: str) -> None:
        """Print one line, with its figures in columns."""
        sys.stdout.write(f"  {name:<40}" + "".join(f" {figure:>19}" for figure in figures) + "\n")
        sys.stdout.flush()
