"""kombu's native delayed delivery: a chain of quorum queues, one for each power of two seconds.

A message waits in those queues whose seconds add up to its delay. kombu's publisher would wait for
each confirm; here the same messages are pipelined.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from itertools import repeat
from uuid import uuid4

from kombu.connection import Connection
from kombu.entity import Exchange, Queue
from kombu.transport.native_delayed_delivery import (
    MAX_LEVEL,
    bind_queue_to_native_delayed_delivery_exchange,
    calculate_routing_key,
    declare_native_delayed_delivery_exchanges_and_queues,
    level_name,
)

from bench.lateness import Lateness
from bench.peers.peer import DAY_S, Peer, check_pending, lead_s
from bench.peers.publishing import (
    To,
    broker_bytes,
    persistent,
    publish,
    queue_lateness,
    resting_bytes,
    wait_until_full,
)
from tests.rigs.bridge import rabbitmq_channel

DELAY_S = 3  # of the messages whose lateness is measured: they wait in two queues
SAMPLE = 300  # messages that are added first, to measure how fast adding is


class KombuNative(Peer):
    """All 28 queues, with a name prefix of their own."""

    name = "kombu native delayed delivery"
    stored = "a quorum queue's file, written to disk before the answer"
    cannot = "cancel, reschedule, look up; be due at parts of a second"
    most_due, most_pending = 1000, 20_000

    def open(self) -> None:
        """Declare the queues and exchanges."""
        self.prefix = f"bench-{uuid4().hex[:8]}"
        self.entry = level_name(MAX_LEVEL, self.prefix)
        self.stack.callback(self._remove)
        with Connection(self.url) as connection:
            declare_native_delayed_delivery_exchanges_and_queues(connection, "quorum", self.prefix)
        self.later = self.stack.enter_context(self._target())
        self.note = (
            f"lateness of delays of {DELAY_S} s, in 2 queues; {self.most_pending:,} pending at most"
        )

    def fill(self, count: int) -> float:
        """Publish with a delay of one day."""
        return count / publish(self.url, repeat(self._to(self.later, DAY_S), count))

    def burst(self, count: int, slack: int = 1) -> float:
        """Delays are whole seconds, rounded up so that no message comes before the due time."""
        with self._target() as target:
            due_s = time.time() + slack * lead_s(count, self._rate())

            def message() -> To:
                return self._to(target, max(1, math.ceil(due_s - time.time())))

            publish(self.url, (message() for _ in range(count)))
            added_s = time.time()
            took_s = wait_until_full(self.url, target, count, due_s)
            check_pending(added_s, due_s)
            return took_s

    def lateness(self, rate: int, seconds: float) -> Lateness:
        """Each message is published DELAY_S seconds before it is due."""
        with self._target() as target:

            def message(now_s: float) -> tuple[To, float]:
                return self._to(target, DELAY_S), now_s + DELAY_S

            return queue_lateness(self.url, target, rate, seconds, message)

    def memory_bytes(self) -> Mapping[str, int]:
        """Memory of the broker."""
        return broker_bytes(self.servers.rabbitmq)

    def empty_memory_bytes(self) -> Mapping[str, int]:
        """Memory of the broker, without messages of earlier figures."""
        return resting_bytes(self.servers.rabbitmq)

    def versions(self) -> Mapping[str, str]:
        """Versions of kombu, which declares, and pika, which publishes."""
        return {name: version(name) for name in ("kombu", "pika")}

    def _rate(self) -> float:
        with self._target() as target:
            took_s = publish(self.url, repeat(self._to(target, DELAY_S), SAMPLE))
            wait_until_full(self.url, target, SAMPLE, time.time())
            return SAMPLE / took_s

    def _to(self, target: str, delay_s: int) -> To:
        return To(self.entry, calculate_routing_key(delay_s, target), persistent())

    @contextmanager
    def _target(self) -> Iterator[str]:
        # kombu binds only topic exchanges.
        name = f"bench-{uuid4().hex[:8]}"
        exchange = Exchange(name, type="topic")
        arguments = {"x-queue-type": "quorum"}
        queue = Queue(name, exchange, routing_key=name, queue_arguments=arguments)
        with Connection(self.url) as connection:
            queue.bind(connection.channel()).declare()
            bind_queue_to_native_delayed_delivery_exchange(connection, queue, self.prefix)
        try:
            yield name
        finally:
            with rabbitmq_channel(self.url) as channel:
                channel.queue_delete(name)
                channel.exchange_delete(name)

    def _remove(self) -> None:
        with rabbitmq_channel(self.url) as channel:
            for level in range(MAX_LEVEL + 1):
                channel.queue_delete(level_name(level, self.prefix))
                channel.exchange_delete(level_name(level, self.prefix))
            channel.exchange_delete(f"{self.prefix}_celery_delayed_delivery")
