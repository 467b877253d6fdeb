"""RabbitMQ's archived plugin: an exchange of type x-delayed-message, on the RabbitMQ that loads it.

The variable DELAYBRIDGE_TEST_PLUGIN_ROOT names the root folder of a RabbitMQ that has it in its
plugins, made as tests/servers/rabbitmq.py makes its own (Debian 13 has RabbitMQ 4.0). No release
since 4.3 can load it, nor its forks: what they call is gone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path
from uuid import uuid4

from bench.lateness import Lateness
from bench.peers.fetched import NotHere
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
from tests.rigs.bridge import rabbitmq_channel
from tests.servers.rabbitmq import RabbitMQNode

ROOT = "DELAYBRIDGE_TEST_PLUGIN_ROOT"
NAME = "rabbitmq_delayed_message_exchange"


class Plugin(Peer):
    """A node of its own; its delayed exchange passes messages on to quorum queues."""

    name = "delayed-message plugin"
    stored = "Mnesia, in memory and in a file, on this node alone"
    cannot = "cancel, reschedule, look up; run on RabbitMQ 4.3; outlive its node; above 49 days"

    def open(self) -> None:
        """Start the node, and declare the exchange."""
        if not (root := os.environ.get(ROOT)):
            raise NotHere(f"not here: {ROOT} does not name a RabbitMQ that can load it")
        node = RabbitMQNode(root=Path(root))
        (node.folder / "enabled_plugins").write_text(f"[{NAME}].\n")
        self.node = self.stack.enter_context(node)
        (found,) = Path(root).glob(f"usr/lib/rabbitmq/lib/*/plugins/{NAME}-*")
        self.plugin = found.name.removeprefix(f"{NAME}-")
        self.exchange = f"bench-{uuid4().hex[:8]}"
        with rabbitmq_channel(node.url) as channel:
            kind = {"x-delayed-type": "direct"}
            channel.exchange_declare(self.exchange, "x-delayed-message", arguments=kind)
        self.later = self.stack.enter_context(self._target())
        self.note = f"on RabbitMQ {node.version}"

    def fill(self, count: int) -> float:
        """Publish with a delay of one day."""
        to = To(self.exchange, self.later, persistent(headers={"x-delay": DAY_S * 1000}))
        return count / publish(self.node.url, repeat(to, count), mandatory=False)

    def burst(self, count: int, slack: int = 1) -> float:
        """Each message has its own delay, so that all are due at one moment."""
        with self._target() as target:
            due_s = time.time() + slack * count / 4000 + SPARE_S

            def message() -> To:
                headers = {"x-delay": max(1, round((due_s - time.time()) * 1000))}
                return To(self.exchange, target, persistent(headers=headers))

            publish(self.node.url, (message() for _ in range(count)), mandatory=False)
            added_s = time.time()
            took_s = wait_until_full(self.node.url, target, count, due_s)
            check_pending(added_s, due_s)
            return took_s

    def lateness(self, rate: int, seconds: float) -> Lateness:
        """Each message is published DELAY_S before it is due."""
        with self._target() as target:

            def message(now_s: float) -> tuple[To, float]:
                to = To(self.exchange, target, persistent(headers={"x-delay": DELAY_S * 1000}))
                return to, now_s + DELAY_S

            url = self.node.url
            return queue_lateness(url, target, rate, seconds, message, mandatory=False)

    def memory_bytes(self) -> Mapping[str, int]:
        """Memory of the node."""
        return {"in the broker": broker_bytes(self.node)["in segments"]}

    def empty_memory_bytes(self) -> Mapping[str, int]:
        """The same, without messages of earlier figures."""
        return {"in the broker": resting_bytes(self.node)["in segments"]}

    def versions(self) -> Mapping[str, str]:
        """The plugin's version."""
        return {"delayed-message plugin": self.plugin}

    @contextmanager
    def _target(self) -> Iterator[str]:
        with declare_quorum_queue(self.node.url) as queue:
            with rabbitmq_channel(self.node.url) as channel:
                channel.queue_bind(queue, self.exchange, queue)
            yield queue
