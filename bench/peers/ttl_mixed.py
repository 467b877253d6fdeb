"""One queue for all delays: each message has its own expiration, but leaves only at the head."""

from __future__ import annotations

import time
from itertools import repeat

from bench.lateness import Lateness
from bench.peers.peer import DAY_S, seeded_random
from bench.peers.publishing import To, persistent, publish, queue_lateness, ready
from bench.peers.ttl import AtLeastOnce
from bench.rig import quorum_queue
from tests.rigs.bridge import rabbitmq_channel

DELAYS_S = (1, 4)  # delays are whole seconds from 1 to 4, all equally likely
HELD_BACK_S = 3.0  # how late a message must be to count as held back


class MixedDelays(AtLeastOnce):
    """The queue has no time to live; dead letters move at least once."""

    name = "TTL queue, mixed delays"
    cannot = "cancel, reschedule, look up; pass a message that waits longer"

    def open(self) -> None:
        """Declare the queue and its target."""
        self.held_back = ""
        self.target = self.stack.enter_context(quorum_queue(self.url))
        self.queue = self.stack.enter_context(self.delay_queue(self.target))
        self.note = f"delays of {DELAYS_S[0]} to {DELAYS_S[1]} s"

    def fill(self, count: int) -> float:
        """Publish with an expiration of one day."""
        to = To("", self.queue, persistent(expiration=str(DAY_S * 1000)))
        return count / publish(self.url, repeat(to, count))

    def lateness(self, rate: int, seconds: float) -> Lateness | str:
        """Delays are random. Behind messages that are due tomorrow, there is no figure."""
        if self.pending:
            self.held_back = self.held_back or self._check_held_back()
            return self.held_back
        delays = seeded_random()

        def message(now_s: float) -> tuple[To, float]:
            delay_s = delays.randint(*DELAYS_S)
            to = To("", self.queue, persistent(expiration=str(delay_s * 1000)))
            return to, now_s + delay_s

        return queue_lateness(self.url, self.target, rate, seconds, message)

    def _check_held_back(self) -> str:
        some, delay_s = 100, DELAYS_S[0]
        to = To("", self.queue, persistent(expiration=str(delay_s * 1000)))
        publish(self.url, repeat(to, some))
        time.sleep(delay_s + HELD_BACK_S)
        with rabbitmq_channel(self.url) as channel:
            arrived = ready(channel, self.target)
        if arrived:
            raise RuntimeError(f"{arrived} of {some} overtook messages due tomorrow")
        return "cannot: they wait until tomorrow"
