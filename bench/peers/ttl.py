"""A queue with a time to live, and a dead-letter exchange behind it: one delay for each queue."""

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
    late_through,
    persistent,
    publish,
    quorum,
    resting_bytes,
    until_full,
)
from bench.rig import quorum_queue


class AtLeastOnce(Peer):
    """The broker keeps a dead letter until the target has confirmed it."""

    name, cancel = "TTL queue, at-least-once", "no"
    strategy: ClassVar[Mapping[str, str]] = {
        "x_dead_letter_strategy": "at-least-once",
        "x_overflow": "reject-publish",
    }

    def open(self) -> None:
        """The queue of those that are due tomorrow."""
        target = self.stack.enter_context(quorum_queue(self.url))
        self.later = self.stack.enter_context(self.delaying(target, x_message_ttl=DAY_S * 1000))
        self.note = "one queue for each delay"

    @contextmanager
    def delaying(self, target: str, **arguments: object) -> Iterator[str]:
        """A queue whose dead letters go to the target."""
        to = {"x_dead_letter_exchange": target, "x_dead_letter_routing_key": "key"}
        with quorum(self.url, **to, **self.strategy, **arguments) as name:
            yield name

    def fill(self, count: int) -> float:
        """To the queue of those that are due tomorrow."""
        return count / publish(self.url, repeat(To("", self.later, persistent()), count))

    def burst(self, count: int, slack: int = 1) -> float:
        """All due at once, as each message's own expiration says; they expire in their order."""
        with (
            quorum_queue(self.url) as target,
            self.delaying(target, x_message_ttl=DAY_S * 1000) as queue,
        ):
            due_s = time.time() + slack * count / 4000 + SPARE_S
            publish(self.url, (self._due(queue, due_s) for _ in range(count)))
            given_s = time.time()
            took_s = until_full(self.url, target, count, due_s)
            check_pending(given_s, due_s)
            return took_s

    def late(self, rate: int, seconds: float) -> Lateness | str:
        """Each is published DELAY_S before it is due, to a queue of this delay."""
        with (
            quorum_queue(self.url) as target,
            self.delaying(target, x_message_ttl=DELAY_S * 1000) as queue,
        ):

            def message(now_s: float) -> tuple[To, float]:
                return To("", queue, persistent()), now_s + DELAY_S

            return late_through(self.url, target, rate, seconds, message)

    def held(self) -> Mapping[str, int]:
        """All of the broker."""
        return broker_bytes(self.servers.rabbitmq)

    def empty(self) -> Mapping[str, int]:
        """All of the broker."""
        return resting_bytes(self.servers.rabbitmq)

    def _due(self, queue: str, due_s: float) -> To:
        expiration = str(max(0, round((due_s - time.time()) * 1000)))
        return To("", queue, persistent(expiration=expiration))


class AtMostOnce(AtLeastOnce):
    """The broker forgets a dead letter as it sends it on."""

    name = "TTL queue, at-most-once"
    strategy: ClassVar[Mapping[str, str]] = {}

    def open(self) -> None:
        """The same, and what it costs."""
        super().open()
        self.note = "one queue for each delay; a dead letter may be lost"
