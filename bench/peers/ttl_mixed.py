"""The same queue for all delays: each message has its own expiration, and waits for its turn."""

from __future__ import annotations

import time
from itertools import repeat

from bench.lateness import Lateness
from bench.peers.peer import DAY_S, dice
from bench.peers.publishing import To, late_through, persistent, publish, ready
from bench.peers.ttl import AtLeastOnce
from bench.rig import quorum_queue
from tests.rigs.bridge import rabbitmq_channel

DELAYS_S = (1, 4)  # each whole number of seconds between them is as likely
PATIENT_S = 3.0  # how long a message that is due may stay away until it counts as held back


class Mixed(AtLeastOnce):
    """No time to live of the queue; dead letters at least once."""

    name = "TTL queue, mixed delays"

    def open(self) -> None:
        """One queue."""
        self.told = ""
        self.target = self.stack.enter_context(quorum_queue(self.url))
        self.queue = self.stack.enter_context(self.delaying(self.target))
        self.note = f"delays of {DELAYS_S[0]} to {DELAYS_S[1]} s: a short one waits for a long one"

    def fill(self, count: int) -> float:
        """To that queue."""
        to = To("", self.queue, persistent(expiration=str(DAY_S * 1000)))
        return count / publish(self.url, repeat(to, count))

    def late(self, rate: int, seconds: float) -> Lateness | str:
        """Delays by chance, as long as none lies there that is due tomorrow."""
        if self.pending:
            self.told = self.told or self._held_back()
            return self.told
        delays = dice()

        def message(now_s: float) -> tuple[To, float]:
            delay_s = delays.randint(*DELAYS_S)
            to = To("", self.queue, persistent(expiration=str(delay_s * 1000)))
            return to, now_s + delay_s

        return late_through(self.url, self.target, rate, seconds, message)

    def _held_back(self) -> str:
        some, delay_s = 100, DELAYS_S[0]
        to = To("", self.queue, persistent(expiration=str(delay_s * 1000)))
        publish(self.url, repeat(to, some))
        time.sleep(delay_s + PATIENT_S)
        with rabbitmq_channel(self.url) as channel:
            came = ready(channel, self.target)
        if came:
            raise RuntimeError(f"{came} of {some} came before one that is due tomorrow")
        return "cannot: they wait until tomorrow"
