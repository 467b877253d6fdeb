"""A queue with a time to live, and a dead-letter exchange after it: one queue for each delay."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import repeat
from typing import ClassVar

from bench.lateness import Lateness
from bench.peers.peer import DAY_S, DELAY_S, SPARE_S, Peer, check_pending
from bench.peers.publishing import (
    To,
    broker_bytes,
    declare_quorum_queue,
    persistent,
    publish,
    queue_lateness,
    resting_bytes,
    wait_until_full,
)
from bench.rig import quorum_queue


class AtLeastOnce(Peer):
    """The broker keeps a dead letter until the target has confirmed it."""

    name = "TTL queue, at-least-once"
    stored = "a quorum queue's file, written to disk before the answer"
    cannot = "cancel, reschedule, look up; have more delays than you declare queues"
    strategy: ClassVar[Mapping[str, str]] = {
        "x_dead_letter_strategy": "at-least-once",
        "x_overflow": "reject-publish",
    }

    def open(self) -> None:
        """Declare the queue of messages that are due tomorrow, and their target."""
        target = self.stack.enter_context(quorum_queue(self.url))
        self.later = self.stack.enter_context(self.delay_queue(target, x_message_ttl=DAY_S * 1000))

    @contextmanager
    def delay_queue(self, target: str, **arguments: object) -> Iterator[str]:
        """Declare a queue whose dead letters go to the target."""
        to = {"x_dead_letter_exchange": target, "x_dead_letter_routing_key": "key"}
        with declare_quorum_queue(self.url, **to, **self.strategy, **arguments) as name:
            yield name

    def fill(self, count: int) -> float:
        """Publish to the queue of messages that are due tomorrow."""
        return count / publish(self.url, repeat(To("", self.later, persistent()), count))

    def burst(self, count: int, slack: int = 1) -> float:
        """Each message has its own expiration, so that all are due at one moment."""
        with (
            quorum_queue(self.url) as target,
            self.delay_queue(target, x_message_ttl=DAY_S * 1000) as queue,
        ):
            due_s = time.time() + slack * count / 4000 + SPARE_S
            publish(self.url, (self._due(queue, due_s) for _ in range(count)))
            added_s = time.time()
            took_s = wait_until_full(self.url, target, count, due_s)
            check_pending(added_s, due_s)
            return took_s

    def lateness(self, rate: int, seconds: float) -> Lateness | str:
        """Each message is published DELAY_S before it is due, to a queue with that delay."""
        with (
            quorum_queue(self.url) as target,
            self.delay_queue(target, x_message_ttl=DELAY_S * 1000) as queue,
        ):

            def message(now_s: float) -> tuple[To, float]:
                return To("", queue, persistent()), now_s + DELAY_S

            return queue_lateness(self.url, target, rate, seconds, message)

    def memory_bytes(self) -> Mapping[str, int]:
        """Memory of the broker."""
        return broker_bytes(self.servers.rabbitmq)

    def empty_memory_bytes(self) -> Mapping[str, int]:
        """Memory of the broker, without messages of earlier figures."""
        return resting_bytes(self.servers.rabbitmq)

    def _due(self, queue: str, due_s: float) -> To:
        expiration = str(max(0, round((due_s - time.time()) * 1000)))
        return To("", queue, persistent(expiration=expiration))


class AtMostOnce(AtLeastOnce):
    """The broker removes a dead letter when it sends it on, so a crash may lose it."""

    name = "TTL queue, at-most-once"
    cannot = "the same; keep a dead letter if the node stops on its way"
    strategy: ClassVar[Mapping[str, str]] = {}
