"""A broker in memory, for tests: it records publishes and gives scripted answers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from delaybridge.message import Delivery, Destination
from delaybridge.publish import CONFIRMED, Fault, Outcome, Report, Verdict
from delaybridge.publish.link import Reports, broker_refusal


class MemoryPublisher:
    """A `Publisher` for memory://, which reaches no network.

    published: everything confirmed, in order. next_outcomes: scripted outcomes, one per delivery;
    when they are used up, deliveries are CONFIRMED. hold: keep deliveries in `held` until
    `confirm` is called.
    """

    def __init__(
        self, name: str, url: str, *, report: Report, on_change: Callable[[], None], options: Any
    ) -> None:
        self.name = name
        self.published: list[Delivery] = []
        self.held: deque[Delivery] = deque()
        self.hold = False
        self.next_outcomes: deque[Outcome] = deque()
        self._reports = Reports(report)
        self._on_change = on_change
        self._unavailable: str | None = None

    @property
    def unavailable(self) -> str | None:
        """The reason why nothing is taken now. Set it to start an outage, to None to end it."""
        return self._unavailable

    @unavailable.setter
    def unavailable(self, reason: str | None) -> None:
        if reason != self._unavailable:
            self._unavailable = reason
            self._on_change()

    async def connect(self) -> None:
        """There is nothing to connect to."""

    def publish(self, deliveries: Sequence[Delivery]) -> None:
        """Confirm them, or give the scripted outcomes; nothing yet while `hold` is set."""
        if self.unavailable is not None:
            self._reports.add(deliveries, broker_refusal(self.unavailable))
            return
        self.held.extend(deliveries)
        if not self.hold:
            self.confirm()

    def confirm(self, count: int | None = None) -> None:
        """Answer the first `count` held deliveries, all by default."""
        for _ in range(len(self.held) if count is None else min(count, len(self.held))):
            delivery = self.held.popleft()
            outcome = self.next_outcomes.popleft() if self.next_outcomes else CONFIRMED
            if outcome.verdict is Verdict.CONFIRMED:
                self.published.append(delivery)
            self._reports.add([delivery], outcome)

    def lose(self, reason: str = "connection_lost: told to") -> None:
        """End all held deliveries as a lost connection would."""
        held, self.held = self.held, deque()
        self._reports.add(held, Outcome(Verdict.UNKNOWN, reason, Fault.BROKER))

    async def check(self, destination: Destination) -> str | None:
        """None: every destination exists here."""
        return self.unavailable

    def describe(self) -> str:
        """What it is, for people."""
        return "memory: nothing leaves this process"

    async def close(self, timeout_s: float) -> None:
        """Report held deliveries UNKNOWN, and refuse from now on."""
        self.unavailable = "not_connected: closed"
        self.lose("closed: before it was confirmed")
        self._reports.flush()


publisher = MemoryPublisher
