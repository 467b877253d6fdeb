"""B12: how late messages are while another broker is slow, compared with no slow one.

    python -m bench.slow [BACKLOG] [SECONDS]

One worker, default settings. BACKLOG messages are due at once for a broker behind a proxy that
passes about 50 messages per second. Another broker of the same kind gets 200 messages per second.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import urlsplit

from bench.lateness import AHEAD_S, SPARE_S, Kafka, Lateness, RabbitMQ, receiving
from bench.rig import BODY, Table, cpu_seconds, open_bench, open_kafka, open_rabbitmq, open_redis
from delaybridge import Message
from delaybridge.times import format_time
from tests.servers.kafka import KafkaNode
from tests.servers.process import LOOPBACK, free_port

RATE = 200
SLOW_RATE = 50
MESSAGE_BYTES = 320  # about the size of a message with delaybridge's headers on the wire
CHUNK = 4 * MESSAGE_BYTES


class Throttle:
    """Forwards a port. All connections together send at most SLOW_RATE messages per second."""

    def __init__(self, port: int, target: int) -> None:
        self._target = target
        self._listener = socket.create_server((LOOPBACK, port))
        self._pace = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> None:
        """Do nothing: it listens already."""

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes `accept`, which `close` would not
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection((LOOPBACK, self._target))
                self._start(self._pump_slowly, client, server)
                self._start(_pump, server, client)

    def _start(self, pump: Callable[..., None], *ends: socket.socket) -> None:
        threading.Thread(target=pump, args=ends, daemon=True).start()

    def _pump_slowly(self, source: socket.socket, sink: socket.socket) -> None:
        def wait(size: int) -> None:
            with self._pace:
                time.sleep(size / MESSAGE_BYTES / SLOW_RATE)

        _pump(source, sink, CHUNK, wait)


def _pump(
    source: socket.socket,
    sink: socket.socket,
    most: int = 65536,
    wait: Callable[[int], None] = lambda size: None,
) -> None:
    with source, contextlib.suppress(OSError):
        while data := source.recv(most):
            wait(len(data))
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)


class Measured(NamedTuple):
    """One run. slow_rate: messages per second that the slow broker took; cpu: the share of a core.

    retried: how many messages failed at least once.
    """

    late: Lateness
    slow_rate: float
    cpu: float
    retried: int


def measure(
    redis_url: str, fast: RabbitMQ | Kafka, slow: RabbitMQ | Kafka, backlog: int, seconds: float
) -> Measured:
    """Schedule messages for both brokers, and wait until the fast one has delivered its own."""
    kind = fast.name.lower()
    brokers = {kind: fast.brokers[kind], "slow": slow.brokers[kind]}
    count = int(RATE * seconds)
    with (
        open_bench(redis_url, **brokers) as bench,
        fast.new_target(fast.address) as target,
        slow.new_target(slow.address) as slow_target,
    ):
        pid = bench.start_worker()
        bench.wait_until_owned()
        with receiving(fast.script, fast.address, target, count) as receiver:
            first_s = time.time() + AHEAD_S + backlog / 10_000
            at = format_time(round(first_s * 1000))
            to = slow.destination(slow_target).replace(kind, "slow", 1)
            bench.fill_with(Message(to, BODY, at=at), backlog)
            to = fast.destination(target)
            times = [format_time(round((first_s + n / RATE) * 1000)) for n in range(count)]
            bench.client.schedule_many([Message(to, BODY, at=at) for at in times])
            time.sleep(max(0.0, first_s - time.time()))
            cpu_s = cpu_seconds(pid)
            late = receiver.lateness(AHEAD_S + seconds + SPARE_S)
            took_s = time.time() - first_s
            cpu = (cpu_seconds(pid) - cpu_s) / took_s
            passed = backlog - bench.count_in("due", "mirror", "parked", "dead")
            keys = [f"{{{bench.namespace}:{n}}}:attempts" for n in range(16)]
            retried = sum(bench.redis.hlen(key) for key in keys)
        return Measured(late, passed / took_s, cpu, retried)


def table(
    redis_url: str, fast: RabbitMQ | Kafka, slow: RabbitMQ | Kafka, backlog: int, seconds: float
) -> None:
    """Measure and print B12 for one kind of broker."""
    out = Table(f"B12 {fast.name}: p50 / p99 / max at {RATE}/s; target: p99 alone + 250 ms")
    for name, count in (("alone", 0), (f"with {backlog:,} due for a slow one", backlog)):
        run = measure(redis_url, fast, slow, count, seconds)
        slow_rate = f"slow one {run.slow_rate:.0f}/s" if count else ""
        retried = f"{run.retried} retried" if run.retried else ""
        out.line(name, str(run.late), f"{run.cpu:.0%} CPU", slow_rate, retried)


def main(backlog: int = 20_000, seconds: float = 20) -> None:
    """Print both tables."""
    with open_redis() as redis:
        port = free_port()
        with open_rabbitmq() as broker:
            target = urlsplit(broker.url).port or 5672
            with Throttle(port, target):
                slow = RabbitMQ(broker.url)
                slow.brokers = {"rabbitmq": broker.url.replace(f":{target}", f":{port}")}
                table(redis.url, RabbitMQ(broker.url), slow, backlog, seconds)
        advertised = {"advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{port}"}
        node = KafkaNode(advertised)
        with open_kafka() as fast, Throttle(port, node.port), node:
            throttled = Kafka(f"kafka://{LOOPBACK}:{port}")
            table(redis.url, Kafka(fast.url), throttled, backlog, seconds)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
