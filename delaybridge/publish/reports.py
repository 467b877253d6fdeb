"""How outcomes reach the event loop: gathered for one turn, then reported together."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable

from delaybridge.message import Delivery
from delaybridge.publish import CONFIRMED, Outcome, Report


def call_on_loop(
    loop: asyncio.AbstractEventLoop, callback: Callable[..., None], *arguments: object
) -> None:
    """Call this on the loop, from another thread; nothing happens if the loop has ended."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(callback, *arguments)


class Reports:
    """Hands outcomes to `report`: each once, many in one call, never from inside `publish`."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._gathered: dict[Outcome, list[Delivery]] = {}

    def add(self, deliveries: Iterable[Delivery], outcome: Outcome) -> None:
        """Report soon that these deliveries ended in `outcome`."""
        if not self._gathered:
            asyncio.get_running_loop().call_soon(self.flush)
        self._gathered.setdefault(outcome, []).extend(deliveries)

    def confirmed(self, deliveries: Iterable[Delivery]) -> None:
        """Report soon that the broker has these deliveries."""
        self.add(deliveries, CONFIRMED)

    def flush(self) -> None:
        """Report now, without waiting for the turn to end. A publisher calls it when it closes."""
        while self._gathered:
            outcome = next(iter(self._gathered))
            # Taken out first: a `report` that raises is not called with the same ones again.
            deliveries = self._gathered.pop(outcome)
            try:
                if deliveries:
                    self._report(deliveries, outcome)
            except BaseException:
                if self._gathered:
                    asyncio.get_running_loop().call_soon(self.flush)
                raise
