"""Counting: a process' totals for its reports, and what workers make of them."""

from __future__ import annotations

from typing import Any

from delaybridge.operate.metrics.counts import Counts
from delaybridge.worker.eventlog import Listeners
from delaybridge.worker.parts import Part


class Counting(Part):
    """Counts the events of a process; `counts` is shared with the parts that read them."""

    name = "counting"

    def __init__(self) -> None:
        self.counts = Counts()

    def join(self, listeners: Listeners) -> None:
        """Count every event from now on."""
        listeners.join(self.counts)

    def report(self, said: dict[str, Any]) -> None:
        """Its totals, as they are now."""
        said["totals"], said["histograms"] = self.counts.copy()
