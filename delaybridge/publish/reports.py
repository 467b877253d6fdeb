"""Outcomes on their way to the scanner: gathered for one turn of the event loop, then reported."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from delaybridge.message import Delivery
from delaybridge.publish import CONFIRMED, Outcome, Report


class Reports:
    """Hand outcomes to `report`, each once, many in one call, never from inside `publish`."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._gathered: dict[Outcome, list[Delivery]] = {}

    def add(self, deliveries: Iterable[Delivery], outcome: Outcome) -> None:
        """They ended in `outcome`."""
        if not self._gathered:
            asyncio.get_running_loop().call_soon(self.flush)
        self._gathered.setdefault(outcome, []).extend(deliveries)

    def confirmed(self, deliveries: Iterable[Delivery]) -> None:
        """The broker has them."""
        self.add(deliveries, CONFIRMED)

    def flush(self) -> None:
        """Report what was gathered, now and not later: for a publisher that closes."""
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
