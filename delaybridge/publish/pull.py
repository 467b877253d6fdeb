"""Pull topics: nothing is sent; a due message waits in the store until a consumer receives it."""

from __future__ import annotations

from collections.abc import Sequence

from delaybridge.message import PULL, Delivery, Destination
from delaybridge.publish import Report
from delaybridge.publish.link import Reports


class PullPublisher:
    """A `Publisher` that takes everything: its copies are offered, not settled."""

    name = PULL
    unavailable: str | None = None

    def __init__(self, report: Report) -> None:
        self._reports = Reports(report)

    async def connect(self) -> None:
        """There is nothing to connect to."""

    def publish(self, deliveries: Sequence[Delivery]) -> None:
        """Report all of them as confirmed."""
        self._reports.confirmed(deliveries)

    async def check(self, destination: Destination) -> str | None:
        """None: every topic exists here."""
        return None

    def describe(self) -> str:
        """What it is, for people."""
        return "pull: consumers receive from the store"

    async def close(self, timeout_s: float) -> None:
        """Report what is not reported yet."""
        self._reports.flush()
