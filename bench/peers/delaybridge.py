"""delaybridge: one worker with default settings, to a quorum queue."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from bench.lateness import AHEAD_S, Lateness, receiving
from bench.peers.peer import PATIENCE_S, SPARE_S, Peer, check_pending
from bench.peers.publishing import wait_until_full
from bench.rig import BODY, open_bench, quorum_queue
from delaybridge import Message
from delaybridge.times import format_time

CALL = 1000
CLAIM_AHEAD_S = 2  # how long before the due time the worker claims a message


class Delaybridge(Peer):
    """Messages wait in Redis; a worker publishes them to RabbitMQ."""

    name = "delaybridge"
    stored = "Redis' memory; AOF each second"
    cannot = "work without a Redis of its own beside the broker"

    def open(self) -> None:
        """Start a worker, and wait until it holds every bucket."""
        self.bench = self.stack.enter_context(open_bench(self.servers.redis.url, rabbitmq=self.url))
        self.later = self.stack.enter_context(quorum_queue(self.url))
        self.bench.start_worker()
        self.bench.wait_until_owned()

    def fill(self, count: int) -> float:
        """Add in batches of 1,000, one after the other."""
        to = f"rabbitmq:{self.later}/key"
        began_s = time.monotonic()
        for first in range(0, count, CALL):
            some = min(CALL, count - first)
            self.bench.client.schedule_many([Message(to, BODY, delay="1d") for _ in range(some)])
        return count / (time.monotonic() - began_s)

    def burst(self, count: int, slack: int = 1) -> float:
        """Measured until the queue holds all messages."""
        with quorum_queue(self.url) as queue:
            due_s = round(time.time() + slack * count / 8000 + CLAIM_AHEAD_S + SPARE_S)
            self._schedule(queue, [due_s * 1000] * count)
            added_s = time.time()
            took_s = wait_until_full(self.url, queue, count, due_s)
            check_pending(added_s, due_s - CLAIM_AHEAD_S)
            return took_s

    def lateness(self, rate: int, seconds: float) -> Lateness:
        """Messages are scheduled ahead; a plain consumer receives them."""
        count = int(rate * seconds)
        with (
            quorum_queue(self.url) as queue,
            receiving("receive_rabbitmq.py", self.url, queue, count) as receiver,
        ):
            first_ms = (time.time() + AHEAD_S) * 1000
            self._schedule(queue, [round(first_ms + i * 1000 / rate) for i in range(count)])
            return receiver.lateness(AHEAD_S + seconds + PATIENCE_S)

    def memory_bytes(self) -> Mapping[str, int]:
        """Memory of the whole Redis, used by this peer alone."""
        return {"in Redis": self.servers.redis_bytes()}

    def _schedule(self, queue: str, dues_ms: Sequence[int]) -> None:
        to = f"rabbitmq:{queue}/key"
        for first in range(0, len(dues_ms), CALL):
            some = dues_ms[first : first + CALL]
            messages = [Message(to, BODY, at=format_time(due_ms)) for due_ms in some]
            self.bench.client.schedule_many(messages)
