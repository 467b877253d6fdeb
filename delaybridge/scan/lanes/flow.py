"""Flow and circuit: how many messages a destination may have in flight, and whether any at all.

Messages in flight may be delivered twice after a fault, and a message that is not confirmed within
the confirm time-out counts as a failed attempt. So a destination that confirms 50 messages a second
is handed a few dozen at a time, and a fast one thousands.

The rule is TCP Vegas' (Brakmo & Peterson 1995): the time from hand-over to confirm, beyond the
shortest one seen, is time spent in a queue. While that time is short, the limit grows by the number
confirmed, or to what would be confirmed within 100 ms at the rate of that batch, if that is more,
but to four times as many at most; when it is long, Little's law (in flight = rate x delay) says
what the limit must be.
"""

from __future__ import annotations

from collections import deque
from enum import StrEnum
from math import inf

from delaybridge.scan.lanes.retry import Random, check_waits, wait_ms

FIRST = 128  # at the start: few enough for a slow destination, enough for a fast one
LEAST = 8
STALLED_MS = 500  # a destination with messages in flight and no outcome for longer is stalled
_IDLE_MS = 1000  # a destination idle for longer may have changed: start from FIRST again
CIRCUIT_FACTOR = 2.0
_STEP = 4  # times the limit, at most, after one batch: it may have been a burst
_SHORT_MS, _TARGET_MS, _LONG_MS = 100, 300, 500  # time queued: grow below, aim for, cut above


class Flow:
    """Counts the messages one destination has in flight, and learns how many it should have.

    limit: the most it should have. in_flight: handed over, and no outcome yet. moved_ms: when an
    outcome last came, or the first message was handed over since. Destinations answer in order, or
    nearly so, so delays are measured by batch and nothing is kept for each message.
    """

    def __init__(self, most: int, now_ms: int) -> None:
        """most: upper bound of the limit."""
        self.limit = min(FIRST, most)
        self.in_flight = 0
        self.moved_ms = now_ms
        self._most = most
        self._handed_over = self._answered = 0
        # Batches that lack outcomes: (messages handed over until then, when, in flight then, load).
        self._batches: deque[tuple[int, int, int, int]] = deque()
        self._grows = True  # the last batch to be answered did not wait in a queue
        self._shortest_ms = inf
        self._alone_ms: int | None = None  # when a batch found nothing in flight before it
        self._begun_ms = now_ms  # when such a batch got its first answer

    @property
    def has_room(self) -> bool:
        """Whether the broker may be given at least an eighth of the limit: less is not worth it."""
        return 8 * (self.limit - self.in_flight) >= self.limit

    def handed_over(self, messages: int, now_ms: int, load: int = 0) -> None:
        """The broker was given a batch. load: messages in flight or on their way there."""
        if self.in_flight == 0:
            if now_ms - self.moved_ms > _IDLE_MS:
                self.limit, self._grows = min(self.limit, FIRST), True
            self.moved_ms = self._alone_ms = now_ms
        self.in_flight += messages
        self._handed_over += messages
        batch = self._handed_over, now_ms, self.in_flight, max(load, self.in_flight)
        self._batches.append(batch)

    def answered(self, messages: int, now_ms: int) -> list[int]:
        """Outcomes came, good or bad; returns how long each batch took that is answered now."""
        self.in_flight -= messages
        self._answered += messages
        self.moved_ms = now_ms
        if self._alone_ms is not None:  # the first answer, to a batch that waited behind no other
            self._shortest_ms = min(self._shortest_ms, max(0, now_ms - self._alone_ms))
            self._alone_ms, self._begun_ms = None, now_ms
        took_ms = []
        while self._batches and self._batches[0][0] <= self._answered:
            _, since_ms, in_flight, load = self._batches.popleft()
            # The clock may be set back a little.
            took_ms.append(max(0, now_ms - since_ms))
            self._learn(took_ms[-1], in_flight, load)
        return took_ms

    def _learn(self, delay_ms: int, in_flight: int, load: int) -> None:
        """A batch took this long. in_flight: messages in flight with it, itself included.

        A fast broker has few in flight while the others are being fired: load tells whether the
        limit was used.
        """
        if in_flight <= LEAST:
            self._shortest_ms = delay_ms  # no queue: this is the round trip now
        else:
            self._shortest_ms = min(self._shortest_ms, delay_ms)
        queued_ms = delay_ms - self._shortest_ms
        self._grows = queued_ms <= _SHORT_MS
        if self._grows and 2 * load >= self.limit:
            in_time = min(in_flight * _SHORT_MS // max(1, delay_ms), _STEP * self.limit)
            self.limit = min(self._most, max(self.limit + in_flight, in_time))
        elif queued_ms > _LONG_MS:
            target_ms = self._shortest_ms + _TARGET_MS
            self.limit = max(LEAST, min(self.limit, int(in_flight * target_ms / delay_ms)))

    def clock_stepped(self, step_ms: int) -> None:
        """The store's clock was set: shift all times."""
        self.moved_ms += step_ms
        self._begun_ms += step_ms
        if self._alone_ms is not None:
            self._alone_ms += step_ms
        self._batches = deque((at, ms + step_ms, n, load) for at, ms, n, load in self._batches)

    def clear_ms(self, messages: int, now_ms: int, *, patient: bool = False) -> float:
        """Estimates how long it takes to confirm that many more.

        patient: the time until its first answer does not count, in which its channel may have been
        opened; and while the limit grows it is not slow: that few are in flight says nothing then.
        """
        if not self._batches or (patient and self._alone_ms is not None):
            return 0.0
        _, since_ms, in_flight, _ = self._batches[0]
        if patient:
            since_ms = max(since_ms, self._begun_ms)
            if self._grows and now_ms - since_ms <= _LONG_MS:
                return 0.0
        return messages * (now_ms - since_ms) / in_flight

    def is_stalled(self, now_ms: int) -> bool:
        """Whether the destination has messages and has stopped answering."""
        return self.in_flight > 0 and now_ms - self.moved_ms > STALLED_MS


class CircuitState(StrEnum):
    CLOSED = "closed"  # the destination takes messages
    OPEN = "open"  # it does not: its messages are parked until it is time to probe
    PROBING = "probing"  # a handful is on its way; its outcome decides


class Circuit:
    """Keeps messages away from one destination that fails, and lets a handful through to probe it.

    While `is_open`, park due messages, except for a handful each time `probe` says True. The first
    failure opens the circuit; each failed probe doubles the wait for the next, from `base_ms` up to
    `max_ms`, give or take the share `jitter`. Messages already on their way when it opened change
    nothing when they fail: a burst of failures counts as one.

    Times are in ms, on any one clock of the caller's.
    """

    def __init__(
        self, random: Random, *, base_ms: int = 1000, max_ms: int = 30_000, jitter: float = 0.2
    ) -> None:
        check_waits(base_ms, max_ms, jitter)
        self._random = random
        self._base_ms = base_ms
        self._max_ms = max_ms
        self._jitter = jitter
        self._failures = 0
        self._wait_ms = 0
        self.state = CircuitState.CLOSED
        self.reason: str | None = None
        """Why it opened: the reason of the last failure that counted; None while closed."""
        self.probe_at_ms: int | None = None
        """When `probe` says True next; None while closed."""

    @property
    def is_open(self) -> bool:
        """Messages are to be parked: the circuit is open, or a probe has no outcome yet."""
        return self.state is not CircuitState.CLOSED

    def fail(self, now_ms: int, reason: str) -> bool:
        """The destination failed. True: that opened the circuit, or opened it again."""
        if self.state is CircuitState.OPEN:
            return False
        self.state = CircuitState.OPEN
        self.reason = reason
        self._failures += 1
        self._wait_ms = wait_ms(
            self._failures, self._base_ms, CIRCUIT_FACTOR, self._max_ms, self._jitter, self._random
        )
        self.probe_at_ms = now_ms + self._wait_ms
        return True

    def probe(self, now_ms: int) -> bool:
        """True once when it is time: a handful may pass, and no more until its outcome is known.

        A probe without outcome after one more wait (its messages were cancelled, or went to another
        worker) is given up, and the next one may pass.
        """
        if self.probe_at_ms is None or now_ms < self.probe_at_ms:
            return False
        self.state = CircuitState.PROBING
        self.probe_at_ms = now_ms + self._wait_ms
        return True

    def clock_stepped(self, step_ms: int) -> None:
        """The clock was set: shift all times."""
        if self.probe_at_ms is not None:
            self.probe_at_ms += step_ms

    def succeed(self) -> bool:
        """It took a message, or answered a probe: close. True: it was open, so unpark the rest."""
        was_open = self.is_open
        self.state = CircuitState.CLOSED
        self.reason = None
        self.probe_at_ms = None
        self._failures = 0
        return was_open
