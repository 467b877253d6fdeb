"""A publisher without a link, above all a third party's: whatever it does, outcomes come."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from delaybridge.message import Delivery, Destination
from delaybridge.publish import Fault, Outcome, Publisher, Report, Verdict
from delaybridge.publish.link import UNCONFIRMED, Owed, failure

CLOSE_S = 1.0  # beyond what it was given; then it is left
OVERDUE = 1.5  # confirm time-outs: by then the publisher should have said so itself


class GuardedPublisher:
    """A `Publisher` around another: each delivery gets one outcome, whatever that one does."""

    def __init__(
        self, make: Callable[[Report], Publisher], report: Report, confirm_timeout_s: float
    ) -> None:
        """make: the publisher, which is to report as it is told."""
        self._owed = Owed(report)
        self._made = make(self._owed.report)
        self._overdue_s = confirm_timeout_s * OVERDUE
        self._batches: deque[tuple[float, Sequence[Delivery]]] = deque()  # when handed over
        self._timer: asyncio.TimerHandle | None = None

    @property
    def name(self) -> str:
        """The broker's name in the settings."""
        return self._made.name

    @property
    def unavailable(self) -> str | None:
        """Why the broker takes nothing now."""
        return self._made.unavailable

    async def connect(self) -> None:
        """Try once to connect; PublishUnavailable if that failed."""
        await self._made.connect()

    def publish(self, deliveries: Sequence[Delivery]) -> None:
        """Hand a batch over. What it raises makes the outcome unknown, in a later turn."""
        loop = asyncio.get_running_loop()
        self._owed.add(deliveries)
        self._forget_answered()
        self._batches.append((loop.time(), deliveries))
        if self._timer is None:
            self._timer = loop.call_later(self._overdue_s, self._expire)
        try:
            self._made.publish(deliveries)
        except Exception as exc:
            loop.call_soon(self._owed.report, deliveries, failure(self.name, exc))

    async def check(self, destination: Destination) -> str | None:
        """The reason why this destination would refuse a message now."""
        return await self._made.check(destination)

    async def limits(self) -> dict[str, int]:
        """Its limits, if it tells any."""
        asked = getattr(self._made, "limits", None)
        return {} if asked is None else await asked()

    def describe(self) -> str:
        """One line for people, without secrets."""
        return self._made.describe()

    async def close(self, timeout_s: float) -> None:
        """Close it; what it does not report by then is unknown."""
        outcome = Outcome(Verdict.UNKNOWN, UNCONFIRMED, Fault.BROKER)
        try:
            async with asyncio.timeout(timeout_s + CLOSE_S):
                await self._made.close(timeout_s)
        except Exception as exc:
            outcome = failure(self.name, exc)
        self._owed.report(self._owed.left, outcome)
        if self._timer is not None:
            self._timer.cancel()

    def _forget_answered(self) -> None:
        while self._batches and not self._owed.has_any_of(self._batches[0][1]):
            self._batches.popleft()

    def _expire(self) -> None:
        """Give up what is overdue: the task that had it may have died without a word."""
        loop = asyncio.get_running_loop()
        self._timer = None
        outcome = Outcome(Verdict.UNKNOWN, f"confirm_timeout: none within {self._overdue_s:g} s")
        self._forget_answered()
        while self._batches and self._batches[0][0] + self._overdue_s <= loop.time():
            self._owed.report(self._batches.popleft()[1], outcome)
            self._forget_answered()
        if self._batches:
            self._timer = loop.call_at(self._batches[0][0] + self._overdue_s, self._expire)
