"""B12: how late messages are while another destination is slow, beside how late they are alone.

    python -m bench.slow [BACKLOG] [SECONDS]

One worker, default settings. BACKLOG messages are due at once for a broker that is reached through
a proxy which lets about 50 messages a second pass; another broker of the same kind gets 200/s.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time
from collections.abc import Callable

from bench.lateness import AHEAD_S, SPARE_S, Kafka, Late, RabbitMQ, receiving
from bench.rig import BODY, Table, bench, cpu_seconds
from delaybridge import Message
from delaybridge.times import format_time
from tests.servers.kafka import KafkaNode
from tests.servers.process import LOOPBACK, free_port
from tests.servers.rabbitmq import RabbitMQNode
from tests.servers.redis import RedisServer

RATE = 200
SLOW_RATE = 50
MESSAGE_BYTES = 320  # about what a message with our headers takes on the wire
CHUNK = 4 * MESSAGE_BYTES


class Throttle:
    """Forwards a port; what clients send passes at SLOW_RATE, all connections together."""

    def __init__(self, port: int, target: int) -> None:
        self._target = target
        self._listener = socket.create_server((LOOPBACK, port))
        self._pace = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> None:
        """Listening already."""

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes `accept`, which `close` would not
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection((LOOPBACK, self._target))
                for pump, ends in ((self._slow, (client, server)), (_fast, (server, client))):
                    threading.Thread(target=pump, args=ends, daemon=True).start()

    def _slow(self, source: socket.socket, sink: socket.socket) -> None:
        def wait(size: int) -> None:
            with self._pace:
                time.sleep(size / MESSAGE_BYTES / SLOW_RATE)

        _fast(source, sink, CHUNK, wait)


def _fast(
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


def measured(
    redis_url: str, fast: RabbitMQ | Kafka, slow: RabbitMQ | Kafka, backlog: int, seconds: float
) -> tuple[Late, float, float, int]:
    """Lateness on the fast broker; what the slow one took a second; CPU share; its retries."""
    kind = fast.name.lower()
    brokers = {kind: fast.brokers[kind], "slow": slow.brokers[kind]}
    count = int(RATE * seconds)
    with (
        bench(redis_url, **brokers) as mine,
        fast.place(fast.address) as source,
        slow.place(slow.address) as other,
    ):
        pid = mine.worker()
        mine.until_owned()
        with receiving(fast.script, fast.address, source, count) as receiver:
            first_s = time.time() + AHEAD_S + backlog / 10_000
            at = format_time(round(first_s * 1000))
            to = slow.destination(other).replace(kind, "slow", 1)
            for first in range(0, backlog, 5000):
                some = min(5000, backlog - first)
                mine.client.schedule_many([Message(to, BODY, at=at) for _ in range(some)])
            to = fast.destination(source)
            times = [format_time(round((first_s + n / RATE) * 1000)) for n in range(count)]
            mine.client.schedule_many([Message(to, BODY, at=at) for at in times])
            time.sleep(max(0.0, first_s - time.time()))
            cpu_s = cpu_seconds(pid)
            late = receiver.late(AHEAD_S + seconds + SPARE_S)
            took_s = time.time() - first_s
            cpu = (cpu_seconds(pid) - cpu_s) / took_s
            passed = backlog - mine.left("due", "mirror", "parked", "dead")
            attempts = [f"{{{mine.namespace}:{n}}}:attempts" for n in range(16)]
            tried = sum(mine.redis.hlen(key) for key in attempts)
        return late, passed / took_s, cpu, tried


def table(
    redis_url: str, fast: RabbitMQ | Kafka, slow: RabbitMQ | Kafka, backlog: int, seconds: float
) -> None:
    """Print B12 for one kind of broker."""
    out = Table(f"B12 {fast.name}: p50 / p99 / most at {RATE}/s; must show p99 alone + 250 ms")
    for name, count in (("alone", 0), (f"beside {backlog:,} due for a slow one", backlog)):
        late, rate, cpu, tried = measured(redis_url, fast, slow, count, seconds)
        slow_one = f"slow one {rate:.0f}/s" if count else ""
        out.line(name, str(late), f"{cpu:.0%} CPU", slow_one, f"{tried} attempts" if tried else "")


def main(backlog: int = 20_000, seconds: float = 20) -> None:
    """Print both tables."""
    with RedisServer() as redis:
        port = free_port()
        with RabbitMQNode() as node, Throttle(port, node.port):
            away = RabbitMQ(node.url)
            away.brokers = {"rabbitmq": node.url.replace(f":{node.port}", f":{port}")}
            table(redis.url, RabbitMQ(node.url), away, backlog, seconds)
        advertised = {"advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{port}"}
        node = KafkaNode(advertised, options=())
        with KafkaNode(options=()) as fast, Throttle(port, node.port), node:
            away = Kafka(f"kafka://{LOOPBACK}:{port}")
            table(redis.url, Kafka(fast.url), away, backlog, seconds)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
